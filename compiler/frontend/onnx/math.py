"""Converters of arithmetic, comparison, activations, matrix products and reductions."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce as fold
from math import prod

import numpy as np
from tunefarm.compiler.dtypes import is_float
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    axis_of,
    cast,
    dtype_name,
    dtype_of,
    like,
    rank_of,
    reshape,
    shape_of,
    take_slice,
    transpose,
)
from tunefarm.compiler.ir import AttrValue, Constant, Expr


def _plain(op: str, **attrs: AttrValue) -> Converter:
    """One of our operators, with fixed attributes."""
    return lambda node: node.emit(op, *node.all, **attrs)


def _with(op: str, **defaults: float) -> Converter:
    """One of our operators, with ONNX attributes of the same names and their defaults."""

    def convert(node: Node) -> Expr:
        attrs = {name: node.attr(name, value) for name, value in defaults.items()}
        return node.emit(op, *node.all, **attrs)

    return convert


def _variadic(op: str) -> Converter:
    def convert(node: Node) -> Expr:
        return fold(lambda a, b: node.emit(op, a, b), node.all)

    return convert


def _mean(node: Node) -> Expr:
    total = fold(lambda a, b: node.emit("add", a, b), node.all)
    return node.emit("divide", total, like(len(node.inputs), total))


def _abs_like(op: str, float_only: bool = True) -> Converter:
    """A float operator that ONNX also allows on integers, where it changes nothing."""

    def convert(node: Node) -> Expr:
        return node.emit(op, node.x) if is_float(dtype_of(node.x)) else node.x

    return convert


def _power(node: Node) -> Expr:
    base, exponent = node.input(0), node.input(1)
    dtype = dtype_of(base)
    if isinstance(exponent, Constant) and exponent.data.size == 1 and is_float(dtype):
        value = float(exponent.data.reshape(-1)[0])
        if rank_of(exponent) <= rank_of(base):
            if value == 2:
                return node.emit("multiply", base, base)
            if value == 0.5:
                return node.emit("sqrt", base)
            if value == 1:
                return base
    other = dtype_of(exponent)
    if other == dtype:
        return node.emit("power", base, exponent)
    common = np.promote_types(dtype, other).name if "bfloat16" not in (dtype, other) else "float32"
    return cast(node.emit("power", cast(base, common), cast(exponent, common)), dtype)


def _modulo(node: Node) -> Expr:
    return node.emit("remainder" if node.attr("fmod", 0) else "modulo", *node.all)


def _bit_shift(node: Node) -> Expr:
    direction = node.required("direction")
    return node.emit("left_shift" if direction == "LEFT" else "right_shift", *node.all)


def _clip(node: Node) -> Expr:
    x, dtype = node.x, dtype_of(node.x)
    if node.opset < 11:
        return node.emit("clip", x, min=node.attr("min"), max=node.attr("max"))
    bounds = [node.input(i) if node.has(i) else None for i in (1, 2)]
    known = [b for b in bounds if b is None or isinstance(b, Constant)]
    if len(known) == len(bounds):
        scalar = float if is_float(dtype) else int
        low, high = (None if b is None else scalar(b.data.reshape(-1)[0]) for b in known)
        return x if low is None and high is None else node.emit("clip", x, min=low, max=high)
    for bound, op in zip(bounds, ("maximum", "minimum"), strict=True):
        if bound is not None:
            x = node.emit(op, x, reshape(bound, ()))
    return x


def _elu_like(alpha: float, gamma: float) -> Converter:
    def convert(node: Node) -> Expr:
        return node.emit(
            "elu", node.x, alpha=node.attr("alpha", alpha), gamma=node.attr("gamma", gamma)
        )

    return convert


def _gelu(node: Node) -> Expr:
    return node.emit("gelu", node.x, approximate=node.attr("approximate", "none") == "tanh")


def _prelu(node: Node) -> Expr:
    x, slope = node.input(0), node.input(1)
    return node.emit("prelu", x, slope)


def _shrink(node: Node) -> Expr:
    x, dtype = node.x, dtype_of(node.x)
    inner = dtype if is_float(dtype) else "float64"
    threshold, bias = node.attr("lambd", 0.5), node.attr("bias", 0.0)
    return cast(node.emit("shrink", cast(x, inner), threshold=threshold, bias=bias), dtype)


def _isinf(node: Node) -> Expr:
    return node.emit(
        "isinf",
        node.x,
        negative=bool(node.attr("detect_negative", 1)),
        positive=bool(node.attr("detect_positive", 1)),
    )


def _cast(node: Node) -> Expr:
    target = dtype_name(node.required("to"))
    return cast(node.x, target, node.name)


def _cast_like(node: Node) -> Expr:
    return cast(node.x, dtype_of(node.input(1)), node.name)


def matmul(node: Node, a: Expr, b: Expr) -> Expr:
    """NumPy's matmul, in which a vector is a row on the left and a column on the right."""
    left, right = rank_of(a) == 1, rank_of(b) == 1
    if left:
        a = reshape(a, (1, *shape_of(a)))
    if right:
        b = reshape(b, (*shape_of(b), 1))
    y = node.emit("matmul", a, b)
    shape = list(shape_of(y))
    if right:
        del shape[-1]
    if left:
        del shape[-1 if right else -2]
    return reshape(y, shape)


def _gemm(node: Node) -> Expr:
    y = node.emit(
        "matmul",
        node.input(0),
        node.input(1),
        transpose_a=bool(node.attr("transA", 0)),
        transpose_b=bool(node.attr("transB", 0)),
    )
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    y = y if alpha == 1 else node.emit("multiply", y, like(alpha, y))
    if not node.has(2) or beta == 0:
        return y
    bias = node.input(2)
    bias = bias if beta == 1 else node.emit("multiply", bias, like(beta, bias))
    return node.emit("add", y, bias)


def _einsum(node: Node) -> Expr:
    terms, result = einsum_terms(str(node.required("equation")), [rank_of(x) for x in node.all])
    operands = list(node.all)
    for i, term in enumerate(terms):
        operands[i], terms[i] = _diagonal(operands[i], term)
    if len(terms) == 2:
        product = _as_matmul(node, terms[0], operands[0], terms[1], operands[1], result)
        if product is not None:
            return product
    return node.emit("einsum", *operands, equation=",".join(terms) + "->" + result)


def einsum_terms(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """The labels of each operand and of the result, an ellipsis written out in free letters."""
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise Unsupported(f"the equation {equation!r} does not name {len(ranks)} operands")
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
    counts = [r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True)]
    widest = max((c for t, c in zip(terms, counts, strict=True) if "..." in t), default=0)
    dots = "".join(free[:widest])
    if any(c < 0 or (c and "..." not in t) for t, c in zip(terms, counts, strict=True)):
        raise Unsupported(f"the equation {equation!r} does not fit operands of ranks {ranks}")
    terms = [
        t.replace("...", dots[widest - c :] if c else "")
        for t, c in zip(terms, counts, strict=True)
    ]
    if not arrow:
        letters = "".join(t for t in left.replace("...", "").split(","))
        result = ("..." if "..." in left else "") + "".join(
            sorted(c for c in set(letters) if letters.count(c) == 1)
        )
    return terms, result.replace("...", dots)


def _diagonal(x: Expr, term: str) -> tuple[Expr, str]:
    """Take the diagonal of the dimensions that share a label: "iij" → "ij"."""
    for label in set(term):
        while term.count(label) > 1:
            first = term.index(label)
            second = term.index(label, first + 1)
            n = shape_of(x)[first]
            order = [d for d in range(len(term)) if d not in (first, second)] + [first, second]
            x = transpose(x, order)
            rest = shape_of(x)[:-2]
            x = reshape(x, (*rest, n * n))
            x = take_slice(x, [0] * len(rest) + [0], [*rest, n], [1] * len(rest) + [n + 1])
            term = "".join(term[d] for d in order[:-1])
    return x, term


def _as_matmul(node: Node, left: str, a: Expr, right: str, b: Expr, result: str) -> Expr | None:
    """Two operands as one batched product of matrices; None where an index is summed alone."""
    extents = {**dict(zip(left, shape_of(a), strict=True)), **dict(zip(right, shape_of(b)))}  # noqa: B905
    if any(extents[c] != e for c, e in zip(left, shape_of(a), strict=True)):
        return None
    batch = [c for c in result if c in left and c in right]
    rows = [c for c in result if c in left and c not in right]
    columns = [c for c in result if c in right and c not in left]
    summed = [c for c in left if c in right and c not in result]
    if not summed or len(batch + rows + summed) != len(left):
        return None
    if len(batch + columns + summed) != len(right):
        return None

    def matrix(x: Expr, term: str, *groups: list[str]) -> Expr:
        order = [term.index(c) for c in batch + groups[0] + groups[1]]
        sizes = [prod(extents[c] for c in g) for g in groups]
        return reshape(transpose(x, order), [*(extents[c] for c in batch), *sizes])

    y = node.emit("matmul", matrix(a, left, rows, summed), matrix(b, right, summed, columns))
    labels = batch + rows + columns
    y = reshape(y, [extents[c] for c in labels])
    return transpose(y, [labels.index(c) for c in result])


def reduce_axes(node: Node, attr_until: int) -> tuple[int, ...] | None:
    """The axes of a reduction: an attribute before opset ``attr_until``, then input 1.

    None leaves the tensor as it is (an empty list with ``noop_with_empty_axes``).
    """
    rank = rank_of(node.x)
    if node.opset < attr_until or "axes" in node.attrs:
        axes = node.attr("axes")
    else:
        axes = node.ints(1, "the axes") if node.has(1) else None
    if axes is None or len(axes) == 0:
        if node.attr("noop_with_empty_axes", 0):
            return None
        return tuple(range(rank))
    return tuple(sorted({axis_of(int(a), rank) for a in axes}))


def _reduction(
    make: Callable[[Node, Expr, tuple[int, ...], bool], Expr],
    noop: Callable[[Node, Expr], Expr] = lambda node, x: x,
    attr_until: int = 18,
) -> Converter:
    def convert(node: Node) -> Expr:
        axes = reduce_axes(node, attr_until)
        if axes is None:
            return noop(node, node.x)
        return make(node, node.x, axes, bool(node.attr("keepdims", 1)))

    return convert


def _reduce(node: Node, op: str, x: Expr, axes: tuple[int, ...], keepdims: bool) -> Expr:
    return node.emit(op, x, axes=axes, keepdims=keepdims) if axes else x


def _extreme(op: str, on_bool: str) -> Callable[[Node, Expr, tuple[int, ...], bool], Expr]:
    return lambda node, x, axes, keep: _reduce(
        node, on_bool if dtype_of(x) == "bool" else op, x, axes, keep
    )


def _square(node: Node, x: Expr) -> Expr:
    return node.emit("multiply", x, x)


def _integer_mean(node: Node, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
    if is_float(dtype_of(x)):
        return _reduce(node, "mean", x, axes, keep)
    total = _reduce(node, "sum", x, axes, keep)
    count = prod(shape_of(x)[a] for a in axes)
    return node.emit("divide", total, like(count, total))


def _sqrt(node: Node, x: Expr) -> Expr:
    dtype = dtype_of(x)
    if is_float(dtype):
        return node.emit("sqrt", x)
    return cast(node.emit("sqrt", cast(x, "float64")), dtype)


def _log_sum_exp(node: Node, x: Expr, axes: tuple[int, ...], keep: bool) -> Expr:
    """max + log Σ exp(x − max), without overflow."""
    if not axes:
        return x
    dtype = dtype_of(x)
    x = cast(x, dtype if is_float(dtype) else "float64")
    if 0 in shape_of(x):
        return cast(node.emit("log", _reduce(node, "sum", node.emit("exp", x), axes, keep)), dtype)
    top = node.emit("max", x, axes=axes, keepdims=True)
    finite = node.emit("where", node.emit("isinf", top), like(0, top), top)
    powers = node.emit("exp", node.emit("subtract", x, finite))
    total = node.emit("log", node.emit("sum", powers, axes=axes, keepdims=True))
    y = node.emit("add", total, finite)
    kept = [e for d, e in enumerate(shape_of(y)) if keep or d not in axes]
    return cast(reshape(y, kept), dtype)


def _log(node: Node, x: Expr) -> Expr:
    dtype = dtype_of(x)
    inner = dtype if is_float(dtype) else "float64"
    return cast(node.emit("log", cast(x, inner)), dtype)


def _arg_extreme(op: str) -> Converter:
    def convert(node: Node) -> Expr:
        return node.emit(
            op,
            node.x,
            axis=axis_of(node.attr("axis", 0), rank_of(node.x)),
            keepdims=bool(node.attr("keepdims", 1)),
            last=bool(node.attr("select_last_index", 0)),
        )

    return convert


def _running(op: str) -> Converter:
    def convert(node: Node) -> Expr:
        (axis,) = node.ints(1, "the axis")
        return node.emit(
            op,
            node.x,
            axis=axis_of(axis, rank_of(node.x)),
            exclusive=bool(node.attr("exclusive", 0)),
            reverse=bool(node.attr("reverse", 0)),
        )

    return convert


def _topk(node: Node) -> tuple[Expr, Expr]:
    x = node.x
    axis = axis_of(node.attr("axis", -1), rank_of(x))
    k = node.attr("k") if node.opset < 10 else node.ints(1, "k")[0]
    places = node.emit(
        "topk_indices", x, axis=axis, k=int(k), largest=bool(node.attr("largest", 1))
    )
    return node.emit("gather_elements", x, places, axis=axis), places


def _hardmax(node: Node) -> Expr:
    from tunefarm.compiler.frontend.onnx.nn import on_rows

    def convert(x: Expr, axis: int) -> Expr:
        top = node.emit("argmax", x, axis=axis, keepdims=True)
        extent, rank = shape_of(x)[axis], rank_of(x)
        places = like(np.arange(extent), top)
        places_shaped = reshape(places, [extent if d == axis else 1 for d in range(rank)])
        return cast(node.emit("equal", places_shaped, top), dtype_of(x))

    return on_rows(node, convert)


def _det(node: Node) -> Expr:
    """The determinant of small matrices, by expansion along the first row."""
    x = node.x
    *outer, n, m = shape_of(x)
    if n != m or n > 4:
        raise Unsupported(f"a determinant of {n}×{m} matrices; only up to 4×4 are supported")

    def element(i: int, j: int) -> Expr:
        begin = [0] * len(outer) + [i, j]
        return reshape(take_slice(x, begin, [*outer, 1, 1]), outer)

    def minor(row: int, columns: tuple[int, ...]) -> Expr:
        if len(columns) == 1:
            return element(row, columns[0])
        total: Expr | None = None
        for p, j in enumerate(columns):
            rest = minor(row + 1, columns[:p] + columns[p + 1 :])
            term = node.emit("multiply", element(row, j), rest)
            if total is None:
                total = term
            else:
                total = node.emit("subtract" if p % 2 else "add", total, term)
        assert total is not None
        return total

    return minor(0, tuple(range(n)))


_UNARY = {
    "Abs": "abs", "Neg": "negative", "Exp": "exp", "Log": "log", "Sqrt": "sqrt",
    "Reciprocal": "reciprocal", "Sign": "sign", "Sin": "sin", "Cos": "cos", "Tan": "tan",
    "Asin": "asin", "Acos": "acos", "Atan": "atan", "Sinh": "sinh", "Cosh": "cosh",
    "Tanh": "tanh", "Asinh": "asinh", "Acosh": "acosh", "Atanh": "atanh", "Erf": "erf",
    "Sigmoid": "sigmoid", "Relu": "relu", "HardSwish": "hard_swish", "Mish": "mish",
    "Softplus": "softplus", "Softsign": "softsign", "Not": "logical_not", "IsNaN": "isnan",
    "BitwiseNot": "bitwise_not",
}  # fmt: skip
_BINARY = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "Equal": "equal",
    "Less": "less", "LessOrEqual": "less_equal", "Greater": "greater",
    "GreaterOrEqual": "greater_equal", "And": "logical_and", "Or": "logical_or",
    "Xor": "logical_xor", "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor", "Where": "where",
}  # fmt: skip

CONVERTERS: dict[str, Converter] = {
    **{name: _plain(op) for name, op in {**_UNARY, **_BINARY}.items()},
    "Floor": _abs_like("floor"),
    "Ceil": _abs_like("ceil"),
    "Round": _abs_like("round"),
    "Sum": _variadic("add"),
    "Max": _variadic("maximum"),
    "Min": _variadic("minimum"),
    "Mean": _mean,
    "Pow": _power,
    "Mod": _modulo,
    "BitShift": _bit_shift,
    "Clip": _clip,
    "LeakyRelu": _with("leaky_relu", alpha=0.01),
    "PRelu": _prelu,
    "Elu": _elu_like(1.0, 1.0),
    "Selu": _elu_like(1.67326319217681884765625, 1.05070102214813232421875),
    "Celu": _with("celu", alpha=1.0),
    "Gelu": _gelu,
    "HardSigmoid": _with("hard_sigmoid", alpha=0.2, beta=0.5),
    "ThresholdedRelu": _with("thresholded_relu", alpha=1.0),
    "Swish": _with("silu", alpha=1.0),
    "Shrink": _shrink,
    "IsInf": _isinf,
    "Cast": _cast,
    "CastLike": _cast_like,
    "MatMul": lambda node: matmul(node, node.input(0), node.input(1)),
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Det": _det,
    "ReduceSum": _reduction(
        lambda node, x, axes, keep: _reduce(node, "sum", x, axes, keep), attr_until=13
    ),
    "ReduceMean": _reduction(_integer_mean),
    "ReduceMax": _reduction(_extreme("max", "any")),
    "ReduceMin": _reduction(_extreme("min", "all")),
    "ReduceProd": _reduction(lambda node, x, axes, keep: _reduce(node, "prod", x, axes, keep)),
    "ReduceL1": _reduction(
        lambda node, x, axes, keep: _reduce(node, "sum", node.emit("abs", x), axes, keep),
        lambda node, x: node.emit("abs", x),
    ),
    "ReduceL2": _reduction(
        lambda node, x, axes, keep: _sqrt(node, _reduce(node, "sum", _square(node, x), axes, keep)),
        lambda node, x: node.emit("abs", x),
    ),
    "ReduceSumSquare": _reduction(
        lambda node, x, axes, keep: _reduce(node, "sum", _square(node, x), axes, keep), _square
    ),
    "ReduceLogSum": _reduction(
        lambda node, x, axes, keep: _log(node, _reduce(node, "sum", x, axes, keep)), _log
    ),
    "ReduceLogSumExp": _reduction(_log_sum_exp),
    "ArgMax": _arg_extreme("argmax"),
    "ArgMin": _arg_extreme("argmin"),
    "CumSum": _running("cumsum"),
    "CumProd": _running("cumprod"),
    "TopK": _topk,
    "Hardmax": _hardmax,
}

"""Converters of arithmetic, comparison, activations and casts."""

from __future__ import annotations

from functools import reduce as fold

import numpy as np
from tunefarm.compiler.dtypes import is_float, numpy_dtype
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Malformed,
    Node,
    Unsupported,
    cast,
    dtype_name,
    dtype_of,
    like,
    rank_of,
    reshape,
)
from tunefarm.compiler.ir import AttrValue, Constant, Expr, tensor_type


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


def _rounding(op: str) -> Converter:
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
    power = node.emit("power", cast(base, common), cast(exponent, common))
    if not is_float(dtype):
        # Truncation must not turn 728.9999999999999 into 728: code's powers are off by a few ulp.
        nudge = Constant(np.asarray(1 + 1e-13, numpy_dtype(common)))
        power = node.emit("multiply", power, nudge)
    return cast(power, dtype)


def _modulo(node: Node) -> Expr:
    return node.emit("remainder" if node.attr("fmod", 0) else "modulo", *node.all)


def _bit_shift(node: Node) -> Expr:
    direction = node.required("direction")
    if direction not in ("LEFT", "RIGHT"):
        raise Malformed(f"direction {direction!r} is neither LEFT nor RIGHT")
    return node.emit("left_shift" if direction == "LEFT" else "right_shift", *node.all)


def _clip(node: Node) -> Expr:
    x, dtype = node.x, dtype_of(node.x)
    if node.opset < 11:
        if not is_float(dtype):
            raise Unsupported(f"takes floating-point numbers before opset 11, not {dtype}")
        return node.emit("clip", x, min=node.attr("min"), max=node.attr("max"))
    bounds = [node.input(i) if node.has(i) else None for i in (1, 2)]
    for i, bound in enumerate(bounds, 1):
        if bound is not None and not _bounds(bound, dtype):
            raise Unsupported(f"bound (input {i}) is {bound.type}, expected one {dtype}")
    known = [b for b in bounds if b is None or isinstance(b, Constant)]
    if len(known) == len(bounds):
        scalar = float if is_float(dtype) else int
        low, high = (None if b is None else scalar(b.data.reshape(-1)[0]) for b in known)
        return x if low is None and high is None else node.emit("clip", x, min=low, max=high)
    for bound, op in zip(bounds, ("maximum", "minimum"), strict=True):
        if bound is not None:
            x = node.emit(op, x, reshape(bound, ()))
    return x


def _bounds(bound: Expr, dtype: str) -> bool:
    """Whether it is one number of the type; of floating-point types another will do."""
    alike = dtype_of(bound) == dtype or (is_float(dtype_of(bound)) and is_float(dtype))
    return alike and tensor_type(bound).size == 1


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
    "Floor": _rounding("floor"),
    "Ceil": _rounding("ceil"),
    "Round": _rounding("round"),
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
}

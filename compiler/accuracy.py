"""How far a kernel's result may be from the reference, element by element.

Rounding errors of a contraction are bounded by |a|·|b|, not by |a·b|, which may cancel to nothing.
So every value v of a fused function carries a magnitude m ≥ |v|, and a result y passes against the
reference r if |y − r| ≤ max(tol(dtype) · m, s), where s is the dtype's smallest number: the small
ones are so far apart. Magnitudes follow the operators:

    linear operators   the same operator on the magnitudes and the absolute weights
    multiply, divide   the product rule
    moves, max, relu   the same operator on the magnitudes, or the largest operand's
    softmax            p · (1 + 2 · the row's largest magnitude), and 2^-125, below which powers
                       may be 0; where a product reads it in 16 bits, another rounding of p, as
                       the powers may be what is rounded
    elementwise f      |f(v)|, and how far f moves if v moves by its own tolerance; of near_silu
                       and near_gelu 2^-11 of the result more, or the last digits of v
    others             the largest magnitude in the result

Rounding numbers to integers, a difference in the last bit may move a value next to the middle
between two quanta to either: a quantised result may be one quantum off, one that is made of such
quanta by more, and what is dequantised again in the same kernel by as many steps. Sums of bytes are
exact, and so are quanta that come of them alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import epsilon_of, is_float, smallest_of, wide
from tunefarm.compiler.ir import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    Tuple,
    TupleGetItem,
    Var,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import packed
from tunefarm.compiler.ops.base import OPS, Pattern
from tunefarm.compiler.ops.quantize import QUANTA

Array: TypeAlias = NDArray[Any]
Arrays: TypeAlias = list[Array]

_TOLERANCE: Mapping[str, float] = {
    "float64": 1e-12,
    "float32": 2e-5,
    "float16": 4e-3,
    "bfloat16": 3e-2,
}

LEAST_POWER = 2.0**-125  # of float32 that a softmax keeps: smaller ones cost time, and add nothing
ROUNDED_POWERS = 2.0**-6  # of |a|·|b|: what rounding powers to bfloat16 instead of p may cost
NEAR = ("near_silu", "near_gelu")  # activations with fewer digits than their dtype
NEAR_SHARE = 2.0**-11  # of a result of near_silu, whose sigmoid has 12 bits
LAST_DIGITS = 2.0**-18  # of what near_gelu multiplies by a polynomial of terms of either sign
SUM_OF_HALVES = 2.0**-8  # of |a|·|b|: what rounding the operands to bfloat16 may cost


def tolerance_of(dtype: str) -> float:
    """Allowed error relative to the magnitude; 0 for integers and booleans, which are exact."""
    return _TOLERANCE.get(dtype, 0.0)


def error_bounds(function: Function, arrays: Sequence[Array]) -> Arrays:
    """For each result, the largest allowed |y − r| of each element (float64)."""
    values, magnitudes = _propagate(function, arrays)
    body = function.body
    if isinstance(body, Tuple):
        pairs = [(values[f][0], magnitudes[f][0]) for f in body.fields]
    else:
        pairs = list(zip(values[body], magnitudes[body], strict=True))
    off = float(_quanta_off(body))
    return [
        np.maximum(tolerance_of(v.dtype.name) * m.astype(np.float64), smallest_of(v.dtype.name))
        if is_float(v.dtype.name)
        else np.full(v.shape, off if v.dtype.name in QUANTA else 0.0)
        for v, m in pairs
    ]


def rounds_numbers(function: Function) -> bool:
    """Whether a function rounds to whole numbers what is not exact: two right kernels may then
    differ by whole quanta."""
    return _quanta_off(function.body) > 0


def _quanta_off(expr: Expr) -> int:
    """By how many quanta a result may be off: one for each time that numbers are rounded, and each
    is up to four of the next, with the scales that ``domains`` draws."""
    times = sum(_quantises_inexact(node) for node in post_order(expr))
    return int((4**times - 1) // 3)


def _quantises_inexact(node: Expr) -> bool:
    """Whether the node quantises what is not exact."""
    if not isinstance(node, Call):
        return False
    rounds = node.op in ("quantize", "requantize") and is_float(tensor_type(node.args[0]).dtype)
    return rounds or node.op == "add_quanta"


def _propagate(
    function: Function, arrays: Sequence[Array]
) -> tuple[dict[Expr, Arrays], dict[Expr, Arrays]]:
    values: dict[Expr, Arrays] = {}
    magnitudes: dict[Expr, Arrays] = {}
    given = dict(zip(function.params, arrays, strict=True))
    for node in post_order(function.body):
        match node:
            case Var() | Constant():
                data = given[node] if isinstance(node, Var) else node.data
                values[node], magnitudes[node] = [data], [_absolute(data)]
            case TupleGetItem():
                values[node] = [values[node.value][node.index]]
                magnitudes[node] = [magnitudes[node.value][node.index]]
            case Call():
                below = [values[a][0] for a in node.args]
                values[node] = _results(node, below)
                with np.errstate(all="ignore"):
                    around = [magnitudes[a][0] for a in node.args]
                    magnitudes[node] = _magnitudes(node, below, around, values[node])
            case Tuple():
                pass
    return values, magnitudes


def _results(node: Call, arrays: Sequence[Array]) -> Arrays:
    made = OPS[str(node.op)].reference(arrays, node.attrs)
    return list(made) if isinstance(made, tuple) else [made]


def _absolute(data: Array) -> Array:
    return np.abs(data) if is_float(data.dtype.name) or data.dtype.kind == "i" else data


Rule: TypeAlias = Callable[[Call, Sequence[Array], Sequence[Array], Array], Array]
"""(call, operands' values, operands' magnitudes, value) → magnitude."""


def _same_operator(node: Call, v: Sequence[Array], m: Sequence[Array], y: Array) -> Array:
    made = np.asarray(OPS[str(node.op)].reference(m, node.attrs))
    if sums_halves(node):
        made = made * (SUM_OF_HALVES / tolerance_of("float32"))
    if rounds_powers(node):
        p = [n for n, operand in enumerate(node.args) if _is_rounded_softmax(operand)]
        rounded = [np.abs(a) if n in p else b for n, (a, b) in enumerate(zip(v, m, strict=True))]
        once = np.asarray(OPS[str(node.op)].reference(rounded, node.attrs))
        made = made + once * (epsilon_of(v[p[0]].dtype.name) / tolerance_of("float32"))
    return made


def rounds_powers(node: Call) -> bool:
    """True for a contraction to float32 of a softmax in 16 bits, of which a kernel may round the
    powers that it divides by their sum."""
    is_wide = node.attrs.get("out_dtype") == "float32"
    return is_wide and any(map(_is_rounded_softmax, node.args))


def _is_rounded_softmax(operand: Expr) -> bool:
    if not isinstance(operand, Call) or operand.op != "cast":
        return False
    source = operand.args[0]
    return isinstance(source, Call) and source.op == "softmax"


def is_near(node: Call) -> bool:
    """True for an activation with fewer digits than its dtype."""
    return node.op in NEAR


def sums_halves(node: Call) -> bool:
    """True for a contraction of float16 to float32, which may sum some of its terms in float16."""
    is_wide = node.attrs.get("out_dtype") == "float32"
    return is_wide and tensor_type(node.args[0]).dtype == "float16"


def _sum(node: Call, v: Sequence[Array], m: Sequence[Array], y: Array) -> Array:
    return np.asarray(np.add(m[0], m[1]))


def _largest(node: Call, v: Sequence[Array], m: Sequence[Array], y: Array) -> Array:
    numbers = [a for a in m if a.dtype != np.bool_]
    result = np.broadcast_to(numbers[0], y.shape)
    for other in numbers[1:]:
        result = np.maximum(result, other)
    return np.asarray(result)


def _quotient(node: Call, v: Sequence[Array], m: Sequence[Array], y: Array) -> Array:
    divisor = np.abs(v[1])
    return np.asarray(m[0] / divisor * (m[1] / divisor))


def _softmax(node: Call, v: Sequence[Array], m: Sequence[Array], y: Array) -> Array:
    axis = node.attrs["axis"]
    assert isinstance(axis, int)
    row = m[0].max(axis=axis, keepdims=True)
    if node.op == "log_softmax":
        return np.asarray(np.abs(y) + 2 * row)
    dtype = y.dtype.name
    lost = LEAST_POWER / tolerance_of(dtype) if wide(dtype) == "float32" else 0.0
    return np.asarray(np.abs(y).astype(np.float64) * (1 + 2 * row) + lost)


def _cast(node: Call, v: Sequence[Array], m: Sequence[Array], y: Array) -> Array:
    """What is given is rounded alike by all."""
    return np.abs(y) if _is_given(node.args[0]) else _sensitivity(node, v, m, y)


def _is_given(expr: Expr) -> bool:
    """Whether an operand of a function is all that an expression moves."""
    while isinstance(expr, Call) and expr.op in ("slice", "reshape", "transpose"):
        expr = expr.args[0]
    return isinstance(expr, Var | Constant)


def _dequantised(node: Call, v: Sequence[Array], m: Sequence[Array], y: Array) -> Array:
    """Quanta that were rounded from numbers in the same kernel may be others."""
    steps = np.abs(v[1]) * _quanta_off(node.args[0])
    return np.asarray(np.abs(y) + np.broadcast_to(steps / tolerance_of("float32"), y.shape))


def _near(node: Call, v: Sequence[Array], m: Sequence[Array], y: Array) -> Array:
    lost = NEAR_SHARE * np.abs(y) if node.op == "near_silu" else LAST_DIGITS * np.abs(v[0])
    return np.asarray(_sensitivity(node, v, m, y) + lost / tolerance_of("float32"))


def _packed(node: Call, v: Sequence[Array], m: Sequence[Array], y: Array) -> Array:
    """Weights and their zero points are subtracted in the sums, and rows are rounded before."""
    x, quanta, scales, *zeros = v
    zero = node.attrs["zero"]
    assert isinstance(zero, (int, float))
    added = [-np.abs(z.astype(np.float32)) for z in zeros]
    attrs = {**node.attrs, "zero": -abs(zero)}
    weights = packed.dequantized([x, quanta, np.abs(scales), *added], attrs)
    rounded = packed.largest_steps(v, attrs) / np.float32(tolerance_of("float32"))
    return np.asarray(np.matmul(m[0] + rounded, weights))


_LINEAR = (
    "conv", "conv_transpose", "matmul", "einsum", "add", "multiply", "sum", "mean", "avg_pool",
    "interpolate", "sample", "cumsum",
)  # fmt: skip
_KEEPING = ("maximum", "minimum", "where", "relu", "abs", "negative", "clip", "leaky_relu", "prelu")
_RULES: dict[str, Rule] = {
    **dict.fromkeys(_LINEAR, _same_operator),
    **dict.fromkeys(_KEEPING, _largest),
    **dict.fromkeys(("max", "max_pool"), _same_operator),
    "cast": _cast,
    "packed_matmul": _packed,
    "dequantize": _dequantised,
    "subtract": _sum,
    "divide": _quotient,
    **dict.fromkeys(NEAR, _near),
    "softmax": _softmax,
    "log_softmax": _softmax,
}


def _magnitudes(
    node: Call, v: Sequence[Array], m: Sequence[Array], results: Sequence[Array]
) -> Arrays:
    y = results[0]
    op = OPS[str(node.op)]
    if len(results) > 1 or not is_float(y.dtype.name):
        return [_absolute(r) for r in results]
    rule = _RULES.get(op.name)
    if rule is not None:
        made = rule(node, v, m, y)
    elif op.pattern is Pattern.INJECTIVE:
        made = _moved(node.attrs, op.name, v, m)
    elif op.pattern in (Pattern.ELEMENTWISE, Pattern.BROADCAST):
        made = _sensitivity(node, v, m, y)
    else:
        made = np.full(y.shape, np.max(np.abs(y), initial=0.0)) + np.abs(y)
    return [np.maximum(made, np.abs(y))]


def _moved(attrs: Attrs, name: str, v: Sequence[Array], m: Sequence[Array]) -> Array:
    """Data moves as it is; index operands keep their values."""
    operands = [b if a.dtype.kind == "f" else a for a, b in zip(v, m, strict=True)]
    made = OPS[name].reference(operands, attrs)
    return np.asarray(made)


def _sensitivity(node: Call, v: Sequence[Array], m: Sequence[Array], y: Array) -> Array:
    """|f(v)| plus how far f moves, in units of the tolerance, if an operand moves by its own."""
    total = np.abs(y.astype(np.float64))
    for index, (value, magnitude) in enumerate(zip(v, m, strict=True)):
        tolerance = tolerance_of(value.dtype.name)
        if not tolerance:
            continue
        for sign in (1, -1):
            moved = list(v)
            moved[index] = (value + sign * tolerance * magnitude).astype(value.dtype)
            change = np.abs(_results(node, moved)[0].astype(np.float64) - y)
            total = total + np.where(np.isfinite(change), change / tolerance, 0.0)
    return total

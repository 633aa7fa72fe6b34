"""Elementwise functions of several tensors, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import DTYPES, FLOATS, INTEGERS, is_float
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, broadcast_shapes, register
from tunefarm.compiler.ops.common import (
    out_type,
    read,
    read_wide,
    require_dtype,
    same_dtype,
    to_dtype,
    widen,
)
from tunefarm.compiler.tir.ir import BinaryOp, Expr, binary

NUMBERS = INTEGERS + FLOATS
_KIND = {
    NUMBERS: "numbers",
    DTYPES: "tensors",
    FLOATS: "floating-point numbers",
    INTEGERS: "integers",
    ("bool",): "booleans",
}


def _binary(
    name: str,
    scalar: Callable[[Expr, Expr], Expr],
    vector: Callable[[Array, Array], Array],
    allowed: tuple[str, ...] = NUMBERS,
    result: str | None = None,
    commutative: bool = False,
) -> Op:
    """An operator whose every element is ``scalar`` of its operands' broadcast elements."""

    def infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
        dtype = same_dtype(types)
        require_dtype(dtype, allowed, _KIND[allowed])
        return TensorType(broadcast_shapes(t.shape for t in types), result or dtype)

    def compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
        (a, b), out = tensors, out_type(type)

        def element(*i: Expr) -> Expr:
            return te.cast(scalar(read_wide(a, i), read_wide(b, i)), out.dtype)

        return te.compute(out.shape, element, name)

    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        a, b = arrays
        with np.errstate(all="ignore"):
            value = np.asarray(vector(widen(a), widen(b)))
        return to_dtype(value, result or a.dtype.name)

    return Op(name, infer, compute, reference, Pattern.BROADCAST, commutative=commutative)


def _op(name: BinaryOp) -> Callable[[Expr, Expr], Expr]:
    return lambda a, b: binary(name, a, b)


def _truncated_quotient(a: Expr, b: Expr) -> Expr:
    """Integer division that rounds toward zero, in terms of floor division."""
    floor = a // b
    if a.dtype.startswith("uint"):
        return floor
    zero, one = te.const(0, a.dtype), te.const(1, a.dtype)
    inexact = binary("ne", floor * b, a)
    negative = binary("ne", a < zero, b < zero)
    return te.if_then_else(inexact & negative, floor + one, floor)


def _truncated_quotient_array(a: Array, b: Array) -> Array:
    safe = np.where(b == 0, np.ones_like(b), b)
    floor = a // safe
    round_up = (floor * safe != a) & ((a < 0) != (safe < 0))
    return np.asarray(floor + round_up.astype(a.dtype))


def _divide(a: Expr, b: Expr) -> Expr:
    return a / b if is_float(a.dtype) else _truncated_quotient(a, b)


def _divide_array(a: Array, b: Array) -> Array:
    return a / b if is_float(a.dtype.name) else _truncated_quotient_array(a, b)


def _remainder(a: Expr, b: Expr) -> Expr:
    """The remainder with the dividend's sign, as C's fmod."""
    if is_float(a.dtype):
        return te.intrinsic("fmod", a, b)
    return a - _truncated_quotient(a, b) * b


def _modulo(a: Expr, b: Expr) -> Expr:
    """The remainder with the divisor's sign, as Python's %."""
    if not is_float(a.dtype):
        return a % b
    zero = te.const(0.0, a.dtype)
    r = te.intrinsic("fmod", a, b)
    wrong_sign = binary("ne", r, zero) & binary("ne", r < zero, b < zero)
    return te.if_then_else(wrong_sign, r + b, r)


def _power(a: Expr, b: Expr) -> Expr:
    """Whole numbers in float64, rounded: code's powers are off by a few ulp."""
    if is_float(a.dtype):
        return te.intrinsic("pow", a, b)
    value = te.intrinsic("pow", te.cast(a, "float64"), te.cast(b, "float64"))
    return te.cast(te.intrinsic("round", value), a.dtype)


def _power_array(a: Array, b: Array) -> Array:
    if is_float(a.dtype.name):
        return np.power(a, b)
    return np.power(a.astype(np.float64), b.astype(np.float64))


def _shift(
    op: BinaryOp, vector: Callable[[Array, Array], Array]
) -> tuple[Callable[[Expr, Expr], Expr], Callable[[Array, Array], Array]]:
    """A shift; by a negative count or by all bits or more, what shifting bit by bit leaves."""

    def bits(dtype: str) -> int:
        return np.dtype(dtype).itemsize * 8

    def scalar(a: Expr, b: Expr) -> Expr:
        zero, count = te.const(0, a.dtype), te.const(bits(a.dtype), a.dtype)
        inside: Expr = b < count
        gone: Expr = zero
        if not a.dtype.startswith("uint"):
            inside = inside & (b >= zero)
            if op == "shr":
                gone = te.if_then_else(a < zero, te.const(-1, a.dtype), zero)
        return te.if_then_else(inside, binary(op, a, b), gone)

    def array(a: Array, b: Array) -> Array:
        a, b = np.broadcast_arrays(a, b)
        inside = (b >= 0) & (b < bits(a.dtype.name))
        gone = np.where((a < 0) & (op == "shr"), ~np.zeros_like(a), np.zeros_like(a))
        return np.where(inside, vector(a, np.where(inside, b, np.zeros_like(b))), gone)

    return scalar, array


register(
    _binary("add", _op("add"), np.add, commutative=True),
    _binary("subtract", _op("sub"), np.subtract),
    _binary("multiply", _op("mul"), np.multiply, commutative=True),
    _binary("divide", _divide, _divide_array),
    _binary("power", _power, _power_array),
    _binary("remainder", _remainder, np.fmod),
    _binary("modulo", _modulo, np.mod),
    _binary("maximum", _op("max"), np.maximum, commutative=True),
    _binary("minimum", _op("min"), np.minimum, commutative=True),
    _binary("equal", _op("eq"), np.equal, DTYPES, "bool", commutative=True),
    _binary("not_equal", _op("ne"), np.not_equal, DTYPES, "bool", commutative=True),
    _binary("less", _op("lt"), np.less, NUMBERS, "bool"),
    _binary("less_equal", _op("le"), np.less_equal, NUMBERS, "bool"),
    _binary("greater", _op("gt"), np.greater, NUMBERS, "bool"),
    _binary("greater_equal", _op("ge"), np.greater_equal, NUMBERS, "bool"),
    _binary("logical_and", _op("and"), np.logical_and, ("bool",), commutative=True),
    _binary("logical_or", _op("or"), np.logical_or, ("bool",), commutative=True),
    _binary("logical_xor", _op("ne"), np.logical_xor, ("bool",), commutative=True),
    _binary("bitwise_and", _op("bitand"), np.bitwise_and, INTEGERS, commutative=True),
    _binary("bitwise_or", _op("bitor"), np.bitwise_or, INTEGERS, commutative=True),
    _binary("bitwise_xor", _op("bitxor"), np.bitwise_xor, INTEGERS, commutative=True),
    _binary("left_shift", *_shift("shl", np.left_shift), INTEGERS),
    _binary("right_shift", *_shift("shr", np.right_shift), INTEGERS),
    _binary(
        "prelu",
        lambda x, slope: te.if_then_else(x < te.const(0, x.dtype), x * slope, x),
        lambda x, slope: np.where(x < 0, x * slope, x),
    ),
)


def _where_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    if types[0].dtype != "bool":
        raise ShapeError(f"takes a condition of dtype bool, not {types[0].dtype}")
    dtype = same_dtype(types[1:])
    return TensorType(broadcast_shapes(t.shape for t in types), dtype)


def _where_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    condition, a, b = tensors
    return te.compute(
        out_type(type).shape,
        lambda *i: te.if_then_else(read(condition, i), read(a, i), read(b, i)),
        "where",
    )


register(
    Op(
        "where",
        _where_infer,
        _where_compute,
        lambda arrays, attrs: np.where(arrays[0], arrays[1], arrays[2]),
        Pattern.BROADCAST,
    )
)

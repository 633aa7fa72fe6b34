"""Between numbers and small integers.

    quantize(x, scale, zero)     clip(round(x / scale) + zero)      float32 -> ``dtype``
    requantize(x, factor, zero)  clip(round(x * factor) + zero)     float32 or int32 -> ``dtype``
    dequantize(q, scale, zero)   (q - zero) * scale                 any integer -> float32
    add_quanta(a, b, f, g, c)    clip(round(b * g + (a * f + c)))   small integers -> ``dtype``

Rounding is to even, clipping to the range of ``dtype``. Scales, factors and zero points are
float32 (zero points whole numbers), of shapes that broadcast to the first operand's. An int32 times
its factor must be an int32 again, as it is for factors up to 1: what lies outside is not clipped.
So must be the sum of ``add_quanta``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, broadcast_shapes, register
from tunefarm.compiler.ops.common import out_type, read, require_dtype
from tunefarm.compiler.tir.ir import Expr

QUANTA = ("int8", "uint8", "int16", "uint16")
_INTEGERS = (*QUANTA, "int32")
# More steps than any type has, and still an int32.
_SMALL, _LARGE = (te.const(b, "float32") for b in (-(2.0**30), 2.0**30))


def range_of(dtype: str) -> tuple[int, int]:
    """The least and the largest number of an integer type."""
    info = np.iinfo(dtype)
    return int(info.min), int(info.max)


def _check_parameters(types: Sequence[TensorType]) -> None:
    for kind in types[1:]:
        require_dtype(kind.dtype, ("float32",), "scales and zero points of float32")
    if broadcast_shapes(t.shape for t in types) != types[0].shape:
        shapes = " and ".join(str(t.shape) for t in types[1:])
        raise ShapeError(f"parameters of shapes {shapes} do not fit data of {types[0].shape}")


def _quantum_type(types: Sequence[TensorType], attrs: Attrs) -> Type:
    dtype = str(attrs["dtype"])
    require_dtype(dtype, QUANTA, f"one of the dtypes {', '.join(QUANTA)}")
    _check_parameters(types)
    return TensorType(types[0].shape, dtype)


def _quantize_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    require_dtype(types[0].dtype, ("float32",), "float32")
    return _quantum_type(types, attrs)


def _requantize_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    require_dtype(types[0].dtype, ("float32", "int32"), "float32 or int32")
    return _quantum_type(types, attrs)


def _dequantize_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    require_dtype(types[0].dtype, _INTEGERS, f"integers ({', '.join(_INTEGERS)})")
    _check_parameters(types)
    return TensorType(types[0].shape, "float32")


def _whole(x: Expr) -> Expr:
    """Rounded to even, in int32."""
    return te.cast(te.intrinsic("round", x), "int32")


def _rounding(name: str, divides: bool) -> Op:
    """x / scale or x * factor, rounded, moved by the zero point, clipped."""

    def compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
        (x, scale, zero), out = tensors, out_type(type)
        low, high = (te.const(b, "int32") for b in range_of(out.dtype))

        def element(*i: Expr) -> Expr:
            value, by = te.cast(x[i], "float32"), read(scale, i)
            scaled = value / by if divides else value * by
            if x.dtype == "float32":
                scaled = te.minimum(te.maximum(scaled, _SMALL), _LARGE)
            steps = _whole(scaled) + te.cast(read(zero, i), "int32")
            return te.cast(te.minimum(te.maximum(steps, low), high), out.dtype)

        return te.compute(out.shape, element, name)

    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        x, scale, zero = arrays
        dtype = str(attrs["dtype"])
        with np.errstate(all="ignore"):
            value = x.astype(np.float32)
            moved = np.rint(value / scale if divides else value * scale) + zero
        return np.asarray(np.clip(moved, *range_of(dtype)).astype(dtype))

    infer = _quantize_infer if divides else _requantize_infer
    return Op(name, infer, compute, reference, Pattern.BROADCAST, {"dtype": "uint8"})


def _sum_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    a, b, *parameters = types
    for kind in (a, b):
        require_dtype(kind.dtype, QUANTA, f"integers ({', '.join(QUANTA)})")
    if a.shape != b.shape:
        raise ShapeError(f"operands of shapes {a.shape} and {b.shape}, which must be the same")
    return _quantum_type([a, *parameters], attrs)


def _sum_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (a, b, f, g, c), out = tensors, out_type(type)
    low, high = (te.const(bound, "int32") for bound in range_of(out.dtype))

    def element(*i: Expr) -> Expr:
        first = te.cast(a[i], "float32") * read(f, i) + read(c, i)
        steps = _whole(te.cast(b[i], "float32") * read(g, i) + first)
        return te.cast(te.minimum(te.maximum(steps, low), high), out.dtype)

    return te.compute(out.shape, element, "add_quanta")


def _sum_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    a, b, f, g, c = arrays
    dtype = str(attrs["dtype"])
    value = b.astype(np.float32) * g + (a.astype(np.float32) * f + c)
    return np.asarray(np.clip(np.rint(value), *range_of(dtype)).astype(dtype))


def _dequantize_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    q, scale, zero = tensors

    def element(*i: Expr) -> Expr:
        return (te.cast(q[i], "float32") - read(zero, i)) * read(scale, i)

    return te.compute(q.shape, element, "dequantize")


def _dequantize_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    q, scale, zero = arrays
    return np.asarray((q.astype(np.float32) - zero) * scale)


register(
    _rounding("quantize", divides=True),
    _rounding("requantize", divides=False),
    Op(
        "add_quanta",
        _sum_infer,
        _sum_compute,
        _sum_reference,
        Pattern.BROADCAST,
        {"dtype": "uint8"},
    ),
    Op(
        "dequantize",
        _dequantize_infer,
        _dequantize_compute,
        _dequantize_reference,
        Pattern.BROADCAST,
    ),
)

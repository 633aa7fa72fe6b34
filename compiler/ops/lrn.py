"""``lrn``: each element by a power of the sum of its neighbouring channels' squares."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import wide
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, register
from tunefarm.compiler.ops.common import (
    integer,
    normalize_axis,
    number,
    out_type,
    read_wide,
    to_dtype,
    widen,
)
from tunefarm.compiler.ops.normalize import float_axis
from tunefarm.compiler.tir.ir import Expr


def _lrn_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    float_axis(types, attrs)
    if integer(attrs, "size") < 1:
        raise ShapeError(f"size is {attrs['size']}, and must be at least 1")
    return types[0]


def _lrn_span(attrs: Attrs) -> tuple[int, int]:
    """How many neighbours count before and after a channel."""
    size = integer(attrs, "size")
    return (size - 1) // 2, size - 1 - (size - 1) // 2


def _lrn_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), out = tensors, out_type(type)
    axis = normalize_axis(integer(attrs, "axis"), len(x.shape))
    before, _ = _lrn_span(attrs)
    size, extent = integer(attrs, "size"), x.shape[axis]
    k = te.reduce_axis(size)

    def neighbour(*i: Expr) -> te.Reduce:
        at = i[axis] + k - before
        value = te.if_then_else(
            (at >= 0) & (at < extent),
            read_wide(x, (*i[:axis], at, *i[axis + 1 :])),
            te.const(0.0, wide(x.dtype)),
        )
        return te.sum(value * value, [k])

    squares = te.compute(x.shape, neighbour, "square_sum")

    def element(*i: Expr) -> Expr:
        base = squares[i] * (number(attrs, "alpha") / size) + number(attrs, "bias")
        power = _power(base, number(attrs, "beta"))
        return te.cast(read_wide(x, i) / power, out.dtype)

    return te.compute(x.shape, element, "lrn")


def _power(base: Expr, exponent: float) -> Expr:
    """A positive number to a constant power; ¾, which every network takes, by square roots."""
    if exponent == 0.75:
        root = te.intrinsic("sqrt", base)
        return root * te.intrinsic("sqrt", root)
    return te.intrinsic("pow", base, te.const(exponent, base.dtype))


def _lrn_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x = np.moveaxis(widen(arrays[0]), integer(attrs, "axis"), 0)
    squares = np.pad(x * x, (_lrn_span(attrs), *((0, 0) for _ in x.shape[1:])))
    total = sum(squares[k : k + x.shape[0]] for k in range(integer(attrs, "size")))
    base = number(attrs, "bias") + number(attrs, "alpha") / integer(attrs, "size") * total
    y = np.moveaxis(x / base ** number(attrs, "beta"), 0, integer(attrs, "axis"))
    return to_dtype(np.ascontiguousarray(y), arrays[0].dtype.name)


register(
    Op(
        "lrn", _lrn_infer, _lrn_compute, _lrn_reference, Pattern.REDUCTION,
        {"axis": 1, "size": 5, "alpha": 1e-4, "beta": 0.75, "bias": 1.0},
        lambda types, attrs, type: types[0].size * (2 * integer(attrs, "size") + 3),
    ),
)  # fmt: skip

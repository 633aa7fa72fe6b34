"""``sample``: weighted sums of elements at places that are computed at run time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import FLOATS, wide
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, register
from tunefarm.compiler.ops.common import narrow, out_type, require_dtype, to_dtype, widen
from tunefarm.compiler.tir.ir import Expr


def _infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    x, places, weights = types
    require_dtype(x.dtype, FLOATS, "floating-point numbers")
    require_dtype(weights.dtype, FLOATS, "floating-point weights")
    require_dtype(places.dtype, ("int32", "int64"), "places of dtype int32 or int64")
    fits = len(x.shape) == len(places.shape) == 3 and x.shape[0] == places.shape[0]
    if not fits or weights.shape != places.shape:
        raise ShapeError(
            f"data of shape {x.shape}, places of {places.shape} and weights of {weights.shape} are "
            "not (batch, channels, elements) and twice (batch, outputs, taps)"
        )
    return TensorType((*x.shape[:2], places.shape[1]), x.dtype)


def _compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x, places, weights), out = tensors, out_type(type)
    tap = te.reduce_axis(places.shape[2], "tap")

    def element(n: Expr, c: Expr, p: Expr) -> te.Reduce:
        value = te.cast(x[n, c, te.cast(places[n, p, tap], "int64")], wide(x.dtype))
        return te.sum(value * te.cast(weights[n, p, tap], wide(x.dtype)), [tap])

    return narrow(te.compute(out.shape, element, "sample"), out.dtype)


def _reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, places, weights = arrays
    data = widen(x)
    rows = [
        np.sum(data[n][:, places[n]] * weights[n].astype(data.dtype), -1) for n in range(len(data))
    ]
    return to_dtype(np.stack(rows), x.dtype.name)


register(
    Op(
        "sample", _infer, _compute, _reference, Pattern.REDUCTION, {},
        lambda types, attrs, type: 2 * out_type(type).size * types[1].shape[2],
    )
)  # fmt: skip

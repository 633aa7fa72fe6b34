"""``sample``: weighted sums of elements at places that are computed at run time.

Data is "NCS" (batch, channels, elements) or "NSC"; all channels are sampled at the same places.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import FLOATS, wide
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, register
from tunefarm.compiler.ops.common import narrow, out_type, require_dtype, to_dtype, widen
from tunefarm.compiler.ops.conv import channels_last
from tunefarm.compiler.tir.ir import Expr


def _infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    x, places, weights = types
    require_dtype(x.dtype, FLOATS, "floating-point numbers")
    require_dtype(weights.dtype, FLOATS, "floating-point weights")
    require_dtype(places.dtype, ("int32", "int64"), "places of dtype int32 or int64")
    pixels = channels_last(attrs)
    fits = len(x.shape) == len(places.shape) == 3 and x.shape[0] == places.shape[0]
    if not fits or weights.shape != places.shape:
        axes = "(batch, elements, channels)" if pixels else "(batch, channels, elements)"
        raise ShapeError(
            f"data of shape {x.shape}, places of {places.shape} and weights of {weights.shape} are "
            f"not {axes} and twice (batch, outputs, taps)"
        )
    batch, outputs = places.shape[:2]
    return TensorType((batch, outputs, x.shape[2]) if pixels else (*x.shape[:2], outputs), x.dtype)


def _compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x, places, weights), out = tensors, out_type(type)
    tap, pixels = te.reduce_axis(places.shape[2], "tap"), channels_last(attrs)

    def element(n: Expr, *at: Expr) -> te.Reduce:
        p, c = at if pixels else reversed(at)
        place = te.cast(places[n, p, tap], "int64")
        value = te.cast(x[n, place, c] if pixels else x[n, c, place], wide(x.dtype))
        return te.sum(value * te.cast(weights[n, p, tap], wide(x.dtype)), [tap])

    return narrow(te.compute(out.shape, element, "sample"), out.dtype)


def _reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, places, weights = arrays
    pixels = channels_last(attrs)
    data = np.swapaxes(widen(x), 1, 2) if pixels else widen(x)
    rows = np.stack([
        np.sum(data[n][:, places[n]] * weights[n].astype(data.dtype), -1) for n in range(len(data))
    ])  # fmt: skip
    made = np.ascontiguousarray(np.swapaxes(rows, 1, 2)) if pixels else rows
    return to_dtype(made, x.dtype.name)


register(
    Op(
        "sample", _infer, _compute, _reference, Pattern.REDUCTION,
        {"data_layout": "NCS"},
        lambda types, attrs, type: 2 * out_type(type).size * types[1].shape[2],
    )
)  # fmt: skip

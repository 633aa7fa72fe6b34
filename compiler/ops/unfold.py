"""The windows of an image, each as a row of numbers (im2col)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, register
from tunefarm.compiler.ops.common import integers, number, out_type
from tunefarm.compiler.ops.conv import check_window, pad_stage, pairs, window_extents
from tunefarm.compiler.tir.ir import Expr


def _unfold_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    """NSC of any number of spatial axes -> [n, windows…, taps…, c]."""
    (x,), kernel = types, integers(attrs, "kernel")
    rank, padding = len(kernel), pairs(attrs["padding"])
    strides, dilations = integers(attrs, "strides"), integers(attrs, "dilations")
    if len(x.shape) != rank + 2:
        raise ShapeError(f"kernel {kernel} does not fit data of shape {x.shape}")
    check_window(attrs, rank, "kernel", "strides", "dilations")
    windows = window_extents(x.shape[1:-1], kernel, strides, padding, dilations)
    return TensorType((x.shape[0], *windows, *kernel, x.shape[-1]), x.dtype)


def _unfold_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), rank = tensors, len(integers(attrs, "kernel"))
    strides, dilations = integers(attrs, "strides"), integers(attrs, "dilations")
    padded = pad_stage(x, pairs(attrs["padding"]), 1, number(attrs, "pad_value"))

    def element(n: Expr, *i: Expr) -> Expr:
        windows, taps = i[:rank], i[rank:-1]
        rows = zip(windows, strides, taps, dilations, strict=True)
        return padded[(n, *(w * s + t * d for w, s, t, d in rows), i[-1])]

    return te.compute(out_type(type).shape, element, "unfold")


def _unfold_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (x,), kernel, padding = arrays, integers(attrs, "kernel"), pairs(attrs["padding"])
    strides, dilations = integers(attrs, "strides"), integers(attrs, "dilations")
    windows = window_extents(x.shape[1:-1], kernel, strides, padding, dilations)
    fill = np.asarray(attrs["pad_value"]).astype(x.dtype)
    padded = np.pad(x, ((0, 0), *padding, (0, 0)), constant_values=fill)
    y = np.empty((x.shape[0], *windows, *kernel, x.shape[-1]), x.dtype)
    for tap in np.ndindex(*kernel):
        rows = zip(tap, dilations, windows, strides, strict=True)
        part = tuple(slice(t * d, t * d + (e - 1) * s + 1, s) for t, d, e, s in rows)
        y[(*[slice(None)] * (1 + len(kernel)), *tap)] = padded[(slice(None), *part)]
    return y


register(
    Op(
        "unfold", _unfold_infer, _unfold_compute, _unfold_reference, Pattern.INJECTIVE,
        {"kernel": (), "strides": (), "dilations": (), "padding": (), "pad_value": 0},
    )
)  # fmt: skip

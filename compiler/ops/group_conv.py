"""``group_conv``: a grouped convolution whose groups are a dimension of their own.

It is the same memory as ``conv`` with channels last, viewed: data (n, s…, g, i), kernel (k…, i, g,
o), result (n, s…, g, o). Spaces view grouped convolutions so, for then the groups are an ordinary
axis of both operands; models do not have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.ir import Attrs, TensorType, Type
from tunefarm.compiler.ops.base import OPS, Array, Op, Pattern, register
from tunefarm.compiler.ops.common import (
    SPATIAL_NAMES,
    contracted_dtype,
    integers,
    narrow,
    out_type,
    summed_dtype,
)
from tunefarm.compiler.ops.conv import pad_stage, pad_value, pairs, window_extents
from tunefarm.compiler.tir.ir import Expr


def _infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    data, kernel = types
    spatial = window_extents(
        data.shape[1:-2],
        kernel.shape[:-3],
        integers(attrs, "strides"),
        pairs(attrs["padding"]),
        integers(attrs, "dilations"),
    )
    dtype = contracted_dtype(types, attrs)
    return TensorType((data.shape[0], *spatial, *kernel.shape[-2:]), dtype)


def _compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x, w), out = tensors, out_type(type)
    names = SPATIAL_NAMES[len(w.shape) - 3]
    strides, dilations = integers(attrs, "strides"), integers(attrs, "dilations")
    padded = pad_stage(x, pairs(attrs["padding"]), 1, pad_value(attrs))
    dtype = summed_dtype(x.dtype, attrs)
    taps = [te.reduce_axis(e, f"k{n}") for e, n in zip(w.shape, names, strict=False)]
    ic = te.reduce_axis(w.shape[-3], "ic")

    def element(*index: Expr) -> te.Reduce:
        n, *at, g, o = index
        place = [
            i * stride + tap * dilation
            for i, stride, tap, dilation in zip(at, strides, taps, dilations, strict=True)
        ]
        data = te.cast(padded[(n, *place, g, ic)], dtype)
        return te.sum(data * te.cast(w[(*taps, ic, g, o)], dtype), [*taps, ic])

    result = te.compute(out.shape, element, "conv", axis_names=["n", *names, "g", "o"])
    return narrow(result, out.dtype)


def _reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    x, w = arrays
    groups, outputs = w.shape[-2:]
    merged = OPS["conv"].reference(
        [x.reshape(*x.shape[:-2], -1), w.reshape(*w.shape[:-2], -1)],
        {**attrs, "groups": groups, "data_layout": "NSC", "kernel_layout": "SIO", "out_layout": ""},
    )
    assert isinstance(merged, np.ndarray)
    return merged.reshape(*merged.shape[:-1], groups, outputs)


def _flops(types: Sequence[TensorType], attrs: Attrs, type: Type) -> int:
    return 2 * out_type(type).size * prod(types[1].shape[:-2])


register(
    Op(
        "group_conv",
        _infer,
        _compute,
        _reference,
        Pattern.OUT_FUSABLE,
        {"strides": (), "padding": (), "dilations": (), "pad_value": 0, "out_dtype": ""},
        _flops,
    )
)

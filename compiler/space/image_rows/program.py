"""A depthwise convolution whose pixels and channels are one axis: a row of the image.

    y[n, h, p] = Σ x[n, h·s + i·d − t, p + (j·e − l)·C] · w[i, j, p]      p = column · C + channel

A tap to the side is C numbers away, so lanes cross from pixel to pixel, and only a row's last
vector has lanes that compute nothing. Weights and biases are repeated along a row when a model is
built.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

from tunefarm.compiler import te
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Call, Function, Tuple, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.ops.conv import pad_value, pairs
from tunefarm.compiler.space.analysis import Contraction, analyse
from tunefarm.compiler.space.image_rows.repetition import repetition
from tunefarm.compiler.space.program import (
    Views,
    create_program,
    find_anchor,
    is_float32_image,
    viewed,
)
from tunefarm.compiler.tir import PackedLayout
from tunefarm.compiler.tir.ir import Expr


@lru_cache(maxsize=64)
def image_rows_of(function: Function) -> Contraction | None:
    """The contraction over rows of the image; None if the function is none of stride 1 along them,
    with results as wide as the image, and constant weights."""
    anchor, flat = find_anchor(function), flattened(function)
    row = None if flat is None else find_anchor(flat)
    if anchor is None or flat is None or row is None:
        return None
    height, width = tensor_type(anchor.args[1]).shape[:2]
    kernel = flat.params[function.params.index(anchor.args[1])]
    program = create_program(
        flat,
        computes={row: lambda tensors: _sums(anchor, tensors)},
        shapes={kernel: (height, width, tensor_type(row).shape[-1])},
    )
    return analyse(program)


def scheduled(function: Function) -> Contraction:
    """The contraction of a function to schedule. Raises ScheduleError if it has none."""
    c = image_rows_of(function)
    if c is None:
        raise ScheduleError(
            "the workload is no depthwise convolution of stride 1 along rows with constant weights"
        )
    return c


@lru_cache(maxsize=64)
def flattened(function: Function) -> Function | None:
    """The function with images as rows, its convolution one of a column of taps; None if it is none
    of stride 1 along rows, with results as wide as the image, and constant weights."""
    anchor = find_anchor(function)
    if anchor is None or isinstance(function.body, Tuple) or not _fits(anchor):
        return None
    repeated = {function.params[i] for i in repeated_params(function)}
    constants = function.attrs.get("constants", ())
    assert isinstance(constants, tuple)
    if any(p in repeated and i not in constants for i, p in enumerate(function.params)):
        return None
    return viewed(function, anchor, _views(anchor))


def repeated_params(function: Function) -> dict[int, PackedLayout]:
    """The parameters with an element a channel, the weights among them, and their layouts: as they
    are, but repeated for each pixel of a row."""
    anchor = find_anchor(function)
    assert anchor is not None
    *_, width, channels = tensor_type(anchor).shape
    layouts = {}
    for index, param in enumerate(function.params):
        shape = tensor_type(param).shape
        if param is anchor.args[1]:
            rows = shape[:2]
        elif prod(shape) == channels == shape[-1]:
            rows = ()
        else:
            continue
        view = (*rows, width * channels)
        order = tuple(range(len(view)))
        layouts[index] = PackedLayout(((),) * len(view), order, repetition(width), view)
    return layouts


def channels_of(function: Function) -> int:
    """The channels of a pixel."""
    anchor = find_anchor(function)
    assert anchor is not None
    return tensor_type(anchor).shape[-1]


def _fits(anchor: Call) -> bool:
    if not is_float32_image(anchor):
        return False
    data, kernel, result = (tensor_type(v).shape for v in (*anchor.args, anchor))
    return (
        anchor.attrs["groups"] == data[-1] == result[-1] > 1
        and integers(anchor.attrs, "strides")[1] == 1
        and kernel[1] > 1
        and data[2] == result[2] > 1
    )


def _views(anchor: Call) -> Views:
    """Images as rows; the taps of the type are those of a column, which makes its shape right."""
    attrs = anchor.attrs
    (n, h, w, c), kernel = (tensor_type(a).shape for a in anchor.args)
    rows, shape = (n, h, w * c), tensor_type(anchor).shape

    def result(s: tuple[int, ...]) -> tuple[int, ...] | None:
        if prod(s) == 1:
            return (1,)
        if prod(s) == c == s[-1]:
            return (w * c,)
        return (*shape[:2], w * c) if s == shape else None

    windows: dict[str, Any] = {
        **{name: (integers(attrs, name)[0],) for name in ("strides", "dilations")},
        "padding": pairs(attrs["padding"])[:1],
        "groups": w * c,
        "out_dtype": attrs["out_dtype"],
        "data_layout": "NSC",
        "kernel_layout": "SIO",
    }
    return Views(
        rows, (kernel[0], 1, w * c), result, lambda x, taps: call("conv", x, taps, **windows)
    )


def _sums(anchor: Call, tensors: Sequence[te.Tensor]) -> te.Tensor:
    """The sums of all taps, those of a column last: unrolled, they share their loads."""
    x, w = tensors
    attrs, (batch, rows, width, channels) = anchor.attrs, tensor_type(anchor).shape
    (top, _), (left, _) = pairs(attrs["padding"])
    stride, (down, across) = integers(attrs, "strides")[0], integers(attrs, "dilations")
    ky, kx = te.reduce_axis(w.shape[0], "ky"), te.reduce_axis(w.shape[1], "kx")
    outside = te.const(pad_value(attrs), x.dtype)

    def element(n: Expr, y: Expr, p: Expr) -> te.Reduce:
        row, place = y * stride + ky * down - top, p + (kx * across - left) * channels
        inside = (row >= 0) & (row < x.shape[1]) & (place >= 0) & (place < x.shape[2])
        data = te.if_then_else(inside, x[n, row, place], outside)
        return te.sum(data * w[ky, kx, p], [kx, ky])

    return te.compute((batch, rows, width * channels), element, "image_rows")

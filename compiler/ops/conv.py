"""Convolutions of any rank: ``conv`` and ``conv_transpose``.

Data is "NCS" (batch, channels, spatial …) or "NSC"; kernels are "OIS" (output channels, input
channels of a group, taps …) or "SIO". ``padding`` has a (before, after) pair for each spatial
dimension, filled with ``pad_value``. A transposed convolution's kernel "IOS" has the input channels
first and the output channels of a group second. ``out_dtype`` is as for ``matmul``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import FLOATS, INTEGERS, wide
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, AttrValue, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, register
from tunefarm.compiler.ops.common import (
    SPATIAL_NAMES,
    contracted,
    contracted_dtype,
    exact_operands,
    integer,
    integers,
    narrow,
    out_type,
    require_dtype,
    same_dtype,
    summed_dtype,
    to_dtype,
    widen,
)
from tunefarm.compiler.tir.ir import Expr

Pairs = tuple[tuple[int, int], ...]


def pairs(value: AttrValue) -> Pairs:
    """An attribute that is a tuple of (before, after) pairs."""
    assert isinstance(value, tuple)
    return tuple((int(p[0]), int(p[1])) for p in value)  # type: ignore[index, arg-type]


def channels_last(attrs: Attrs) -> bool:
    """Whether the data layout is "NSC"; ShapeError on an unknown one."""
    layout = attrs["data_layout"]
    if layout not in ("NCS", "NSC"):
        raise ShapeError(f"data_layout is {layout!r}, and must be 'NCS' or 'NSC'")
    return layout == "NSC"


def result_channels_last(attrs: Attrs) -> bool:
    """Whether the result's layout is "NSC": that of the data unless ``out_layout`` says so."""
    return channels_last({"data_layout": attrs["out_layout"] or attrs["data_layout"]})


def split_shape(shape: tuple[int, ...], last: bool) -> tuple[int, int, tuple[int, ...]]:
    """(batch, channels, spatial extents)."""
    return (shape[0], shape[-1], shape[1:-1]) if last else (shape[0], shape[1], shape[2:])


def split_index(index: Sequence[Expr], last: bool) -> tuple[Expr, Expr, Sequence[Expr]]:
    """(batch, channel, spatial indices)."""
    return (index[0], index[-1], index[1:-1]) if last else (index[0], index[1], index[2:])


def join_shape(batch: int, channels: int, spatial: Sequence[int], last: bool) -> tuple[int, ...]:
    return (batch, *spatial, channels) if last else (batch, channels, *spatial)


def window_extents(
    spatial: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    padding: Pairs,
    dilations: Sequence[int],
) -> tuple[int, ...]:
    """How many windows fit along each spatial dimension; ShapeError if none does."""
    out = []
    for d, (s, k, stride, (lo, hi), dilation) in enumerate(
        zip(spatial, kernel, strides, padding, dilations, strict=True)
    ):
        span = dilation * (k - 1) + 1
        if s + lo + hi < span:
            raise ShapeError(
                f"the window spans {span} and the padded input has {s + lo + hi} along spatial "
                f"dimension {d}"
            )
        out.append((s + lo + hi - span) // stride + 1)
    return tuple(out)


def pad_value(attrs: Attrs) -> int | float:
    value = attrs["pad_value"]
    assert isinstance(value, (int, float))
    return value


def check_window(attrs: Attrs, rank: int, *names: str) -> None:
    """Every window attribute has one positive entry a spatial dimension."""
    for name in names:
        values = integers(attrs, name)
        if len(values) != rank or any(v < 1 for v in values):
            raise ShapeError(f"{name} is {values}, and must be {rank} positive integers")
    padding = attrs["padding"]
    if not isinstance(padding, tuple) or len(padding) != rank or min(map(min, pairs(padding))) < 0:
        raise ShapeError(f"padding is {padding}, and must be {rank} pairs of integers ≥ 0")


def pad_stage(x: te.Tensor, padding: Pairs, first: int, value: float) -> te.Tensor:
    """``x`` with its spatial dimensions (from ``first`` on) padded; ``x`` itself if by nothing."""
    if not any(lo or hi for lo, hi in padding):
        return x
    by = {first + d: p for d, p in enumerate(padding) if p != (0, 0)}
    shape = tuple(e + sum(by.get(d, (0, 0))) for d, e in enumerate(x.shape))

    def element(*i: Expr) -> Expr:
        inside: Expr = te.const(True, "bool")
        at = list(i)
        for d, (lo, hi) in by.items():
            if lo:
                inside = inside & (i[d] >= lo)
            if hi:
                inside = inside & (i[d] < lo + x.shape[d])
            at[d] = i[d] - lo
        return te.if_then_else(inside, x[tuple(at)], te.const(value, x.dtype))

    return te.compute(shape, element, "pad")


@dataclass(frozen=True, slots=True)
class _Shape:
    """A convolution's extents, free of layout. ``inner`` is the input channels of a group."""

    batch: int
    inputs: int
    spatial: tuple[int, ...]
    outputs: int
    inner: int
    kernel: tuple[int, ...]
    groups: int


def _conv_shape(types: Sequence[TensorType] | Sequence[te.Tensor], attrs: Attrs) -> _Shape:
    batch, inputs, spatial = split_shape(types[0].shape, channels_last(attrs))
    w = types[1].shape
    outputs, inner, kernel = (
        (w[-1], w[-2], w[:-2]) if attrs["kernel_layout"] == "SIO" else (w[0], w[1], w[2:])
    )
    return _Shape(batch, inputs, spatial, outputs, inner, kernel, integer(attrs, "groups"))


def _check_conv(types: Sequence[TensorType], attrs: Attrs, layouts: tuple[str, ...]) -> int:
    """The spatial rank, after checks that both directions share."""
    rank = len(types[0].shape) - 2
    if rank not in SPATIAL_NAMES:
        raise ShapeError(f"takes data of 3 to 5 dimensions, not shape {types[0].shape}")
    if len(types[1].shape) != rank + 2:
        raise ShapeError(f"data of shape {types[0].shape} needs a kernel of the same rank, "
                         f"not {types[1].shape}")  # fmt: skip
    if attrs["kernel_layout"] not in layouts:
        raise ShapeError(
            f"kernel_layout is {attrs['kernel_layout']!r}, and must be one of {layouts}"
        )
    check_window(attrs, rank, "strides", "dilations")
    return rank


def _conv_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    dtype = contracted_dtype(types, attrs)
    _check_conv(types, attrs, ("OIS", "SIO"))
    s = _conv_shape(types, attrs)
    if s.groups < 1 or s.inner * s.groups != s.inputs or s.outputs % s.groups:
        raise ShapeError(
            f"the data has {s.inputs} channels and the kernel takes {s.inner} in each of "
            f"{s.groups} groups for {s.outputs} outputs, which do not match"
        )
    spatial = window_extents(
        s.spatial,
        s.kernel,
        integers(attrs, "strides"),
        pairs(attrs["padding"]),
        integers(attrs, "dilations"),
    )
    return TensorType(join_shape(s.batch, s.outputs, spatial, result_channels_last(attrs)), dtype)


def _conv_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x, w), out = tensors, out_type(type)
    s, last = _conv_shape(tensors, attrs), channels_last(attrs)
    out_last = result_channels_last(attrs)
    names = SPATIAL_NAMES[len(s.kernel)]
    strides, dilations = integers(attrs, "strides"), integers(attrs, "dilations")
    padded = pad_stage(x, pairs(attrs["padding"]), 1 if last else 2, pad_value(attrs))
    dtype = summed_dtype(x.dtype, attrs)
    taps = [te.reduce_axis(e, f"k{n}") for e, n in zip(s.kernel, names, strict=True)]
    depthwise = s.groups > 1 and s.inner == 1
    summed = [*taps] if depthwise else [*taps, te.reduce_axis(s.inner, "ic")]
    ic = te.const(0, "int64") if depthwise else summed[-1]
    per_group = s.outputs // s.groups

    def element(*index: Expr) -> te.Reduce:
        n, o, at = split_index(index, out_last)
        channel = ic if s.groups == 1 else o // per_group * s.inner + ic
        place = [
            i * stride + tap * dilation
            for i, stride, tap, dilation in zip(at, strides, taps, dilations, strict=True)
        ]
        data = padded[(n, *place, channel) if last else (n, channel, *place)]
        kernel = w[(*taps, ic, o) if attrs["kernel_layout"] == "SIO" else (o, ic, *taps)]
        return te.sum(te.cast(data, dtype) * te.cast(kernel, dtype), summed)

    axis_names = ["n", *names, "o"] if out_last else ["n", "o", *names]
    return narrow(te.compute(out.shape, element, "conv", axis_names=axis_names), out.dtype)


def _channels_first(x: Array, w: Array, attrs: Attrs) -> tuple[Array, Array]:
    """Data as NCS and kernel with its two channel dimensions in front."""
    if attrs["data_layout"] == "NSC":
        x = np.moveaxis(x, -1, 1)
    if attrs["kernel_layout"] == "SIO":
        w = np.moveaxis(w, (-1, -2), (0, 1))
    return x, w


def _conv_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    """One batched matrix product for each tap: O × I by I × positions."""
    data, kernel = exact_operands(arrays, attrs)
    x, w = _channels_first(data, kernel, attrs)
    groups, strides, dilations = (
        integer(attrs, "groups"), integers(attrs, "strides"), integers(attrs, "dilations"),
    )  # fmt: skip
    padding = pairs(attrs["padding"])
    x = np.pad(x, ((0, 0), (0, 0), *padding), constant_values=pad_value(attrs))
    extents = window_extents(x.shape[2:], w.shape[2:], strides, ((0, 0),) * len(padding), dilations)
    batch, outputs, inner = x.shape[0], w.shape[0], w.shape[1]
    kernel = w.reshape(groups, outputs // groups, inner, *w.shape[2:])
    y = np.zeros((batch, groups, outputs // groups, prod(extents)), x.dtype)
    for tap in np.ndindex(*w.shape[2:]):
        window = tuple(
            slice(t * d, t * d + (e - 1) * s + 1, s)
            for t, d, e, s in zip(tap, dilations, extents, strides, strict=True)
        )
        data = x[(slice(None), slice(None), *window)].reshape(batch, groups, inner, -1)
        if inner == 1:
            y += kernel[(..., *tap)] * data
        else:
            y += np.matmul(kernel[(..., *tap)], data)
    y = y.reshape(batch, outputs, *extents)
    y = np.moveaxis(y, 1, -1) if result_channels_last(attrs) else y
    return contracted(np.ascontiguousarray(y), str(attrs["out_dtype"] or arrays[0].dtype.name))


def _conv_flops(types: Sequence[TensorType], attrs: Attrs, type: Type) -> int:
    s = _conv_shape(types, attrs)
    return 2 * out_type(type).size * s.inner * prod(s.kernel)


def _transpose_shape(types: Sequence[TensorType] | Sequence[te.Tensor], attrs: Attrs) -> _Shape:
    """``outputs`` are all groups'; ``inner`` is the input channels of a group."""
    batch, inputs, spatial = split_shape(types[0].shape, channels_last(attrs))
    groups, w = integer(attrs, "groups"), types[1].shape
    return _Shape(batch, inputs, spatial, w[1] * groups, inputs // groups, w[2:], groups)


def _conv_transpose_infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    require_dtype(same_dtype(types), FLOATS + INTEGERS, "numbers")
    rank = _check_conv(types, attrs, ("IOS",))
    s = _transpose_shape(types, attrs)
    if s.groups < 1 or s.inputs % s.groups or types[1].shape[0] != s.inputs:
        raise ShapeError(
            f"the data has {s.inputs} channels and the kernel takes {types[1].shape[0]} in "
            f"{s.groups} groups, which do not match"
        )
    extra = integers(attrs, "output_padding")
    if len(extra) != rank:
        raise ShapeError(f"output_padding is {extra}, and must be {rank} integers")
    spatial = tuple(
        stride * (e - 1) + dilation * (k - 1) + 1 + more - lo - hi
        for e, k, stride, dilation, more, (lo, hi) in zip(
            s.spatial,
            s.kernel,
            integers(attrs, "strides"),
            integers(attrs, "dilations"),
            extra,
            pairs(attrs["padding"]),
            strict=True,
        )
    )
    if min(spatial) < 1:
        raise ShapeError(f"padding {attrs['padding']} leaves nothing of the output: {spatial}")
    return TensorType(join_shape(s.batch, s.outputs, spatial, channels_last(attrs)), types[0].dtype)


def _spread_stage(
    x: te.Tensor, extents: Sequence[int], before: Sequence[int], strides: Sequence[int], first: int
) -> te.Tensor:
    """``x`` with zeros between its elements (``strides`` apart) and around them."""
    shape = list(x.shape)
    shape[first : first + len(extents)] = extents

    def element(*i: Expr) -> Expr:
        inside: Expr = te.const(True, "bool")
        at = list(i)
        for d, (lo, stride) in enumerate(zip(before, strides, strict=True)):
            place = i[first + d] - lo
            inside = inside & (place >= 0) & (place < (x.shape[first + d] - 1) * stride + 1)
            if stride > 1:
                inside = inside & (place % stride).equal(0)
            at[first + d] = place // stride
        return te.if_then_else(inside, x[tuple(at)], te.const(0, x.dtype))

    return te.compute(shape, element, "pad")


def _conv_transpose_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    """A stride-1 convolution of the spread data with the mirrored kernel."""
    (x, w), out = tensors, out_type(type)
    s, last = _transpose_shape(tensors, attrs), channels_last(attrs)
    names = SPATIAL_NAMES[len(s.kernel)]
    dilations = integers(attrs, "dilations")
    _, _, spatial = split_shape(out.shape, last)
    spans = [d * (k - 1) for d, k in zip(dilations, s.kernel, strict=True)]
    before = [span - lo for span, (lo, _) in zip(spans, pairs(attrs["padding"]), strict=True)]
    extents = [e + span for e, span in zip(spatial, spans, strict=True)]
    spread = _spread_stage(x, extents, before, integers(attrs, "strides"), 1 if last else 2)
    taps = [te.reduce_axis(e, f"k{n}") for e, n in zip(s.kernel, names, strict=True)]
    ic = te.reduce_axis(s.inner, "ic")
    per_group = s.outputs // s.groups

    def element(*index: Expr) -> te.Reduce:
        n, o, at = split_index(index, last)
        channel = ic if s.groups == 1 else o // per_group * s.inner + ic
        place = [i + tap * d for i, tap, d in zip(at, taps, dilations, strict=True)]
        data = spread[(n, *place, channel) if last else (n, channel, *place)]
        mirrored = [(k - 1) - tap for k, tap in zip(s.kernel, taps, strict=True)]
        kernel = w[(channel, o % per_group if s.groups > 1 else o, *mirrored)]
        return te.sum(te.cast(data, wide(x.dtype)) * te.cast(kernel, wide(w.dtype)), [*taps, ic])

    axis_names = ["n", *names, "o"] if last else ["n", "o", *names]
    result = te.compute(out.shape, element, "conv_transpose", axis_names=axis_names)
    return narrow(result, out.dtype)


def _conv_transpose_reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
    """Scatter: each tap adds its product to a strided slice of the uncropped output."""
    x, w = _channels_first(widen(arrays[0]), widen(arrays[1]), attrs)
    groups, strides, dilations = (
        integer(attrs, "groups"), integers(attrs, "strides"), integers(attrs, "dilations"),
    )  # fmt: skip
    batch, inputs, spatial, kernel = x.shape[0], x.shape[1], x.shape[2:], w.shape[2:]
    full = [
        s * (e - 1) + d * (k - 1) + 1 + max(extra, 0)
        for e, k, s, d, extra in zip(
            spatial, kernel, strides, dilations, integers(attrs, "output_padding"), strict=True
        )
    ]
    weights = w.reshape(groups, inputs // groups, w.shape[1], *kernel)
    data = x.reshape(batch, groups, inputs // groups, -1)
    y = np.zeros((batch, groups, w.shape[1], *full), x.dtype)
    for tap in np.ndindex(*kernel):
        part = np.matmul(np.swapaxes(weights[(..., *tap)], 1, 2), data)
        window = tuple(
            slice(t * d, t * d + (e - 1) * s + 1, s)
            for t, d, e, s in zip(tap, dilations, spatial, strides, strict=True)
        )
        y[(slice(None),) * 3 + window] += part.reshape(*part.shape[:3], *spatial)
    y = y.reshape(batch, groups * w.shape[1], *full)
    crop = (slice(lo, e - hi) for e, (lo, hi) in zip(full, pairs(attrs["padding"]), strict=True))
    y = y[(slice(None), slice(None), *crop)]
    y = np.moveaxis(y, 1, -1) if attrs["data_layout"] == "NSC" else y
    return to_dtype(np.ascontiguousarray(y), arrays[0].dtype.name)


def _conv_transpose_flops(types: Sequence[TensorType], attrs: Attrs, type: Type) -> int:
    s = _transpose_shape(types, attrs)
    return 2 * types[0].size * (s.outputs // s.groups) * prod(s.kernel)


_DEFAULTS: dict[str, AttrValue] = {
    "strides": (1, 1),
    "padding": ((0, 0), (0, 0)),
    "dilations": (1, 1),
    "groups": 1,
    "data_layout": "NCS",
}

register(
    Op(
        "conv",
        _conv_infer,
        _conv_compute,
        _conv_reference,
        Pattern.OUT_FUSABLE,
        {**_DEFAULTS, "kernel_layout": "OIS", "out_layout": "", "pad_value": 0, "out_dtype": ""},
        _conv_flops,
    ),
    Op(
        "conv_transpose",
        _conv_transpose_infer,
        _conv_transpose_compute,
        _conv_transpose_reference,
        Pattern.OUT_FUSABLE,
        {**_DEFAULTS, "kernel_layout": "IOS", "output_padding": (0, 0)},
        _conv_transpose_flops,
    ),
)

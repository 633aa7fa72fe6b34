"""Pooling windows of any rank: maximum, its indices, average, and power mean (Lp).

``padding`` has a (before, after) pair for each spatial dimension, as the output's extents need
it; ``counted`` (average only) is the part of it that divides: a window's divisor is the number of
its taps that lie inside the data or the counted padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np
from tunefarm.compiler import te
from tunefarm.compiler.dtypes import FLOATS, INTEGERS, wide
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import Attrs, AttrValue, TensorType, Type
from tunefarm.compiler.ops.base import Array, Op, Pattern, register
from tunefarm.compiler.ops.common import (
    SPATIAL_NAMES,
    integer,
    integers,
    out_type,
    require_dtype,
    to_dtype,
    widen,
)
from tunefarm.compiler.ops.conv import (
    channels_last,
    check_window,
    join_shape,
    pad_stage,
    pairs,
    split_shape,
    window_extents,
)
from tunefarm.compiler.tir.ir import Expr, Var


def _infer(types: Sequence[TensorType], attrs: Attrs) -> Type:
    (x,) = types
    rank = len(x.shape) - 2
    require_dtype(x.dtype, FLOATS + INTEGERS, "numbers")
    if rank not in SPATIAL_NAMES:
        raise ShapeError(f"takes data of 3 to 5 dimensions, not shape {x.shape}")
    check_window(attrs, rank, "kernel", "strides", "dilations")
    batch, channels, spatial = split_shape(x.shape, channels_last(attrs))
    out = window_extents(
        spatial,
        integers(attrs, "kernel"),
        integers(attrs, "strides"),
        pairs(attrs["padding"]),
        integers(attrs, "dilations"),
    )
    return TensorType(join_shape(batch, channels, out, channels_last(attrs)), x.dtype)


def _lowest(dtype: str) -> float:
    value = te.identity("max", dtype).value
    return value


def _place(attrs: Attrs, at: Sequence[Expr], taps: Sequence[Expr]) -> list[Expr]:
    """The padded coordinates of a window's tap."""
    strides, dilations = integers(attrs, "strides"), integers(attrs, "dilations")
    return [i * s + t * d for i, s, t, d in zip(at, strides, taps, dilations, strict=True)]


def _window_stage(
    x: te.Tensor, attrs: Attrs, out: TensorType, fill: float, name: str,
    reduce: Callable[[Expr, Sequence[Var]], te.Reduce],
) -> te.Tensor:  # fmt: skip
    """``reduce`` over each window of the data padded with ``fill``."""
    last, kernel = channels_last(attrs), integers(attrs, "kernel")
    names = SPATIAL_NAMES[len(kernel)]
    padded = pad_stage(x, pairs(attrs["padding"]), 1 if last else 2, fill)
    taps = [te.reduce_axis(e, f"k{n}") for e, n in zip(kernel, names, strict=True)]

    def element(*i: Expr) -> te.Reduce:
        place = _place(attrs, i[1:-1] if last else i[2:], taps)
        at = (i[0], *place, i[-1]) if last else (i[0], i[1], *place)
        return reduce(padded[at], taps)

    axis_names = ["n", *names, "c"] if last else ["n", "c", *names]
    return te.compute(out.shape, element, name, axis_names=axis_names)


def _max_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), out, fill = tensors, out_type(type), _lowest(tensors[0].dtype)
    if x.dtype != "bfloat16":
        return _window_stage(x, attrs, out, fill, "max_pool", te.max)
    # CPUs compare these as float32, which they become once, not for each comparison.
    top = _window_stage(
        x, attrs, out, fill, "window_max", lambda v, taps: te.max(te.cast(v, "float32"), taps)
    )
    return te.compute(out.shape, lambda *i: te.cast(top[i], out.dtype), "max_pool")


def _wide_sum(x: te.Tensor, f: Callable[[Expr], Expr]) -> Callable[..., te.Reduce]:
    return lambda value, taps: te.sum(f(te.cast(value, wide(x.dtype))), taps)


def _avg_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), out = tensors, out_type(type)
    total = _window_stage(x, attrs, out, 0, "window_sum", _wide_sum(x, lambda v: v))
    last = channels_last(attrs)
    _, _, spatial = split_shape(x.shape, last)

    def element(*i: Expr) -> Expr:
        at = i[1:-1] if last else i[2:]
        return te.cast(total[i] / te.cast(_divisor(attrs, spatial, at), total.dtype), out.dtype)

    return te.compute(out.shape, element, "avg_pool")


def _divisor(attrs: Attrs, spatial: Sequence[int], at: Sequence[Expr]) -> Expr:
    """How many taps of the window at ``at`` lie in the data or the counted padding."""
    count: Expr = te.const(1, "int64")
    rows = zip(
        integers(attrs, "kernel"), integers(attrs, "strides"), integers(attrs, "dilations"),
        pairs(attrs["padding"]), pairs(attrs["counted"]), spatial, at, strict=True,
    )  # fmt: skip
    for k, stride, dilation, padding, counted, extent, i in rows:
        if padding == counted:
            count = count * k
            continue
        start = i * stride - padding[0]
        first = te.maximum((dilation - 1 - counted[0] - start) // dilation, te.const(0, "int64"))
        end = (extent + counted[1] - start + (dilation - 1)) // dilation
        count = count * (te.minimum(end, te.const(k, "int64")) - first)
    return count


def _lp_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    (x,), out = tensors, out_type(type)
    p = integer(attrs, "p")

    def power(value: Expr) -> Expr:
        if p == 2:
            return value * value
        size = te.intrinsic("abs", value)
        return size if p == 1 else te.intrinsic("pow", size, te.const(float(p), size.dtype))

    total = _window_stage(x, attrs, out, 0, "window_sum", _wide_sum(x, power))

    def root(value: Expr) -> Expr:
        if p == 1:
            return value
        if p == 2:
            return te.intrinsic("sqrt", value)
        return te.intrinsic("pow", value, te.const(1.0 / p, value.dtype))

    return te.compute(out.shape, lambda *i: te.cast(root(total[i]), out.dtype), "lp_pool")


def _flat_place(attrs: Attrs, spatial: Sequence[int], place: Sequence[Expr]) -> Expr:
    """The tap's index within the channel's unpadded data, row-major (or column-major)."""
    flat: Expr = te.const(0, "int64")
    dims = list(zip(place, pairs(attrs["padding"]), spatial, strict=True))
    for i, (lo, _), extent in reversed(dims) if attrs["column_major"] else dims:
        flat = flat * extent + (i - lo)
    return flat


def _indices_compute(tensors: Sequence[te.Tensor], attrs: Attrs, type: Type) -> te.Tensor:
    """The lowest index of the taps that equal the window's maximum."""
    (x,), out = tensors, out_type(type)
    last, kernel = channels_last(attrs), integers(attrs, "kernel")
    names = SPATIAL_NAMES[len(kernel)]
    batch, channels, spatial = split_shape(x.shape, last)
    top = _window_stage(x, attrs, out, _lowest(x.dtype), "window_max", te.max)
    padded = pad_stage(x, pairs(attrs["padding"]), 1 if last else 2, _lowest(x.dtype))
    taps = [te.reduce_axis(e, f"k{n}") for e, n in zip(kernel, names, strict=True)]

    def element(*i: Expr) -> te.Reduce:
        place = _place(attrs, i[1:-1] if last else i[2:], taps)
        c = i[-1] if last else i[1]
        flat = (i[0] * channels + c) * prod(spatial) + _flat_place(attrs, spatial, place)
        inside: Expr = te.const(True, "bool")
        for at, (lo, hi), extent in zip(place, pairs(attrs["padding"]), spatial, strict=True):
            if lo or hi:
                inside = inside & (at >= lo) & (at < lo + extent)
        value = padded[(i[0], *place, c) if last else (i[0], c, *place)]
        none = te.const(batch * channels * prod(spatial), "int64")
        return te.min(te.if_then_else(inside & value.equal(top[i]), flat, none), taps)

    return te.compute(out.shape, element, "max_pool_indices")


def _taps(x: Array, attrs: Attrs, fill: float) -> Iterator[tuple[tuple[int, ...], Array]]:
    """For each tap of the window, the padded NCS data's strided slice that it reads."""
    padding, kernel = pairs(attrs["padding"]), integers(attrs, "kernel")
    strides, dilations = integers(attrs, "strides"), integers(attrs, "dilations")
    extents = window_extents(x.shape[2:], kernel, strides, padding, dilations)
    padded = np.pad(x, ((0, 0), (0, 0), *padding), constant_values=fill)
    for tap in np.ndindex(*kernel):
        window = tuple(
            slice(t * d, t * d + (e - 1) * s + 1, s)
            for t, d, e, s in zip(tap, dilations, extents, strides, strict=True)
        )
        yield tap, padded[(slice(None), slice(None), *window)]


def _pooled(reduce: Callable[[Array, Attrs], Array]) -> Callable[..., Array]:
    """The NumPy meaning, from one on wide data in NCS."""

    def reference(arrays: Sequence[Array], attrs: Attrs) -> Array:
        x, last = widen(arrays[0]), attrs["data_layout"] == "NSC"
        y = reduce(np.moveaxis(x, -1, 1) if last else x, attrs)
        y = np.ascontiguousarray(np.moveaxis(y, 1, -1)) if last else y
        return y if y.dtype == np.int64 else to_dtype(y, arrays[0].dtype.name)

    return reference


def _max_array(x: Array, attrs: Attrs) -> Array:
    best: Array | None = None
    for _, part in _taps(x, attrs, _lowest(x.dtype.name)):
        best = part.copy() if best is None else np.maximum(best, part, out=best)
    assert best is not None
    return best


def _sum_array(x: Array, attrs: Attrs) -> Array:
    total: Array | None = None
    for _, part in _taps(x, attrs, 0):
        total = part.copy() if total is None else np.add(total, part, out=total)
    assert total is not None
    return total


def _avg_array(x: Array, attrs: Attrs) -> Array:
    counted, padding = pairs(attrs["counted"]), pairs(attrs["padding"])
    ones = np.pad(np.ones(x.shape[2:], x.dtype), counted, constant_values=1)
    left = tuple((p[0] - c[0], p[1] - c[1]) for p, c in zip(padding, counted, strict=True))
    count = _sum_array(np.pad(ones, left)[None, None], {**attrs, "padding": ((0, 0),) * len(left)})
    return _sum_array(x, attrs) / count


def _lp_array(x: Array, attrs: Attrs) -> Array:
    p = integer(attrs, "p")
    return np.asarray(_sum_array(np.abs(x) ** p, attrs) ** (1.0 / p), x.dtype)


def _indices_array(x: Array, attrs: Attrs) -> Array:
    flat = np.arange(x.size, dtype=np.int64).reshape(x.shape)
    if attrs["column_major"]:
        axes = (0, 1, *range(x.ndim - 1, 1, -1))
        flat = np.arange(x.size, dtype=np.int64).reshape([x.shape[a] for a in axes])
        flat = flat.transpose(axes)
    top = _max_array(x, attrs)
    best = np.full(top.shape, x.size, np.int64)
    places = _taps(flat, attrs, x.size)
    for (_, part), (_, place) in zip(_taps(x, attrs, _lowest(x.dtype.name)), places, strict=True):
        np.minimum(best, np.where(part == top, place, x.size), out=best)
    return best


def _flops(types: Sequence[TensorType], attrs: Attrs, type: Type) -> int:
    return out_type(type).size * prod(integers(attrs, "kernel"))


def _check_float(types: Sequence[TensorType], attrs: Attrs) -> Type:
    require_dtype(types[0].dtype, FLOATS, "floating-point numbers")
    return _infer(types, attrs)


_WINDOW: dict[str, AttrValue] = {
    "kernel": (1, 1),
    "strides": (1, 1),
    "padding": ((0, 0), (0, 0)),
    "dilations": (1, 1),
    "data_layout": "NCS",
}

register(
    Op("max_pool", _infer, _max_compute, _pooled(_max_array), Pattern.REDUCTION, _WINDOW, _flops),
    Op(
        "max_pool_indices",
        lambda types, attrs: TensorType(out_type(_infer(types, attrs)).shape, "int64"),
        _indices_compute,
        _pooled(_indices_array),
        Pattern.REDUCTION,
        {**_WINDOW, "column_major": False},
        _flops,
    ),
    Op(
        "avg_pool",
        _check_float,
        _avg_compute,
        _pooled(_avg_array),
        Pattern.REDUCTION,
        {**_WINDOW, "counted": ((0, 0), (0, 0))},
        _flops,
    ),
    Op(
        "lp_pool",
        _check_float,
        _lp_compute,
        _pooled(_lp_array),
        Pattern.REDUCTION,
        {**_WINDOW, "p": 2},
        _flops,
    ),
)

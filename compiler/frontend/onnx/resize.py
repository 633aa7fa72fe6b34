"""Resize and Upsample: every mode becomes one table of taps and weights for each axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import floor, inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import is_float
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Malformed,
    Node,
    Unsupported,
    axis_of,
    broadcast_to,
    cast,
    check_extents,
    constant,
    dtype_of,
    like,
    rank_of,
    reshape,
    shape_of,
)
from tunefarm.compiler.ir import Expr

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.int64]


_KINDS = ("nearest", "linear", "cubic")


@dataclass(frozen=True, slots=True)
class _Mode:
    """How an output coordinate maps to the input, and what is read there."""

    kind: str  # "nearest", "linear" or "cubic"
    transform: str
    nearest: str
    cubic_a: float
    antialias: bool
    exclude_outside: bool


def _coordinates(
    extent: int,
    size: int,
    scale: float,
    transform: str,
    roi: tuple[float, float],
    dtype: type[np.floating[Any]],
) -> Floats:
    """Where in the input each of ``size`` outputs lies, as computed in ``dtype``."""
    i, wide = np.arange(size, dtype=dtype), float(np.float32(scale * extent))
    match transform:
        case "half_pixel":
            return (i + 0.5) / scale - 0.5
        case "pytorch_half_pixel":
            return (i + 0.5) / scale - 0.5 if size > 1 else np.zeros(size)
        case "half_pixel_symmetric":
            return extent / 2 * (1 - size / wide) + (i + 0.5) / scale - 0.5
        case "asymmetric":
            return i / scale
        case "align_corners":
            return i * (extent - 1) / (wide - 1) if wide > 1 else np.zeros(size)
        case "tf_crop_and_resize":
            first, last = roi
            if wide <= 1:
                return np.full(size, (first + last) * (extent - 1) / 2)
            return first * (extent - 1) + i * (last - first) * (extent - 1) / (wide - 1)
        case _:
            raise Unsupported(f"coordinate_transformation_mode {transform!r} is not known")


def _nearest(x: Floats, mode: str) -> Ints:
    at: NDArray[np.float64] = x.astype(np.float64)  # in which halves are added without rounding
    match mode:
        case "round_prefer_floor":
            place = np.ceil(at - 0.5)
        case "round_prefer_ceil":
            place = np.floor(at + 0.5)
        case "floor":
            place = np.floor(at)
        case "ceil":
            place = np.ceil(at)
        case _:
            raise Unsupported(f"nearest_mode {mode!r} is not known")
    return place.astype(np.int64)


def _kernel(distance: Floats, mode: _Mode) -> Floats:
    """The weight of a tap at a distance: a triangle, or Keys' cubic convolution (1981)."""
    d, a = np.abs(distance), mode.cubic_a
    if mode.kind == "linear":
        return np.where(d < 1, 1 - d, 0)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0))


def _table(x: Floats, extent: int, scale: float, mode: _Mode) -> tuple[Ints, Floats]:
    """(indices, weights) of shape (outputs, taps); a tap outside reads the edge."""
    if mode.kind == "nearest":
        return np.clip(_nearest(x, mode.nearest), 0, extent - 1)[:, None], np.ones((len(x), 1))
    shrink = min(scale, 1.0) if mode.antialias else 1.0
    reach = 1 if mode.kind == "linear" else 2
    first = floor(-reach / shrink) + 1
    check_extents((len(x), 2 - 2 * first))
    offsets = np.arange(first, 2 - first)
    base = np.floor(x)
    weights = _kernel((offsets - (x - base)[:, None]) * shrink, mode)
    places = base.astype(np.int64)[:, None] + offsets
    if mode.exclude_outside:
        weights = np.where((places >= 0) & (places < extent), weights, 0)
    if mode.antialias or mode.exclude_outside:
        weights = weights / weights.sum(1, keepdims=True)
    return np.clip(places, 0, extent - 1), weights


def _resize_axis(node: Node, x: Expr, axis: int, places: Ints, weights: Floats) -> Expr:
    if places.shape[1] > 1:
        tables = constant(places, "int64"), constant(weights, "float32")
        return node.emit("interpolate", x, *tables, axis=axis)
    return node.emit("gather", x, constant(places[:, 0], "int64"), axis=axis)


def _times(places: Ints, extent: int) -> int:
    """How often each element follows itself, if that is all that there is to it; else 0."""
    times, rest = divmod(len(places), extent)
    if places.shape[1] > 1 or rest or not times:
        return 0
    return times if np.array_equal(places[:, 0], np.arange(len(places)) // times) else 0


def _repeated(x: Expr, times: Mapping[int, int], name: str) -> Expr:
    """Each element of the axes in ``times`` so often, of all axes at once."""
    shape = shape_of(x)
    apart = [(n, 1) if a in times else (n,) for a, n in enumerate(shape)]
    wide = [(n, times[a]) if a in times else (n,) for a, n in enumerate(shape)]
    whole = broadcast_to(reshape(x, tuple(chain(*apart))), tuple(chain(*wide)))
    return reshape(whole, tuple(map(prod, wide)), name)


def _resize(
    node: Node,
    axes: Sequence[int],
    sizes: Sequence[int],
    scales: Sequence[float],
    mode: _Mode,
    roi: Sequence[tuple[float, float]],
) -> Expr:
    dtype = dtype_of(node.x)
    if mode.kind not in _KINDS or (dtype == "bool" and mode.kind != "nearest"):
        raise Unsupported(f"mode {mode.kind!r} of {dtype} is not supported")
    x = node.x if is_float(dtype) or mode.kind == "nearest" else cast(node.x, "float32")
    outside: list[tuple[int, NDArray[np.bool_]]] = []
    repeated: dict[int, int] = {}
    for axis, size, scale, part in zip(axes, sizes, scales, roi, strict=True):
        extent = shape_of(x)[axis]
        check_extents([size])
        if size == 0 or extent == 0:
            raise Unsupported(f"{extent} elements along axis {axis} to {size}")
        # What is nearest to 15 and to 15.0000000001 may differ: onnxruntime computes in float32.
        exact = np.float32 if mode.kind == "nearest" else np.float64
        at = _coordinates(extent, size, scale, mode.transform, part, exact)
        if size == extent and np.array_equal(at, np.arange(extent)):
            continue
        if mode.transform == "tf_crop_and_resize":
            outside.append((axis, (at < 0) | (at > extent - 1)))
        places, weights = _table(at, extent, scale, mode)
        times = _times(places, extent)
        if times > 1:
            repeated[axis] = times
        elif times == 0:
            x = _resize_axis(node, x, axis, places, weights)
    x = _repeated(x, repeated, node.name) if repeated else x
    fill = like(node.attr("extrapolation_value", 0.0), x)
    for axis, mask in outside:
        if mask.any():
            shape = [len(mask) if d == axis else 1 for d in range(rank_of(x))]
            x = node.emit("where", constant(mask.reshape(shape), "bool"), fill, x)
    if dtype_of(x) == dtype:
        return x
    info = np.iinfo(dtype)
    x = node.emit("clip", node.emit("round", x), min=float(info.min), max=float(info.max))
    return cast(x, dtype)


def _scaled(extents: Sequence[int], scales: Sequence[float]) -> list[int]:
    """The extents times positive numbers, as many."""
    if len(scales) != len(extents) or not all(0 < s < inf for s in scales):
        raise Malformed(f"scales are {scales}, and must be {len(extents)} positive numbers")
    return [floor(np.float32(s) * np.float32(e)) for s, e in zip(scales, extents, strict=True)]


def _scales_or_sizes(node: Node, axes: Sequence[int]) -> tuple[list[int], list[float]]:
    """(sizes, scales) along ``axes``."""
    extents = [shape_of(node.x)[a] for a in axes]
    if 0 in extents:
        raise Unsupported(f"data of shape {shape_of(node.x)} has no elements")
    scales_at = 2 if node.opset > 10 else 1
    if node.has(scales_at):
        scales = [float(s) for s in node.constant(scales_at, "the scales").reshape(-1)]
        if scales:
            return _scaled(extents, scales), scales
    sizes = list(node.ints(3, "the sizes"))
    if len(sizes) != len(axes) or min(sizes, default=1) < 1:
        raise Malformed(f"sizes are {sizes}, and must be {len(axes)} positive integers")
    scales = [s / e for s, e in zip(sizes, extents, strict=True)]
    policy = node.attr("keep_aspect_ratio_policy", "stretch")
    if policy != "stretch":
        scale = min(scales) if policy == "not_larger" else max(scales)
        return [int(scale * e + 0.5) for e in extents], [scale] * len(extents)
    return sizes, scales


def _convert_resize(node: Node) -> Expr:
    rank = rank_of(node.x)
    axes = [axis_of(a, rank) for a in node.attr("axes") or range(rank)]
    sizes, scales = _scales_or_sizes(node, axes)
    first = node.opset <= 10
    mode = _Mode(
        node.attr("mode", "nearest"),
        "asymmetric" if first else node.attr("coordinate_transformation_mode", "half_pixel"),
        "floor" if first else node.attr("nearest_mode", "round_prefer_floor"),
        node.attr("cubic_coeff_a", -0.75),
        bool(node.attr("antialias", 0)),
        bool(node.attr("exclude_outside", 0)),
    )
    roi = [(0.0, 1.0)] * len(axes)
    if mode.transform == "tf_crop_and_resize":
        flat = [float(v) for v in node.constant(1, "the region").reshape(-1)]
        if len(flat) != 2 * len(axes):
            raise Malformed(f"the region is {flat}, and must be {2 * len(axes)} numbers")
        roi = list(zip(flat[: len(axes)], flat[len(axes) :], strict=True))
    return _resize(node, axes, sizes, scales, mode, roi)


def _convert_upsample(node: Node) -> Expr:
    if node.opset < 9:
        scales = [float(s) for s in node.required("scales")]
    else:
        scales = [float(s) for s in node.constant(1, "the scales").reshape(-1)]
    sizes = _scaled(shape_of(node.x), scales)
    mode = _Mode(node.attr("mode", "nearest"), "asymmetric", "floor", -0.75, False, False)
    axes = range(len(scales))
    return _resize(node, axes, sizes, scales, mode, [(0.0, 1.0)] * len(scales))


CONVERTERS: dict[str, Converter] = {"Resize": _convert_resize, "Upsample": _convert_upsample}

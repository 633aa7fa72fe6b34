"""GridSample and Col2Im: places and weights of taps, whose sums are ``sample``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import FLOATS
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    broadcast_to,
    cast,
    constant,
    dtype_of,
    emit,
    expand_dims,
    like,
    reshape,
    shape_of,
    take_range,
)
from tunefarm.compiler.ir import Expr

_CUBIC = -0.75


@dataclass(frozen=True, slots=True)
class _Kernel:
    """Taps along one axis, counted from a coordinate's ``base``, and the weight of each, a
    polynomial of the rest: coefficients of shape (powers from the highest, taps)."""

    base: str
    offsets: Sequence[int]
    weights: NDArray[np.float64]


_KERNELS = {
    "nearest": _Kernel("round", (0,), np.array([[1.0]])),
    "linear": _Kernel("floor", (0, 1), np.array([[-1.0, 1.0], [1.0, 0.0]])),
    "cubic": _Kernel(  # Keys' cubic convolution (1981)
        "floor",
        (-1, 0, 1, 2),
        np.array(
            [
                [_CUBIC, _CUBIC + 2, -_CUBIC - 2, -_CUBIC],
                [-2 * _CUBIC, -_CUBIC - 3, 2 * _CUBIC + 3, _CUBIC],
                [_CUBIC, 0, -_CUBIC, 0],
                [0, 1, 0, 0],
            ]
        ),
    ),
}
_KERNELS |= {"bilinear": _KERNELS["linear"], "bicubic": _KERNELS["cubic"]}  # before opset 20
_Taps: TypeAlias = tuple[Expr, Expr]
"""Places (int32) and weights (float32) of shape (batch, outputs, taps)."""


def _op(op: str, x: Expr, value: object) -> Expr:
    return emit(op, x, like(value, x))


def _reflected(x: Expr, low: float, high: float) -> Expr:
    """x, thrown back at both borders until it lies between them: a triangular wave."""
    span = high - low
    if span <= 0:
        return _op("multiply", x, 0)
    distance = emit("abs", _op("subtract", x, low))
    turns = emit("floor", _op("divide", distance, 2 * span))
    rest = emit("subtract", distance, _op("multiply", turns, 2 * span))
    back = _op("add", _op("multiply", rest, -1), 2 * span)
    return _op("add", emit("minimum", rest, back), low)


def _kept_inside(x: Expr, extent: int, padding: str, aligned: bool) -> Expr:
    """A coordinate, or the place of a tap, moved into the axis as the padding says."""
    if padding == "zeros":
        return x
    if padding == "reflection":
        edge = 0.0 if aligned else 0.5
        x = _reflected(x, -edge, extent - 1 + edge)
    return emit("clip", x, min=0.0, max=float(extent - 1))


def _taps(x: Expr, extent: int, kernel: _Kernel, padding: str, aligned: bool) -> _Taps:
    """The taps along an axis at ``x``, its coordinates of shape (batch, outputs)."""
    apart = len(kernel.offsets) > 2  # a cubic kernel's taps are moved inside one by one
    if not apart:
        x = _kept_inside(x, extent, padding, aligned)
    base = emit(kernel.base, x)
    rest = expand_dims(emit("subtract", x, base), [2])
    weights: Expr = like(kernel.weights[0], x)
    for coefficients in kernel.weights[1:]:
        weights = _op("add", emit("multiply", rest, weights), coefficients)
    places = _op("add", expand_dims(base, [2]), kernel.offsets)
    if padding == "zeros":
        outside = emit("logical_or", _op("less", places, 0), _op("greater", places, extent - 1))
        weights = emit("where", outside, like(0, weights), weights)
    elif apart:
        places = emit("round", _kept_inside(places, extent, padding, aligned))
    index = cast(emit("clip", places, min=0.0, max=float(extent - 1)), "int32")
    index = emit("clip", index, min=0, max=extent - 1)  # NaN is no place
    return index, broadcast_to(weights, shape_of(index))


def _crossed(a: _Taps, b: _Taps, extent: int) -> _Taps:
    """Each tap of ``a`` with each of ``b``, whose axis follows and has ``extent`` elements."""
    shape = (*shape_of(a[0])[:2], shape_of(a[0])[2] * shape_of(b[0])[2])
    rows = expand_dims(_op("multiply", a[0], extent), [3])
    places = emit("add", rows, expand_dims(b[0], [2]))
    weights = emit("multiply", expand_dims(a[1], [3]), expand_dims(b[1], [2]))
    return reshape(places, shape), reshape(weights, shape)


def _coordinate(at: Expr, extent: int, aligned: bool) -> Expr:
    """Where in an axis -1 to 1 lie: from the middle of its first element to that of its last, or
    from edge to edge."""
    if aligned:
        return _op("multiply", _op("add", at, 1), (extent - 1) / 2)
    return _op("multiply", _op("subtract", _op("multiply", _op("add", at, 1), extent), 1), 0.5)


def _grid_sample(node: Node) -> Expr:
    x, grid = node.x, node.input(1)
    if not shape_of(grid) or len(shape_of(x)) < 3:
        raise Unsupported(f"a grid of {shape_of(grid)} does not fit an image of {shape_of(x)}")
    (batch, channels, *spatial), (*outer, rank) = shape_of(x), shape_of(grid)
    mode, padding = node.attr("mode", "linear"), node.attr("padding_mode", "zeros")
    kernel, aligned = _KERNELS.get(mode), bool(node.attr("align_corners", 0))
    if kernel is None or padding not in ("zeros", "border", "reflection"):
        raise Unsupported(f"mode {mode!r} with padding_mode {padding!r} is not known")
    if dtype_of(x) not in FLOATS or dtype_of(grid) not in FLOATS:
        raise Unsupported(f"takes floating-point numbers, not {dtype_of(x)} and {dtype_of(grid)}")
    fits = rank == len(spatial) and len(outer) == rank + 1 and outer[0] == batch
    if not fits or not 0 < prod(spatial) < 2**31:
        raise Unsupported(f"a grid of {shape_of(grid)} does not fit an image of {shape_of(x)}")
    grid = reshape(cast(grid, "float32"), (batch, prod(outer[1:]), rank))
    found: _Taps | None = None
    for axis, extent in enumerate(spatial):
        place = rank - 1 - axis  # grids name the last axis first
        at = reshape(take_range(grid, 2, place, place + 1), shape_of(grid)[:2])
        taps = _taps(_coordinate(at, extent, aligned), extent, kernel, padding, aligned)
        found = taps if found is None else _crossed(found, taps, extent)
    assert found is not None
    data = reshape(x, (batch, channels, prod(spatial)))
    return reshape(node.emit("sample", data, *found), (batch, channels, *outer[1:]))


def _col2im(node: Node) -> Expr:
    """Each element of the image as the sum of those of the blocks that cover it."""
    x, image, block = node.x, node.ints(1, "the image's shape"), node.ints(2, "the block's shape")
    rank, shape = len(image), shape_of(x)
    strides, dilations = (node.attr(n) or (1,) * rank for n in ("strides", "dilations"))
    pads = node.attr("pads") or (0,) * 2 * rank
    same = len(block) == len(strides) == len(dilations) == rank > 0 and len(pads) == 2 * rank
    if not same or min(*image, *block, *strides, *dilations) < 1 or min(pads) < 0:
        raise Unsupported(
            f"an image {image} of blocks {block} with strides {strides}, dilations {dilations} and "
            f"pads {pads}, which must be as many positive integers, and pads not negative"
        )
    counts = [
        max((e + lo + hi - d * (b - 1) - 1) // s + 1, 0)
        for e, lo, hi, d, b, s in zip(
            image, pads[:rank], pads[rank:], dilations, block, strides, strict=True
        )
    ]
    fits = len(shape) == 3 and shape[2] == prod(counts) and shape[1] % prod(block) == 0
    if not fits or dtype_of(x) not in FLOATS:
        raise Unsupported(f"{prod(counts)} blocks, and columns of shape {shape}, {dtype_of(x)}")
    at = np.zeros((1, 1), np.int64)  # (elements of a block, blocks): places in the image, or -1
    for d in range(rank):
        first = np.arange(counts[d]) * strides[d] - pads[d]
        place = first + np.arange(block[d])[:, None] * dilations[d]
        inside = (place >= 0) & (place < image[d])
        outer, own = at[:, None, :, None], np.where(inside, place, -1)[None, :, None, :]
        joined = np.where((outer < 0) | (own < 0), -1, outer * image[d] + own)
        at = joined.reshape(at.shape[0] * block[d], -1)
    places, weights = _readers(at.reshape(-1), prod(image))
    rows = reshape(x, (1, shape[0] * shape[1] // at.shape[0], at.size))
    summed = node.emit("sample", rows, constant(places, "int32"), constant(weights, "float32"))
    return reshape(summed, (shape[0], shape[1] // at.shape[0], *image))


def _readers(targets: NDArray[np.int64], extent: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """(places, weights) of shape (1, extent, taps): the elements whose target each place is."""
    order = np.argsort(targets, kind="stable")
    order = order[np.searchsorted(targets[order], 0) :]
    found, counts = targets[order], np.bincount(targets[order], minlength=extent)
    column = np.arange(len(order)) - (np.cumsum(counts) - counts)[found]
    places = np.zeros((1, extent, max(counts.max(initial=0), 1)), np.int64)
    weights = np.zeros(places.shape)
    places[0, found, column], weights[0, found, column] = order, 1
    return places, weights


CONVERTERS: dict[str, Converter] = {"GridSample": _grid_sample, "Col2Im": _col2im}

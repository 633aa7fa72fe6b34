"""Packing of constant operands: the tensor that a kernel's layout asks for, made once.

A layout may ask for a transform of the values first; it is named, because layouts are stored.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.space.float_parts.forms import IN_PARTS, PART
from tunefarm.compiler.space.image_rows.repetition import THEN, repetitions
from tunefarm.compiler.space.last_columns import forms as last_columns
from tunefarm.compiler.space.strassen.forms import (
    LANES,
    LEVELS,
    transform_name,
    transform_weights,
)
from tunefarm.compiler.space.winograd.transforms import (
    FILTERS,
    ROW_TILES,
    SUMMED,
    TILES,
    filter_transform,
    transform_filter,
)
from tunefarm.compiler.space.winograd_online.transforms import SCALED, scale_taps
from tunefarm.compiler.tir.ir import PackedLayout

TRANSFORMS: dict[str, Callable[[NDArray[Any]], NDArray[Any]]] = {
    **{
        transform_name(lanes, levels): functools.partial(
            transform_weights, lanes=lanes, levels=levels
        )
        for lanes, levels in product(LANES, LEVELS.values())
    },
    **{
        filter_transform(tile, stride, taps): functools.partial(
            transform_filter, tile=tile, stride=stride, taps=taps
        )
        for taps, stride, tile in (
            *((t, s, tile) for t, s in FILTERS for tile in product(TILES[t], TILES[t])),
            *((3, 2, (SUMMED, tile)) for tile in ROW_TILES[3]),
            *((3, 2, (tile, SUMMED)) for tile in ROW_TILES[3]),
            *((t, 1, (SUMMED, tile)) for t, tiles in ROW_TILES.items() for tile in tiles),
            *((t, 1, (tile, SUMMED)) for t, tiles in ROW_TILES.items() for tile in tiles),
        )
    },
    SCALED: scale_taps,
    **{
        last_columns.transform_name(lanes, turned): functools.partial(
            last_columns.parted, lanes=lanes, turned=turned
        )
        for lanes, turned in product(last_columns.LANES, (False, True))
    },
    **IN_PARTS,
}


def pack(array: NDArray[Any], layout: PackedLayout | None, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array as a kernel's parameter of ``shape`` reads it: split, padded with zeros and
    permuted as its layout says; only viewed if there is none."""
    if layout is None:
        return array.reshape(shape)
    packed = np.empty(shape, packed_dtype(array.dtype, layout))
    pack_into(packed, array, layout)
    return packed


def packed_dtype(dtype: np.dtype[Any], layout: PackedLayout | None) -> np.dtype[Any]:
    """What elements are once packed: a layout may ask for their parts."""
    return numpy_dtype(PART) if layout is not None and layout.transform in IN_PARTS else dtype


def pack_into(out: NDArray[Any], array: NDArray[Any], layout: PackedLayout | None) -> None:
    """Write what ``pack`` returns into ``out``, C-contiguous and of the parameter's shape."""
    if layout is None:
        np.copyto(out, array.reshape(out.shape))
        return
    viewed = _transformed(array, layout.transform).reshape(layout.shape)
    outer = [-(-e // prod(f)) for e, f in zip(viewed.shape, layout.factors, strict=True)]
    split = [n for o, factors in zip(outer, layout.factors, strict=True) for n in (o, *factors)]
    target = out.reshape([split[a] for a in layout.order]).transpose(np.argsort(layout.order))
    _zero_padding(target, viewed.shape, layout)
    axes = zip(viewed.shape, layout.factors, strict=True)
    for pieces in product(*(list(_pieces(e, f)) for e, f in axes)):
        part = viewed[tuple(p.source for p in pieces)]
        place = tuple(s for p in pieces for s in p.place)
        target[place] = part.reshape([n for p in pieces for n in p.shape])


def _transformed(array: NDArray[Any], name: str) -> NDArray[Any]:
    """The values that a layout asks for: "" are the array's own, "repeat 28" those of 28 pixels,
    "winograd2x1, repeat 28" those of a transformed filter."""
    for step in name.split(THEN) if name else ():
        count = repetitions(step)
        array = np.tile(array, count) if count else TRANSFORMS[step](array)
    return array


@dataclass(frozen=True, slots=True)
class _Piece:
    """Part of a dimension, where it goes in the split dimensions, and its extents there."""

    source: slice
    place: tuple[slice, ...]
    shape: tuple[int, ...]


def _pieces(extent: int, factors: tuple[int, ...]) -> Iterator[_Piece]:
    """A dimension's whole blocks, then what remains of it in ever smaller ones.

    23 split by (4, 2)  ->  [0:16] at (0:2, :, :), [16:22] at (2, 0:3, :), [22:23] at (2, 3, 0:1)
    """
    start = 0
    before: tuple[slice, ...] = ()
    for level in range(len(factors) + 1):
        rest = factors[level:]
        count = (extent - start) // prod(rest)
        if count:
            end = start + count * prod(rest)
            place = (*before, slice(0, count), *(slice(None) for _ in rest))
            yield _Piece(slice(start, end), place, (*(1 for _ in before), count, *rest))
            start = end
        before = (*before, slice(count, count + 1))


def _zero_padding(target: NDArray[Any], extents: tuple[int, ...], layout: PackedLayout) -> None:
    """Clear the last block of each dimension that its factors do not divide."""
    axis = 0
    for extent, factors in zip(extents, layout.factors, strict=True):
        if extent % prod(factors):
            np.moveaxis(target, axis, 0)[-1] = 0
        axis += 1 + len(factors)

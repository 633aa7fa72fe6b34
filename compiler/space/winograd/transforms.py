"""The matrices of Winograd's minimal filtering F(m, 3), and a filter in its transformed domain.

y = Aᵀ[(G g) ⊙ (Bᵀ d)] gives m outputs of a filter of 3 taps from m + 2 inputs with m + 2 products
(Lavin & Gray, "Fast algorithms for convolutional neural networks", 2016); nested, a tile of
outputs of 3 × 3 taps. They are Toom–Cook's interpolation at the points below. For m = 4 the points
0, ±3/4, ±3/2 keep the error of float32 near that of the direct sum, a quarter of what 0, ±1, ±2
give.

A filter of three taps and stride 2 is a sum of two filters of stride 1: of its outer taps over the
even inputs, F(m, 2), and of its middle tap over the odd ones. That takes 2m + 1 products of as many
inputs; the last m are multiplied with the same weight.

One of seven taps and stride 2 is a sum of filters of four taps, F(m, 4), over the even and over the
odd inputs, which have the same points: even and odd rows and columns are taken as channels of their
own, four times as many. Of all sets 0, ±a, ±b, c of eighths those for m = 4 err least. So do, to a
few percent, the ones of five and seven taps in one dimension.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

TILES: Mapping[int, tuple[int, ...]] = {3: (2, 4), 7: (2, 3, 4)}
"""Results of a tile in one dimension, by the taps of the filter."""
ROW_TILES: Mapping[int, tuple[int, ...]] = {3: (2, 4), 5: (2, 4), 7: (2, 3, 4)}
"""The same where the taps of the other dimension are summed as they are."""
SUMMED = 1
"""The tile of a dimension whose taps are summed as they are: its filters are the taps."""
FILTERS = ((3, 1), (3, 2), (7, 2))
"""Taps and strides of the filters that there are transforms for."""
_HALF, _PART, _WIDE, _FAR = Fraction(1, 2), Fraction(3, 4), Fraction(9, 8), Fraction(5, 4)
_POINTS = {
    (2, 3): (Fraction(0), Fraction(1), Fraction(-1)),
    (4, 3): (Fraction(0), _PART, -_PART, 2 * _PART, -2 * _PART),
    (2, 2): (Fraction(0), Fraction(1)),
    (4, 2): (Fraction(0), Fraction(1), Fraction(-1), _HALF),
    (2, 5): (Fraction(0), _PART, -_PART, _FAR, -_FAR),
    (4, 5): (Fraction(0), _HALF, -_HALF, Fraction(1), Fraction(-1), Fraction(2), Fraction(-2)),
    (2, 7): (Fraction(0), _HALF, -_HALF, Fraction(1), Fraction(-1), Fraction(2), Fraction(-2)),
    (3, 7): (Fraction(0), _HALF, -_HALF, _PART, -_PART, 2 * _PART, -2 * _PART, Fraction(3)),
    (4, 7): (Fraction(0), _HALF, -_HALF, _PART, -_PART, _FAR, -_FAR, 2 * _FAR, -2 * _FAR),
    (2, 4): (Fraction(0), Fraction(1), Fraction(-1), _HALF),
    (3, 4): (Fraction(0), _PART, -_PART, 2 * _PART, -2 * _PART),
    (4, 4): (Fraction(0), _HALF, -_HALF, _WIDE, -_WIDE, Fraction(3)),
}
"""Finite points of F(m, taps); the last one is infinity."""

Matrix = tuple[tuple[float, ...], ...]
Parts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Transforms:
    """Bᵀ ``[p, p]``, G ``[f, taps]`` and Aᵀ ``[m, p]`` for p points, each entry rounded once. The
    points of the range ``shared`` have one row of G, all others one each, in order.

    ``data_parts`` and ``result_parts`` cut the columns of Bᵀ and Aᵀ so that rows for points ±x
    have sums of parts in common.
    """

    data: Matrix
    filter: Matrix
    result: Matrix
    data_parts: Parts
    result_parts: Parts
    shared: range

    @property
    def points(self) -> int:
        return len(self.data)

    @property
    def filters(self) -> int:
        """Different weights that the points have."""
        return len(self.filter)


def phases(taps: int) -> int:
    """How many channels each one becomes in one dimension: 2 if even and odd inputs are apart."""
    return 2 if taps == 7 else 1


@functools.cache
def transforms(tile: int, stride: int = 1, taps: int = 3) -> Transforms:
    """The matrices for tiles of ``tile`` results in one dimension, of one of ``FILTERS``."""
    if stride == phases(taps):
        return _interpolated(tile, -(-taps // stride))
    data, filters, result = _toom_cook(tile, taps - 1)
    inner, points = len(data), len(data) + tile
    zero, one = Fraction(0), Fraction(1)
    rows = [[row[x // 2] if x % 2 == 0 else zero for x in range(points)] for row in data]
    rows += [[Fraction(x == 2 * i + 1) for x in range(points)] for i in range(tile)]
    outer = [*([row[0], zero, row[1]] for row in filters), [zero, one, zero]]
    sums = [[*row, *(Fraction(i == k) for k in range(tile))] for i, row in enumerate(result)]
    data_parts = tuple(tuple(range(n, points, 4)) for n in (0, 2, 1, 3))
    result_parts = (*_signs(inner), *((n,) for n in range(inner, points)))
    return _rounded(rows, outer, sums, data_parts, result_parts, range(inner, points))


def _interpolated(tile: int, taps: int) -> Transforms:
    data, filters, result = _toom_cook(tile, taps)
    points = len(data)
    evens, odds = tuple(range(0, points, 2)), tuple(range(1, points, 2))
    none = range(points - 1, points)
    return _rounded(data, filters, result, (evens, odds), _signs(points), none)


@functools.cache
def transforms_of_rows(tile: int, stride: int, taps: int = 3) -> Transforms:
    """The matrices of one dimension alone, three taps of stride 2 with the points in another order:
    a tile that lacks its last result can do without the last of them. Infinity, of the outer taps,
    stands behind the points of the middle tap, one for each result."""
    if stride == 1:
        return _interpolated(tile, taps)
    t = transforms(tile, stride)
    order = (*range(tile), *t.shared, tile)
    return Transforms(
        tuple(t.data[p] for p in order),
        (*t.filter[:tile], t.filter[-1], t.filter[tile]),
        tuple(tuple(row[p] for p in order) for row in t.result),
        t.data_parts,
        tuple(tuple(order.index(p) for p in part) for part in t.result_parts),
        range(tile, 2 * tile),
    )


Rows = list[list[Fraction]]


def _toom_cook(tile: int, taps: int) -> tuple[Rows, Rows, Rows]:
    """Bᵀ, G and Aᵀ of F(tile, taps)."""
    points = _POINTS[tile, taps]
    others = [[q for q in points if q != p] for p in points]
    data = [[*_coefficients(rest), Fraction(0)] for rest in others] + [_coefficients(points)]
    filters = [
        [p**k / prod((p - q for q in rest), start=Fraction(1)) for k in range(taps)]
        for p, rest in zip(points, others, strict=True)
    ]
    filters.append([Fraction(int(k == taps - 1)) for k in range(taps)])
    result = [[*(p**i for p in points), Fraction(int(i == tile - 1))] for i in range(tile)]
    return data, filters, result


def _signs(points: int) -> Parts:
    """The point 0, pairs ±x as far as there are, infinity."""
    pairs = ((k, min(k + 1, points - 2)) for k in range(1, points - 1, 2))
    return ((0,), *(tuple(dict.fromkeys(pair)) for pair in pairs), (points - 1,))


def _coefficients(roots: Sequence[Fraction]) -> list[Fraction]:
    """Of the polynomial Π (x − root), lowest power first."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [a - root * b for a, b in zip(shifted, [*found, Fraction(0)], strict=True)]
    return found


def _rounded(
    data: Rows, filters: Rows, result: Rows, data_parts: Parts, result_parts: Parts, shared: range
) -> Transforms:
    def matrix(rows: Rows) -> Matrix:
        return tuple(tuple(float(x) for x in row) for row in rows)

    parts = (data_parts, result_parts)
    return Transforms(matrix(data), matrix(filters), matrix(result), *parts, shared)


def continuation(tile: int, results: int, taps: int) -> tuple[float, ...]:
    """What takes the place of an input of a tile behind those that its first ``results`` results
    need, as a sum of the ``results + taps - 1`` inputs before it: products of the last finite
    points are then 0, however many results the tile has.

    Bᵀ's row for a finite point p holds the coefficients of Π (x − q) over all others. Those rows of
    the points that are left out, and multiples of Π (x − q) over the points that stay, are the same
    space: the inputs of the former are 0 if the inputs follow the recurrence of the latter.
    """
    staying = _POINTS[tile, taps][: results + taps - 1]
    return tuple(float(-c) for c in _coefficients(staying)[:-1])


def filter_transform(tile: tuple[int, int], stride: int, taps: int = 3) -> str:
    """The name under which layouts ask for a filter's transform."""
    form = ("" if taps == 3 else f"k{taps}") + ("" if stride == 1 else f"s{stride}")
    form += "shared" if stride > phases(taps) else ""
    return f"winograd{tile[0]}x{tile[1]}{form}"


def transform_filter(
    weights: NDArray[Any], tile: tuple[int, int], stride: int = 1, taps: int = 3
) -> NDArray[Any]:
    """G g Gᵀ of weights ``[taps, taps, inputs, outputs]``, in float64 and rounded once. There may
    be any number of taps in a dimension that is ``SUMMED``. Of ``[frames, taps, taps, inputs,
    outputs]`` the inputs of all frames are those of one."""
    exact = weights.astype(np.float64)
    if exact.ndim == 5:
        frames, _, _, inputs, outputs = exact.shape
        exact = np.moveaxis(exact, 0, 2).reshape(taps, taps, frames * inputs, outputs)
    if SUMMED in tile:
        above, across = (
            np.eye(n) if t == SUMMED else np.array(transforms_of_rows(t, stride, taps).filter)
            for t, n in zip(tile, weights.shape[:2], strict=True)
        )
    else:
        above, across = (np.array(transforms(t, stride, taps).filter) for t in tile)
        exact = _by_phase(exact, taps)
    rows = np.tensordot(above, exact, (1, 0))
    both = np.tensordot(across, rows, (1, 1)).swapaxes(0, 1)
    return both.astype(weights.dtype)


def _by_phase(weights: NDArray[Any], taps: int) -> NDArray[Any]:
    """Taps [p·y + i, p·x + j, c] as [y, x, (i, j, c)] for p phases, with zeros behind the last."""
    p = phases(taps)
    count, (inputs, outputs) = -(-taps // p), weights.shape[2:]
    longer = np.pad(weights, [(0, count * p - taps)] * 2 + [(0, 0)] * 2)
    parts = longer.reshape(count, p, count, p, inputs, outputs).transpose(0, 2, 1, 3, 4, 5)
    return parts.reshape(count, count, p * p * inputs, outputs)

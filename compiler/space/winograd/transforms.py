"""The matrices of Winograd's minimal filtering F(m, 3), and a filter in its transformed domain.

y = Aᵀ[(G g) ⊙ (Bᵀ d)] gives m outputs of a filter of 3 taps from m + 2 inputs with m + 2 products
(Lavin & Gray, "Fast algorithms for convolutional neural networks", 2016); nested, a tile of
outputs of 3 × 3 taps. They are Toom–Cook's interpolation at the points below. For m = 4 the points
0, ±3/4, ±3/2 keep the error of float32 near that of the direct sum, a quarter of what 0, ±1, ±2
give.

A filter of stride 2 is a sum of two filters of stride 1: of its outer taps over the even inputs,
F(m, 2), and of its middle tap over the odd ones. That takes 2m + 1 products of as many inputs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

TAPS = 3
TILES = (2, 4)
STRIDES = (1, 2)
_HALF, _PART = Fraction(1, 2), Fraction(3, 4)
_POINTS = {
    (2, 3): (Fraction(0), Fraction(1), Fraction(-1)),
    (4, 3): (Fraction(0), _PART, -_PART, 2 * _PART, -2 * _PART),
    (2, 2): (Fraction(0), Fraction(1)),
    (4, 2): (Fraction(0), Fraction(1), Fraction(-1), _HALF),
}
"""Finite points of F(m, taps); the last one is infinity."""

Matrix = tuple[tuple[float, ...], ...]
Parts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Transforms:
    """Bᵀ ``[p, p]``, G ``[p, 3]`` and Aᵀ ``[m, p]`` for p points, each entry rounded once.

    ``data_parts`` and ``result_parts`` cut the columns of Bᵀ and Aᵀ so that rows for points ±x
    have sums of parts in common.
    """

    data: Matrix
    filter: Matrix
    result: Matrix
    data_parts: Parts
    result_parts: Parts

    @property
    def points(self) -> int:
        return len(self.data)


@functools.cache
def transforms(tile: int, stride: int = 1) -> Transforms:
    """The matrices for tiles of ``tile`` results in one dimension, of stride 1 or 2."""
    if stride == 1:
        data, filters, result = _toom_cook(tile, TAPS)
        points = len(data)
        evens, odds = tuple(range(0, points, 2)), tuple(range(1, points, 2))
        return _rounded(data, filters, result, (evens, odds), _signs(points))
    data, filters, result = _toom_cook(tile, TAPS - 1)
    inner, points = len(data), len(data) + tile
    zero, one = Fraction(0), Fraction(1)
    rows = [[row[x // 2] if x % 2 == 0 else zero for x in range(points)] for row in data]
    rows += [[Fraction(x == 2 * i + 1) for x in range(points)] for i in range(tile)]
    taps = [[row[0], zero, row[1]] for row in filters] + [[zero, one, zero]] * tile
    sums = [[*row, *(Fraction(i == k) for k in range(tile))] for i, row in enumerate(result)]
    data_parts = tuple(tuple(range(n, points, 4)) for n in (0, 2, 1, 3))
    return _rounded(
        rows, taps, sums, data_parts, (*_signs(inner), *((n,) for n in range(inner, points)))
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
    data: Rows, filters: Rows, result: Rows, data_parts: Parts, result_parts: Parts
) -> Transforms:
    def matrix(rows: Rows) -> Matrix:
        return tuple(tuple(float(x) for x in row) for row in rows)

    return Transforms(matrix(data), matrix(filters), matrix(result), data_parts, result_parts)


def filter_transform(tile: tuple[int, int], stride: int) -> str:
    """The name under which layouts ask for a filter's transform."""
    return f"winograd{tile[0]}x{tile[1]}" + ("" if stride == 1 else f"s{stride}")


def transform_filter(weights: NDArray[Any], tile: tuple[int, int], stride: int = 1) -> NDArray[Any]:
    """G g Gᵀ of weights ``[3, 3, inputs, outputs]``, in float64 and rounded once."""
    above, across = (np.array(transforms(t, stride).filter) for t in tile)
    rows = np.tensordot(above, weights.astype(np.float64), (1, 0))
    both = np.tensordot(across, rows, (1, 1)).swapaxes(0, 1)
    return both.astype(weights.dtype)

"""The matrices of Winograd's minimal filtering F(m, 3), and a filter in its transformed domain.

y = Aᵀ[(G g) ⊙ (Bᵀ d)] gives m outputs of a filter of 3 taps from m + 2 inputs with m + 2 products
(Lavin & Gray, "Fast algorithms for convolutional neural networks", 2016); nested, m² outputs of
3 × 3 taps from (m + 2)² products. They are Toom–Cook's interpolation at the points below. For
m = 4 the points 0, ±3/4, ±3/2 keep the error of float32 near that of the direct sum, a quarter
of what 0, ±1, ±2 give.
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
POINTS = {
    2: (Fraction(0), Fraction(1), Fraction(-1)),
    4: (Fraction(0), Fraction(3, 4), Fraction(-3, 4), Fraction(3, 2), Fraction(-3, 2)),
}
TILES = tuple(POINTS)

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class Transforms:
    """Bᵀ ``[m+2, m+2]``, G ``[m+2, 3]`` and Aᵀ ``[m, m+2]`` of F(m, 3), each entry rounded once."""

    data: Matrix
    filter: Matrix
    result: Matrix


@functools.cache
def transforms(tile: int) -> Transforms:
    """The matrices for tiles of ``tile`` results; the last point is infinity."""
    points = POINTS[tile]
    others = [[q for q in points if q != p] for p in points]
    data = [[*_coefficients(rest), Fraction(0)] for rest in others] + [_coefficients(points)]
    filters = [
        [p**k / prod((p - q for q in rest), start=Fraction(1)) for k in range(TAPS)]
        for p, rest in zip(points, others, strict=True)
    ]
    filters.append([Fraction(int(k == TAPS - 1)) for k in range(TAPS)])
    result = [[*(p**i for p in points), Fraction(int(i == tile - 1))] for i in range(tile)]
    return Transforms(_rounded(data), _rounded(filters), _rounded(result))


def _coefficients(roots: Sequence[Fraction]) -> list[Fraction]:
    """Of the polynomial Π (x − root), lowest power first."""
    found = [Fraction(1)]
    for root in roots:
        shifted = [Fraction(0), *found]
        found = [a - root * b for a, b in zip(shifted, [*found, Fraction(0)], strict=True)]
    return found


def _rounded(rows: Sequence[Sequence[Fraction]]) -> Matrix:
    return tuple(tuple(float(x) for x in row) for row in rows)


def transform_filter(weights: NDArray[Any], tile: int) -> NDArray[Any]:
    """G g Gᵀ of weights ``[3, 3, inputs, outputs]``, in float64 and rounded once."""
    g = np.array(transforms(tile).filter)
    rows = np.tensordot(g, weights.astype(np.float64), (1, 0))
    both = np.tensordot(g, rows, (1, 1)).swapaxes(0, 1)
    return both.astype(weights.dtype)

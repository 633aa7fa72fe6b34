"""F(4, 3) whose filters are transformed by additions alone, for taps that were scaled before.

The points are those of ``winograd/transforms.py``, 0, ±3/4, ±3/2 and infinity. With the taps scaled
by 1, 3/4 and 9/16, and a point's own factor taken to the transform of the inputs, the rows of G are
1 0 0, 1 ±1 1, 1 ±2 4 and 0 0 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler import te
from tunefarm.compiler.space.winograd.transforms import Transforms, transforms
from tunefarm.compiler.tir.ir import Expr

TILE, TAPS = 4, 3
POINTS = TILE + TAPS - 1
SCALED = "winograd4x4scaled"
"""The name under which layouts ask for scaled taps."""
_SCALES = np.array([1, 0.75, 0.5625])
_FILTER = np.array([[1, 0, 0], [1, 1, 1], [1, -1, 1], [1, 2, 4], [1, -2, 4], [0, 0, 1]])


def scaled_transforms() -> Transforms:
    """Bᵀ, G and Aᵀ of F(4, 3) for scaled taps."""
    usual = transforms(TILE)
    factors = np.array(usual.filter).sum(1) / (_FILTER * _SCALES).sum(1)
    data = factors[:, None] * np.array(usual.data)
    data, filters = (tuple(tuple(map(float, row)) for row in m) for m in (data, _FILTER))
    return replace(usual, data=data, filter=filters)


def scale_taps(weights: NDArray[Any]) -> NDArray[Any]:
    """Weights ``[3, 3, inputs, outputs]``, each multiplied by the scales of its row and its
    column, in float64 and rounded once."""
    scales = np.outer(_SCALES, _SCALES)[:, :, None, None]
    return (weights * scales).astype(weights.dtype)


def transformed_taps(point: Expr, tap: Callable[[int], Expr]) -> Expr:
    """Row ``point`` of G times three scaled taps, by additions: of 22 products beside it, on a Zen
    4, multiplications would take as long as they do."""
    first, middle, last = (tap(k) for k in range(TAPS))
    even, twice = first + last, last + last
    wide, odd = first + twice + twice, middle + middle
    rows = (first, even + middle, even - middle, wide + odd, wide - odd, last)
    return te.one_of(point, rows)

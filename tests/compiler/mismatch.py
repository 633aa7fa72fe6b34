"""Results of a kernel beside those that are wanted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from tunefarm.compiler.accuracy import Array
from tunefarm.compiler.dtypes import is_float


def mismatch(outputs: Sequence[Array], references: Sequence[Array], bounds: Sequence[Array]) -> str:
    """One sentence about the worst wrong element, or "" if every element is within its bound.

    NaN must meet NaN and an infinity the same infinity.
    """
    for index, (y, r, bound) in enumerate(zip(outputs, references, bounds, strict=True)):
        if y.shape != r.shape or y.dtype != r.dtype:
            return f"output {index} is {y.dtype}{list(y.shape)}, not {r.dtype}{list(r.shape)}"
        message = _worst(y, r, bound)
        if message:
            return f"output {index} {message}"
    return ""


def _worst(y: Array, r: Array, bound: Array) -> str:
    if not is_float(r.dtype.name):
        distance = np.abs(y.astype(np.float64) - r.astype(np.float64))
        wrong = (y != r) & ~((bound > 0) & (distance <= bound))
        excess = np.where(wrong, np.maximum(distance, 1.0), 0.0)
    else:
        a, b = y.astype(np.float64), r.astype(np.float64)
        with np.errstate(invalid="ignore"):
            distance = np.abs(a - b)
        special = ~(np.isfinite(a) & np.isfinite(b))
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        limit = np.where(np.isfinite(bound), bound, np.inf)
        wrong = np.where(special, ~same, distance > limit)
        excess = np.where(wrong, np.where(special, np.inf, distance), 0.0)
    if not wrong.any():
        return ""
    at = np.unravel_index(int(np.argmax(excess)), y.shape)
    place = ", ".join(map(str, at))
    return (
        f"is wrong in {int(wrong.sum())} of {wrong.size} elements; at [{place}] it is {y[at]}, "
        f"not {r[at]} (allowed difference {float(bound[at]):.3g})"
    )

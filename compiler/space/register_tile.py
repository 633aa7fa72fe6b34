"""Cycles of a register tile of a product, in the models of the sketches."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Numbers


def step_cycles(rows: Numbers, vectors: Numbers) -> Numbers:
    """Cycles of one term of a register tile: two multiply-adds and two loads each, latency 4."""
    work = np.maximum(rows * vectors, 1.3 * (rows + vectors)) / 2
    return np.maximum(work, 4.0) + 0.3 * vectors


def term_cycles(rows: Numbers, tile: Numbers, vectors: Numbers) -> Numbers:
    """Cycles of one term of ``rows`` rows, ``tile`` of them at a time, the last tile smaller."""
    full, rest = np.divmod(rows, tile)
    return full * step_cycles(tile, vectors) + np.where(rest > 0, step_cycles(rest, vectors), 0.0)

"""Cycles of a register tile of a product, in the models of the sketches."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Numbers


def step_cycles(rows: Numbers, vectors: Numbers, load: float = 0.3) -> Numbers:
    """Cycles of one term of a register tile: two multiply-adds and two loads each, latency 4.

    ``load`` is what a vector of the right operand takes beside the multiply-adds.
    """
    work = np.maximum(rows * vectors, 1.3 * (rows + vectors)) / 2
    return np.maximum(work, 4.0) + load * vectors


def term_cycles(rows: Numbers, tile: Numbers, vectors: Numbers, load: float = 0.3) -> Numbers:
    """Cycles of one term of ``rows`` rows, ``tile`` of them at a time, the last tile smaller."""
    full, rest = np.divmod(rows, tile)
    last = np.where(rest > 0, step_cycles(rest, vectors, load), 0.0)
    return full * step_cycles(tile, vectors, load) + last

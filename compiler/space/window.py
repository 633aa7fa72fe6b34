"""Pooling: the stages of ``rows`` with tiles of several output columns.

parallel over tasks of rows:
  for column tiles, for blocks of channels:
    accumulators = neutral                      tile columns × nv vectors of channels
    for taps inside the data (bounds, no tests): accumulators = accumulators ∘ x
    epilogue → out
"""

from __future__ import annotations

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import rows
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.target import Target

NAME, VERSION = "window", 1
VECTORS = (1, 2, 3, 4, 6, 8)
TILES = (1, 2, 3, 4, 7, 8, 14)

schedule = rows.schedule


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a function that slides a window; None for others."""
    r = rows.row_space(function, target) if rows.is_window(function) else None
    return None if r is None else rows.make_space(r, NAME, VERSION, TILES, VECTORS)

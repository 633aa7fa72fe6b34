"""Products of few columns more than whole vectors: these by register tiles, and the columns behind
them with lanes along the terms, block by block of rows.

    parallel over tasks of blocks
      for panel of vectors: for tile of rows:             mb tiles of a block
        sums of rw rows × nv vectors = 0                  in registers
        for steps of the sum:                             ku terms of one unrolled
          sums += lhs[row, term] · rhs[term, lanes]
        epilogue → result
      for tile of lw rows of the same block:
        sums of lw rows × the last columns = 0            a vector of terms each, in registers
        for steps of the sum:                             lu vectors of terms unrolled
          sums += lhs[row, terms] · rhs[column, terms]
        lanes of each sum combined, epilogue → result

A 17th column costs as much as another vector of 16 where lanes lie along the columns. As a product
of its own (``transform/split_columns.py``) it reads all rows again, and writes into lines that the
first cache has lost: here both parts find them there, and cores fork and join once.
"""

from __future__ import annotations

from functools import lru_cache

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import contraction
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.space.contraction.default import config_cycles
from tunefarm.compiler.space.last_columns.apply import schedule
from tunefarm.compiler.space.last_columns.default import (
    constraints_of,
    default_of,
    knobs_of,
    least_cycles,
)
from tunefarm.compiler.space.last_columns.nest import nest_of
from tunefarm.compiler.space.last_columns.program import product_of
from tunefarm.compiler.target import Target

NAME, VERSION = "last_columns", 1
__all__ = ["schedule", "space"]


@lru_cache(maxsize=64)
def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a product of few columns more than whole vectors; None for others."""
    p = product_of(function, target.lanes("float32")) if target.kind == "llvm" else None
    if p is None:
        return None
    other = contraction.space(function, target)
    assert other is not None
    as_one = config_cycles(p.both, target, p.lanes, other.default)
    return SketchSpace(
        NAME,
        VERSION,
        knobs_of(p, target),
        constraints_of(p, target),
        {"sketch": NAME, **default_of(p, target)},
        lambda k: nest_of(p, target, k),
        preferred=least_cycles(p, target) < as_one,
    )

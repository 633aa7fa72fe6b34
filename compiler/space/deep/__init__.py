"""Products of matrices whose sums are long: a part of the terms at a time.

    parallel over blocks of (panels of columns, rows)
      sums of the block = 0                                  local, they stay in L2
      for part of the terms:
        for panel, for row tile:                             the panel's part stays in L1
          part of a tile's sums                              in registers
          sums of the block += part
      epilogue → result

A panel of thousands of terms does not fit the first cache, and each row tile reads it from the
second one again; of a part of it all row tiles of a block read what the first has brought (Goto &
van de Geijn, "Anatomy of high-performance matrix multiplication", 2008). Sums of parts also have
smaller errors. Weights are packed at build time to [part][panel][term][nv · lanes].
"""

from __future__ import annotations

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.space.deep.apply import schedule
from tunefarm.compiler.space.deep.default import default_of, pays
from tunefarm.compiler.space.deep.knobs import NAME, VERSION, constraints_of, knobs_of
from tunefarm.compiler.space.deep.nest import nest_of
from tunefarm.compiler.space.deep.shape import deep_product_of
from tunefarm.compiler.target import Target

__all__ = ["schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a product with a long sum; None for others."""
    c = deep_product_of(function, target)
    if c is None:
        return None
    return SketchSpace(
        NAME,
        VERSION,
        knobs_of(c, target),
        constraints_of(c, target),
        default_of(c, target),
        lambda k: nest_of(c, target, k),
        preferred=pays(c, target),
    )

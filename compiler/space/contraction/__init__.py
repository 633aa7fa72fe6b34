"""Dense, batched, depthwise and convolution contractions: one register-tiled sketch.

    parallel over blocks of (outer axes, panels of lanes, rows)
      for panel:  [pack its operand]                      nb panels a block
        for row tile:                                     mb tiles a block
          accumulators = 0                                rh × rw rows by nv vectors, registers
          for reduce axes:                                the last one unrolled by ku, or all
                                                          taps of a depthwise window
            accumulators += lhs[row] · rhs[lanes]
          epilogue on the accumulators → result

A tile of a whole window whose pixels begin inside lines of the cache does that for each of its
``rh`` rows by itself, if it has eight sums or more: few registers hold the sums of one row, and
what the next one reads of the image too.

The constant operand is packed at build time to [panel][reduce …][nv · lanes] (Goto & van de Geijn,
"Anatomy of high-performance matrix multiplication", 2008, without the blocking of the reduction).
In the order "mtn" of a depthwise convolution the loop over panels is inside those over row tiles:
the next tile then reads other channels than those whose results are on their way to the cache. So
is the loop over groups in the order "mtg" of a convolution in groups: neighbours share lines.
"""

from __future__ import annotations

from functools import lru_cache

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.space.contraction.apply import schedule
from tunefarm.compiler.space.contraction.default import default_of
from tunefarm.compiler.space.contraction.knobs import constraints_of, knobs_of
from tunefarm.compiler.space.contraction.nest import nest_of
from tunefarm.compiler.space.contraction.shape import (
    NAME,
    VERSION,
    contraction_of,
    lanes_of,
    sum_dtype,
)
from tunefarm.compiler.target import Target

__all__ = ["contraction_of", "schedule", "space"]


@lru_cache(maxsize=64)
def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a contraction; None if the function is not one."""
    if target.kind != "llvm":
        return None
    c = contraction_of(function)
    if c is None or sum_dtype(c) not in ("float32", "float64", "int32"):
        return None
    lanes = lanes_of(c, target)
    knobs = knobs_of(c, lanes)
    constraints = constraints_of(c, target, lanes)
    default = default_of(c, target, lanes, knobs, constraints)
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        constraints,
        default,
        lambda columns: nest_of(c, target, lanes, columns),
    )

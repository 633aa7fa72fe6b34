"""A 7 × 7 convolution of stride 2 and the maximum over windows behind it, the start of every
ResNet, in one kernel.

    parallel over blocks of (images, pooled rows)
      copy the rows of the input that the block's tiles read, by phase               in L2
      for band of pooled rows:
        for row of tiles that its windows reach, and the band before has not made:
          transform the row's tiles of the input                                     in L2
          for panel: for group of tiles of the row:
            for point: product of a plane and the panel's weights      in L1, or in registers
            transform back, epilogue → a ring of the rows that a band reads          in L2
        maxima over windows, a few columns by vectors in registers → result

The convolution is Winograd's (``winograd``), a register tile at a time. Its result, four to nine
times as large as the pooled one, never leaves a core (``rolling_buffer``); the row of tiles at the
edge of two blocks is made twice. On Zen 5 the start of a ResNet at 224² takes 0.78 × the time of
two kernels on two cores and 0.84 × on one.
"""

from __future__ import annotations

from math import inf

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.space.pooled_winograd.apply import schedule
from tunefarm.compiler.space.pooled_winograd.default import default_of, saved_cycles
from tunefarm.compiler.space.pooled_winograd.knobs import NAME, VERSION, constraints_of, knobs_of
from tunefarm.compiler.space.pooled_winograd.nest import nest_of
from tunefarm.compiler.space.pooled_winograd.program import Pooled, pooled_of
from tunefarm.compiler.target import Target

__all__ = ["saving", "schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs; None if the function is no such pair, or its rows too long for the stack."""
    p = _schedulable(function, target)
    if p is None:
        return None
    lanes = target.lanes("float32")
    default, estimate = default_of(p, target, lanes)
    if estimate == inf:
        return None
    return SketchSpace(
        NAME,
        VERSION,
        knobs_of(p, lanes),
        constraints_of(p, target, lanes),
        default,
        lambda k: nest_of(p, target, lanes, k),
    )


def saving(function: Function, target: Target) -> float:
    """Cycles that the model expects the function to save as one kernel, not one of the convolution
    and one of the maxima; 0 or less where two are better, or the function is no such pair."""
    p = _schedulable(function, target)
    return 0.0 if p is None else saved_cycles(p, target)


def _schedulable(function: Function, target: Target) -> Pooled | None:
    if target.kind != "llvm" or target.strict:
        return None
    p, lanes = pooled_of(function), target.lanes("float32")
    # A sum of more terms has too many weights to read them again for each register tile.
    fits = p is not None and p.conv.outputs >= lanes and lanes <= 2 * p.conv.depth <= 4 * lanes
    return p if fits else None

"""Expansion, depthwise convolution and projection of a block in one kernel, row by row.

    parallel over blocks of (images, rows)                       mb rows of the depthwise result
      for panel:                                                 nv vectors of channels
        expand the rows that the windows reach, with bias and activation     in L1 or L2
        depthwise convolution of the panel, bias and activation               in L2
      project the block's rows, epilogue → result

The tensors of the expanded channels, up to six times as large as what lies between the blocks
(Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", 2018), never leave a
core. Rows at the edge of two blocks are expanded twice. Where those of a panel would not stay in
L1, each is expanded as the first window reaches it, in a buffer of as many as a window reads
(``rolling_buffer``). Without a projection the blocks of rows are cut into blocks of panels too,
without an expansion the windows read the input itself. A network's first convolution, of few
inputs, stands where an expansion does if a depthwise one follows.
"""

from __future__ import annotations

from math import inf

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.space.inverted_residual.apply import schedule
from tunefarm.compiler.space.inverted_residual.default import default_of, saved_cycles
from tunefarm.compiler.space.inverted_residual.knobs import (
    NAME,
    VERSION,
    constraints_of,
    knobs_of,
)
from tunefarm.compiler.space.inverted_residual.nest import nest_of
from tunefarm.compiler.space.inverted_residual.program import (
    InvertedResidual,
    create_stages,
    inverted_residual_of,
    is_depthwise,
    is_expansion,
    is_pointwise,
)
from tunefarm.compiler.target import Target

__all__ = ["is_depthwise", "is_expansion", "is_pointwise", "saving", "schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a block; None if the function is not one, or a row too long for the stack."""
    b = _schedulable(function, target)
    if b is None:
        return None
    lanes = target.lanes("float32")
    default, estimate = default_of(b, target, lanes)
    if estimate == inf:
        return None
    return SketchSpace(
        NAME,
        VERSION,
        knobs_of(b, lanes),
        constraints_of(b, target, lanes),
        default,
        lambda k: nest_of(b, target, lanes, k),
    )


def saving(function: Function, target: Target) -> float:
    """Cycles that the model expects the function to save as one kernel, not one a convolution.

    0 or less where separate kernels are better, or the function is no such block.
    """
    b = _schedulable(function, target)
    return 0.0 if b is None else saved_cycles(b, target)


def _schedulable(function: Function, target: Target) -> InvertedResidual | None:
    b = inverted_residual_of(function)
    if b is None or target.kind != "llvm" or target.lanes("float32") < 2:
        return None
    return None if create_stages(b) is None else b

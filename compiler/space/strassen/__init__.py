"""Products of matrices by Strassen's method: seven products of half the extents instead of eight.

    [parallel over panels: add up the right operands          packed, if they are variable]
    parallel over blocks of (pairs of rows, panels of columns)
      for pair of rows: add up the left operands            seven planes [pairs, terms], in L2
      for panel:
        for product: a plane and the panel's weights              as ``contraction`` tiles it
        add up four quarters of results, epilogue

One level of the method ("Gaussian elimination is not optimal", 1969), whose error is that of short
sums: at most 3e-6 of the largest result (float32, measured; direct: 2e-6). But it is relative to
all that two rows, or two columns half the width apart, have: a row of small numbers beside one of
large ones keeps fewer digits, and one that is not finite spoils its neighbour. A target with
``-precision=strict`` leaves the method out. Weights are added up and packed when a model is
built, a variable matrix before the products; they take 7/4 of the memory.
"""

from __future__ import annotations

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.space.strassen.apply import schedule
from tunefarm.compiler.space.strassen.forms import LANES
from tunefarm.compiler.space.strassen.knobs import (
    NAME,
    VERSION,
    constraints_of,
    default_of,
    direct_cycles,
    knobs_of,
)
from tunefarm.compiler.space.strassen.nest import nest_of
from tunefarm.compiler.space.strassen.program import product_of
from tunefarm.compiler.target import Target

WORTH = 1.01  # times fewer cycles in the model than the direct product, to be a task's default

__all__ = ["schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a product by Strassen's method; None where it does not apply."""
    lanes = target.lanes("float32")
    if target.kind != "llvm" or target.strict or lanes not in LANES:
        return None
    p = product_of(function, lanes)
    if p is None or min(p.rows // 2, p.depth // (2 * lanes), p.columns // (2 * lanes)) < 1:
        return None
    knobs, constraints = knobs_of(p), constraints_of(p, target)
    default, cycles = default_of(p, target, knobs, constraints)
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        constraints,
        default,
        lambda k: nest_of(p, target, k),
        preferred=WORTH * cycles < direct_cycles(p, target),
    )

"""Depthwise 3 × 3 convolutions of stride 1 by Winograd's method along rows.

    parallel over blocks of (images, rows of the result, panels of vectors of channels)
      for vector of channels:                                       ``by_column`` within the next
        for tile of two columns:
          for row, unrolled:
            4 points of the input's next row: 4 additions            two rows before in registers
            products += points of three rows · 3 × 4 weights         in registers
            two results: 4 additions, epilogue

Taps of rows are summed as they are. Two results take 12 multiply-adds instead of 18, and 8
additions, with an error of at most 5e-7 of the largest result (float32; 2.4e-7 measured, 2.1e-7 of
the direct sum). That pays where additions begin beside as many multiply-adds: a Zen 4 starts one of
each a clock, of 512 bits, and takes 0.55 to 0.9 × the time of the direct sum. A Zen 5, which waits
for memory on most such layers, has the sketch in its spaces, not as a default; processors of 16
registers, or whose additions and multiply-adds share units, have not. A target with
``-precision=strict`` leaves the method out. Weights are transformed and packed when a model is
built.
"""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import image_rows
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.space.depthwise_winograd.apply import schedule
from tunefarm.compiler.space.depthwise_winograd.knobs import (
    NAME,
    VERSION,
    default_of,
    direct_cycles,
    knobs_of,
    nest_of,
    panels_of,
    work_cycles,
)
from tunefarm.compiler.space.depthwise_winograd.program import depthwise_of
from tunefarm.compiler.target import Target

REGISTERS = 32  # 12 weights, three rows of four points, four products
FULL = 0.75  # of the lanes of all vectors, below which ``image_rows`` takes less time
WORTH = 1.03  # times fewer cycles in the model than the direct sum at peak, to be a task's default

__all__ = ["schedule", "space", "suits"]


def suits(target: Target) -> bool:
    """True of processors that the method is for: those that add beside multiply-adds, and have the
    registers."""
    enough = target.adds_apart and target.vector_registers >= REGISTERS
    return enough and target.kind == "llvm" and not target.strict


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of such a convolution; None where the method does not apply."""
    if not suits(target):
        return None
    c, lanes = depthwise_of(function), target.lanes("float32")
    if c is None or c.width < 2 or c.channels < lanes:
        return None
    knobs = knobs_of(c, lanes)
    default = default_of(c, target, lanes, knobs)
    columns = {name: np.array([value]) for name, value in default.items()}
    work = float(work_cycles(c, target, lanes, columns)[0])
    worth = WORTH * work < direct_cycles(c, lanes)
    along_rows = image_rows.space(function, target)
    if along_rows is not None and along_rows.preferred:
        worth = worth and c.channels >= FULL * panels_of(c, lanes) * lanes
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        (),
        default,
        lambda k: nest_of(c, target, lanes, k),
        preferred=worth and target.product_clocks > 1,
    )

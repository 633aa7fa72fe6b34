"""3 × 3 convolutions of few pixels by Winograd's method, their filters transformed in registers.

    transform all tiles of the input              a plane [tiles, inputs] a point, by all cores
    parallel over blocks of panels of outputs, a vector each
      for panel, image, group of rows of tiles, block of inputs:
        for column of points:                     written out: each has additions of its own
          accumulators = 0                        the column's points of the group's tiles
          for input:
            filter = 9 scaled taps, transformed   additions in registers
            accumulators += tile · filter
          transform the column back               a part of the group's results, in the first cache
        transform the rows back, epilogue         the results of a tile, in registers

``winograd`` reads 36 weights for each nine of the filter in tiles of 4 × 4, and ``winograd_1d`` 18.
Images of few pixels and many channels multiply each of them by few tiles, and wait for memory. Here
nine are read, as often as a tile has columns of points, but for the first time from the second
cache; additions, which many processors begin beside multiply-adds, make the filter of them. The
error is that of ``winograd`` in tiles of 4 × 4: at most 5e-6 of the largest result.
"""

from __future__ import annotations

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.space.winograd import least_cycles
from tunefarm.compiler.space.winograd.convolution import Convolution, convolution_of
from tunefarm.compiler.space.winograd.default import direct_cycles
from tunefarm.compiler.space.winograd_1d import least_cycles as cycles_along_rows
from tunefarm.compiler.space.winograd_online.apply import schedule
from tunefarm.compiler.space.winograd_online.default import default_of
from tunefarm.compiler.space.winograd_online.knobs import NAME, VERSION, constraints_of, knobs_of
from tunefarm.compiler.space.winograd_online.nest import nest_of
from tunefarm.compiler.space.winograd_online.transforms import TAPS, TILE
from tunefarm.compiler.target import Target

WORTH = 1.05  # times fewer cycles in the model than the other methods, to be a task's default

__all__ = ["schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of such a convolution; None where the method does not apply."""
    c = convolution_of(function)
    lanes = target.lanes("float32")
    if c is None or not applies(c, target, lanes):
        return None
    found = default_of(c, target, lanes)
    if found is None:
        return None
    default, cycles = found
    return SketchSpace(
        NAME,
        VERSION,
        knobs_of(c, lanes),
        constraints_of(c, target, lanes),
        default,
        lambda k: nest_of(c, target, lanes, k),
        preferred=WORTH * cycles < _other_cycles(c, target, lanes),
    )


def _other_cycles(c: Convolution, target: Target, lanes: int) -> float:
    return min(
        direct_cycles(c, target, lanes),
        least_cycles(c, target, lanes),
        cycles_along_rows(c.function, target, lanes),
    )


def applies(c: Convolution, target: Target, lanes: int) -> bool:
    if target.kind != "llvm" or target.strict or (c.stride, c.taps) != (1, TAPS):
        return False
    return min(c.height, c.width) > TILE // 2 and min(c.inputs, c.outputs) >= lanes

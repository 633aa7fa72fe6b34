"""Convolutions by Winograd's method along rows of 3, 5 or 7 taps, taps of rows summed as they are.

    parallel over blocks of (images, rows, panels of outputs)
      transform the rows that the block reads            a plane [rows, tiles, inputs] a point
      for panel:
        for point:
          accumulators = 0                               rh rows × rt tiles by nv vectors
          for tap of rows, inputs:
            accumulators += plane[row + tap, tile] · weights[point, tap]
        transform back, epilogue                         the results of a tile, in registers

Of 3 × 3 and stride 1 there are 1.5 times fewer products than in the direct sum in tiles of 2
results, and twice fewer in tiles of 4; weights grow by a third, and by as much as they are. That is
between the direct sum and tiles of rows and columns (``space/winograd``), whose weights grow by 7/9
and more: layers with few pixels and many channels, whose weights come from memory, take the least
time so. Where a block holds all rows of an image its sums skip the taps beyond the border.

Kernels of one row, of one column (the image's columns are the rows then) or of more taps have no
other such method. Of five taps tiles of 4 results have 2.5 times fewer products, with errors of at
most 3e-6 of the largest result, or 8e-6 where five rows are summed; of seven 2.8 times fewer, with
at most 8e-6; of three, two pixels apart, 1.33 times fewer, with at most 3e-6. 7 × 7 taps are summed
in tiles of 2, 1.75 times fewer products, with at most 8e-6 (float32, measured; direct: 1e-6 to
3e-6).
"""

from __future__ import annotations

import math
from math import prod

import numpy as np
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import contraction
from tunefarm.compiler.space.config import SketchSpace
from tunefarm.compiler.space.contraction.default import config_cycles
from tunefarm.compiler.space.contraction.shape import contraction_of, lanes_of
from tunefarm.compiler.space.winograd import least_cycles as cycles_of_tiles
from tunefarm.compiler.space.winograd.convolution import convolution_of
from tunefarm.compiler.space.winograd.default import direct_cycles
from tunefarm.compiler.space.winograd_1d.apply import schedule
from tunefarm.compiler.space.winograd_1d.convolution import RowConvolution, row_convolution_of
from tunefarm.compiler.space.winograd_1d.default import default_of
from tunefarm.compiler.space.winograd_1d.knobs import NAME, VERSION, constraints_of, knobs_of
from tunefarm.compiler.space.winograd_1d.nest import nest_of
from tunefarm.compiler.target import Target

WORTH = 1.04  # times fewer cycles in the model than tiles of both, to be a task's default
FEW_REGISTERS_WORTH = 1.12  # in 16 registers: 7² × 512 takes 1.16 × the time of tiles (Zen 3)
DIRECT = 1.05  # times the cycles at peak that the direct sum takes, weights from memory

__all__ = ["least_cycles", "saving", "schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of such a convolution; None where the method does not apply, or no tiles fit the
    stack."""
    c = row_convolution_of(function)
    lanes = target.lanes("float32")
    if c is None or not applies(c, target, lanes):
        return None
    default, cycles = default_of(c, target, lanes)
    if math.isinf(cycles):
        return None
    worth = FEW_REGISTERS_WORTH if target.has_few_registers else WORTH
    tiles = convolution_of(function)
    of_tiles = math.inf if tiles is None else cycles_of_tiles(tiles, target, lanes)
    others = min(_direct_cycles(c, target, lanes), of_tiles / worth)
    return SketchSpace(
        NAME,
        VERSION,
        knobs_of(c, lanes),
        constraints_of(c, target, lanes),
        default,
        lambda k: nest_of(c, target, lanes, k),
        preferred=cycles < others,
    )


def least_cycles(function: Function, target: Target, lanes: int) -> float:
    """Cycles in the model of the best of the method's configs; infinity where it does not apply."""
    c = row_convolution_of(function)
    if c is None or not applies(c, target, lanes):
        return math.inf
    return default_of(c, target, lanes)[1]


def _direct_cycles(c: RowConvolution, target: Target, lanes: int) -> float:
    """Cycles of the direct sum, of all its taps inside the image, on the cores that it is shared
    out to: small ones stay on one."""
    direct = contraction_of(c.function)
    other = contraction.space(c.function, target)
    assert direct is not None
    assert other is not None
    tasks = int(other.nest({n: np.array([v]) for n, v in other.default.items()}).parallelism[0])
    one = config_cycles(direct, target, lanes_of(direct, target), other.default)
    inside = prod(c.taps_inside) / (prod(c.kernel) * c.height * c.width)
    at_peak = direct_cycles(c, target, lanes)
    return max(DIRECT * at_peak, inside * one / min(tasks, target.num_cores))


def saving(function: Function, target: Target) -> float:
    """How many times fewer cycles the method takes than the direct sum, in the model; 1 where it
    does not apply or saves none."""
    c, lanes = row_convolution_of(function), target.lanes("float32")
    if c is None or not applies(c, target, lanes):
        return 1.0
    return max(direct_cycles(c, target, lanes) / default_of(c, target, lanes)[1], 1.0)


def applies(c: RowConvolution, target: Target, lanes: int) -> bool:
    if target.kind != "llvm" or target.strict:
        return False
    return c.width >= 2 and min(c.inputs, c.outputs) >= lanes

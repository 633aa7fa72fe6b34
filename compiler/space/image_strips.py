"""Depthwise convolutions in strips down the image: each row of it is loaded once.

    parallel over blocks of rows of the result
      for strips of a row of the result, a vector wide:      weights in registers
        for rows of the block, unrolled:
          ask for the line that a later strip writes of the row
          y = Σ x[row + ky, lanes + kx · C] · w[ky, kx, lanes]      rows above are in registers

Pixels and channels are one axis of lanes, as in ``image_rows``, whose weights these are. A vector
of results takes kw · (r + kh - 1) / r loads with blocks of r rows, which meet two lines of the
cache where channels fill none, and one store. Stores go down the image, whose lines no processor
foresees: without hints 28² of 17 channels take 1.2 × the time of ``image_rows``, with them 0.75
(Emerald Rapids, one core), and 0.69 if the image is asked for too, which alone gains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm, prod

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import contraction
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.config import Columns, Config, Knob, Nest, SketchSpace
from tunefarm.compiler.space.contraction.apply import prepared
from tunefarm.compiler.space.contraction.nest import nest_of
from tunefarm.compiler.space.contraction.shape import lanes_of, panel_count
from tunefarm.compiler.space.image_rows.periods import with_repeated
from tunefarm.compiler.space.image_rows.program import channels_of, image_rows_of
from tunefarm.compiler.space.prefetch import prefetch_later_strip
from tunefarm.compiler.space.tiles import in_parallel, in_registers, place_epilogue
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import LINE_BYTES, Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.schedule.buffers import replace_buffer

NAME, VERSION = "image_strips", 1
ROWS = (28, 14, 7, 4)  # of a block, whose code is as long as it has rows
AHEAD = (0, 1, 2)  # strips, of the line of results that a row asks for
SPARE = 8  # registers beside the weights and what rows share
NEAR_BYTES = 1 << 18  # from the first row of a block to the last: beyond, pages are many
FAR_ROWS = 14  # of a block, where not even seven rows are so near
LEAST_ROWS = 8  # of a result, for it to be a default


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a depthwise convolution of few taps; None for other functions, and where
    registers are few."""
    c = image_rows_of(function) if target.kind == "llvm" else None
    if c is None or 2 * prod(a.extent for a in c.reduce) + SPARE > target.vector_registers:
        return None
    lanes, height = lanes_of(c, target), c.rows[-1].extent
    knobs = (
        Knob("rows", tuple(sorted({-(-height // -(-height // most)) for most in ROWS}))),
        Knob("ahead", AHEAD),
        Knob("image_ahead", AHEAD),
    )
    period = min(lcm(channels_of(function), lanes), c.vector.extent)
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        (),
        _default(c, target, period, [int(rows) for rows in knobs[0].choices]),
        lambda k: _nest(c, target, lanes, k),
        preferred=_is_preferred(c, target, function),
    )


def _default(c: Contraction, target: Target, period: int, choices: Sequence[int]) -> Config:
    """The most rows that are near each other, with a block for each core. Weights that the first
    cache does not keep from one block to the next are best read in few blocks.

    Hints for the image too take 0.92 × the time of those for results alone on one core, 1.14 × on
    two (28² of 17 and 56² of 33 channels), and up to 1.35 × where both leave the second cache.
    """
    element, rows = dtype_bytes(c.lhs.load.dtype), c.rows[-1].extent
    kept = 2 * period * element * prod(a.extent for a in c.reduce) <= target.l1_bytes
    row_bytes = c.vector.extent * element
    most = NEAR_BYTES // row_bytes if kept else rows
    near = [r for r in choices if r <= (most if most >= ROWS[2] else FAR_ROWS)]
    images = prod(a.extent for a in (*c.outer, *c.rows[:-1]))
    enough = [r for r in near if images * -(-rows // r) >= target.num_cores]
    held = 2 * images * rows * row_bytes <= target.l2_bytes
    image = int(target.num_cores == 1 and held)
    return {
        "sketch": NAME,
        "rows": max(enough, default=choices[0]),
        "ahead": 1,
        "image_ahead": image,
    }


def _is_preferred(c: Contraction, target: Target, function: Function) -> bool:
    """On a mesh, whose cores wait longest for loads that meet two lines: in images of some rows
    whose pixels begin inside lines and fill half of a vector; and where others begin at lines, but
    image and result leave the second cache, instead of tall tiles of one column.

    On one core of an Emerald Rapids 3 × 3 taps take 0.46 to 1.04 × the time of the best other
    default (34 shapes of 8 to 500 channels on 10² to 112²), on two 0.67 to 1.08 ×.
    """
    channels, rows = channels_of(function), c.rows[-1].extent
    if not target.has_mesh or 2 * channels < lanes_of(c, target) or rows < LEAST_ROWS:
        return False
    if channels * dtype_bytes(c.lhs.load.dtype) % LINE_BYTES:
        return True
    other = contraction.space(function, target)
    return other is not None and other.default["rw"] == 1 < int(other.default["rh"])


def _nest(c: Contraction, target: Target, lanes: int, k: Columns) -> Nest:
    """The nest of a contraction whose tiles are strips of a block."""
    one = np.ones(len(k["rows"]), np.int64)
    taps, strips = prod(a.extent for a in c.reduce), panel_count(c.vector.extent, lanes)
    none = dict.fromkeys(("pack_lhs", "pack_rhs", "next_panel"), 0 * one)
    tile = {"rw": k["rows"], "rh": one, "nv": one, "ku": taps * one, "mb": one, "nb": strips * one}
    order = np.full(len(one), "mn", object)
    return nest_of(c, target, lanes, {**tile, **none, "order": order, "prefetch": k["ahead"]})


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no such convolution."""
    c = image_rows_of(function)
    if c is None:
        raise ScheduleError(
            "the workload is no depthwise convolution of stride 1 along rows with constant weights"
        )
    lanes, axis = lanes_of(c, target), c.rows[-1]
    program, epilogue, _ = prepared(c, 1, 0, target)
    result = program.params[-1]
    program = replace_buffer(program, result, replace(result, ordered=True))
    loops = s.loops_of(program, c.block)
    program, (block, row) = s.split(program, loops[axis.position], int(config["rows"]))
    program, (strip, lane) = s.split(program, loops[c.vector.position], lanes)
    kx, ky = (loops[a.position] for a in c.reduce)
    images = [loops[a.position] for a in (*c.outer, *c.rows) if a is not axis]
    program = s.reorder(program, *images, block, strip, row, ky, kx, lane)
    program = in_registers(program, (row, ky, kx), lane)
    program = place_epilogue(program, epilogue, row, lanes)
    program = s.decompose_reduction(program, c.block, ky)
    image, written = c.lhs.load.buffer, program.params[-1]
    for name, buffer, ahead in (
        (epilogue, written, int(config["ahead"])),
        (c.block, image, int(config["image_ahead"])),
    ):
        if ahead:
            later = {strip: strip + ahead}
            program = prefetch_later_strip(program, name, buffer, row, later, 1)
    program, tasks = s.fuse(program, *images, block)
    program = in_parallel(program, tasks, nominal_flops(function), target)
    return with_repeated(program, function)

"""Depthwise convolutions in strips down the image: each row of it is loaded once.

    parallel over blocks of rows of the result
      for strips of a row of the result, a vector wide:      weights in registers
        for rows of the block, unrolled:
          ask for the line that a later strip writes of the row
          y = Σ x[row + ky, lanes + kx · C] · w[ky, kx, lanes]      rows above are in registers

Pixels and channels are one axis of lanes, as in ``image_rows``, whose weights these are. Of taps
and results a row apart, a vector of results takes kw · (r + kh - 1) / r loads with blocks of r
rows, which meet two lines of the cache where channels fill none, and one store. Stores go down the
image, whose lines no processor foresees: without hints 28² of 17 channels take 1.2 × the time of
``image_rows``, with them 0.75 (Emerald Rapids, one core), and 0.69 if the image is asked for too,
which alone gains nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import lcm, prod

import numpy as np
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import contraction
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.columns import Numbers, whole
from tunefarm.compiler.space.config import Columns, Config, Knob, Nest, SketchSpace
from tunefarm.compiler.space.contraction.apply import prepared
from tunefarm.compiler.space.contraction.nest import nest_of
from tunefarm.compiler.space.contraction.shape import lanes_of, panel_count
from tunefarm.compiler.space.image_rows.default import steps_down
from tunefarm.compiler.space.image_rows.periods import with_repeated
from tunefarm.compiler.space.image_rows.program import channels_of, image_rows_of, scheduled
from tunefarm.compiler.space.prefetch import prefetch_later_strip
from tunefarm.compiler.space.tiles import SERIAL_FLOPS, in_parallel, in_registers, place_epilogue
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import LINE_BYTES, Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s

NAME, VERSION = "image_strips", 1
ROWS = (28, 14, 7, 4)  # of a block, whose code is as long as it has rows
AHEAD = (0, 1, 2)  # strips, of the line that a row asks for
SPARE = 8  # registers beside the weights and what rows share
NEAR_BYTES = 1 << 18  # from the first row of a block to the last: beyond, pages are many
FEW_ROWS, FAR_ROWS = 7, 14  # of a block; where not even the few are near, it may have as many
LEAST_ROWS = 8  # of a result, for it to be a default


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a depthwise convolution of few taps; None for other functions, and where
    registers are few."""
    c = image_rows_of(function) if target.kind == "llvm" else None
    if c is None or _registers(c) > target.vector_registers:
        return None
    lanes, height = lanes_of(c, target), c.rows[-1].extent
    rows = tuple(sorted({-(-height // -(-height // most)) for most in ROWS}))
    default = _default(c, target, function, rows)
    return SketchSpace(
        NAME,
        VERSION,
        (Knob("rows", rows), Knob("ahead", AHEAD), Knob("image_ahead", AHEAD)),
        (),
        {"sketch": NAME, **default},
        lambda k: _nest(c, target, lanes, k),
        preferred=_is_preferred(c, target, function, default["rows"]),
    )


def _registers(c: Contraction) -> int:
    """The weights, and rows of the image from the first tap of a window to the last."""
    across, down = (a.extent for a in c.reduce)
    _, dilation = steps_down(c)
    return across * (down + (down - 1) * dilation + 1) + SPARE


def _blocks(c: Contraction, rows: Numbers) -> Numbers:
    """Blocks of so many rows of all images."""
    return _images(c) * -(-c.rows[-1].extent // rows)


def _images(c: Contraction) -> int:
    return prod(a.extent for a in (*c.outer, *c.rows[:-1]))


def _cores(function: Function, target: Target) -> int:
    """Cores that share the blocks: one has what does little."""
    return target.num_cores if nominal_flops(function) > SERIAL_FLOPS else 1


def _default(
    c: Contraction, target: Target, function: Function, choices: Sequence[int]
) -> dict[str, int]:
    """Of blocks whose rows are near each other those of which the busiest core loads the fewest
    rows. Weights that the first cache does not keep from one block to the next are best read in few
    blocks, however far their rows are.

    Hints for the image too take 0.92 × the time of those for results alone on one core (28² of 17
    and 56² of 33 channels), on two 1.14 × with 33, and up to 1.35 × where image and result leave
    the second cache.
    """
    element, (height, row) = dtype_bytes(c.lhs.load.dtype), (c.rows[-1].extent, c.vector.extent)
    across, down = (a.extent for a in c.reduce)
    period = min(lcm(channels_of(function), lanes_of(c, target)), row)
    kept = 2 * period * element * across * down <= target.l1_bytes
    most = NEAR_BYTES // (row * element) if kept else height
    near = [r for r in choices if r <= (most if most >= FEW_ROWS else FAR_ROWS)]
    cores = _cores(function, target)

    def loaded(rows: int) -> tuple[int, int]:
        return -(-_blocks(c, rows) // cores) * (rows + down - 1), -rows

    hinted = target.vector_bytes == LINE_BYTES
    held = 2 * _images(c) * height * row * element <= target.l2_bytes
    alone = hinted and held and target.num_cores == 1 == steps_down(c)[0]
    return {
        "rows": min(near or choices[:1], key=loaded),
        "ahead": int(hinted),
        "image_ahead": int(alone),
    }


def _is_preferred(c: Contraction, target: Target, function: Function, rows: int) -> bool:
    """On a mesh, whose cores wait longest for loads that meet two lines: where windows share rows,
    in images of some whose pixels begin inside lines and fill half of a vector, with a block for
    each core; and where pixels begin at lines, instead of tall tiles of one column, which are the
    default of images that leave the second cache.

    On one core of an Emerald Rapids 3 × 3 taps take 0.46 to 1.04 × the time of the best other
    default (34 shapes of 8 to 500 channels on 10² to 112²), on two 0.67 to 1.08 ×.
    """
    channels, (stride, _) = channels_of(function), steps_down(c)
    if not target.has_mesh or c.reduce[-1].extent <= stride or c.rows[-1].extent < LEAST_ROWS:
        return False
    if 2 * channels < lanes_of(c, target) or _blocks(c, rows) < _cores(function, target):
        return False
    if channels * dtype_bytes(c.lhs.load.dtype) % LINE_BYTES:
        return True
    other = contraction.space(function, target)
    return other is not None and other.default["rw"] == 1 < int(other.default["rh"])


def _nest(c: Contraction, target: Target, lanes: int, k: Columns) -> Nest:
    """The nest of a contraction whose tiles are strips of a block."""
    rows, one = whole(k, "rows"), np.ones(len(k["rows"]), np.int64)
    taps, strips = prod(a.extent for a in c.reduce), panel_count(c.vector.extent, lanes)
    none = dict.fromkeys(("pack_lhs", "pack_rhs", "next_panel"), 0 * one)
    tile = {"rw": rows, "rh": one, "nv": one, "ku": taps * one, "mb": one, "nb": strips * one}
    order = np.full(len(one), "mn", object)
    nest = nest_of(c, target, lanes, {**tile, **none, "order": order, "prefetch": k["ahead"]})
    block = {a.name: one for a in (*c.outer, *c.rows[:-1])} | {c.rows[-1].name: rows}
    blocks = {level: {**nest.tiles[level], **block} for level in ("l2", "core")}
    return replace(
        nest,
        tiles={**nest.tiles, **blocks},
        parallelism=_blocks(c, rows),
        extra={**nest.extra, "image_ahead": whole(k, "image_ahead").astype(np.float64)},
    )


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no such convolution."""
    c = scheduled(function)
    lanes, axis = lanes_of(c, target), c.rows[-1]
    program, epilogue, _ = prepared(c, 1, 0, target)
    loops = s.loops_of(program, c.block)
    program, (block, row) = s.split(program, loops[axis.position], int(config["rows"]))
    program, (strip, lane) = s.split(program, loops[c.vector.position], lanes)
    kx, ky = (loops[a.position] for a in c.reduce)
    images = [loops[a.position] for a in (*c.outer, *c.rows) if a is not axis]
    program = s.reorder(program, *images, block, strip, row, ky, kx, lane)
    program = in_registers(program, (row, ky, kx), lane)
    program = place_epilogue(program, epilogue, row, lanes)
    program = s.decompose_reduction(program, c.block, ky)
    for name, buffer, knob in (
        (epilogue, program.params[-1], "ahead"),
        (c.block, c.lhs.load.buffer, "image_ahead"),
    ):
        if ahead := int(config[knob]):
            program = prefetch_later_strip(program, name, buffer, row, strip, ahead)
    program, tasks = s.fuse(program, *images, block)
    program = in_parallel(program, tasks, nominal_flops(function), target)
    return with_repeated(program, function)

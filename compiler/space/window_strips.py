"""Maxima and averages over windows in strips down the image: no value between leaves registers.

    parallel over blocks of rows of the result
      for strips of a row of the result, a vector or some wide:
        for rows of the block, unrolled:
          across = max of x over the window's columns     for rows that the row before had not
          y = max of across over the window's rows

A row of results takes one of ``across``, which the rows below keep in registers: kw loads a vector
where windows are a pixel apart, kw · (r + kh - 1) / r with blocks of r rows, and one store. Pixels
and channels are one axis of lanes there, so that channels need not fill vectors. Strips inside the
image have code without tests, those at its sides and the first and the last block their own.

On one core of a Zen 4 windows of 3 × 3 that are a pixel apart took 0.5 to 1.0 × the time of the
faster of ``window_passes`` and ``window`` with 8 to 192 channels, two pixels apart 0.7 to 1.04 ×,
windows of 5 × 5 0.75 to 1.01 ×; from 384 channels on more than ``window``. AVX2 code of maxima took
0.92 to 1.5 ×: it has too few registers, and a comparison and a choice for each maximum.

Loads that meet two lines of the cache bound what is left where neighbours lie off halves of lines.
Strips some vectors wide have fewer (``lines``): vectors are put together from two that were loaded
(17 channels on 28² in 0.89 × the time), or each line is loaded once, for averages of wide pixels.
Of maxima one comparison tests two terms for NaN, and stores keep LLVM from mixing rows. Rows may
ask for the lines that the next strip stores to (``ahead``), as in ``image_strips``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler import te
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, SketchSpace
from tunefarm.compiler.space.nests import SERIAL_NS, share_out, tasks_for
from tunefarm.compiler.space.prefetch import prefetch_later_strip
from tunefarm.compiler.space.tiles import in_registers
from tunefarm.compiler.space.windows import (
    Windows,
    average,
    nest_of,
    place_terms,
    scheduled,
    windows_of,
)
from tunefarm.compiler.target import LINE_BYTES, Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Expr
from tunefarm.compiler.tir.ir import Var as LoopVar
from tunefarm.compiler.tir.schedule.buffers import replace_buffer

NAME, VERSION = "window_strips", 2
VECTORS = (1, 2, 3, 4)
TILES = (1, 2, 4)
MAX_KERNEL = 5  # 7 × 7 pixels take a second to build, and gain little
MOST_ROWS = (28, 14, 7, 4, 2)  # of a block, whose code is as long as it has rows
FEW_ROWS = 4
SET_BYTES = 4096  # from a line to the next one in its set of the first cache
HALF_LINE = LINE_BYTES // 2
BY_LINES, BETWEEN_LOADS = 1, 2  # how vectors that meet two lines are put together
LONG = 8  # vectors of a row from which on strips of three leave few lanes


def _program(w: Windows) -> PrimFunc:
    """Blocks ``across`` and ``down``; rows outside the image are neutral."""
    (batch, height, width, channels), (_, rows, across, _) = w.data, w.result
    x = te.placeholder((batch, height, width * channels), w.dtype, "p0")
    ky, kx = te.reduce_axis(w.kernel[0], "ky"), te.reduce_axis(w.kernel[1], "kx")

    def term(n: Expr, row: Expr, place: Expr, where: Expr, end: int) -> te.Reduce:
        inside = (row >= 0) & (row < height) & (where >= 0) & (where < end)
        return w.combine(te.if_then_else(inside, x[n, row, place], w.neutral), [kx])

    def merged(n: Expr, y: Expr, p: Expr) -> te.Reduce:
        place = p + (kx - w.left) * channels
        return term(n, y - w.top, place, place, width * channels)

    def apart(n: Expr, y: Expr, x: Expr, c: Expr) -> te.Reduce:
        pixel = x * w.strides[1] + kx - w.left
        return term(n, y - w.top, pixel * channels + c, pixel, width)

    def below(n: Expr, y: Expr, *at: Expr) -> te.Reduce:
        return w.combine(sums[(n, y * w.strides[0] + ky, *at)], [ky])

    shape: tuple[int, ...] = (across * channels,) if w.side_by_side else (across, channels)
    names = ["n", "y", "p"] if w.side_by_side else ["n", "y", "x", "c"]
    read = (rows - 1) * w.strides[0] + w.kernel[0]
    sums = te.compute(
        (batch, read, *shape), merged if w.side_by_side else apart, "across", axis_names=names
    )
    result = te.compute((batch, rows, *shape), below, "down", axis_names=names)
    if w.counts:
        result = average(w, result, names)
    return te.create_prim_func([x, result], "kernel")


# --- the knobs ----------------------------------------------------------------------------------


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of maxima or averages that strips may suit; None for other functions."""
    w = windows_of(function) if target.kind == "llvm" else None
    if w is None or max(w.kernel) > MAX_KERNEL:
        return None
    lanes, rows = w.lanes(target), w.result[1]
    row = w.result[2] * w.data[3] if w.side_by_side else w.data[3]
    blocks = {-(-rows // most) for most in MOST_ROWS}
    several = () if w.side_by_side else TILES[1:]
    knobs = (
        Knob("rows", tuple(sorted({-(-rows // count) for count in blocks}))),
        Knob("nv", tuple(v for v in VECTORS if v == 1 or (v - 1) * lanes < row)),
        Knob("tile", (1, *(t for t in several if t <= w.result[2]))),
        Knob("lines", (0, *_ways_to_shift(w, target))),
        Knob("ahead", (0, 1) if w.side_by_side else (0,)),
        Knob("tasks", tasks_for(w.work_ns(target), target)),
    )

    default = _default(w, target, knobs)
    if not _is_short(w, target, default):
        return None

    def registers(k: Columns) -> Mask:
        return whole(k, "nv") * whole(k, "tile") <= max(_room(w, target), int(default["nv"]))

    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        (Constraint("registers", registers),),
        default,
        lambda k: nest_of(w, target, k, [knob.name for knob in knobs]),
        preferred=_is_preferred(w, target, default),
    )


def _ways_to_shift(w: Windows, target: Target) -> tuple[int, ...]:
    """By lines, of which the image must have whole ones: no last line ends beyond. Between loads,
    where an instruction puts a vector together from two and neighbours begin inside them."""
    size = prod(w.data) * dtype_bytes(w.dtype)
    lines = target.vector_bytes == LINE_BYTES and size % LINE_BYTES == 0
    between = target.has_avx512 and w.data[3] % w.lanes(target) != 0
    ways = ((BY_LINES, bool(w.counts) and lines), (BETWEEN_LOADS, between))
    return tuple(way for way, may in ways if may and w.side_by_side)


def _is_short(w: Windows, target: Target, default: Config) -> bool:
    """Whether the first cache holds a strip; of few rows, of which it loads some twice, in a
    quarter: wide pixels of small images are better read once."""
    rows, tile = int(default["rows"]), int(default["tile"])
    few = rows < w.result[1] and rows < FEW_ROWS
    return _is_held(w, target, rows, tile, (4 if few else 2) if w.side_by_side else 1)


def _is_preferred(w: Windows, target: Target, default: Config) -> bool:
    """With AVX-512, where channels fill half of a vector if they are alone, and windows of more
    than three rows share enough of them."""
    narrow = not w.side_by_side and 2 * w.data[3] < w.lanes(target)
    enough = min(3 * (w.kernel[0] - 1), w.result[1])
    wide = w.kernel[0] > 3 and int(default["rows"]) < enough
    return target.has_avx512 and not narrow and not wide


def _default(w: Windows, target: Target, knobs: tuple[Knob, ...]) -> Config:
    """A strip of a line's width, of two to four where vectors share loads; of all channels of a
    pixel apart, of two if they do not fill vectors."""
    choices = {k.name: [int(c) for c in k.choices] for k in knobs}
    lanes, channels = w.lanes(target), w.data[3]
    pixel, room = channels * dtype_bytes(w.dtype), _room(w, target)
    long = w.result[2] * channels >= LONG * lanes
    lines = _shifts(w, target, choices["lines"]) if long else 0
    nv, tile = LINE_BYTES // target.vector_bytes, 1
    if not w.side_by_side:
        nv = min(-(-channels // lanes), room)
        tile = 2 if channels % lanes and 2 * nv <= room and w.result[2] > 1 else 1
    elif lines and w.counts and max(w.kernel) <= 3:
        nv = 3 if lines == BETWEEN_LOADS and target.has_mesh else 4
    elif lines == BETWEEN_LOADS:
        nv = 3 if w.counts or pixel > LINE_BYTES else 2
    elif w.counts and long and max(w.kernel) <= 3 and pixel <= HALF_LINE:
        nv = max(nv, 3)
    nv = max(v for v in choices["nv"] if v <= max(nv, 1))
    shared = int(len(choices["tasks"]) > 1 and w.work_ns(target) >= SERIAL_NS)
    rows = _rows(w, target, choices["rows"], target.num_cores if shared else 1, tile)
    ahead = int(w.side_by_side and lines != BY_LINES and _waits_to_store(w, target))
    knobs_of = {"rows": rows, "nv": nv, "tile": tile, "lines": lines}
    return {"sketch": NAME, **knobs_of, "ahead": ahead, "tasks": shared}


def _shifts(w: Windows, target: Target, ways: Sequence[int]) -> int:
    """How vectors that meet two lines are put together, 0 if they are loaded.

    Between loads where pixels are up to two lines wide and the second cache holds image and
    result; maxima, which have few instructions to spare, in windows of three columns alone.
    """
    pixel = w.data[3] * dtype_bytes(w.dtype)
    if pixel % HALF_LINE == 0:
        return 0
    held = prod(w.data) * 2 * dtype_bytes(w.dtype) <= target.l2_bytes
    near = pixel <= 2 * LINE_BYTES and held and (bool(w.counts) or max(w.kernel) <= 3)
    wanted = ([BETWEEN_LOADS] if near else []) + ([BY_LINES] if w.counts else [])
    return next((way for way in wanted if way in ways), 0)


def _waits_to_store(w: Windows, target: Target) -> bool:
    """Whether lines of results are worth hints: on a mesh, where image and result leave the first
    cache. Maxima and averages a pixel apart take 0.63 to 1.03 × the time so (Emerald Rapids; 0.92
    in the mean of 13 shapes on one core and two), those by lines 1.04 to 1.15 ×."""
    bytes_of = 2 * prod(w.data) * dtype_bytes(w.dtype)
    return target.has_mesh and bytes_of > target.l1_bytes


def _room(w: Windows, target: Target) -> int:
    """Vectors of a row of results for whose windows' rows there are registers."""
    return max((target.vector_registers - 8) // w.kernel[0], 1)


def _rows(w: Windows, target: Target, choices: Sequence[int], cores: int, tile: int) -> int:
    """The most that the first cache holds, with a block for each core."""
    share = 2 if w.side_by_side else 1
    held = [r for r in choices if _is_held(w, target, r, tile, share)]
    enough = [r for r in held if w.result[0] * -(-w.result[1] // r) >= cores]
    return max(enough, default=choices[0])


def _is_held(w: Windows, target: Target, rows: int, tile: int, share: int) -> bool:
    """Whether a strip takes at most 1 / ``share`` of the first cache, and leaves a way of it."""
    sets = lines_by_set(w, rows, tile)
    most = target.l1_bytes // SET_BYTES - 1
    return int(sets.max()) <= most and int(sets.sum()) * LINE_BYTES * share <= target.l1_bytes


def lines_by_set(w: Windows, rows: int, tile: int) -> NDArray[np.int64]:
    """Lines in each set of the first cache of ``rows`` rows of a strip, or of a tile of pixels
    apart, and of the image that they read, if both begin at a multiple of 4 KiB."""
    pixel = w.data[3] * dtype_bytes(w.dtype)
    written = LINE_BYTES if w.side_by_side else tile * pixel
    between = w.kernel[1] - 1 + (0 if w.side_by_side else (tile - 1) * (w.strides[1] - 1))
    sets = np.zeros(SET_BYTES // LINE_BYTES, np.int64)

    def add(count: int, row_bytes: int, used: int) -> None:
        starts = np.arange(count)[:, None] * row_bytes + np.arange(0, used, LINE_BYTES)
        np.add.at(sets, starts // LINE_BYTES % len(sets), 1)

    add((rows - 1) * w.strides[0] + w.kernel[0], w.row_bytes, written + between * pixel)
    add(rows, w.result[2] * pixel, written)
    return sets


# --- the schedule -------------------------------------------------------------------------------


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no such maximum or average."""
    w = scheduled(function)
    lanes = w.lanes(target)
    rows, nv, tile, ahead, tasks = (
        int(config[name]) for name in ("rows", "nv", "tile", "ahead", "tasks")
    )
    program = _program(w)
    image, result = program.params
    shifted = replace(
        image, by_lines=config["lines"] == BY_LINES, joined=config["lines"] == BETWEEN_LOADS
    )
    program = replace_buffer(program, image, shifted)
    floats = w.dtype in ("float32", "float64")
    if target.has_avx512 and not w.counts and floats:
        program = replace_buffer(program, result, replace(result, ordered=True))
    if w.counts:
        program, results = s.set_scope(program, "down", "register"), "average"
    else:
        program, results = s.cache_write(program, "down", "register")
    program = s.set_scope(program, "across", "register")
    n, y, *axes, last = s.loops_of(program, results)
    program, (block, row) = s.split(program, y, rows)
    program, (strip, vector, lane) = s.split(program, last, nv, lanes)
    pixels: list[LoopVar] = []
    if axes:
        program, (tiles, pixel) = s.split(program, axes[0], tile)
        pixels = [tiles, pixel]
    program = s.reorder(program, block, *pixels[:1], strip, row, *pixels[1:], vector, lane)
    program = in_registers(program, (row, *pixels[1:], vector), lane)
    if ahead:
        lines = -(-nv * target.vector_bytes // LINE_BYTES)
        written = program.params[-1]
        program = prefetch_later_strip(program, results, written, row, strip, ahead, lines)
    program = place_terms(program, "down", row, lanes)
    program = place_terms(program, "across", row, lanes)
    return share_out(program, (n, block), tasks, target)

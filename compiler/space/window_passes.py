"""Maxima and averages over windows in two passes: down the image's columns, then along its rows.

    parallel over blocks of rows of the result
      for vectors of a row of the image:   columns = max of x over each window's rows
      for rows, for tiles of the row:      y = max of columns over the window's columns

A window takes kh + kw terms instead of kh · kw, and a block of r rows kh - 1 + r loads down the
columns, where windows are a pixel apart, instead of r · kh. Pixels and channels are one axis of
lanes down the columns, and along the rows too where windows are one pixel apart, so that channels
need not fill vectors. For maxima, rows outside the image read its nearest one, which is in the
window anyway: all rows of results share one piece of code. For averages they are zeros, and sums
are multiplied by 1 / rows · 1 / columns of the window that count, which differ at the border alone.

With AVX-512 ``window_strips`` are faster where the first cache holds them; figures of both stand in
docs/findings.md. The following compare with ``window``, and blocks with single rows.

On one core of a Zen 5 windows of 3 × 3 that are a pixel apart took 0.28 to 0.48 × the time of
``window`` with 17 and 33 channels and 0.58 to 0.84 × with 16 to 192, but up to 1.4 × where rows of
columns fill half of the first cache; two pixels apart 0.71 to 1.0 × with 17 to 100 channels, and
1.04 to 1.1 × where channels fill vectors. Averages took 0.7 to 0.9 × the time, of 5 × 5 pixels half
of it, and 1.15 to 1.2 × where windows are two pixels apart and rows long.

On a Zen 4 blocks of two rows took 0.87 to 0.98 × the time of single ones where the first cache
holds them (three rows of 56 pixels of 33 channels nearly fill it: 1.03 to 1.07 ×), blocks of four
0.72 to 0.88 × with windows of 5 × 5, and 0.78 to 0.86 × where it holds no window's rows either.
With windows two pixels apart blocks took 1.0 to 1.3 ×. Averages a pixel apart whose vectors of
columns are put together from lines, each loaded once, take 0.67 to 0.97 × the time; maxima, whose
tests for NaN need the same units, 0.96 to 1.07 ×: they load each vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tunefarm.compiler import te
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, whole
from tunefarm.compiler.space.config import (
    Columns,
    Config,
    Constraint,
    Knob,
    SketchSpace,
)
from tunefarm.compiler.space.nests import SERIAL_NS, own_loops, share_out, tasks_for
from tunefarm.compiler.space.tiles import in_registers
from tunefarm.compiler.space.windows import (
    Windows,
    average,
    nest_of,
    place_terms,
    scheduled,
    windows_of,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Expr
from tunefarm.compiler.tir.ir import Var as LoopVar

NAME, VERSION = "window_passes", 1
VECTORS = (1, 2, 3, 4, 6, 8)
TILES = (1, 2, 4, 7, 8)
ROWS = (1, 2, 4)
LEAST_WASTE = 1.08  # lanes of whole vectors over channels, below which vectors count as full
SHARE = 3  # of the first cache: what a row of columns may take where it must be short
MAX_ROW_BYTES = 1 << 17  # of columns, on a thread's stack


def _program(w: Windows) -> PrimFunc:
    """Both passes as blocks ``columns`` and ``rows``."""
    (batch, height, width, channels), (_, rows, across, _) = w.data, w.result
    x = te.placeholder((batch, height, width * channels), w.dtype, "p0")
    ky, kx = te.reduce_axis(w.kernel[0], "ky"), te.reduce_axis(w.kernel[1], "kx")
    first, last = te.const(0, "int64"), te.const(height - 1, "int64")

    def column(n: Expr, y: Expr, p: Expr) -> te.Reduce:
        row = y * w.strides[0] + ky - w.top
        if w.counts:
            return te.sum(inside(row, height, x[n, row, p]), [ky])
        return te.max(x[n, te.maximum(te.minimum(row, last), first), p], [ky])

    def inside(place: Expr, end: int, value: Expr) -> Expr:
        return te.if_then_else((place >= 0) & (place < end), value, w.neutral)

    names = ["n", "y", "p"]
    columns = te.compute((batch, rows, width * channels), column, "columns", axis_names=names)

    def merged(n: Expr, y: Expr, p: Expr) -> te.Reduce:
        place = p + (kx - w.left) * channels
        return w.combine(inside(place, width * channels, columns[n, y, place]), [kx])

    def apart(n: Expr, y: Expr, x: Expr, c: Expr) -> te.Reduce:
        pixel = x * w.strides[1] + kx - w.left
        return w.combine(inside(pixel, width, columns[n, y, pixel * channels + c]), [kx])

    if w.side_by_side:
        shape: tuple[int, ...] = (batch, rows, across * channels)
        result = te.compute(shape, merged, "rows", axis_names=names)
    else:
        names = ["n", "y", "x", "c"]
        result = te.compute(w.result, apart, "rows", axis_names=names)
    if w.counts:
        result = average(w, result, names)
    return te.create_prim_func([x, result], "kernel")


# --- the knobs ----------------------------------------------------------------------------------


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of maxima or averages that two passes may suit; None for other functions."""
    w = windows_of(function) if target.kind == "llvm" else None
    if w is None:
        return None
    lanes, channels = w.lanes(target), w.data[-1]
    waste = -(-channels // lanes) * lanes / channels
    long, apart = SHARE * w.row_bytes > target.l1_bytes, not w.side_by_side
    slow = long or apart if waste < LEAST_WASTE else bool(w.counts) and long and apart
    if w.row_bytes > MAX_ROW_BYTES or slow:
        return None
    along = prod(w.result[2:]) if w.side_by_side else channels
    several = () if w.side_by_side else TILES[1:]
    knobs = (
        Knob("rows", tuple(r for r in ROWS if r <= w.result[1])),
        Knob("cv", VECTORS),
        Knob("nv", tuple(v for v in VECTORS if v == 1 or (v - 1) * lanes < along)),
        Knob("tile", (1, *(t for t in several if t <= w.result[2]))),
        Knob("tasks", tasks_for(w.work_ns(target), target)),
    )

    def accumulators(k: Columns) -> Mask:
        most = target.vector_registers - 2
        columns = whole(k, "cv") * whole(k, "rows")
        return (whole(k, "nv") * whole(k, "tile") <= most) & (columns <= most)

    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        (Constraint("accumulators", accumulators),),
        _default(w, target, knobs),
        lambda k: nest_of(w, target, k, [knob.name for knob in knobs]),
    )


def _default(w: Windows, target: Target, knobs: tuple[Knob, ...]) -> Config:
    """Two vectors of columns; of results four, or some pixels whose channels leave few lanes; rows
    as ``_rows_of_a_block`` says."""
    choices = {k.name: [int(c) for c in k.choices] for k in knobs}
    lanes = w.lanes(target)
    nv = min(4, choices["nv"][-1])
    if not w.side_by_side:
        vectors = -(-w.data[-1] // lanes)
        nv = min(choices["nv"], key=lambda v: (-(-vectors // v) * v, -v))
    most = min(12, target.vector_registers - 2)
    tile = max(t for t in choices["tile"] if t == 1 or t * nv <= most)
    shared = len(choices["tasks"]) > 1 and w.work_ns(target) >= SERIAL_NS
    rows = _rows_of_a_block(w, target, choices["rows"])
    tasks = 1 if shared else 0
    return {"sketch": NAME, "rows": rows, "cv": 2, "nv": nv, "tile": tile, "tasks": tasks}


def _rows_of_a_block(w: Windows, target: Target, choices: Sequence[int]) -> int:
    """As many as the first cache holds with what they read, fewer than windows have; the most if it
    holds none, as rows are read from the second then; one where windows are apart. Each core has a
    block if there are rows enough."""
    if w.strides != (1, 1):
        return 1
    shared = [r for r in choices if r == 1 or r * target.num_cores <= w.result[0] * w.result[1]]
    held = [r for r in shared if (w.kernel[0] - 1 + 2 * r) * w.row_bytes <= target.l1_bytes]
    return max((r for r in held if r < w.kernel[0]), default=shared[-1])


# --- the schedule -------------------------------------------------------------------------------


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no such maximum or average."""
    w = scheduled(function)
    lanes = w.lanes(target)
    cv, nv, tile, tasks = (int(config[name]) for name in ("cv", "nv", "tile", "tasks"))
    if w.counts:
        program, results = s.set_scope(_program(w), "rows", "register"), "average"
    else:
        program, results = s.cache_write(_program(w), "rows", "register")
    program, columns = s.cache_write(program, "columns", "register")
    averages = bool(w.counts) and w.side_by_side
    program = s.set_scope(program, columns, "local", by_lines=averages)
    n, y, *axes, last = s.loops_of(program, results)
    program, (y, _) = s.split(program, y, int(config["rows"]))
    pixels: list[LoopVar] = []
    if axes:
        program, (tiles, pixel) = s.split(program, axes[0], tile)
        pixels = [tiles, pixel]
    program, (top, vector, lane) = s.split(program, last, nv, lanes)
    program = s.reorder(program, *pixels[:1], top, *pixels[1:], vector, lane)
    program = in_registers(program, (*pixels[1:], vector), lane)
    program = place_terms(program, "rows", top, lanes)
    program = s.compute_at(program, columns, y)
    *ones, place = own_loops(program, columns, y)
    program, (top, vector, lane) = s.split(program, place, cv, lanes)
    program = in_registers(s.reorder(program, top, *ones, vector, lane), (*ones, vector), lane)
    program = place_terms(program, "columns", top, lanes)
    return share_out(program, (n, y), tasks, target)

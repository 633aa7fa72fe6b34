"""A config applied to the stages of a Winograd convolution."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.nests import extent_of, loop_of, own_loops
from tunefarm.compiler.space.prefetch import (
    PackedWeights,
    prefetch_ahead,
    prefetch_next_rows,
    prefetch_shares,
)
from tunefarm.compiler.space.tiles import in_parallel, in_registers, place_sums
from tunefarm.compiler.space.winograd.convolution import Convolution, convolution_of
from tunefarm.compiler.space.winograd.counts import lone_lanes
from tunefarm.compiler.space.winograd.ends import ends_of
from tunefarm.compiler.space.winograd.memory import (
    BY_COLUMN,
    BY_GROUP,
    has_short_tiles,
    held_tiles,
    lone_channels,
    product_padding,
    shared_tiles,
    tile_padding,
)
from tunefarm.compiler.space.winograd.program import Ends, create_winograd, filter_of
from tunefarm.compiler.space.winograd.transforms import filter_transform, phases
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Expr, Var

TERMS_AHEAD = 128  # 14² × 256 on Zen 5: 0.95 × the time of the next panel's shares, 32 ahead 1.12 ×


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the method does not apply or a knob misfits."""
    c = convolution_of(function, every=True)
    if c is None:
        raise ScheduleError(
            "the workload is no 3x3 convolution of stride 1 or 2, of images or of volumes, and no "
            "7x7 one of stride 2, with constant weights"
        )
    lanes = target.lanes("float32")
    if not c.fills_lanes(lanes):
        raise ScheduleError(f"vectors of {lanes} numbers would have inputs of two frames")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    tile = (knob["tile_h"], knob["tile_w"])
    columns = {name: np.array([value]) for name, value in knob.items()}
    ends = ends_of(c, columns)
    rolled = is_rolled(c, tile, target)
    lone = int(lone_channels(c, target, lanes, columns)[0])
    by_column = knob["by_row"] == BY_COLUMN
    program, final, write = _prepared(c, tile, ends, lanes, lone, by_column, rolled)
    width = knob["nv"] * lanes
    transform = filter_transform(tile, c.stride, c.taps)
    program = s.transform_layout(program, c.filter_param, packed_filters(c, width, transform))

    program, outer, panel, row, results = _place_results(program, c, final, knob, lanes, rolled)
    if write is None:
        program = place_columns(program, c, row, knob, lanes)
    else:
        padding = int(product_padding(c, lanes, columns)[0])
        program = s.set_scope(program, write, "local", padding=padding)
        program, _ = place_half(program, "rows_out", results, rolled)
        number = outer[-1] * knob["nb"] + panel
        if c.groups > 1:
            number = outer[-2] * -(-c.group_outputs // width) + number
        place = (number, row if knob["by_row"] else panel)
        alone = int(held_tiles(c, columns)[0]) if has_short_tiles(target) else None
        program = place_products(program, c, write, place, knob, ends, target, alone)
    shared = shared_tiles(c, target, lanes, columns)[0]
    exact = knob["by_row"] >= BY_GROUP or has_short_tiles(target)
    rows = min(knob["mb"], c.tiles(tile)[0]) if exact else None
    image = (rows, c.tiles(tile)[1])
    block = None if shared else outer[-1]
    program = place_tiles(program, c, block, image, target, rolled=rolled)
    if lone:
        program = _place_lone_tiles(program, outer[-1], image, lanes, rolled=rolled)
    if phases(c.taps) > 1:
        program = place_phases(program, outer[-1])
    program, top = s.fuse(program, *outer)
    return in_parallel(program, top, nominal_flops(function), target)


@lru_cache(maxsize=256)
def _prepared(
    c: Convolution,
    tile: tuple[int, int],
    ends: Ends | None,
    lanes: int,
    lone: int,
    by_column: bool,
    rolled: bool,
) -> tuple[PrimFunc, str, str | None]:
    """What many configs have in common: the stages with their buffers; the program, and the blocks
    that make the result and write the products, if these leave the registers."""
    program = create_winograd(c, tile, lanes, ends, lone)
    final = s.remaining_blocks(program)[-1]
    program, write = hold_stages(program, tile_padding(c, lanes, lone), by_column, rolled)
    return program, final, write


def is_rolled(c: Convolution, tile: tuple[int, int], target: Target) -> bool:
    """Whether transforms are loops over the columns and over the rows of a tile, unrolled within.

    Registers that are too few for a tile's points, 16 for the 36 of 4 × 4 results, keep one column
    or row of them and the matrix's numbers. A Zen 3 takes 0.86 of the time of a 7×7 layer so, 0.985
    of that of 3×3 ones, and making the code 0.65 of it.
    """
    points = prod(c.transforms(size).points for size in tile)
    return target.has_few_registers and points > target.vector_registers


def hold_stages(
    program: PrimFunc, padding: int, by_column: bool, rolled: bool
) -> tuple[PrimFunc, str | None]:
    """The stages in registers and on the thread's stack, with ``padding`` behind the channels of a
    transformed tile; and the block that writes the products there, where these leave the registers.
    Half-transformed tiles that are ``rolled`` stand on the stack too.
    """
    half = "local" if rolled else "register"
    scopes, write = {"window": "register", "rows_in": half, "rows_out": half}, None
    if by_column:
        scopes |= {"product": "register", "rows_out": "local"}
    else:
        program, write = s.cache_write(program, "product", "register")
    for block, scope in scopes.items():
        program = s.set_scope(program, block, scope)
    return s.set_scope(program, "tile_in", "local", padding=padding), write


def packed_filters(c: Convolution, width: int, transform: str) -> PackedLayout:
    """Filters transformed, panel by panel, in groups those of each group by themselves."""
    points, panels = (0, 1, 2), 2 + len(c.output_axes)
    groups = range(3, panels)
    factors = ((),) * panels + ((width,),)
    return PackedLayout(factors, (*groups, panels, *points, panels + 1), transform)


def _place_results(
    program: PrimFunc, c: Convolution, final: str, knob: dict[str, int], lanes: int, rolled: bool
) -> tuple[PrimFunc, tuple[Var, ...], Var, Var, Var]:
    """Blocks of rows of tiles, of a volume frame by frame, and, of each group, of panels; in a
    block panels, rows of tiles or the groups of a row, and the vectors of a tile's results."""
    n, *rest = s.loops_of(program, final)
    if c.frames is not None:
        program, n = s.fuse(program, n, rest.pop(0))
    h, w, *group, o = rest
    program, (row_block, tile_row, row) = s.split(program, h, knob["mb"], knob["tile_h"])
    of_row = (knob["rw"],) if knob["by_row"] >= BY_GROUP else ()
    program, (*groups, column) = s.split(program, w, *of_row, knob["tile_w"])
    program, (panel_block, panel, vector, lane) = s.split(program, o, knob["nb"], knob["nv"], lanes)
    outer = (n, row_block, *group, panel_block)
    inside = (tile_row, *groups, vector, row, column, lane)
    program = s.reorder(program, *outer, panel, *inside)
    return (
        in_registers(program, (column,) if rolled else (row, column), lane),
        outer,
        panel,
        groups[0] if of_row else tile_row,
        vector,
    )


def place_products(
    program: PrimFunc,
    c: Convolution,
    write: str,
    place: tuple[Expr, Var],
    knob: dict[str, int],
    ends: Ends | None,
    target: Target,
    alone: int | None = None,
) -> PrimFunc:
    """For each point a matrix product of a panel, register tile by register tile; ``place`` is the
    panel's number, and the loop that products are made in. Register tiles share the hints for the
    next panel's weights; where all points have but one of them, it asks for weights some terms
    ahead. ``alone`` are the rows that are multiplied, if others do not fill up the last register
    tile."""
    panel, last = place
    lanes = target.lanes("float32")
    program = s.compute_at(program, write, last)
    i, j, *tiles, o = own_loops(program, write, last)
    of_row = c.tiles((knob["tile_h"], knob["tile_w"]))[1]
    if knob["by_row"] == BY_GROUP and of_row % knob["rw"]:
        program = s.limit(program, tiles[0], of_row - last * knob["rw"])
    row_tiles, rows = [], []
    for t in tiles:  # none where a block has a single tile
        program, (row_tile, row) = s.split(program, t, knob["rw"])
        row_tiles, rows = [row_tile], [row]
    program, (vector, lane) = s.split(program, o, lanes)
    program = s.reorder(program, i, j, *row_tiles, *rows, vector, lane)
    program = in_registers(program, (*rows, vector), lane)

    inner = [j, *row_tiles][-1]
    program = s.compute_at(program, "product", inner)
    *rows, o, k = own_loops(program, "product", inner)
    if alone is not None and alone % knob["rw"] and ends is None and row_tiles and rows:
        program = s.limit(program, rows[0], alone - row_tiles[0] * knob["rw"])
    program, step = place_sums(program, "product", rows, o, k, (lanes, knob["ku"]))
    if not knob["next_panel"]:
        return program
    if target.has_mesh and row_tiles and not knob["by_row"]:
        held = next(b for b in program.buffers if b.name == "tile_in")
        program = prefetch_next_rows(program, "product", held, row_tiles[0], knob["rw"], step)
    above, across = (c.transforms(knob[t]) for t in ("tile_h", "tile_w"))
    first = panel * above.filters + filter_of(above, i)
    number = first * across.filters + filter_of(across, j)
    width = knob["nv"] * lanes
    size, buffer = c.depth * width, program.params[c.filter_param]
    if ends is not None and ends.common == knob["rw"]:
        first = number * size + step * (knob["ku"] * width)
        weights = PackedWeights(buffer, width, size)
        return prefetch_ahead(program, weights, first, TERMS_AHEAD, knob["ku"], step)
    visits = (*row_tiles, step)
    always = None if ends is None else (ends.common // knob["rw"], c.depth // knob["ku"])
    return prefetch_shares(program, buffer, (number + 1) * size, size, visits, target, always)


def place_columns(
    program: PrimFunc, c: Convolution, group: Var, knob: dict[str, int], lanes: int
) -> PrimFunc:
    """For each column of points its products of a group of tiles in registers, and from there, in
    the first cache, the column's part of the results."""
    program = s.compute_at(program, "rows_out", group)
    row, *tiles, column, output = own_loops(program, "rows_out", group)
    program, (vector, lane) = s.split(program, output, lanes)
    of_row = c.tiles((knob["tile_h"], knob["tile_w"]))[1]
    if of_row % knob["rw"]:
        program = s.limit(program, tiles[0], of_row - group * knob["rw"])
    program = s.reorder(program, column, vector, row, *tiles, lane)
    program = in_registers(program, (vector, row, *tiles), lane)
    program = s.compute_at(program, "product", column)
    point, *tiles, output, term = own_loops(program, "product", column)
    sums = (point, *tiles)
    return place_sums(program, "product", sums, output, term, (lanes, knob["ku"]))[0]


def place_tiles(
    program: PrimFunc,
    c: Convolution,
    block: Var | None,
    image: tuple[int | None, int],
    target: Target,
    *,
    rolled: bool,
) -> PrimFunc:
    """The transformed tiles of a block, all channels of them: of ``image`` rows and columns of
    tiles, as many rows as products read if not given. If there is no block, all cores make the
    tiles that all of them read, each some channels."""
    (rows, columns), lanes = image, target.lanes("float32")
    if block is None:
        program = s.set_scope(program, "tile_in", "global", padding=tile_padding(c, lanes))
        i, j, *tiles, channel = s.loops_of(program, "tile_in")
    else:
        program = s.compute_at(program, "tile_in", block)
        i, j, *tiles, channel = own_loops(program, "tile_in", block)
    every = s.find_block(program, "tile_in").iters[2].extent
    for t in tiles:
        # A loop over every tile begins at the first one, whatever the block.
        if rows is not None and extent_of(program, t) < every:
            program = s.limit(program, t, rows * columns)
        program, split = s.split(program, t, columns)
        tiles = list(split)
    program, (vector, lane) = s.split(program, channel, lanes)
    order = (vector, *tiles) if block is None else (*tiles, vector)
    program = s.reorder(program, *order, i, j, lane)
    program = in_registers(program, (j,) if rolled else (i, j), lane)
    program, column = place_half(program, "rows_in", order[-1] if rolled else i, rolled)
    program = place_in_registers(program, "window", column if rolled else order[-1])
    if block is not None:
        return program
    return in_parallel(program, vector, nominal_flops(c.function), target)


def _place_lone_tiles(
    program: PrimFunc, block: Var, image: tuple[int | None, int], lanes: int, *, rolled: bool
) -> PrimFunc:
    """The tiles of a block's lone channels, a vector of a row of them at a time, and the pixels
    that these read."""
    rows, columns = image
    half = "local" if rolled else "register"
    for name, scope in {"lone_in": "local", "lone_rows": half, "lone_window": "register"}.items():
        program = s.set_scope(program, name, scope)
    program = s.compute_at(program, "lone_in", block)
    own = own_loops(program, "lone_in", block)
    every = s.find_block(program, "lone_in").iters[-2]
    row = loop_of(program, "lone_in", every, own)
    if rows is not None and row is not None and extent_of(program, row) < every.extent:
        program = s.limit(program, row, rows)
    i, j, *outer, column = own
    program, (vector, lane) = s.split(program, column, lone_lanes(columns, lanes))
    program = s.reorder(program, *outer, vector, i, j, lane)
    program = in_registers(program, (j,) if rolled else (i, j), lane)
    program, inner = place_half(program, "lone_rows", vector if rolled else i, rolled)
    program = place_in_registers(program, "lone_window", inner if rolled else vector)
    program = s.compute_at(s.set_scope(program, "plane", "local"), "plane", block)
    own = own_loops(program, "plane", block)
    pixel = loop_of(program, "plane", s.find_block(program, "plane").iters[-2], own)
    if pixel is None:
        return program
    return s.unroll(s.reorder(program, *own[own.index(pixel) + 1 :], pixel), pixel)


def place_phases(program: PrimFunc, block: Var) -> PrimFunc:
    """The rows of the input that a block's tiles read, a pixel's phases at a time."""
    program = s.set_scope(program, "phases", "local")
    program = s.compute_at(program, "phases", block)
    *_, phase = own_loops(program, "phases", block)
    return s.unroll(program, phase)


def place_half(program: PrimFunc, block: str, loop: Var, rolled: bool) -> tuple[PrimFunc, Var]:
    """Compute what one iteration of ``loop`` reads of a half-transformed tile: unrolled, or column
    by column, of which the rows are unrolled. Also the loop over its columns."""
    program = s.compute_at(program, block, loop)
    *rows, column, lane = own_loops(program, block, loop)
    if not rolled:
        return in_registers(program, (*rows, column), lane), column
    program = s.reorder(program, column, *rows, lane)
    return in_registers(program, rows, lane), column


def place_in_registers(program: PrimFunc, block: str, loop: Var) -> PrimFunc:
    """Compute what one iteration of ``loop`` reads of a block, unrolled, a vector at a time."""
    program = s.compute_at(program, block, loop)
    *rest, lane = own_loops(program, block, loop)
    return in_registers(program, rest, lane)

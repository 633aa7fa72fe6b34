"""A config applied to the stages of Winograd's method along rows."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.nests import loop_of, own_loops
from tunefarm.compiler.space.prefetch import PackedWeights, prefetch_ahead
from tunefarm.compiler.space.tiles import in_parallel, in_registers, place_sums
from tunefarm.compiler.space.winograd.memory import tile_padding
from tunefarm.compiler.space.winograd.program import filter_of
from tunefarm.compiler.space.winograd.transforms import SUMMED, filter_transform
from tunefarm.compiler.space.winograd_1d.convolution import (
    RowConvolution,
    in_order,
    row_convolution_of,
)
from tunefarm.compiler.space.winograd_1d.knobs import AHEAD_LINES, fewer_products
from tunefarm.compiler.space.winograd_1d.program import create_winograd_1d
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import LINE_BYTES, Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Var

TILES_AXIS = 3  # of the block of products, behind points, images and rows


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the method does not apply or a knob misfits."""
    c = row_convolution_of(function)
    if c is None:
        raise ScheduleError(
            "the workload is no convolution of 3, 5 or 7 taps in a row or a column, of stride 1, "
            "and no 3x3, 1x3 or 3x1 one of stride 2, with constant weights"
        )
    lanes = target.lanes("float32")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    tile, width = knob["tile_w"], knob["nv"] * lanes
    fewer = bool(fewer_products(c, {n: np.array([v]) for n, v in knob.items()})[0])
    program, final, write = _prepared(c, tile, fewer, lanes)
    above, across = in_order((SUMMED, tile), c.turned)
    transform = filter_transform((above, across), c.stride, c.taps)
    taps, points = in_order((0, 1), c.turned)
    layout = PackedLayout(((), (), (), (width,)), (3, points, taps, 2, 4), transform)
    program = s.transform_layout(program, c.filter_param, layout)

    n, *pixel, o = s.loops_of(program, final)
    h, v = in_order(pixel, c.turned)
    images = (n, h) if c.cut else (n,)
    if c.cut:
        program, (h, v) = s.split(program, v, c.width)
    program, (row_block, row) = s.split(program, h, knob["rh"])
    program, (of_row, column) = s.split(program, v, tile)
    program, (panel_block, panel, vector, lane) = s.split(program, o, knob["nb"], knob["nv"], lanes)
    outer = (*images, row_block, panel_block)
    program = s.reorder(program, *outer, panel, row, of_row, vector, column, lane)
    program = in_registers(program, (column,), lane)
    program = _place_products(program, c, write, (panel_block, panel), knob, lanes)
    program = _place_tiles(program, panel_block, lanes)
    program, top = s.fuse(program, *outer)
    return in_parallel(program, top, nominal_flops(function), target)


@lru_cache(maxsize=64)
def _prepared(c: RowConvolution, tile: int, fewer: bool, lanes: int) -> tuple[PrimFunc, str, str]:
    """What many configs have in common: the stages with their buffers; the program, and the blocks
    that make the result and write the products."""
    program = create_winograd_1d(c, tile, fewer)
    final = s.remaining_blocks(program)[-1]
    program, write = s.cache_write(program, "product", "register")
    program = s.set_scope(program, write, "local")
    program = s.set_scope(program, "window", "register")
    return s.set_scope(program, "tile_in", "local", padding=tile_padding(c, lanes)), final, write


def _place_products(
    program: PrimFunc,
    c: RowConvolution,
    write: str,
    place: tuple[Var, Var],
    knob: dict[str, int],
    lanes: int,
) -> PrimFunc:
    """For each point the products of a block's rows and a panel, register tile by register tile;
    each asks for weights some terms ahead."""
    panel_block, panel = place
    program = s.compute_at(program, write, panel)
    point, *rows, o = own_loops(program, write, panel)
    tiles = loop_of(program, write, s.find_block(program, write).iters[TILES_AXIS], rows)
    groups = []
    if tiles is not None:  # none where a row is a single tile
        program, (group, tiles_of_group) = s.split(program, tiles, knob["rt"])
        groups, rows = [group], [*rows[:-1], tiles_of_group]
    program, (vector, lane) = s.split(program, o, lanes)
    program = s.reorder(program, point, *groups, *rows, vector, lane)
    program = in_registers(program, (*rows, vector), lane)

    inner = [point, *groups][-1]
    program = s.compute_at(program, "product", inner)
    *rows, k = own_loops(program, "product", inner)
    taps = [rows.pop()] if c.row_taps > 1 else []
    *rows, o = rows
    program, step = place_sums(program, "product", rows, o, k, (lanes, knob["ku"]), taps)
    across, width = c.transforms(knob["tile_w"]), knob["nv"] * lanes
    number = (panel_block * knob["nb"] + panel) * across.filters + filter_of(across, point)
    tap = number * c.row_taps + taps[0] if taps else number
    first = (tap * c.inputs + step * knob["ku"]) * width
    weights = PackedWeights(program.params[c.filter_param], width, c.row_taps * c.inputs * width)
    ahead = AHEAD_LINES * LINE_BYTES // (4 * width)
    return prefetch_ahead(program, weights, first, ahead, knob["ku"], step)


def _place_tiles(program: PrimFunc, block: Var, lanes: int) -> PrimFunc:
    """The transformed tiles of the rows that a block reads, all channels of them."""
    program = s.compute_at(program, "tile_in", block)
    point, *places, channel = own_loops(program, "tile_in", block)
    program, (vector, lane) = s.split(program, channel, lanes)
    program = s.reorder(program, *places, vector, point, lane)
    program = in_registers(program, (point,), lane)
    program = s.compute_at(program, "window", vector)
    *inputs, lane = own_loops(program, "window", vector)
    return in_registers(program, inputs, lane)

"""A config applied to the stages of a convolution in parts."""

from __future__ import annotations

from collections.abc import Mapping

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.float_parts.apply import (
    GROUPS,
    TERMS,
    multiply_in_tiles,
    parts_by_order,
    register_loops,
)
from tunefarm.compiler.space.float_parts.forms import DEPTH, Parts
from tunefarm.compiler.space.matrix_tiles.apply import (
    overlap_tiles,
    place_epilogue,
    place_result,
)
from tunefarm.compiler.space.matrix_tiles.shape import LANES, ROWS
from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.space.tiles import in_parallel
from tunefarm.compiler.space.window_parts.program import Windows, create_parts, windows_of
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Var


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the method does not apply or a knob misfits."""
    c = windows_of(function)
    if c is None or not target.has("amx-bf16"):
        raise ScheduleError(f"{target} computes no convolution of float32 in parts")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    parts = parts_by_order(knob, target)
    program = create_parts(c, parts, knob["rows"], knob["rh"] * ROWS)
    program = _pack(program, c, parts, knob["nv"])
    program = s.set_scope(program, "parts", "local")
    program = s.set_scope(program, "product", "local")
    final = s.remaining_blocks(program)[-1]
    program, outer, panel, rows = _place_products(program, c, knob, target)
    program = place_epilogue(program, final, rows)
    program = overlap_tiles(program, panel, rows)
    program, top = s.fuse(program, *outer)
    program = _place_parts(program, top, c)
    return in_parallel(program, top, nominal_flops(function), target)


def _pack(program: PrimFunc, c: Windows, parts: Parts, vectors: int) -> PrimFunc:
    """The weights as [panel][tap of rows][step][tap of columns][part][vector][group][lane][term]:
    what the taps of a row read are much the same pixels."""
    taps = (c.taps[1], c.channels // DEPTH, GROUPS, TERMS)
    order = (6, 1, 3, 2, 0, 7, 4, 8, 5)
    layout = PackedLayout(((), taps, (vectors, LANES)), order, parts.name)
    return s.transform_layout(program, c.weights, layout)


def _place_products(
    program: PrimFunc, c: Windows, knob: Mapping[str, int], target: Target
) -> tuple[PrimFunc, list[Var], Var, Var]:
    """The products of parts by tiles; the loops over blocks, and those over panels and groups of
    rows."""
    program, result = s.cache_write(program, "product", "tile")
    image, rows, pixels, output, pair, down, across, term = s.loops_of(program, "product")
    program, (n_block, n_panel, vector, lane) = s.split(
        program, output, knob["nb"], knob["nv"], LANES
    )
    program, (m_block, m_group) = s.split(program, rows, knob["mb"])
    program, (m_tile, tile, pixel) = s.split(program, pixels, knob["rh"], ROWS)
    program, (step, group, one) = s.split(program, term, GROUPS, TERMS)
    outer, tiles = [image, n_block, m_block], [m_group, m_tile]
    registers = register_loops(knob, pair, tile, vector)
    reduce, inside = [down, step, across], [*registers, pixel, group, lane, one]
    program = s.reorder(program, *outer, n_panel, *tiles, *reduce, *inside)
    program = multiply_in_tiles(program, c.weights, tiles, reduce, inside, pair, knob, target)
    return place_result(program, result, m_tile, ROWS), outer, n_panel, m_group


def _place_parts(program: PrimFunc, block: Var, c: Windows) -> PrimFunc:
    """The parts of what a block's rows read, a vector of channels at a time."""
    program = s.compute_at(program, "parts", block)
    program = s.pack_buffer(
        program, "parts", PackedLayout(((), (), (), (), (), (DEPTH,)), (1, 2, 5, 0, 3, 4, 6))
    )  # [image][phase of rows][step][part][phase of columns][pixel][channel]
    number, *phases, pixel, term = own_loops(program, "parts", block)
    program, (step, lane) = s.split(program, term, DEPTH)
    program, (row, column) = s.split(program, pixel, c.pitch)
    across = phases[-1:] if c.strides[1] > 1 else []  # those of columns, read side by side
    around = phases[: len(phases) - len(across)]
    program = s.reorder(program, row, *around, column, *across, step, number, lane)
    return s.vectorize(s.unroll(program, number), lane)

"""A config applied: loops, packing, copies, tiles and the epilogue of a matrix unit's product."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.contraction.apply import keep_sums, order_blocks
from tunefarm.compiler.space.dot.apply import copy_rows, pack_constant, place_copy
from tunefarm.compiler.space.matrix_tiles.shape import (
    LANES,
    TiledProduct,
    rows_of_axes,
    tiled_product_of,
)
from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.space.prefetch import PackedWeights, prefetch_weights
from tunefarm.compiler.space.tiles import in_parallel
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Var


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if no matrix unit computes it or a knob misfits."""
    product = tiled_product_of(function, target)
    if product is None:
        raise ScheduleError(f"no matrix unit of {target} computes the workload's products")
    dot = product.dot
    c = dot.contraction
    knob = {name: int(value) for name, value in config.items() if name not in ("sketch", "order")}
    width = knob["nv"] * LANES
    lanes = LANES if product.taps is None else None
    program, copy = pack_constant(c.program, dot, width, product.step, lanes), None
    if knob["pack_lhs"] or dot.copied:
        program, copy = copy_rows(program, dot)
    program, epilogue = keep_sums(program, c, "local")
    padded = {
        c.vector.position: -(-c.vector.extent // width) * width,
        dot.depth.position: dot.padded_depth,
    }
    for axis, each in rows_of_axes(product, knob["rw"], knob["rh"]):
        padded[axis.position] = -(-axis.extent // each) * each
    program = s.pad_einsum(program, c.block, padded)
    program, result = s.cache_write(program, c.block, "tile")
    program, outermost, tiles = _tiles(program, product, knob, str(config["order"]), target)
    place = tiles[-1]
    rows = knob["rw"] if product.second is None else None
    program = place_result(program, result, place, rows)
    program = place_epilogue(program, epilogue, place)
    if knob["overlap"]:
        program = overlap_tiles(program, *tiles)
    program, top = s.fuse(program, *outermost)
    if copy is not None:
        program = place_copy(program, copy, top, target)
    flops = 2 * prod(a.extent for a in (*c.outer, *c.rows, c.vector, *c.reduce))
    return in_parallel(program, top, flops / (dot.instruction.terms * LANES), target)


def _tiles(
    program: PrimFunc, product: TiledProduct, knob: Mapping[str, int], order: str, target: Target
) -> tuple[PrimFunc, list[Var], list[Var]]:
    """The sums by tiles; the loops over blocks, outermost first, and those over their tiles."""
    dot = product.dot
    c, intrinsic = dot.contraction, dot.instruction
    loops = dict(enumerate(s.loops_of(program, c.block)))
    program, (n_block, n_panel, vector, lane) = s.split(
        program, loops[c.vector.position], knob["nb"], knob["nv"], LANES
    )
    factors = (knob["mb"], knob["rh"])
    last = loops[product.rows.position]
    if product.second is None:
        program, (m_block, m_tile, tile, row) = s.split(program, last, *factors, knob["rw"])
        tiles = [m_tile]
    else:
        second = loops[product.second.position]
        program, (m_block, m_tile, tile) = s.split(program, second, *factors)
        program, (column, row) = s.split(program, last, knob["rw"])
        tiles = [m_tile, column]
    program, (step, group, term) = s.split(
        program, loops[dot.depth.position], product.step, intrinsic.terms
    )
    reduce = [*(loops[a.position] for a in c.reduce[:-1]), step]
    outermost = order_blocks(c, loops, [n_block, m_block], order)
    inside = [tile, vector, row, group, lane, term]
    if product.taps is not None:
        tap = loops[product.taps.position]
        reduce.remove(tap)
        reduce, inside[3], group = [*reduce, group], tap, tap
    program = s.reorder(program, *outermost, n_panel, *tiles, *reduce, *inside)
    program = s.decompose_reduction(program, c.block, reduce[0])
    assert c.rhs.param is not None
    each = product.groups * knob["nv"] * LANES * intrinsic.terms
    weights = PackedWeights(program.params[c.rhs.param], each, each * product.steps)
    visits = (tiles, reduce, inside)
    program = prefetch_weights(program, c.block, weights, knob, *visits, target, level=2)
    program = in_tiles(program, own_loops(program, f"{c.block}_init", tiles[-1]))
    program = s.tensorize(program, lane, intrinsic.name)
    return in_tiles(program, [tile, vector, row, group]), outermost, [n_panel, *tiles]


def in_tiles(program: PrimFunc, loops: list[Var]) -> PrimFunc:
    """The two inner loops of a nest as a tile, the outer ones written out."""
    for loop in loops[:-2]:
        program = s.unroll(program, loop)
    for loop in loops[-2:]:
        program = s.tile(program, loop)
    return program


def place_result(program: PrimFunc, result: str, place: Var, rows: int | None) -> PrimFunc:
    """The tiles of sums stored where the vectors of the epilogue find them: of so many ``rows``
    each, or of all that the last axis has there."""
    return place_tiles(s.reverse_compute_at(program, result, place), result, place, rows)


def place_tiles(program: PrimFunc, result: str, place: Var, rows: int | None) -> PrimFunc:
    """The block that stores tiles of sums, which stands at ``place``, tile by tile."""
    *outer, column = own_loops(program, result, place)
    program, (vector, lane) = s.split(program, column, LANES)
    if rows is not None:
        program, parts = s.split(program, outer[-1], rows)
        outer = list(parts)
    program = s.reorder(program, *outer[:-1], vector, outer[-1], lane)
    return in_tiles(program, [*outer[:-1], vector, outer[-1], lane])


def overlap_tiles(program: PrimFunc, *loops: Var) -> PrimFunc:
    """Macro tiles in one loop, in which each runs beside the epilogue of the one before it."""
    program, tile = s.fuse(program, *loops)
    return s.overlap(program, tile)


def place_epilogue(program: PrimFunc, epilogue: str, place: Var) -> PrimFunc:
    """The epilogue on a tile, row by row in vectors."""
    program = s.reverse_compute_at(program, epilogue, place)
    own = own_loops(program, epilogue, place)
    program, (vector, lane) = s.split(program, own[-1], LANES)
    return s.vectorize(s.unroll(program, vector), lane)

"""A config applied to the stages of a product in parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.float_parts.cycles import MOST_AHEAD
from tunefarm.compiler.space.float_parts.forms import DEPTH, PART, Parts, parts_of
from tunefarm.compiler.space.float_parts.program import create_parts, has_whole_parts, padded_depth
from tunefarm.compiler.space.matrix_tiles.apply import (
    in_tiles,
    overlap_tiles,
    place_epilogue,
    place_result,
    place_tiles,
)
from tunefarm.compiler.space.matrix_tiles.shape import LANES, ROWS
from tunefarm.compiler.space.nests import extent_of, own_loops
from tunefarm.compiler.space.prefetch import PackedWeights, prefetch_weights
from tunefarm.compiler.space.strassen.program import Product, product_of
from tunefarm.compiler.space.tiles import in_parallel, in_registers
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Var

GROUPS, TERMS = 16, 2  # of terms in a tile
INSTRUCTION = "x86.tdpbf16ps"
TOGETHER = 4  # lines side by side of the next panel that are asked for


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the method does not apply or a knob misfits."""
    p = product_of(function, LANES, 1)
    if p is None or not has_whole_parts(p) or not target.has("amx-bf16"):
        raise ScheduleError(f"{target} computes no product of float32 in parts for the workload")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    width = knob["nv"] * LANES
    each = knob["rh"] * ROWS
    stretch = knob["stretch"] or padded_depth(p)
    block_rows = each * knob["mb"]
    parts = parts_by_order(knob, target)
    program = create_parts(p, parts, -(-p.rows // block_rows) * block_rows, stretch)
    final = s.remaining_blocks(program)[-1]
    if p.variable:
        program = s.set_scope(program, "matrix", "local")
    else:
        packed = replace(matrix_layout(stretch, knob["nv"]), transform=parts.name)
        program = s.transform_layout(program, p.weights, packed)
    program = s.set_scope(program, "parts", "local")
    program = s.set_scope(program, "product", "local")
    if stretch < padded_depth(p):
        program, outer, block = _place_stretches(program, p, knob, target)
        program = _in_vectors(s.reverse_compute_at(program, final, outer[-1]), final, outer[-1])
        program, top = s.fuse(program, *outer)
    else:
        program = s.pad_einsum(program, "product", {1: -(-p.columns // width) * width})
        program, outer, panel, tile = _place_products(program, p, knob, target)
        if knob["ahead"]:
            program = s.overlap(place_epilogue(program, final, panel), tile)
            program, top = s.fuse(program, *outer)
            block = tile
        else:
            program = _overlap(place_epilogue(program, final, tile), p, panel, tile)
            program, top = s.fuse(program, *outer)
            block = top
    program = place_parts(program, "parts", block)
    return in_parallel(program, top, nominal_flops(function), target)


def _place_products(
    program: PrimFunc, p: Product, knob: Mapping[str, int], target: Target
) -> tuple[PrimFunc, list[Var], Var, Var]:
    """The products of parts by tiles; the loops over blocks, and those over panels and tiles."""
    program, result = s.cache_write(program, "product", "tile")
    rows, column, pair, term = s.loops_of(program, "product")
    program, (n_block, n_panel, vector, lane) = s.split(
        program, column, knob["nb"], knob["nv"], LANES
    )
    program, (m_block, m_tile, tile, row) = s.split(program, rows, knob["mb"], knob["rh"], ROWS)
    inner = [m_tile, n_panel] if knob["ahead"] else [n_panel, m_tile]
    outer = [n_block, m_block, *inner]
    program = s.reorder(program, *outer, term, pair, tile, vector, row, lane)
    if p.variable:
        program, _ = place_matrix(program, "matrix", n_panel, knob["nv"], padded_depth(p))
    program = _sum_in_tiles(program, p, outer, (pair, tile, vector, row, lane, term), knob, target)
    return place_result(program, result, inner[-1], ROWS), [n_block, m_block], n_panel, m_tile


def _place_stretches(
    program: PrimFunc, p: Product, knob: Mapping[str, int], target: Target
) -> tuple[PrimFunc, list[Var], Var]:
    """The products of a stretch of terms by tiles, added to the totals of a block; the loops over
    blocks, and the one over stretches in them."""
    program = s.set_scope(program, "total", "local")
    rows, column, stretch = s.loops_of(program, "total")
    program, (n_block, n_panel, vector, lane) = s.split(
        program, column, knob["nb"], knob["nv"], LANES
    )
    program, (m_block, m_tile, row) = s.split(program, rows, knob["mb"], knob["rh"] * ROWS)
    outer = [n_block, m_block, stretch, n_panel, m_tile]
    program = s.reorder(program, *outer, row, vector, lane)
    program = s.vectorize(s.unroll(program, vector), lane)
    program, result = s.cache_write(program, "product", "tile")
    program = s.compute_at(program, result, m_tile)
    program = place_tiles(program, result, m_tile, ROWS)
    program = s.compute_at(program, "product", m_tile)
    if p.variable:
        program, _ = place_matrix(program, "matrix", n_panel, knob["nv"], knob["stretch"])
    row, column, pair, term = own_loops(program, "product", m_tile)
    program, (tile, row) = s.split(program, row, ROWS)
    program, (vector, lane) = s.split(program, column, LANES)
    inside = (pair, tile, vector, row, lane, term)
    program = _sum_in_tiles(program, p, outer, inside, knob, target)
    program = s.decompose_reduction(program, "total", stretch)
    program = _in_vectors(program, "total_init", m_block)
    return _overlap(program, p, n_panel, m_tile), [n_block, m_block], stretch


def _overlap(program: PrimFunc, p: Product, panel: Var, tile: Var) -> PrimFunc:
    """Epilogues beside the sums of the next tile: of the next panel too, unless what is split for
    it stands between them."""
    return overlap_tiles(program, *([tile] if p.variable else [panel, tile]))


def _sum_in_tiles(
    program: PrimFunc,
    p: Product,
    outer: list[Var],
    inside: tuple[Var, Var, Var, Var, Var, Var],
    knob: Mapping[str, int],
    target: Target,
) -> PrimFunc:
    """The sums of a tile, which the last loop of ``outer`` is over, step by step."""
    pair, tile, vector, row, lane, term = inside
    program, (step, group, one) = s.split(program, term, GROUPS, TERMS)
    order = [*register_loops(knob, pair, tile, vector), row, group, lane, one]
    program = s.reorder(program, step, *order)
    hinted = None if p.variable or knob["ahead"] else p.weights
    return multiply_in_tiles(program, hinted, [outer[-1]], [step], order, pair, knob, target)


def parts_by_order(knob: Mapping[str, int], target: Target) -> Parts:
    """The parts with the order of their pairs: the registers hold all parts of one tile of rows."""
    parts = parts_of(target)
    return parts.by_weights if knob["rh"] == 1 else parts


def register_loops(knob: Mapping[str, int], pair: Var, tile: Var, vector: Var) -> list[Var]:
    """The loops over the products of a step, outermost first, for the pairs in that order."""
    return [vector, pair, tile] if knob["rh"] == 1 else [pair, tile, vector]


def multiply_in_tiles(
    program: PrimFunc,
    hinted: int | None,
    tiles: list[Var],
    reduce: list[Var],
    inside: list[Var],
    pair: Var,
    knob: Mapping[str, int],
    target: Target,
) -> PrimFunc:
    """The sums of products of parts by the unit, in the loops ``tiles`` over macro tiles of a panel
    and ``reduce`` over steps. ``inside`` are the ``register_loops``, that over the pairs one of
    them, and those over rows, groups, lanes and terms. ``hinted`` is the number of the packed
    parameter whose next panel may be asked for, None if there is none."""
    program = s.decompose_reduction(program, "product", reduce[0])
    if hinted is not None:
        parts = parts_by_order(knob, target)
        elements = parts.number * DEPTH * knob["nv"] * LANES
        steps = _steps_hinted(program, tiles, reduce, elements)
        panel = elements * _iterations(program, steps)
        packed = PackedWeights(program.params[hinted], elements, panel)
        program = prefetch_weights(
            program, "product", packed, knob, tiles, steps, inside, target, level=2, run=TOGETHER,
            first={pair: parts.first},
        )  # fmt: skip
    return sum_by_unit(program, "product", tiles[-1], inside)


def sum_by_unit(program: PrimFunc, block: str, tile: Var, inside: list[Var]) -> PrimFunc:
    """The sums of a block, set to zero apart from them, by instructions on tiles: in the loops
    ``inside``, of which the last three are over groups, lanes and terms."""
    program = in_tiles(program, own_loops(program, f"{block}_init", tile))
    *written_out, lane, _ = inside
    return in_tiles(s.tensorize(program, lane, INSTRUCTION), written_out)


def _steps_hinted(
    program: PrimFunc, tiles: list[Var], reduce: list[Var], elements: int
) -> list[Var]:
    """The loops over steps of so many elements whose weights are asked for before they begin: all
    of them, but of a panel that is read once no more than the second cache has room for."""
    if _iterations(program, tiles) > 1:
        return reduce
    most = MOST_AHEAD // (dtype_bytes(PART) * elements)
    fitting = (reduce[n:] for n in range(len(reduce)) if _iterations(program, reduce[n:]) <= most)
    return next(fitting, reduce[-1:])


def _iterations(program: PrimFunc, loops: list[Var]) -> int:
    return prod(extent_of(program, loop) for loop in loops)


def _in_vectors(program: PrimFunc, block: str, loop: Var) -> PrimFunc:
    """A block's own loops inside another, the last one in vectors."""
    own = own_loops(program, block, loop)
    program, (_, lane) = s.split(program, own[-1], LANES)
    return s.vectorize(program, lane)


def place_parts(program: PrimFunc, block: str, loop: Var, heads: int = 0) -> PrimFunc:
    """The parts of rows, all of a vector of terms at once, as [head]…[tile][step][part][row]
    [term]."""
    program = s.compute_at(program, block, loop)
    places = _behind(heads, (1, 3, 0, 2, 4))
    layout = PackedLayout(((), *[()] * heads, (ROWS,), (DEPTH,)), places)
    program = s.pack_buffer(program, block, layout)
    number, (*rows, term) = _part_and_rest(program, block, loop)
    program, (step, lane) = s.split(program, term, DEPTH)
    if rows:
        program, parts = s.split(program, rows[0], ROWS)
        rows = list(parts)
    program = s.reorder(program, *rows, step, *number, lane)
    return in_registers(program, number, lane)


def _part_and_rest(program: PrimFunc, block: str, loop: Var) -> tuple[list[Var], list[Var]]:
    """A block's loops inside another: that over parts, if there are several, and the others."""
    own = own_loops(program, block, loop)
    several = s.find_block(program, block).iters[0].extent > 1
    return own[:several], own[several:]


def matrix_layout(stretch: int, vectors: int, heads: int = 0) -> PackedLayout:
    """Parts of a matrix as [head]…[stretch][panel][step][part][vector][group][lane][term]: a tile's
    lines lie one behind the other."""
    splits = (), *[()] * heads, (stretch // DEPTH, GROUPS, TERMS), (vectors, LANES)
    return PackedLayout(splits, _behind(heads, (1, 5, 2, 0, 6, 3, 7, 4)))


def _behind(heads: int, places: Sequence[int]) -> tuple[int, ...]:
    """The places of dimensions that have those of heads behind the first of them, number 0."""
    return *range(1, heads + 1), *(n + heads if n else 0 for n in places)


def place_matrix(
    program: PrimFunc, block: str, loop: Var, vectors: int, stretch: int, heads: int = 0
) -> tuple[PrimFunc, Var]:
    """The parts of a variable matrix, two terms of a vector of columns at once, in panels of so
    many vectors; the loop over these."""
    layout = matrix_layout(stretch, vectors, heads)
    program = s.pack_buffer(s.compute_at(program, block, loop), block, layout)
    number, (term, column) = _part_and_rest(program, block, loop)
    program, (group, one) = s.split(program, term, TERMS)
    program, (panel, vector, lane) = s.split(program, column, vectors, LANES)
    program = s.reorder(program, panel, group, vector, *number, lane, one)
    program, lanes = s.fuse(program, lane, one)
    return in_registers(program, [*number, vector], lanes), panel

"""A config applied: loops, packing, epilogue, copies and prefetches of a contraction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import prod

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.analysis import Axis, Contraction, Operand
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.contraction.depthwise import shares_lines
from tunefarm.compiler.space.contraction.shape import (
    GROUPS_INSIDE,
    PACK_PANEL,
    PACK_WHOLE,
    PANELS_INSIDE,
    contraction_of,
    groups_of,
    is_strided,
    lane_dimension,
    lanes_of,
    packed_at_build,
    panel_count,
    row_axes,
    row_by_row,
    shares_vector,
    transposed,
)
from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.space.prefetch import (
    PackedWeights,
    is_large,
    prefetch_next_tile,
    prefetch_rows_below,
    prefetch_weights,
)
from tunefarm.compiler.space.tiles import in_parallel, in_registers, place_epilogue
from tunefarm.compiler.space.turned import Turn, turn_tiles
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.facts import loads_of
from tunefarm.compiler.tir.ir import Buffer, Var
from tunefarm.compiler.tir.schedule.tree import find_block, store_of, written_buffer

PLANES_SHARE = 16  # of the second cache: planes beyond it are asked for


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no contraction or a knob misfits."""
    c = contraction_of(function)
    if c is None:
        raise ScheduleError("the workload is not a contraction")
    return tiled(c, target, config)


def tiled(c: Contraction, target: Target, config: Config) -> PrimFunc:
    """The program of a contraction with a config applied; ScheduleError if a knob misfits."""
    lanes = lanes_of(c, target)
    knob = {name: int(value) for name, value in config.items() if name not in ("sketch", "order")}
    block = c.block
    program, epilogue, packed = prepared(c, knob["nv"], knob["pack_rhs"], target)
    loops = dict(enumerate(s.loops_of(program, block)))
    program, (n_block, n_panel, n_vec, n_lane) = s.split(
        program, loops[c.vector.position], knob["nb"], knob["nv"], lanes
    )
    program, m_blocks, row_tiles, row_inner = split_rows(program, c, loops, knob)
    reduce = [loops[a.position] for a in c.reduce]
    depth = c.reduce[-1].extent
    program, (k_outer, k_inner) = s.split(program, reduce[-1], min(knob["ku"], depth))
    reduce[-1:] = [k_outer]
    groups = groups_of(c) if config["order"] == GROUPS_INSIDE else ()
    outermost = order_blocks(c, loops, [n_block, *m_blocks], str(config["order"]), groups)
    apart = [row_inner.pop(0)] if row_by_row(c, knob) else []
    inside = [*row_inner, n_vec, n_lane]
    in_turn = [*(loops[a.position] for a in groups), n_panel]
    tiles_first = config["order"] in (PANELS_INSIDE, GROUPS_INSIDE)
    tiles = [*row_tiles, *in_turn] if tiles_first else [*in_turn, *row_tiles]
    tiles += apart
    program = s.reorder(program, *outermost, *tiles, *reduce, k_inner, *inside)
    around = reduce[:-1] if knob["ku"] > depth else []
    program = in_registers(program, (*apart, *around, k_inner, *row_inner, n_vec), n_lane)
    program = place_epilogue(program, epilogue, tiles[-1], lanes)
    program = s.decompose_reduction(program, block, reduce[0])
    if packed is not None:
        width = knob["nv"] * lanes
        weights = PackedWeights(packed, width, width * prod(a.extent for a in c.reduce))
        visits = ((*row_tiles, *apart), reduce, (k_inner, *inside))
        program = prefetch_weights(program, block, weights, knob, *visits, target)
    if not around and _reads_planes(c, target) and not knob["pack_lhs"]:
        program = prefetch_rows_below(program, block, c.lhs.load.buffer, row_tiles, reduce[0])
    if not shares_vector(c):
        program = prefetch_next_tile(program, epilogue, tiles[-1], reduce, target)
        if row_tiles and len(c.reduce) == 1 and not knob["pack_lhs"]:
            panels = panel_count(c.vector.extent, knob["nv"] * lanes)
            again = min(knob["nb"], panels) if config["order"] == "mn" else 1
            program = prefetch_next_tile(program, block, row_tiles[-1], reduce, target, again)
    program, top = s.fuse(program, *outermost)
    if knob["pack_lhs"]:
        program = _copy_rows(program, block, c.lhs, top, lanes)
    if knob["pack_rhs"] == PACK_PANEL:
        program = _copy_panel(program, block, c, n_panel, lanes)
    return in_parallel(program, top, _work(c, target), target)


def _work(c: Contraction, target: Target) -> float:
    """FLOPs, those of pixels two apart that share lines twice: their loads meet two lines.

    28² of 17 to 24 channels, 60,000 FLOPs and more, take 0.78 to 0.87 × the time on two cores, 14²
    of 72 0.81, 20² of 33 0.8; 44,000 gain nothing from the second, nor do 56,000 of whole lines
    (Zen 5; what is between was not timed).
    """
    flops = 2 * prod(a.extent for a in (*c.outer, *c.rows, c.vector, *c.reduce))
    return 2 * flops if is_strided(c) and shares_lines(c, target) else flops


def _reads_planes(c: Contraction, target: Target) -> bool:
    """Whether the left operand is an image of channels first that may come from memory: not even
    small ones stay in the second cache from one run of a network to the next."""
    load, (second, last) = c.lhs.load, row_axes(c)
    if second is None or last is None or load.buffer not in c.program.params:
        return False
    is_wide = c.node.iters[last.position].var in affine(load.indices[-1]).terms
    return is_wide and len(c.reduce) > 1 and is_large(load.buffer, target, PLANES_SHARE)


@lru_cache(maxsize=256)
def prepared(
    c: Contraction, vectors: int, pack_rhs: int, target: Target
) -> tuple[PrimFunc, str, Buffer | None]:
    """What many configs have in common: sums in registers, and the right operand packed. The
    program, the block that reads the sums, and the packed buffer, if there is one."""
    program, epilogue = keep_sums(c.program, c)
    program, packed = _pack_rhs(program, c, vectors, pack_rhs, target)
    return program, epilogue, packed


def keep_sums(program: PrimFunc, c: Contraction, scope: str = "register") -> tuple[PrimFunc, str]:
    """Keep the sums in a scope; returns the block that reads them, a copy without an epilogue."""
    if c.epilogue is None:
        return s.cache_write(program, c.block, scope)
    return s.set_scope(program, c.block, scope), c.epilogue


def split_rows(
    program: PrimFunc, c: Contraction, loops: Mapping[int, Var], knob: Mapping[str, int]
) -> tuple[PrimFunc, list[Var], list[Var], list[Var]]:
    """The loops over rows, which ``loops`` has by position, as blocks, tiles and rows of a tile.

    Only the first axis of a tile has blocks.
    """
    blocks: list[Var] = []
    tiles: list[Var] = []
    rows: list[Var] = []
    for axis, name in zip(row_axes(c), ("rh", "rw"), strict=True):
        if axis is None:
            continue
        # A block of more tiles than there are would count some that never run.
        blocked = min(knob["mb"], panel_count(axis.extent, knob[name]))
        factors = (knob[name],) if tiles else (blocked, knob[name])
        program, (*block, tile, row) = s.split(program, loops[axis.position], *factors)
        blocks += block
        tiles.append(tile)
        rows.append(row)
    return program, blocks, tiles, rows


def order_blocks(
    c: Contraction,
    loops: Mapping[int, Var],
    blocks: list[Var],
    order: str,
    groups: Sequence[Axis] = (),
) -> list[Var]:
    """The loops over blocks, outermost first: axes without tiles but for ``groups`` that take turns
    inside, then ``blocks``, given as panels and rows; these the other way round unless the order is
    "nm"."""
    inside = (*row_axes(c), *groups)
    rest = [loops[a.position] for a in (*c.outer, *c.rows) if a not in inside]
    return [*rest, *(blocks if order == "nm" else reversed(blocks))]


def _pack_rhs(
    program: PrimFunc, c: Contraction, vectors: int, pack_rhs: int, target: Target
) -> tuple[PrimFunc, Buffer | None]:
    """Pack a right operand to [outer …][panel][reduce …][nv · lanes]: a constant at build time,
    another by a copy of all of it before the product. Returns the packed buffer, if there is one.
    """
    if not packed_at_build(c) and pack_rhs != PACK_WHOLE:
        return program, None
    lanes = lanes_of(c, target)
    layout = _packed_layout(c, vectors * lanes)
    if packed_at_build(c):
        assert c.rhs.param is not None
        program = s.transform_layout(program, c.rhs.param, layout)
        return program, program.params[c.rhs.param]
    program, copy = s.cache_read(program, c.block, c.rhs.load.buffer, "global")
    program = s.pack_buffer(program, copy, layout)
    lanes_dim = operand_axes(c).index(c.vector.position)
    loops = s.loops_of(program, copy)
    rest = [loop for d, loop in enumerate(loops) if d != lanes_dim]
    program, (panel, vector, lane) = s.split(program, loops[lanes_dim], vectors, lanes)
    if _turns(c, lanes):
        program = s.reorder(program, panel, vector, *rest, lane)
        program = _turned(program, copy, rest[-1], lane, lanes_dim, lanes)
    else:
        program = s.reorder(program, panel, *rest, vector, lane)
        program = in_registers(program, (vector,), lane)
    program = in_parallel(program, panel, prod(c.rhs.load.buffer.shape), target)
    return program, written_buffer(s.find_block(program, copy))


def _packed_layout(c: Contraction, width: int) -> PackedLayout:
    positions = operand_axes(c)
    lanes_dim = positions.index(c.vector.position)
    factors = tuple((width,) if d == lanes_dim else () for d in range(len(positions)))
    # After the split the dimensions are numbered with the lanes' inner part behind its outer one.
    number = [d if d <= lanes_dim else d + 1 for d in range(len(positions))]
    reduced = {a.position for a in c.reduce}
    front = [number[d] for d, p in enumerate(positions) if d != lanes_dim and p not in reduced]
    summed = sorted((p, number[d]) for d, p in enumerate(positions) if p in reduced)
    return PackedLayout(
        factors, (*front, number[lanes_dim], *(n for _, n in summed), lanes_dim + 1)
    )


def split_operand(
    c: Contraction, pieces: Mapping[int, tuple[int, ...]]
) -> tuple[tuple[tuple[int, ...], ...], list[int]]:
    """The right operand's dimensions with the ``pieces`` that some axes are split into: those of
    each dimension, and the number of its outermost part when all parts are counted."""
    factors = tuple(pieces.get(axis, ()) for axis in operand_axes(c))
    return factors, [sum(1 + len(f) for f in factors[:d]) for d in range(len(factors))]


def operand_axes(c: Contraction) -> list[int]:
    """For each dimension of the right operand the axis of the sum that indexes it, or -1."""
    axis_of = {i.var: n for n, i in enumerate(c.node.iters)}
    return [axis_of.get(i, -1) if isinstance(i, Var) else -1 for i in c.rhs.load.indices]


def _copy_rows(program: PrimFunc, block: str, operand: Operand, loop: Var, lanes: int) -> PrimFunc:
    """Copy the rows of a block into a local tile whose row stride avoids cache conflicts."""
    buffer = operand.load.buffer
    program, copy = s.cache_read(program, block, buffer, "local", padding=lanes)
    program = s.compute_at(program, copy, loop)
    own = own_loops(program, copy, loop)
    if own:
        program, (_, lane) = s.split(program, own[-1], lanes)
        program = s.vectorize(program, lane)
    return program


def _copy_panel(program: PrimFunc, block: str, c: Contraction, loop: Var, lanes: int) -> PrimFunc:
    """Copy a panel of the right operand into a local tile with the lanes innermost."""
    buffer = c.rhs.load.buffer
    dims = range(len(buffer.shape))
    lane_dim = lane_dimension(c)
    assert lane_dim is not None, "no other operand is copied (`pack_rhs`)"
    program, copy = s.cache_read(program, block, buffer, "local")
    order = tuple(d for d in dims if d != lane_dim) + (lane_dim,)
    program = s.permute_buffer(program, copy, order)
    program = s.compute_at(program, copy, loop)
    own = own_loops(program, copy, loop)
    lane_loop = next((v for v in own if v.name == f"i{lane_dim}"), None)
    if lane_loop is not None:
        program, (outer, lane) = s.split(program, lane_loop, lanes)
        rest = [v for v in own if v is not lane_loop]
        program = s.reorder(program, outer, *rest, lane)
        along = next((v for v in rest if v.name == f"i{dims[-1]}"), None)
        if _turns(c, lanes) and along is not None:
            return _turned(program, copy, along, lane, lane_dim, lanes)
        program = s.vectorize(program, lane)
    return program


def _turns(c: Contraction, lanes: int) -> bool:
    """Whether a copy of the right operand transposes tiles: they are whole along what it reads."""
    return lanes > 1 and transposed(c) and c.rhs.load.buffer.shape[-1] % lanes == 0


def _turned(
    program: PrimFunc, copy: str, along: Var, lane: Var, lanes_dim: int, lanes: int
) -> PrimFunc:
    """Transpose tiles of a copy in registers: ``along`` runs along the last dimension, as what is
    read lies, ``lane`` over the lanes of what is written, inside it."""
    node = find_block(program, copy)
    turn = Turn(node.iters[lanes_dim], node.iters[-1], loads_of(store_of(node).value))
    program, _ = turn_tiles(program, copy, turn, along, lanes)
    return s.vectorize(program, lane)

"""A config applied: loops, packing, copies, the instruction and the epilogue of dot products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.contraction.apply import (
    keep_sums,
    operand_axes,
    order_blocks,
    split_operand,
    split_rows,
)
from tunefarm.compiler.space.dot.pairs import schedule_pairs
from tunefarm.compiler.space.dot.shape import (
    PAIRS,
    DotProduct,
    chunk_of,
    dot_product_of,
    packed_weights,
)
from tunefarm.compiler.space.nests import extent_of, fitting_lanes, own_loops
from tunefarm.compiler.space.prefetch import prefetch_weights
from tunefarm.compiler.space.tiles import in_parallel, place_epilogue
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Buffer, Expr, Load, Var
from tunefarm.compiler.tir.schedule.tree import replace_stmt, written_buffer
from tunefarm.compiler.tir.visit import transform_expr, transform_stmt


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if there is no instruction or a knob misfits."""
    dot = dot_product_of(function, target)
    if dot is None:
        raise ScheduleError(f"no instruction of {target} computes the workload's dot products")
    c, lanes = dot.contraction, dot.instruction.lanes
    knob = {name: int(value) for name, value in config.items() if name not in ("sketch", "order")}
    program, block = c.program, c.block
    groups = dot.words.reduce[-1].extent
    chunk = chunk_of(groups) if dot.instruction is PAIRS else groups
    program = pack_constant(program, dot, knob["nv"] * lanes, chunk)
    copy = None
    if knob["pack_lhs"] or dot.copied:
        program, copy = copy_rows(program, dot)
    program, epilogue = keep_sums(program, c)
    program = _at_own_iterators(program, epilogue, written_buffer(s.find_block(program, block)))
    width = knob["nv"] * lanes
    panels = -(-c.vector.extent // width)
    padded = {c.vector.position: panels * width, dot.depth.position: dot.padded_depth}
    program = s.pad_einsum(program, block, padded)
    asked = target, knob, epilogue, str(config["order"])
    if dot.instruction is PAIRS:
        program, outermost = schedule_pairs(program, dot, *asked)
    else:
        program, outermost = _schedule_tiles(program, dot, *asked)
    program, top = s.fuse(program, *outermost)
    if copy is not None:
        program = place_copy(program, copy, top, target)
    flops = 2 * prod(a.extent for a in (*c.outer, *c.rows, c.vector, *c.reduce))
    return in_parallel(program, top, flops / dot.instruction.terms, target)


def _at_own_iterators(program: PrimFunc, epilogue: str, sums: Buffer) -> PrimFunc:
    """Let an epilogue of sums say 0 nowhere where it means its iterator of extent 1: padded, there
    are more of them."""
    node = s.find_block(program, epilogue)
    own = tuple(axis.var for axis in node.iters)

    def renamed(expr: Expr) -> Expr | None:
        return Load(sums, own) if isinstance(expr, Load) and expr.buffer is sums else None

    body = transform_stmt(node.body, expr_rule=lambda e: transform_expr(e, renamed))
    return replace_stmt(program, node, replace(node, body=body))


def _schedule_tiles(
    program: PrimFunc,
    dot: DotProduct,
    target: Target,
    knob: Mapping[str, int],
    epilogue: str,
    order: str,
) -> tuple[PrimFunc, list[Var]]:
    """The tiles of a padded program; and the loops over blocks of it, outermost first."""
    c, lanes = dot.contraction, dot.instruction.lanes
    block = c.block
    loops = dict(enumerate(s.loops_of(program, block)))
    program, (panel, n_vec, n_lane) = s.split(program, loops[c.vector.position], knob["nv"], lanes)
    program, (n_block, n_panel) = s.split(program, panel, knob["nb"])
    program, m_blocks, row_tiles, row_inner = split_rows(program, c, loops, knob)
    program, (group, term) = s.split(program, loops[dot.depth.position], dot.instruction.terms)
    program, (k_outer, k_inner) = s.split(program, group, knob["ku"])
    reduce = [*(loops[a.position] for a in c.reduce[:-1]), k_outer]
    outermost = order_blocks(c, loops, [n_block, *m_blocks], order)
    inside = [*row_inner, n_vec, n_lane, term]
    program = s.reorder(program, *outermost, n_panel, *row_tiles, *reduce, k_inner, *inside)
    for loop in (k_inner, *row_inner, n_vec):
        program = s.unroll(program, loop)
    tile_loop = row_tiles[-1] if row_tiles else n_panel
    program = place_epilogue(program, epilogue, tile_loop, lanes)
    program = s.decompose_reduction(program, block, reduce[0])
    program = _vectorize_init(program, f"{block}_init")
    weights = packed_weights(program, dot, knob["nv"])
    visits = (row_tiles, reduce, (k_inner, *inside))
    program = prefetch_weights(program, block, weights, knob, *visits, target)
    return s.tensorize(program, n_lane, dot.instruction.name), outermost


def pack_constant(
    program: PrimFunc, dot: DotProduct, width: int, chunk: int, lanes: int | None = None
) -> PrimFunc:
    """Pack the right operand to [outer …][panel][taps …][group][width][term], with groups of zeros
    where a ``chunk`` of them does not divide them. With so many ``lanes`` to a tile, the groups of
    a chunk stand inside of its vectors: […][chunk][vector][group][lane][term]."""
    c = dot.contraction
    assert c.rhs.param is not None
    dims = operand_axes(c)
    groups, terms = dot.words.reduce[-1].extent, dot.instruction.terms
    whole = (chunk, terms) if chunk < groups else (terms,)
    columns = (width,) if lanes is None else (width // lanes, lanes)
    pieces = {c.vector.position: columns, dot.depth.position: whole}
    factors, starts = split_operand(c, pieces)
    start = dict(zip(dims, starts, strict=True))
    taps = [start[a.position] for a in c.reduce[:-1]]
    summed = {a.position for a in c.reduce}
    front = [at for p, at in zip(dims, starts, strict=True) if p not in pieces and p not in summed]
    panel, depth = start[c.vector.position], start[dot.depth.position]
    *vector, lane = range(panel + 1, panel + 1 + len(columns))
    *steps, group, term = range(depth, depth + 1 + len(whole))
    order = (*front, panel, *taps, *steps, *vector, group, lane, term)
    return s.transform_layout(program, c.rhs.param, PackedLayout(factors, order))


def copy_rows(program: PrimFunc, dot: DotProduct) -> tuple[PrimFunc, str]:
    """A copy of the left operand with the terms innermost, which the block reads instead."""
    c = dot.contraction
    padded = c.lhs.load.buffer
    program, copy = s.cache_read(program, c.block, padded, "local", dtype=dot.instruction.a)
    var = c.node.iters[dot.depth.position].var
    inner = c.lhs.load.indices.index(var)
    dims = range(len(padded.shape))
    program = s.permute_buffer(program, copy, (*(d for d in dims if d != inner), inner))
    for name in s.remaining_blocks(program):
        if written_buffer(s.find_block(program, name)) is padded:
            program = s.compute_inline(program, name)
    return program, copy


def place_copy(program: PrimFunc, copy: str, loop: Var, target: Target) -> PrimFunc:
    """What a block of rows reads, copied in vectors."""
    program = s.compute_at(program, copy, loop)
    own = own_loops(program, copy, loop)
    if own:
        dtype = written_buffer(s.find_block(program, copy)).dtype
        lanes = fitting_lanes(target.lanes(dtype), extent_of(program, own[-1]))
        program, (_, lane) = s.split(program, own[-1], lanes)
        program = s.vectorize(program, lane)
    return program


def _vectorize_init(program: PrimFunc, block: str) -> PrimFunc:
    """The accumulators' first values; the loops around them are unrolled already."""
    return s.vectorize(program, s.loops_of(program, block)[-1])

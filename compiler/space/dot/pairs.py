"""Dot products of float16 by multiply-adds of pairs, for processors that compute in float16.

    for row tile:
      sums[row, 2·lane + q] = 0                              float32, on the stack
      for taps, for chunks of terms:
        pairs[row, 2·lane + q] = 0                           float16, registers
        for groups of a chunk:                               ku unrolled
          pairs += (lhs[row, 2·group], lhs[row, 2·group + 1]), … · rhs[group, lane, q]
        sums += pairs
      result[row, lane] = sums[row, 2·lane] + sums[row, 2·lane + 1], then the epilogue

A multiply-add takes two terms of a row, broadcast as one word, with those of 16 columns: loads and
the tile are those of a dot product. Half of the lanes sum even terms, half odd ones, ``CHUNK`` at
most before float32 takes over: results of BERT-base are 4e-3 of their size off, half of what
operands in bfloat16 cost (8e-3; with chunks of 64 terms 3e-3). Sums of a chunk must stay below
65504, where float16 ends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.space.analysis import Axis, Contraction
from tunefarm.compiler.space.contraction.apply import order_blocks, split_rows
from tunefarm.compiler.space.dot.shape import DotProduct, chunk_of, packed_weights
from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.space.prefetch import prefetch_weights
from tunefarm.compiler.space.tiles import in_registers
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import (
    Binary,
    Cast,
    Const,
    Expr,
    Load,
    Store,
    Var,
)
from tunefarm.compiler.tir.schedule.buffers import replace_buffer
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    find_block,
    replace_stmt,
    store_of,
    written_buffer,
)
from tunefarm.compiler.tir.visit import transform_expr, transform_stmt


def schedule_pairs(
    program: PrimFunc,
    dot: DotProduct,
    target: Target,
    config: Mapping[str, int],
    epilogue: str,
    order: str,
) -> tuple[PrimFunc, list[Var]]:
    """The tiles of a padded program; and the loops over blocks of it, outermost first."""
    program, sums, pairs = _split_sums(program, dot)
    program, outermost, tiles = _place_result(program, dot, config, epilogue, order)
    program = _place_lanes(program, dot, tiles[-1])
    program, chunks = _place_sums(program, dot, sums, tiles[-1])
    return _place_pairs(program, dot, pairs, (tiles, chunks), config, target), outermost


def _split_sums(program: PrimFunc, dot: DotProduct) -> tuple[PrimFunc, str, str]:
    """The block's sums in three: over a pair, of chunks in float32, and of pairs in float16."""
    c, groups = dot.contraction, dot.words.reduce[-1].extent
    loops = s.loops_of(program, c.block)
    taps = [loops[a.position] for a in c.reduce[:-1]]
    depth = loops[dot.depth.position]
    program, (group, pair) = s.split(program, depth, dot.instruction.terms)
    program, sums = s.rfactor(program, c.block, pair, scope="local")
    program, (chunk, _) = s.split(program, group, chunk_of(groups))
    program, pairs = s.rfactor(program, sums, *taps, chunk)
    return _in_float16(program, pairs), sums, pairs


def _place_result(
    program: PrimFunc, dot: DotProduct, knob: Mapping[str, int], epilogue: str, order: str
) -> tuple[PrimFunc, list[Var], list[Var]]:
    """Blocks of rows and of panels; in a block panels and tiles of rows; in a tile vectors."""
    c, lanes = dot.contraction, dot.instruction.lanes
    loops = dict(zip((a.position for a in _spatial(c)), s.loops_of(program, epilogue), strict=True))
    program, (n_block, n_panel, vector, lane) = s.split(
        program, loops[c.vector.position], knob["nb"], knob["nv"], lanes
    )
    program, m_blocks, tiles, rows = split_rows(program, c, loops, knob)
    outermost = order_blocks(c, loops, [n_block, *m_blocks], order)
    program = s.reorder(program, *outermost, n_panel, *tiles, *rows, vector, lane)
    return in_registers(program, (*rows, vector), lane), outermost, [n_panel, *tiles]


def _spatial(c: Contraction) -> list[Axis]:
    """The axes of the result, in its order."""
    return sorted((*c.outer, *c.rows, c.vector), key=lambda a: a.position)


def _place_lanes(program: PrimFunc, dot: DotProduct, tile: Var) -> PrimFunc:
    """The sum of the two terms of a pair, for all of a tile."""
    block = dot.contraction.block
    program = s.compute_at(program, block, tile)
    *rows, column, pair = own_loops(program, block, tile)
    program, (vector, lane) = s.split(program, column, dot.instruction.lanes)
    program = s.reorder(program, pair, *rows, vector, lane)
    program = in_registers(program, (pair, *rows, vector), lane)
    return s.decompose_reduction(program, block, pair)


def _place_sums(
    program: PrimFunc, dot: DotProduct, sums: str, tile: Var
) -> tuple[PrimFunc, list[Var]]:
    """The sums of chunks at a tile; the loops over taps and chunks, of more than one."""
    program = s.compute_at(program, sums, tile)
    node = s.find_block(program, sums)
    pairs = zip(node.iters, node.bindings, strict=True)
    chunks = [v for i, v in pairs if i.kind == "reduce" and isinstance(v, Var)]
    own = [v for v in own_loops(program, sums, tile) if v not in chunks]
    program, inside = _in_vectors(program, dot, own)
    program = s.reorder(program, *chunks, *inside)
    return s.decompose_reduction(program, sums, [*chunks, inside[0]][0]), chunks


def _place_pairs(
    program: PrimFunc,
    dot: DotProduct,
    pairs: str,
    around: tuple[list[Var], list[Var]],
    knob: Mapping[str, int],
    target: Target,
) -> PrimFunc:
    """The products of a chunk: groups of terms, and in a group all of the tile."""
    (panel, *tiles), chunks = around
    place = [panel, *tiles, *chunks][-1]
    program = s.compute_at(program, pairs, place)
    *own, group = own_loops(program, pairs, place)
    program, (step, inner) = s.split(program, group, knob["ku"])
    program, inside = _in_vectors(program, dot, own)
    program = s.reorder(program, step, inner, *inside)
    program = s.unroll(program, inner)
    program = s.decompose_reduction(program, pairs, step)
    weights = packed_weights(program, dot, knob["nv"])
    visits = (tiles, [*chunks, step], (inner, *inside))
    return prefetch_weights(program, pairs, weights, knob, *visits, target)


def _in_vectors(program: PrimFunc, dot: DotProduct, loops: list[Var]) -> tuple[PrimFunc, list[Var]]:
    """Rows, columns and terms of a tile as rows and vectors of columns and terms."""
    *rows, column, pair = loops
    program, (vector, lane) = s.split(program, column, dot.instruction.lanes)
    program, both = s.fuse(program, lane, pair)
    return in_registers(program, (*rows, vector), both), [*rows, vector, both]


def _in_float16(program: PrimFunc, block: str) -> PrimFunc:
    """Let a block sum in float16 what it multiplies; its readers take that as float32."""
    node = find_block(program, block)
    old, store = written_buffer(node), store_of(node)
    new = replace(old, dtype="float16")
    value = store.value
    if not isinstance(value, Binary) or not isinstance(value.b, Binary):
        raise ScheduleError(f"block {block} is no sum of products")
    factors = [f.value if isinstance(f, Cast) else f for f in (value.b.a, value.b.b)]
    product = Binary("mul", factors[0], factors[1], "float16")
    total = Binary("add", Load(new, store.indices), product, "float16")
    body = Store(new, store.indices, total)
    made = replace(node, body=body, init=Store(new, store.indices, Const(0.0, "float16")))

    def widened(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.buffer is old:
            return Cast(Load(new, expr.indices), old.dtype)
        return None

    changed = replace_stmt(program, node, made)
    for reader in [b for b in blocks(changed.body) if b is not made]:
        read = transform_stmt(reader.body, expr_rule=lambda e: transform_expr(e, widened))
        changed = replace_stmt(changed, reader, replace(reader, body=read))
    return replace_buffer(changed, old, new)

"""Nests that turn rows into columns: tiles of what they read are transposed in registers.

    for outer axes, tiles of the lane axis, tiles of the other:
      T[l, p] = in[…, p]                 a row of the tile for each lane, in vectors
      for p of the tile, unrolled:
        out[…, lanes] = f(T[lanes, p])   a column of it; the emitter transposes the tile once

Results lie side by side along the lane axis, and what is read along the other one. A tile has as
many lanes as fill a line of the cache with results, and a vector of the other axis.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import gcd

from tunefarm.compiler.space.nests import fitting_lanes, lanes_of, own_loops, share_out, strides
from tunefarm.compiler.target import LINE_BYTES, SAME_SET_BYTES, Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Block, IterVar, Load, Select, Var
from tunefarm.compiler.tir.schedule.tree import find_block, store_of
from tunefarm.compiler.tir.walk import walk_expr

FEW_SETS_BYTES = SAME_SET_BYTES // 8  # rows whole multiples of this apart meet in eight sets
LEAST = 3  # elements of the shorter axis: fewer lanes do not fill what processors interleave


@dataclass(frozen=True, slots=True)
class Turn:
    """The axis of the lanes, the one along which the ``loads`` lie side by side, and these."""

    lane: IterVar
    other: IterVar
    loads: tuple[Load, ...]


def turn_of(node: Block) -> Turn | None:
    """How a spatial block turns rows into columns; None if it does not, or reads what it turns
    under a condition, which rows of a tile would not heed."""
    store = store_of(node)
    values = list(walk_expr(store.value))
    loads = [e for e in values if isinstance(e, Load)]
    if any(isinstance(e, Select) for e in values) or any(e.dtype == "bool" for e in loads):
        return None
    steps = {i: strides(node, i.var) for i in node.iters if i.extent >= LEAST}
    lane = next((i for i, step in steps.items() if step[0] == 1), None)
    if lane is None:
        return None
    scattered = [n for n, step in enumerate(steps[lane][1:]) if step not in (0, 1)]
    for other, step in steps.items():
        turned = [loads[n] for n in scattered if step[1 + n] == 1]
        if other is not lane and turned and all(step[1 + n] in (0, 1) for n in scattered):
            return Turn(lane, other, tuple(dict.fromkeys(turned)))
    return None


def side_vectors(node: Block, turn: Turn, target: Target) -> int:
    """Vectors of results of a tile that lie side by side: a line of the cache, and more where the
    rows of results meet in few of its sets.

    One core of a Zen 5, a line, two, four and eight: 256 × 3136 186, 60, 70 and 79 µs, 512 × 196
    31, 17, 7.0 and 7.0, 1024 × 784 332, 231, 92 and 85, 384 × 784 30, 25, 27 and 30; 192 × 3136 51
    and 49, 64 × 3136 14 and 15.
    """
    item = dtype_bytes(store_of(node).buffer.dtype)
    line = max(LINE_BYTES // (lanes_of([node], target) * item), 1)
    apart = strides(node, turn.other.var)[0] or 0
    meeting = gcd(apart * item, SAME_SET_BYTES) if apart else 0
    return line * (max(meeting // FEW_SETS_BYTES, 2) if meeting >= FEW_SETS_BYTES else 1)


def schedule_turn(
    program: PrimFunc, node: Block, turn: Turn, target: Target, vectors: int, tasks: int
) -> PrimFunc:
    """Transpose tiles of ``vectors`` by one in registers, and share the tiles out."""
    loops = own_loops(program, node.name, None)
    lane_loop, other_loop = (loops[node.iters.index(axis)] for axis in (turn.lane, turn.other))
    outer = [v for v in loops if v not in (lane_loop, other_loop)]
    lanes = fitting_lanes(lanes_of([node], target), turn.lane.extent)
    program, (lane_tile, vector, lane) = s.split(program, lane_loop, vectors, lanes)
    program = s.reorder(program, *outer, lane_tile, other_loop, vector, lane)
    program, tile = turn_tiles(program, node.name, turn, other_loop, lanes)
    program = s.vectorize(s.unroll(program, vector), lane)
    return share_out(program, [*outer, lane_tile, tile], tasks, target)


def turn_tiles(
    program: PrimFunc, block: str, turn: Turn, other_loop: Var, lanes: int
) -> tuple[PrimFunc, Var]:
    """Cut the loop over the other axis, which has that over lanes inside it, into tiles that are
    transposed; returns the loop over tiles too."""
    program, (tile, column) = s.split(program, other_loop, lanes)
    program = _keep_rows(program, block, turn, tile)
    return s.unroll(program, column), tile


def _keep_rows(program: PrimFunc, block: str, turn: Turn, tile: Var) -> PrimFunc:
    """Keep the rows of a tile, in the loop over tiles, in registers: vectors of the other axis."""
    node = find_block(program, block)
    last = [node.iters.index(axis) for axis in (turn.lane, turn.other)]
    axes = [n for n in range(len(node.iters)) if n not in last] + last
    for load in turn.loads:
        program, name = s.cache_value(program, block, load, axes, "register")
        program = s.compute_at(program, name, tile)
        *rows, elements = own_loops(program, name, tile)
        program = s.vectorize(reduce(s.unroll, rows, program), elements)
    return program

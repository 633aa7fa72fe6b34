"""Scheduling stages together: tiles of rows, lanes, accumulators. Used by ``rows`` and ``window``.

parallel over tasks:
  for row tiles:                              tile rows (and nv vectors of them)
    stage: accumulators = neutral             registers
           for reduced axes: accumulators = accumulators ∘ term
           combine the accumulators' lanes    (lanes along what is reduced)
    …
    result of these rows

Stages that wait for sums over lanes run a tile apart (``tir/transform/stagger.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.space.nests import (
    extent_of,
    fitting_lanes,
    loop_of,
    own_loops,
    share_out,
)
from tunefarm.compiler.space.stages import (
    LaneChoice,
    Stages,
    inner_lane,
    lane_width,
    longest_row,
    row_bytes,
)
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Block, IterVar, LoopKind, Var
from tunefarm.compiler.tir.schedule.tree import store_of, written_buffer

MAX_LOCAL_BYTES = 1 << 18  # a tile on a thread's stack
MAX_KEPT_VECTORS = 16  # of rows that stay in registers from stage to stage
MAX_TERMS = 4  # that one expression adds; those of more were read in an order 3 to 7% slower
MAX_TAPS = 8  # iterations of an unrolled reduced axis
TILES_IN_FLIGHT = 4  # of staggered stages: those of three stages, and the result's
L1_SHARE = 0.8


@dataclass(frozen=True, slots=True)
class Tiling:
    """The knobs: ``tile`` rows and ``nv`` vectors at a time, the last reduced axis unrolled if
    ``taps``, the axis of lanes outermost if ``lanes_first``, ``tasks`` for each core."""

    lane: LaneChoice
    nv: int
    tile: int
    taps: bool
    lanes_first: bool
    tasks: int


@dataclass(slots=True)
class _Fusing:
    """The program while its stages are placed, and what they share."""

    program: PrimFunc
    stages: Stages
    tiling: Tiling
    lanes: int
    tiled: IterVar | None
    place: Var | None = None

    @property
    def column(self) -> IterVar | None:
        return self.tiling.lane.axis


def tile_axis(stages: Stages, lane: LaneChoice) -> IterVar | None:
    """The axis of which a tile takes several rows: the last one that has no lanes."""
    rest = [a for a in stages.rows if lane.axis is None or a.var is not lane.axis.var]
    return rest[-1] if rest else None


def schedule_stages(stages: Stages, tiling: Tiling, target: Target) -> PrimFunc:
    """Apply the knobs; every stage runs inside the loop over tiles of rows."""
    lanes = lane_width(stages, target)
    if tiling.lane.axis is not None:
        lanes = fitting_lanes(lanes, tiling.lane.axis.extent)
    f = _Fusing(stages.program, stages, tiling, lanes, tile_axis(stages, tiling.lane))
    _share_divisions(f)
    outer = _schedule_final(f)
    for block in stages.before:
        _lanes_last(f, block)
    f.place = outer[-1] if outer else None
    if f.place is not None:
        for block in reversed(stages.before):
            f.program = s.compute_at(f.program, block, f.place)
    for block in stages.before:
        _schedule_stage(f, block)
    many = [v for v in outer if extent_of(f.program, v) > 1]
    return _stagger(f, share_out(f.program, many, tiling.tasks, target), target)


def staggers(stages: Stages, lane: LaneChoice, tile: int, target: Target) -> bool:
    """Whether stages run a tile apart: sums over lanes part them, and the first cache holds the
    tiles that are read again and the one that is written.

    Layer norms of 384 and 768 columns took 0.76 × the time, of 1536 and tiles of three rows, too
    large for it, 1.2 ×; softmax 0.9 × (Zen 5).
    """
    reduces = any(stages.node(block).init is not None for block in stages.before)
    held = TILES_IN_FLIGHT * tile * longest_row(stages)
    return lane.axis is None and reduces and held <= L1_SHARE * target.l1_bytes


def _stagger(f: _Fusing, program: PrimFunc, target: Target) -> PrimFunc:
    tile = f.tiling.tile if f.tiled else 1
    if not staggers(f.stages, f.tiling.lane, tile, target):
        return program
    first, final = (s.loops_of(program, b) for b in (f.stages.before[0], f.stages.final))
    shared = [a for a, b in zip(first, final, strict=False) if a is b]
    if not shared or s.find_loop(program, shared[-1]).kind is not LoopKind.SERIAL:
        return program
    return s.stagger(program, shared[-1])


def _share_divisions(f: _Fusing) -> None:
    for block in f.stages.before + (f.stages.final,):
        node = f.stages.node(block)
        if f.column is None:
            rows = {a.var for a in f.stages.rows}
            free = [i.var for i in node.iters if f.stages.links[block].get(i.var) not in rows]
        else:
            mine = f.stages.along(block, f.column.var)
            free = [mine.var] if mine else []
        f.program = s.share_reciprocals(f.program, block, *free)


# --- the result ---------------------------------------------------------------------------------


def _schedule_final(f: _Fusing) -> list[Var]:
    """Split and order the result's loops; the loops over tiles, outermost first."""
    block, stages = f.stages.final, f.stages
    node = stages.node(block)
    loops = dict(zip((i.var for i in node.iters), s.loops_of(f.program, block), strict=True))
    outer = [loops[a.var] for a in stages.rows if a not in (f.tiled, f.column)]
    inside: list[Var] = []
    if f.tiled is not None:
        f.program, (tiles, row) = s.split(f.program, loops[f.tiled.var], f.tiling.tile)
        outer.append(tiles)
        inside.append(row)
    lane_axis = _lane_iter(f, node)
    inner = [loops[a.var] for a in stages.inner if a is not lane_axis]
    if lane_axis is not None:
        lanes = fitting_lanes(f.lanes, lane_axis.extent)
        f.program, (top, vectors, lane) = s.split(
            f.program, loops[lane_axis.var], f.tiling.nv, lanes
        )
        f.program = s.vectorize(f.program, lane)
        if f.column is None:
            inner.append(top)
        else:
            outer.insert(0 if f.tiling.lanes_first else len(outer), top)
        inside += [vectors, lane]
        f.program = s.unroll(f.program, vectors)
    if f.tiled is not None:
        f.program = s.unroll(f.program, row)
    # A loop of one iteration stays out of what is fused: its variable is 0 without a proof.
    outer.sort(key=lambda v: extent_of(f.program, v) > 1)
    f.program = s.reorder(f.program, *outer, *inner, *inside) if loops else f.program
    return outer


def _lanes_last(f: _Fusing, block: str) -> None:
    """Store a block's buffer with the axis of its lanes innermost."""
    node = s.find_block(f.program, block)
    axis = _lane_iter(f, node)
    indices = store_of(node).indices
    if axis is not None and axis.var in indices:
        at = indices.index(axis.var)
        order = [d for d in range(len(indices)) if d != at]
        f.program = s.permute_buffer(f.program, block, (*order, at))


def _lane_iter(f: _Fusing, node: Block) -> IterVar | None:
    """The iterator of a block along which its lanes lie."""
    if f.column is not None:
        return f.stages.along(node.name, f.column.var)
    return inner_lane(f.stages, f.stages.node(node.name), f.lanes)


# --- the stages before it -----------------------------------------------------------------------


def _schedule_stage(f: _Fusing, block: str) -> None:
    f.program = s.set_scope(f.program, block, _scope(f, block))
    node = s.find_block(f.program, block)
    own = own_loops(f.program, block, f.place)
    reduce = [
        loop
        for i in node.iters
        if i.kind == "reduce" and (loop := loop_of(f.program, block, i, own)) is not None
    ]
    lane_axis = _lane_iter(f, node)
    lane_loop = None if lane_axis is None else loop_of(f.program, block, lane_axis, own)
    tile = f.stages.along(block, f.tiled.var) if f.tiled else None
    tile_loop = None if tile is None else loop_of(f.program, block, tile, own)
    rest = [v for v in own if v not in (*reduce, lane_loop, tile_loop)]
    if f.column is None and node.init is not None and lane_loop is not None:
        _reduce_lanes(
            f, block, rest, [v for v in reduce if v is not lane_loop], tile_loop, lane_loop
        )
        return
    inside = [tile_loop] if tile_loop is not None else []
    if lane_loop is not None:
        lanes = fitting_lanes(f.lanes, extent_of(f.program, lane_loop))
        vectors = -(-extent_of(f.program, lane_loop) // lanes) if f.column else f.tiling.nv
        f.program, (top, unrolled, lane) = s.split(f.program, lane_loop, vectors, lanes)
        f.program = s.vectorize(f.program, lane)
        f.program = s.unroll(f.program, unrolled)
        rest.append(top)
        inside += [unrolled, lane]
    if tile_loop is not None:
        f.program = s.unroll(f.program, tile_loop)
    if own:
        f.program = s.reorder(f.program, *rest, *reduce, *inside)
    if reduce:
        if f.tiling.taps and extent_of(f.program, reduce[-1]) <= MAX_TAPS:
            f.program = s.unroll(f.program, reduce[-1])
        f.program = s.decompose_reduction(f.program, block, reduce[0])


def _scope(f: _Fusing, block: str) -> str:
    """Registers for what has one element a row, or for short rows; else the stack, or memory."""
    size = row_bytes(f.stages, block)
    if size == 0:
        return "register"
    node, nv = f.stages.node(block), f.tiling.nv
    tile = f.tiling.tile if f.tiled else 1
    if f.column is not None:
        size *= nv * f.lanes
    elif node.init is None and nv * tile <= MAX_KEPT_VECTORS:
        elements = size // dtype_bytes(written_buffer(node).dtype)
        axis = _lane_iter(f, node)
        if axis is not None and axis.extent == elements <= nv * f.lanes:
            return "register"
    return "local" if tile * size <= MAX_LOCAL_BYTES else "global"


def _reduce_lanes(
    f: _Fusing, block: str, rest: list[Var], reduce: list[Var], tile: Var | None, loop: Var
) -> None:
    """Accumulate in nv vectors a row, then combine vectors, then lanes."""
    lanes = fitting_lanes(f.lanes, extent_of(f.program, loop))
    f.program, (top, vectors, lane) = s.split(f.program, loop, f.tiling.nv, lanes)
    inside = [v for v in (tile, vectors, lane) if v is not None]
    f.program = s.reorder(f.program, *rest, *reduce, top, *inside)
    f.program = s.vectorize(f.program, lane)
    for v in inside[:-1]:
        f.program = s.unroll(f.program, v)
    if block in f.stages.by_lines:  # a vector's number says whether it is one of the masked
        f.program = s.unroll(f.program, top)
    f.program, partial = s.rfactor(f.program, block, vectors, lane)
    f.program = s.decompose_reduction(f.program, partial, (reduce or [top])[0])
    *_, many, last = own_loops(f.program, block, f.place)
    f.program = s.vectorize(s.unroll(f.program, many), last)
    while (count := extent_of(f.program, many)) > MAX_TERMS and count % 2 == 0:
        f.program = s.halve_reduction(f.program, block, many)
    f.program = s.write_out_reduction(f.program, block, many)
    f.program = s.decompose_reduction(f.program, block, last)

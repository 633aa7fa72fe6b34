"""A config applied to the stages of an attention."""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.attention.program import (
    INVERSE,
    PEAK,
    POWER,
    TOTAL,
    Attention,
    attention_of,
)
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.nests import extent_of, fitting_lanes, loop_of, own_loops
from tunefarm.compiler.space.tiles import in_parallel, in_registers, place_sums
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import IterVar, Var
from tunefarm.compiler.tir.schedule.tree import store_of

PARTS = 4  # accumulators of one row statistic, to hide the latency of max and add


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no attention or a knob misfits."""
    a = attention_of(function)
    if a is None:
        raise ScheduleError("the workload is no attention")
    lanes = target.lanes("float32")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    program, scaled = a.program, a.scaled
    if scaled is None:
        program, scaled = s.cache_write(program, a.scores, "register")
    program, copied = s.cache_read(program, a.scores, a.queries, "local")
    program = _last(program, copied, a.query_dim)
    for stage, scope in (
        (a.scores, "register"),
        (scaled, "local"),
        (PEAK, "register"),
        (POWER, "local"),
        (TOTAL, "register"),
        (INVERSE, "local"),
        (a.mixed, "register"),
    ):
        program = s.set_scope(program, stage, scope)
        if stage != a.mixed:
            program = _last(program, stage, a.row_position)
    program, outer, tile = _place_results(program, a, knob, lanes)
    block = outer[-1]
    program = _place_mixed(program, a, tile, knob, lanes)
    for stage in (INVERSE, TOTAL, POWER, PEAK):
        program = _place_rows(program, stage, a.row_position, block, lanes)
    program = _place_scores(program, a, scaled, block, knob, lanes)
    program = s.compute_at(program, copied, block)
    *rest, queries = _own(program, copied, block, a.query_dim)
    program, (vector, lane) = s.split(program, queries, lanes)
    program = s.reorder(program, *rest, vector, lane)
    program = s.vectorize(program, lane)
    program, top = s.fuse(program, *(v for v in outer if extent_of(program, v) > 1 or v is block))
    return in_parallel(program, top, nominal_flops(function), target)


def _last(program: PrimFunc, block: str, position: int) -> PrimFunc:
    """Store a stage's buffer with one of its axes innermost: the lanes lie along it."""
    rank = len(store_of(s.find_block(program, block)).indices)
    rest = [d for d in range(rank) if d != position]
    return s.permute_buffer(program, block, (*rest, position))


def _place_results(
    program: PrimFunc, a: Attention, knob: dict[str, int], lanes: int
) -> tuple[PrimFunc, tuple[Var, ...], Var]:
    """Blocks of queries; in a block panels of values, tiles of rows, and a tile's results.

    Returns the loops over blocks, the last of one head's, and that over tiles.
    """
    *rest, values = s.loops_of(program, a.final)
    queries = rest.pop(a.result_position)
    program, (block, inner) = s.split(program, queries, knob["nq"] * lanes)
    program, (tile, row) = s.split(program, inner, knob["rv"])
    width = fitting_lanes(lanes, a.value.extent)
    program, (panel, vector, lane) = s.split(program, values, knob["nv"], width)
    # A loop of one iteration stays out of what is fused: its variable is 0 without a proof.
    rest.sort(key=lambda v: extent_of(program, v) > 1)
    program = s.reorder(program, *rest, block, panel, tile, row, vector, lane)
    return in_registers(program, (row, vector), lane), (*rest, block), tile


def _place_mixed(
    program: PrimFunc, a: Attention, tile: Var, knob: dict[str, int], lanes: int
) -> PrimFunc:
    """Sums of values for one tile of rows and one panel, in registers."""
    program = s.compute_at(program, a.mixed, tile)
    rows, values, keys = (
        _loops(program, a.mixed, axis, tile) for axis in (a.mixed_query, a.value, a.mixed_key)
    )
    tile_sizes = (fitting_lanes(lanes, a.value.extent), knob["ku"])
    return place_sums(program, a.mixed, rows, values[0], keys[0], tile_sizes)[0]


def _place_rows(program: PrimFunc, block: str, position: int, loop: Var, lanes: int) -> PrimFunc:
    """A stage of the softmax for a block of queries, a vector of queries at a time."""
    program = s.compute_at(program, block, loop)
    *keys, queries = _own(program, block, loop, position)
    program, (vector, lane) = s.split(program, queries, lanes)
    program = s.vectorize(program, lane)
    program = s.unroll(program, vector)
    if s.find_block(program, block).init is None:
        return s.reorder(program, *keys, vector, lane)
    program, (step, part) = s.split(program, keys[0], PARTS)
    program = s.reorder(program, step, part, vector, lane)
    program = s.unroll(program, part)
    program, partial = s.rfactor(program, block, part)
    queries_at = len(store_of(s.find_block(program, block)).indices) - 1
    program = _last(program, partial, queries_at)
    program = s.decompose_reduction(program, partial, step)
    *spatial, part = own_loops(program, block, loop)
    program = s.unroll(s.reorder(program, part, *spatial), part)
    return s.decompose_reduction(program, block, part)


def _place_scores(
    program: PrimFunc, a: Attention, scaled: str, block: Var, knob: dict[str, int], lanes: int
) -> PrimFunc:
    """Tiles of keys by all queries of a block: products in registers, then what is done to them."""
    program = s.compute_at(program, scaled, block)
    keys, last = _own(program, scaled, block, a.row_position)
    program, (tile, row) = s.split(program, keys, knob["rk"])
    program, (vector, lane) = s.split(program, last, lanes)
    program = s.reorder(program, tile, row, vector, lane)
    program = in_registers(program, (row, vector), lane)

    program = s.compute_at(program, a.scores, tile)
    queries, rows, depth = (
        _loops(program, a.scores, axis, tile) for axis in (a.query, a.key, a.depth)
    )
    return place_sums(program, a.scores, rows, queries[0], depth[0], (lanes, knob["ku"]))[0]


def _loops(program: PrimFunc, block: str, axis: IterVar, loop: Var) -> list[Var]:
    """The loop below ``loop`` that an iterator runs with, or none."""
    found = loop_of(program, block, axis, own_loops(program, block, loop))
    return [] if found is None else [found]


def _own(program: PrimFunc, block: str, loop: Var, position: int) -> list[Var]:
    """A stage's loops below ``loop``, that of its iterator ``position`` last."""
    axis = s.find_block(program, block).iters[position]
    own = own_loops(program, block, loop)
    last = loop_of(program, block, axis, own)
    assert last is not None
    return [*(v for v in own if v is not last), last]

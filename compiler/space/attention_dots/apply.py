"""A config applied to the stages of an attention by dot products."""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.attention_dots.shape import INSTRUCTION, LANES, TERMS, form_of
from tunefarm.compiler.space.attention_parts.apply import (
    place_results,
    place_softmax,
    place_turned,
    sizes_of,
)
from tunefarm.compiler.space.attention_parts.program import (
    KEYS,
    MIXED,
    POWERS,
    QUERIES,
    SCORES,
    STAGES,
    VALUES,
    create_parts,
)
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.nests import extent_of, fitting_lanes, own_loops
from tunefarm.compiler.space.tiles import in_parallel, in_registers
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Var
from tunefarm.compiler.tir.schedule.tree import written_buffer


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the method does not apply or a knob misfits."""
    form = form_of(function, target)
    if form is None:
        raise ScheduleError(f"{target} computes no attention by dot products for the workload")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    sizes = sizes_of(form, knob["rw"] * knob["mb"], knob["nv"], TERMS * knob["ku"])
    program = create_parts(form, sizes)
    (scaled,) = (b for b in s.remaining_blocks(program) if b not in STAGES)
    for stage in s.remaining_blocks(program)[:-1]:
        scope = "register" if stage in (SCORES, MIXED) else "local"
        program = s.set_scope(program, stage, scope)
    program, head, tile, panel, row = place_results(program, form, knob["rw"], knob)
    program = s.unroll(program, row)
    program = s.compute_at(program, MIXED, panel)
    program, _ = _place_columns(program, VALUES, head, knob["nv"])
    program = _place_rows(program, POWERS, tile)
    program = _sum_in_registers(program, MIXED, panel, knob["ku"])
    program = place_softmax(program, tile, knob["rt"])
    program, panel = _place_scaled(program, scaled, tile, knob["nv"])
    program = s.compute_at(program, SCORES, panel)
    program, keys = _place_columns(program, KEYS, head, knob["nv"])
    program = place_turned(program, keys)
    program = _place_rows(program, QUERIES, tile)
    program = _sum_in_registers(program, SCORES, panel, knob["ku"])
    return in_parallel(program, head, nominal_flops(function), target)


def _sum_in_registers(program: PrimFunc, block: str, panel: Var, unroll: int) -> PrimFunc:
    """The products of a tile of rows and a panel, some groups of terms unrolled."""
    row, column, term = own_loops(program, block, panel)
    program, (vector, lane) = s.split(program, column, LANES)
    program, (step, group, one) = s.split(program, term, unroll, TERMS)
    program = s.reorder(program, step, group, row, vector, lane, one)
    for loop in (group, row, vector):
        program = s.unroll(program, loop)
    program = s.decompose_reduction(program, block, step)
    program = s.vectorize(program, own_loops(program, f"{block}_init", panel)[-1])
    return s.tensorize(program, lane, INSTRUCTION)


def _place_columns(program: PrimFunc, block: str, loop: Var, vectors: int) -> tuple[PrimFunc, Var]:
    """A matrix as [head]…[panel][group][vector][lane][term], two terms of a vector of columns at
    once; the loop over panels."""
    program = s.compute_at(program, block, loop)
    rank = len(written_buffer(s.find_block(program, block)).shape)
    parts, *heads = range(rank - 2)
    whole, pair, panels, vectors_of, lanes_of = range(rank - 2, rank + 3)
    factors = (*[()] * (rank - 2), (TERMS,), (vectors, LANES))
    order = (parts, *heads, panels, whole, vectors_of, lanes_of, pair)
    program = s.pack_buffer(program, block, PackedLayout(factors, order))
    term, column = own_loops(program, block, loop)
    program, (group, one) = s.split(program, term, TERMS)
    program, (panel, vector, lane) = s.split(program, column, vectors, LANES)
    program = s.reorder(program, panel, group, vector, lane, one)
    program, lanes = s.fuse(program, lane, one)
    return in_registers(program, [vector], lanes), panel


def _place_rows(program: PrimFunc, block: str, tile: Var) -> PrimFunc:
    """The left operand of a tile of rows, rounded, in vectors."""
    program = s.compute_at(program, block, tile)
    term = own_loops(program, block, tile)[-1]
    lanes = fitting_lanes(TERMS * LANES, extent_of(program, term))
    program, (_, lane) = s.split(program, term, lanes)
    return s.vectorize(program, lane)


def _place_scaled(program: PrimFunc, block: str, tile: Var, vectors: int) -> tuple[PrimFunc, Var]:
    """What is done to the scores of a tile's rows, panel by panel of keys; the loop over panels."""
    program = s.compute_at(program, block, tile)
    row, column = own_loops(program, block, tile)
    program, (panel, vector, lane) = s.split(program, column, vectors, LANES)
    program = s.reorder(program, panel, row, vector, lane)
    return in_registers(program, (row, vector), lane), panel

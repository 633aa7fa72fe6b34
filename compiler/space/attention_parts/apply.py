"""A config applied to the stages of an attention in parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.attention.program import INVERSE, PEAK, POWER, TOTAL
from tunefarm.compiler.space.attention_parts.program import (
    FINAL,
    KEYS,
    MIXED,
    POWERS,
    QUERIES,
    SCORES,
    STAGES,
    TURNED,
    VALUES,
    Form,
    Sizes,
    create_parts,
    form_of,
)
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.float_parts.apply import (
    GROUPS,
    TERMS,
    place_matrix,
    place_parts,
    sum_by_unit,
)
from tunefarm.compiler.space.float_parts.forms import DEPTH
from tunefarm.compiler.space.matrix_tiles.apply import place_tiles
from tunefarm.compiler.space.matrix_tiles.shape import LANES, ROWS
from tunefarm.compiler.space.nests import extent_of, own_loops
from tunefarm.compiler.space.tiles import in_parallel
from tunefarm.compiler.space.turned import turn_of, turn_tiles
from tunefarm.compiler.summary import nominal_flops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Var
from tunefarm.compiler.tir.schedule.tree import store_of


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the method does not apply or a knob misfits."""
    form = form_of(function, target)
    if form is None or not target.has("amx-bf16"):
        raise ScheduleError(f"{target} computes no attention in parts for the workload")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    if knob["rh"] == 1:
        form = replace(form, parts=form.parts.by_weights)
    rows = knob["rh"] * ROWS
    program = create_parts(form, sizes_of(form, rows * knob["mb"], knob["nv"]))
    (scaled,) = (b for b in s.remaining_blocks(program) if b not in STAGES)
    for stage in s.remaining_blocks(program)[:-1]:
        program = s.set_scope(program, stage, "local")
    heads = len(store_of(s.find_block(program, PEAK)).indices) - 1
    terms, elements = (store_of(s.find_block(program, b)).buffer.shape[-2] for b in (VALUES, KEYS))
    program, head, tile, panel, _ = place_results(program, form, rows, knob)
    program = _place_sums(program, MIXED, panel)
    program, _ = place_matrix(program, VALUES, head, knob["nv"], terms, heads)
    program = place_parts(program, POWERS, tile, heads)
    program = _sum_in_tiles(program, MIXED, panel, knob)
    program = place_softmax(program, tile, knob["rt"])
    program, panel = _place_scaled(program, scaled, tile, knob["nv"])
    program = _place_sums(program, SCORES, panel)
    program, keys = place_matrix(program, KEYS, head, knob["nv"], elements, heads)
    program = place_turned(program, keys)
    program = place_parts(program, QUERIES, tile, heads)
    program = _sum_in_tiles(program, SCORES, panel, knob)
    return in_parallel(program, head, nominal_flops(function), target)


def sizes_of(form: Form, rows: int, vectors: int, terms: int = DEPTH) -> Sizes:
    """What blocks of so many rows, panels of so many vectors and steps of so many terms cover."""
    queries, keys, _, values = form.extents

    def whole(extent: int, step: int) -> int:
        return -(-extent // step) * step

    panel = vectors * LANES
    return Sizes(whole(queries, rows), whole(keys, panel), whole(values, panel), terms)


def place_results(
    program: PrimFunc, form: Form, rows: int, knob: Mapping[str, int]
) -> tuple[PrimFunc, Var, Var, Var, Var]:
    """Blocks of each head's queries, tiles of so many of their rows, panels of values, whose
    vectors are written out; a loop over each of these, and the one over a tile's rows."""
    *rest, values = s.loops_of(program, FINAL)
    queries = rest.pop(form.attention.result_position)
    program, (block, tile, row) = s.split(program, queries, knob["mb"], rows)
    program, (panel, vector, lane) = s.split(program, values, knob["nv"], LANES)
    # A loop of one iteration stays out of what is fused: its variable is 0 without a proof.
    rest.sort(key=lambda v: extent_of(program, v) > 1)
    program = s.reorder(program, *rest, block, tile, panel, row, vector, lane)
    program = s.vectorize(s.unroll(program, vector), lane)
    many = [v for v in (*rest, block) if extent_of(program, v) > 1 or v is block]
    program, head = s.fuse(program, *many)
    return program, head, tile, panel, row


def _place_sums(program: PrimFunc, block: str, panel: Var) -> PrimFunc:
    """The products of a macro tile in tiles of the unit, and these stored."""
    program, result = s.cache_write(program, block, "tile")
    program = place_tiles(s.compute_at(program, result, panel), result, panel, ROWS)
    return s.compute_at(program, block, panel)


def _sum_in_tiles(program: PrimFunc, block: str, panel: Var, knob: Mapping[str, int]) -> PrimFunc:
    """The products by the unit, whose operands are packed; what follows them beside the next."""
    row, column, *pair, term = own_loops(program, block, panel)
    program, (tile, row) = s.split(program, row, ROWS)
    program, (vector, lane) = s.split(program, column, LANES)
    program, (step, group, one) = s.split(program, term, GROUPS, TERMS)
    registers = [vector, *pair, tile] if knob["rh"] == 1 else [*pair, tile, vector]
    inside = [*registers, row, group, lane, one]
    program = s.reorder(program, step, *inside)
    program = s.decompose_reduction(program, block, step)
    program = sum_by_unit(program, block, panel, inside)
    return s.overlap(program, panel) if knob["overlap"] else program


def place_softmax(program: PrimFunc, tile: Var, rows: int) -> PrimFunc:
    """The softmax of a macro tile's rows, unnormalised."""
    for stage in (INVERSE, TOTAL, POWER, PEAK):
        program = s.compute_at(program, stage, tile)
        *_, last = own = own_loops(program, stage, tile)
        if s.find_block(program, stage).init is not None:
            program = _reduce_rows(program, stage, tile, own, rows)
        else:
            # Vectors over a tile's rows must not reach beyond them: all stages in front would
            # make those rows too.
            lanes = gcd(LANES, extent_of(program, last)) if stage == INVERSE else LANES
            program, (_, lane) = s.split(program, last, lanes)
            program = s.vectorize(program, lane)
    return program


def _reduce_rows(program: PrimFunc, stage: str, tile: Var, own: list[Var], rows: int) -> PrimFunc:
    """A number for each row, of several rows at a time: in vectors, then over their lanes."""
    row, column = own
    program, (some, row) = s.split(program, row, rows)
    program, (vector, lane) = s.split(program, column, LANES)
    program = s.reorder(program, some, vector, row, lane)
    program = s.vectorize(s.unroll(program, row), lane)
    program, partial = s.rfactor(program, stage, lane)
    program = s.decompose_reduction(program, partial, vector)
    *_, lane = own_loops(program, stage, tile)
    return s.decompose_reduction(s.vectorize(program, lane), stage, lane)


def _place_scaled(program: PrimFunc, block: str, tile: Var, vectors: int) -> tuple[PrimFunc, Var]:
    """What is done to the scores of a macro tile's rows, panel by panel of keys; the loop over
    panels."""
    program = s.compute_at(program, block, tile)
    row, column = own_loops(program, block, tile)
    program, (panel, vector, lane) = s.split(program, column, vectors, LANES)
    program = s.reorder(program, panel, row, vector, lane)
    return s.vectorize(s.unroll(program, vector), lane), panel


def place_turned(program: PrimFunc, panel: Var) -> PrimFunc:
    """A panel of keys turned by tiles in registers, so that keys stand side by side; left out where
    they do in memory."""
    turn = turn_of(s.find_block(program, TURNED))
    if turn is None:
        return s.compute_inline(program, TURNED)
    program = s.compute_at(program, TURNED, panel)
    element, key = own_loops(program, TURNED, panel)
    program, (vector, lane) = s.split(program, key, LANES)
    program = s.reorder(program, vector, element, lane)
    program, _ = turn_tiles(program, TURNED, turn, element, LANES)
    return s.vectorize(program, lane)

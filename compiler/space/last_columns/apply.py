"""A config applied to the stages of a product with columns behind whole vectors."""

from __future__ import annotations

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.last_columns.program import Product, create_parts, product_of
from tunefarm.compiler.space.nests import fitting_lanes, own_loops, share_out
from tunefarm.compiler.space.tiles import in_registers, place_sums
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Var


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no such product."""
    p = product_of(function, target.lanes("float32"))
    if p is None:
        raise ScheduleError("the workload is no product of few columns more than whole vectors")
    knob = {name: int(value) for name, value in config.items() if name != "sketch"}
    program, written = create_parts(p)
    for stage in ("vectors", "last"):
        program = s.set_scope(program, stage, "register")
    height = min(knob["mb"] * knob["rw"], p.rows)
    program, block, rows = _blocks(program, written, height)
    program = _place_vectors(program, p, written[0], rows[0], knob)
    program = _place_last(program, p, written[1], rows[1], knob)
    return share_out(program, [block], knob["tasks"], target)


def _blocks(
    program: PrimFunc, written: tuple[str, str], height: int
) -> tuple[PrimFunc, Var, list[Var]]:
    """Results of ``height`` rows in one iteration, those of the last columns behind the others: the
    loop, and those over rows in it."""
    outer: list[Var] = []
    inner: list[Var] = []
    for name in written:
        program, (block, rows) = s.split(program, s.loops_of(program, name)[0], height)
        outer.append(block)
        inner.append(rows)
    return s.join(program, *outer), outer[0], inner


def _place_vectors(
    program: PrimFunc, p: Product, written: str, rows: Var, knob: dict[str, int]
) -> PrimFunc:
    """Whole vectors of columns: panel by panel of a block, tile by tile of its rows."""
    columns = s.loops_of(program, written)[-1]
    program, (tile, row) = s.split(program, rows, knob["rw"])
    program, (panel, vector, lane) = s.split(program, columns, knob["nv"], p.lanes)
    program = s.reorder(program, panel, tile, row, vector, lane)
    program = in_registers(program, (row, vector), lane)
    program = s.compute_at(program, "vectors", tile)
    *own, column, term = own_loops(program, "vectors", tile)
    return place_sums(program, "vectors", own, column, term, (p.lanes, knob["ku"]))[0]


def _place_last(
    program: PrimFunc, p: Product, written: str, rows: Var, knob: dict[str, int]
) -> PrimFunc:
    """The last columns, lanes along the terms, which are combined at the end of a tile's sums."""
    column = s.loops_of(program, written)[-1]
    program, (tile, row) = s.split(program, rows, knob["lw"])
    for loop in (row, column):
        program = s.unroll(program, loop)
    program = s.compute_at(program, "last", tile)
    *own, term = own_loops(program, "last", tile)
    program, (step, unrolled, lane) = s.split(
        program, term, knob["lu"], fitting_lanes(p.lanes, p.depth)
    )
    program = s.reorder(program, step, unrolled, *own, lane)
    program = in_registers(program, (unrolled, *own), lane)
    program, parts = s.rfactor(program, "last", lane)
    program = s.decompose_reduction(program, parts, step)
    combined = own_loops(program, "last", tile)[-1]
    program = s.vectorize(program, combined)
    return s.decompose_reduction(program, "last", combined)

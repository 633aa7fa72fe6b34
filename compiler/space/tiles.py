"""Register tiles: what the sketches of products do alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Var

SERIAL_FLOPS = 100_000  # below this a fork-join costs more than it saves


def in_registers(program: PrimFunc, unrolled: Iterable[Var], lane: Var) -> PrimFunc:
    """Unroll the loops of a tile, and make its lanes a vector."""
    for loop in unrolled:
        program = s.unroll(program, loop)
    return s.vectorize(program, lane)


def place_sums(
    program: PrimFunc,
    block: str,
    rows: Sequence[Var],
    column: Var,
    terms: Var,
    tile: tuple[int, int],
    taps: Sequence[Var] = (),
) -> tuple[PrimFunc, Var]:
    """Sum a tile of rows and columns in registers; returns the loop over steps of the sum.

    ``tile`` is the lanes of a vector of columns, and the terms of a step, which are unrolled;
    ``taps`` are the sum's other loops:

    for rows: for column: for taps: for term: f
    ->  for taps: for step: for terms of it: for rows: for vectors: f
    """
    lanes, unroll = tile
    program, (vector, lane) = s.split(program, column, lanes)
    program, (step, term) = s.split(program, terms, unroll)
    program = s.reorder(program, *taps, step, term, *rows, vector, lane)
    program = in_registers(program, (term, *rows, vector), lane)
    return s.decompose_reduction(program, block, (*taps, step)[0]), step


def place_epilogue(program: PrimFunc, epilogue: str, loop: Var, lanes: int) -> PrimFunc:
    """The epilogue on one tile, unrolled and vectorized like the accumulators."""
    program = s.reverse_compute_at(program, epilogue, loop)
    own = own_loops(program, epilogue, loop)
    if not own:
        return program
    *rows, last = own
    program, (vectors, lane) = s.split(program, last, lanes)
    return in_registers(program, (*rows, vectors), lane)


def in_parallel(program: PrimFunc, loop: Var, flops: float, target: Target) -> PrimFunc:
    """Run the loop over all blocks as tasks, if it does enough for that."""
    return s.parallel(program, loop) if target.num_cores > 1 and flops > SERIAL_FLOPS else program

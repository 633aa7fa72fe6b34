"""Rows that overlapping windows share are computed once, in a buffer of a window's rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tir_harness as h
from tunefarm.compiler import te
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir import Allocate, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.visit import walk_stmt

Golden = Callable[[str, str], None]


def windows(rows: int, taps: int, stride: int, padding: int = 1) -> PrimFunc:
    """T[i, j] = x[i, j] · x[i, j], y[i, j] = Σ of T over ``taps`` rows, beyond which it is zero."""
    x = te.placeholder((rows, 4), name="x")
    square = te.compute((rows, 4), lambda i, j: x[i, j] * x[i, j], "T")
    k = te.reduce_axis(taps, "k")

    def element(i: te.Var, j: te.Var) -> te.Reduce:
        row = i * stride + k - padding
        inside = (row >= 0) & (row < rows)
        return te.sum(te.if_then_else(inside, square[row, j], te.const(0, "float32")), [k])

    results = (rows + 2 * padding - taps) // stride + 1
    return te.create_prim_func([x, te.compute((results, 4), element, "y")])


def rolled(program: PrimFunc, block_rows: int | None = None) -> PrimFunc:
    """The squares under the loop over the rows of a block of results, rolling."""
    row = s.loops_of(program, "y")[0]
    if block_rows is not None:
        program, (_, row) = s.split(program, row, block_rows)
    program = s.set_scope(program, "T", "local")
    return s.rolling_buffer(s.compute_at(program, "T", row), "T", row)


@pytest.mark.parametrize("taps", [2, 3, 5])
@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 1), (2, 1)])
@pytest.mark.parametrize("block_rows", [None, 2, 5])
def test_values_stay_and_a_window_of_rows_is_kept(
    taps: int, stride: int, padding: int, block_rows: int | None
) -> None:
    program = windows(11, taps, stride, padding)
    arrays = h.whole_numbers(program)
    if taps <= stride:
        with pytest.raises(ScheduleError, match=r"no two iterations of loop .* read a row of T"):
            rolled(program, block_rows)
        return
    made = rolled(program, block_rows)
    lowered = lower(made)
    held = [n.buffer for n in walk_stmt(lowered.body) if isinstance(n, Allocate)]
    assert [b.shape for b in held] == [(taps, 4)]
    for variant in (made, lowered):
        h.same(h.interpreted(variant, arrays), h.interpreted(program, arrays), str(variant))


def test_each_row_is_computed_in_one_iteration(golden: Golden) -> None:
    made = rolled(windows(9, 3, 1))
    golden("rolling_buffer", f"{made}\n# lowered\n{lower(made)}")


def test_it_refuses_what_does_not_roll() -> None:
    program = windows(9, 3, 1)
    i, j, _ = s.loops_of(program, "y")
    with pytest.raises(ScheduleError, match="T is used outside of loop i"):
        s.rolling_buffer(program, "T", i)
    with pytest.raises(ScheduleError, match="loop j does not move rows that T computes"):
        s.rolling_buffer(s.compute_at(program, "T", j), "T", j)
    with pytest.raises(ScheduleError, match="y is no intermediate buffer in memory"):
        s.rolling_buffer(program, "y", i)
    moved = s.parallel(s.compute_at(program, "T", i), i)
    with pytest.raises(ScheduleError, match="loop i is parallel; rows are kept by a serial one"):
        s.rolling_buffer(moved, "T", i)

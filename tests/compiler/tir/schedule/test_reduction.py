"""Reduction primitives: the same result, the loops they promise, and what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tunefarm.compiler import te
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.interpreter import interpret
from tunefarm.compiler.tir.ir import Const, Var
from tunefarm.compiler.tir.transform.lower import lower


def row_sums(rows: int, columns: int, reduce: Any = te.sum) -> PrimFunc:
    x = te.placeholder((rows, columns), name="x")
    k = te.reduce_axis(columns)
    return te.create_prim_func([x, te.compute((rows,), lambda i: reduce(x[i, k], [k]), "y")])


def run(program: PrimFunc, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    y = np.empty(program.params[-1].shape, np.float32)
    interpret(lower(program), [x, y])
    return y


def whole(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)


@pytest.mark.parametrize("columns", [1, 7, 16, 24, 37])
@pytest.mark.parametrize(("reduce", "want"), [(te.sum, np.sum), (te.max, np.max)])
def test_rfactor_keeps_the_result(columns: int, reduce: Any, want: Any) -> None:
    program = row_sums(3, columns, reduce)
    _, k = s.loops_of(program, "y")
    program, (outer, lane) = s.split(program, k, 8)
    program, partial = s.rfactor(program, "y", lane)
    assert s.remaining_blocks(program) == [partial, "y"]
    program = s.decompose_reduction(program, partial, outer)
    x = whole(3, columns)
    np.testing.assert_array_equal(run(program, x), want(x, 1))


def test_a_partial_result_without_terms_is_neutral() -> None:
    program = row_sums(3, 5)
    _, k = s.loops_of(program, "y")
    program, (_, lane) = s.split(program, k, 8)
    program, _ = s.rfactor(program, "y", lane)
    x = whole(3, 5)
    np.testing.assert_array_equal(run(program, x), x.sum(1))


def test_rfactor_shares_the_loops_outside_the_reduction() -> None:
    program = row_sums(3, 32)
    i, k = s.loops_of(program, "y")
    program, (_, lane) = s.split(program, k, 8)
    program, partial = s.rfactor(program, "y", lane)
    assert s.loops_of(program, partial)[0] is i
    assert s.loops_of(program, "y")[0] is i


def test_rfactor_copies_the_spatial_loops_inside_the_reduction() -> None:
    program = row_sums(4, 32)
    i, k = s.loops_of(program, "y")
    program, (outer, lane) = s.split(program, k, 8)
    program = s.reorder(program, outer, i, lane)
    program, partial = s.rfactor(program, "y", lane)
    assert i in s.loops_of(program, partial)
    assert i not in s.loops_of(program, "y")
    x = whole(4, 32)
    np.testing.assert_array_equal(run(program, x), x.sum(1))


def test_rfactor_refuses_spatial_loops() -> None:
    program = row_sums(3, 8)
    i, _ = s.loops_of(program, "y")
    with pytest.raises(ScheduleError, match="i is not a reduction loop of y"):
        s.rfactor(program, "y", i)


def test_rfactor_refuses_to_take_every_loop() -> None:
    program = row_sums(3, 8)
    _, k = s.loops_of(program, "y")
    with pytest.raises(ScheduleError, match="must leave a reduction loop of y"):
        s.rfactor(program, "y", k)


def test_rfactor_refuses_spatial_blocks() -> None:
    x = te.placeholder((4,), name="x")
    program = te.create_prim_func([x, te.compute((4,), lambda i: x[i] * 2.0, "y")])
    with pytest.raises(ScheduleError, match="y is not a reduction"):
        s.rfactor(program, "y", s.loops_of(program, "y")[0])


@pytest.mark.parametrize("parts", [1, 2, 6, 8])
@pytest.mark.parametrize(("reduce", "want"), [(te.sum, np.sum), (te.max, np.max)])
def test_terms_by_pairs_keep_the_result(parts: int, reduce: Any, want: Any) -> None:
    program = row_sums(3, 37, reduce)
    _, k = s.loops_of(program, "y")
    program, (_, part, lane) = s.split(program, k, parts, 2)
    program, partial = s.rfactor(program, "y", part, lane)
    part = s.loops_of(program, "y")[1]
    if parts > 2:
        program = s.halve_reduction(program, "y", part)
        assert s.remaining_blocks(program) == [partial, "y_half", "y"]
    program = s.write_out_reduction(program, "y", part)
    assert part not in s.loops_of(program, "y")
    x = whole(3, 37)
    np.testing.assert_array_equal(run(program, x), want(x, 1))


def test_terms_by_pairs_refuse_what_is_no_loop_of_terms() -> None:
    program = row_sums(3, 14)
    i, k = s.loops_of(program, "y")
    with pytest.raises(ScheduleError, match="i is no iterator of the reduction of y"):
        s.write_out_reduction(program, "y", i)
    with pytest.raises(ScheduleError, match="must leave a reduction loop of y"):
        s.write_out_reduction(program, "y", k)
    program, (_, inner) = s.split(program, k, 7)
    with pytest.raises(ScheduleError, match="no iterator of the reduction of y"):
        s.halve_reduction(program, "y", inner)
    program, _ = s.rfactor(program, "y", inner)
    with pytest.raises(ScheduleError, match="of y has an odd number of iterations"):
        s.halve_reduction(program, "y", s.loops_of(program, "y")[1])


def scaled(by: Any) -> PrimFunc:
    x = te.placeholder((3, 5), name="x")
    scale = te.placeholder((3,), name="scale")
    y = te.compute((3, 5), lambda i, j: x[i, j] / by(scale, i, j), "y")
    return te.create_prim_func([x, scale, y])


def test_a_shared_divisor_becomes_a_factor() -> None:
    program = scaled(lambda scale, i, j: scale[i])
    j = s.find_block(program, "y").iters[1].var
    changed = s.share_reciprocals(program, "y", j)
    assert "x[i.1, j.1] * (float32(1.0) / scale[i.1])" in str(changed)
    x, scale, y = whole(3, 5), np.array([1, 2, 4], np.float32), np.empty((3, 5), np.float32)
    interpret(changed, [x, scale, y])
    np.testing.assert_array_equal(y, x / scale[:, None])


def test_a_varying_divisor_stays() -> None:
    program = scaled(lambda scale, i, j: scale[i])
    i = s.find_block(program, "y").iters[0].var
    assert str(s.share_reciprocals(program, "y", i)) == str(program)


def test_a_constant_divisor_is_inverted_at_once() -> None:
    program = scaled(lambda scale, i, j: Const(4.0, "float32"))
    changed = s.share_reciprocals(program, "y", Var("other"))
    assert "x[i.1, j.1] * float32(0.25)" in str(changed)

"""Loops along joined arrays: one for each, whatever their sizes and what is computed of them."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sketch_harness import check, configs, draw, function_of
from tunefarm.compiler.ir import Expr, Function, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import For
from tunefarm.compiler.tir.transform.arrays import MAX_PIECES
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.walk import walk_stmt
from tunefarm.compiler.workload import Workload

HOST = Target.host(2)
AVX2 = Target("llvm -mcpu=haswell -num-cores=1")
SIZE = st.one_of(st.integers(1, 40), st.sampled_from((8, 16, 32, 64)))
SIZES = st.lists(SIZE, min_size=2, max_size=6)


def joined(
    sizes: list[int], axis: int = 2, tail: str = "", shape: tuple[int, int, int] = (3, 5, 0)
) -> Function:
    """Arrays of ``shape``, of different ``sizes`` along the axis, and what is done with them."""
    kinds = [((*shape[:axis], n, *shape[axis + 1 :]), "float32") for n in sizes]

    def body(*arrays: Var) -> Expr:
        together: Expr = call("concat", *arrays, axis=axis)
        if tail == "reversed":
            last, steps = [0, 0, 0], [1, 1, 1]
            last[axis], steps[axis] = sum(sizes) - 1, -1
            whole = tuple(sum(sizes) if d == axis else n for d, n in enumerate(kinds[0][0]))
            return call("slice", together, begin=tuple(last), size=whole, strides=tuple(steps))
        return call("relu", call("add", together, together)) if tail == "sum" else together

    return function_of(body, *kinds)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    SIZES, st.integers(0, 2), st.sampled_from(("", "sum", "reversed")),
    st.tuples(*[st.integers(1, 9)] * 3), st.sampled_from((HOST, AVX2)), st.integers(0, 99),
)  # fmt: skip
@example([32] * 25, 2, "", (1, 4, 0), AVX2, 0)
@example([12, 20, 4, 28], 2, "reversed", (2, 2, 0), AVX2, 0)
@example([1, 1, 1], 0, "sum", (0, 1, 1), HOST, 0)
@example([3, 1, 2] * 5, 0, "sum", (0, 2, 3), HOST, 1)
@example([2] * 500, 1, "", (1, 0, 3), HOST, 2)
def test_whatever_is_joined(
    sizes: list[int], axis: int, tail: str, shape: tuple[int, int, int], target: Target, seed: int
) -> None:
    function, rng = joined(sizes, axis, tail, shape), np.random.default_rng(seed)
    workload, arrays = Workload.from_function(function), draw(function, rng)
    for config in configs(config_space(workload, target), rng, 3):
        check(workload, target, config, arrays, "execute")


def loops_along(function: Function) -> tuple[str, list[For]]:
    """The lowered text of a kernel by single vectors of 8 lanes, and its serial loops in order."""
    workload = Workload.from_function(function)
    config = {**config_space(workload, AVX2).default, "nv": 1}
    program = lower(schedule_workload(workload, AVX2, config))
    return str(program), [s for s in walk_stmt(program.body) if isinstance(s, For) and s.is_serial]


@pytest.mark.parametrize("tail", ["", "sum", "reversed"])
def test_each_array_has_a_loop_of_its_own(tail: str) -> None:
    """25 arrays of 32 columns and one of 256 took 54 × the time by a choice for each vector."""
    sizes = [256, *[32] * 24]
    text, loops = loops_along(joined(sizes, tail=tail))
    assert "select" not in text
    order = sizes[::-1] if tail == "reversed" else sizes
    starts = [0, *accumulate(n // 8 for n in order)]
    assert [loop.start.value for loop in loops[-len(order) :]] == starts[:-1]  # type: ignore[union-attr]


def test_the_iteration_in_which_two_arrays_meet_chooses_between_these() -> None:
    text, _ = loops_along(joined([44, 24, 60]))  # of 8 lanes: 5.5, 3 and 7.5 vectors
    lines = [line for line in text.splitlines() if "select" in line]
    assert len(lines) == 2
    assert "p2" not in lines[0]
    assert "p0" not in lines[1]


def test_rows_that_are_joined_are_told_apart_by_the_loop_over_rows() -> None:
    text, _ = loops_along(joined([6, 9], axis=0, shape=(0, 5, 19)))
    assert "select" not in text


def test_very_many_arrays_are_chosen_from() -> None:
    """Each would have code of its own."""
    text, _ = loops_along(joined([8] * (MAX_PIECES + 1), shape=(1, 2, 0)))
    assert text.count("select") >= MAX_PIECES

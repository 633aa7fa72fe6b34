"""Random programs under random schedules keep their meaning at every step."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import random_expressions as e
import random_schedules as r
import tir_harness as h
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.ir import PrimFunc
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.verifier import verify

Steps: TypeAlias = list[tuple[r.Step, tuple[int, int, int]]]
DTYPES = ("float32", "float32", "int32", "float16", "int64", "uint8", "float64", "bfloat16")
dtype = st.sampled_from(DTYPES)
small = st.integers(1, 8)
programs = st.one_of(
    st.builds(r.matmul, small, small, small, dtype),
    st.builds(
        r.conv,
        st.integers(5, 7),
        st.integers(3, 7),
        st.integers(0, 2),
        st.integers(1, 2),
        st.integers(1, 2),
        dtype,
    ),
    st.builds(r.chain, small, small, dtype),
    st.builds(r.rows, small, small, dtype),
)
number = st.integers(0, 999)
step = st.tuples(st.sampled_from(r.STEPS), st.tuples(number, number, number))
bounded = settings(
    max_examples=250,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


@bounded
@given(programs, st.lists(step, min_size=1, max_size=9))
def test_every_step_and_the_code_mean_the_unscheduled_program(
    program: PrimFunc, steps: Steps
) -> None:
    arrays = h.whole_numbers(program)
    keeps_meaning(program, steps, arrays, h.interpreted(program, arrays))


@bounded
@given(e.cases, st.lists(step, min_size=1, max_size=9))
def test_scheduled_expressions_mean_what_numpy_says(case: e.Case, steps: Steps) -> None:
    keeps_meaning(case.program, steps, case.arrays, case.want)


def keeps_meaning(
    program: PrimFunc, steps: Steps, arrays: list[h.Array], want: list[h.Array]
) -> None:
    """Every step, the lowered program and its code compute what is wanted."""
    for apply, numbers in steps:
        program = verify(_unless_refused(lambda p, f=apply, n=numbers: f(p, n), program))
        h.same(h.interpreted(program, arrays), want, f"after {apply.__name__}:\n{program}")
    lowered = lower(program, checked=True)
    h.same(h.interpreted(lowered, arrays), want, f"lowered:\n{program}\n{lowered}")
    try:
        results = h.compiled(lowered, arrays)
    except ScheduleError:
        return
    h.same(results, want, f"compiled:\n{program}\n{lowered}")


def _unless_refused(step: Callable[[PrimFunc], PrimFunc], program: PrimFunc) -> PrimFunc:
    try:
        return step(program)
    except ScheduleError:
        return program

"""Random tensor expressions mean what NumPy says: interpreted, lowered, and as machine code."""

from __future__ import annotations

import tir_harness as h
from hypothesis import HealthCheck, given, settings
from random_expressions import Case, cases
from tunefarm.compiler.tir.transform.lower import lower


@settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(cases)
def test_an_expression_means_what_numpy_says(case: Case) -> None:
    h.same(h.interpreted(case.program, case.arrays), case.want, str(case.program))
    lowered = lower(case.program)
    h.same(h.interpreted(lowered, case.arrays), case.want, str(lowered))
    h.same(h.compiled(lowered, case.arrays), case.want, str(lowered))

"""Elements that stand several times side by side: lanes share them, and fill whole vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import check, configs, function_of
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.ir import Expr
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

HOST = Target.host(2)
AVX2 = Target("llvm -mcpu=haswell -num-cores=1")


def repeated(shape: tuple[int, ...], times: int, dtype: str = "float32") -> Workload:
    """Each element ``times`` times, times two."""

    def build(x: Expr) -> Expr:
        wide = call("broadcast_to", call("reshape", x, shape=(*shape, 1)), shape=(*shape, times))
        flat = call("reshape", wide, shape=(*shape[:-1], shape[-1] * times))
        return call("add", flat, flat)

    return Workload.from_function(function_of(build, (shape, dtype)))


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    st.lists(st.integers(1, 24), min_size=1, max_size=3), st.integers(1, 9),
    st.sampled_from(["float32", "int8", "float64", "int64"]), st.sampled_from([HOST, AVX2]),
    st.integers(0, 999),
)  # fmt: skip
def test_any_number_of_times(
    shape: list[int], times: int, dtype: str, target: Target, seed: int
) -> None:
    workload, rng = repeated(tuple(shape), times, dtype), np.random.default_rng(seed)
    arrays: list[Any] = [rng.integers(-9, 9, shape).astype(dtype)]
    for config in configs(config_space(workload, target), rng, 2):
        check(workload, target, config, arrays, "execute")


@pytest.mark.parametrize(("times", "loaded"), [(2, 4), (4, 2), (8, 0), (3, 0)])
def test_lanes_of_several_elements_fill_a_vector(times: int, loaded: int) -> None:
    """Two and four times in vectors of eight; eight times each vector has an element of its own."""
    workload = repeated((5, 16), times)
    config = config_space(workload, AVX2).default
    text = emit_llvm(lower(schedule_workload(workload, AVX2, config)), AVX2).text
    assert "gather" not in text
    assert (f"load <{loaded} x float>" in text) == (loaded > 0)
    assert ("store <8 x float>" in text) == (times != 3)


@pytest.mark.parametrize(("shape", "times"), [((64, 56, 56), 2), ((3, 7, 32), 4)])
def test_rows_and_columns_are_repeated_by_whole_vectors(
    shape: tuple[int, int, int], times: int
) -> None:
    """A map of planes that is enlarged: lanes two apart were scattered (6 × the time)."""
    planes, height, width = shape

    def enlarge(x: Expr) -> Expr:
        apart = call("reshape", x, shape=(planes, height, 1, width, 1))
        wide = call("broadcast_to", apart, shape=(planes, height, times, width, times))
        return call("reshape", wide, shape=(planes, height * times, width * times))

    workload = Workload.from_function(function_of(enlarge, (shape, "float32")))
    for target in (HOST, AVX2):
        config = config_space(workload, target).default
        text = emit_llvm(lower(schedule_workload(workload, target, config)), target).text
        assert "scatter" not in text
        assert "gather" not in text
    arrays: list[Any] = [np.arange(planes * height * width, dtype="float32").reshape(shape)]
    for config in configs(config_space(workload, HOST), np.random.default_rng(0), 2):
        check(workload, HOST, config, arrays, "execute")

"""Products with long sums, a part at a time: any shape under any config agrees with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import configs, draw, verify
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Expr, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import ConfigSpace, config_space, deep, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

F32 = "float32"
HOST = Target.host(2)
AVX2 = Target("llvm -mcpu=haswell -num-cores=2")


def product(
    rows: int,
    depth: int,
    columns: int,
    bias: bool = False,
    residual: bool = False,
    constants: tuple[int, ...] = (1,),
    dtype: str = F32,
    **attrs: Any,
) -> Function:
    shape = (columns, depth) if attrs.get("transpose_b") else (depth, columns)
    params = [Var("x", TensorType((rows, depth), dtype)), Var("w", TensorType(shape, dtype))]
    body: Expr = call("matmul", *params, **attrs)
    for wanted, kind in ((bias, (columns,)), (residual, (rows, columns))):
        if wanted:
            params.append(Var(f"p{len(params)}", TensorType(kind, dtype)))
            body = call("add", body, params[-1])
    body = call("relu", body) if bias else body
    return Function(tuple(params), body, {"primitive": True, "constants": constants})


def deep_space(function: Function, target: Target = HOST) -> ConfigSpace:
    found = deep.space(function, target)
    assert found is not None
    return ConfigSpace((found,))


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    st.integers(16, 70), st.sampled_from([2048, 2050, 2145, 4096, 4620]), st.integers(2, 90),
    st.booleans(), st.booleans(), st.booleans(), st.integers(0, 999),
)  # fmt: skip
def test_odd_shapes_under_random_configs(
    rows: int, depth: int, columns: int, bias: bool, residual: bool, turned: bool, seed: int
) -> None:
    function = product(rows, depth, columns, bias, residual, transpose_b=turned)
    rng = np.random.default_rng(seed)
    arrays = draw(function, rng)
    for config in configs(deep_space(function), rng, 2):
        verify(function, HOST, config, arrays)


def test_the_interpreter_agrees() -> None:
    function = product(17, 2048, 9, bias=True, residual=True)
    arrays = draw(function, np.random.default_rng(3))
    config = dict(deep_space(function, AVX2).default)
    verify(function, AVX2, config, arrays, "interpret")


def test_pixels_are_rows() -> None:
    """Of a pointwise convolution, whose weights are viewed as a matrix."""
    x, w = Var("x", TensorType((2, 5, 5, 2048), F32)), Var("w", TensorType((1, 1, 2048, 24), F32))
    body = call("relu", call("conv", x, w, data_layout="NSC", kernel_layout="SIO"))
    function = Function((x, w), body, {"primitive": True, "constants": (1,)})
    arrays = draw(function, np.random.default_rng(4))
    verify(function, HOST, deep_space(function).default, arrays)


@pytest.mark.parametrize(
    "function",
    [
        product(40, 2046, 64),  # not long
        product(40, 2053, 64),  # a prime
        product(15, 4096, 64),  # few rows
        product(40, 4096, 64, constants=()),  # variable
        product(40, 4096, 64, dtype="float64"),
    ],
)
def test_other_products_are_for_others(function: Function) -> None:
    assert deep.space(function, HOST) is None
    with pytest.raises(ScheduleError, match="no product with a long sum"):
        deep.schedule(function, HOST, {"sketch": "deep"})


def test_it_is_the_default_where_panels_fit_no_cache() -> None:
    """Of processors with 16 registers: 64×4096×64 takes 0.74 of the time (Zen 3)."""
    long, shorter = (
        Workload.from_function(product(64, depth, 64, bias=True)) for depth in (4096, 2048)
    )
    assert config_space(long, AVX2).default["sketch"] == "deep"
    assert config_space(shorter, AVX2).default["sketch"] != "deep"
    assert config_space(long, Target("llvm -mcpu=znver4")).default["sketch"] != "deep"


def test_a_part_of_a_panel_stays_in_the_first_cache() -> None:
    workload = Workload.from_function(product(64, 4096, 64))
    config = config_space(workload, AVX2).default
    part = int(config["part"]) * int(config["nv"]) * AVX2.lanes(F32) * 4
    assert part <= AVX2.l1_bytes // 2
    text = str(lower(schedule_workload(workload, AVX2, config)))
    assert f"const p1: float32[{4096 // int(config['part'])}, " in text

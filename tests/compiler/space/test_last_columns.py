"""Products of few columns more than whole vectors: every shape agrees with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import check, configs, features_of_valid, function_of, parallel_loops
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import ConfigSpace, config_space, last_columns, schedule_workload
from tunefarm.compiler.space.last_columns.forms import parted
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

F32 = "float32"
ZEN5 = Target("llvm -mcpu=znver5 -num-cores=1")
SAPPHIRE = Target("llvm -mattr=-amx-tile -mcpu=sapphirerapids -num-cores=2")
HASWELL = Target("llvm -mcpu=haswell -num-cores=1")
TARGETS = [Target.host(2), Target.host(1), HASWELL]
FLAG = st.booleans()
bounded = settings(max_examples=25, deadline=None, derandomize=True, database=None)


def product(
    m: int, k: int, n: int, turned: bool = False, bias: bool = True, residual: bool = False
) -> Function:
    """A product with what follows one in networks, weights and bias constant."""
    shapes = [(m, k), (n, k) if turned else (k, n), *[(n,)] * bias, *[(m, n)] * residual]

    def build(x: Any, w: Any, *rest: Any) -> Any:
        y = call("matmul", x, w, transpose_b=turned)
        for operand in rest:
            y = call("add", y, operand)
        return call("relu", y) if rest else y

    made = function_of(build, *((shape, F32) for shape in shapes))
    constants = (1, 2) if bias else (1,)
    return Function(made.params, made.body, {"primitive": True, "constants": constants})


def variable(function: Function) -> Function:
    """The same with no constants."""
    return Function(function.params, function.body, {"primitive": True})


def pointwise(size: int, inputs: int, outputs: int) -> Function:
    """A 1×1 convolution with a bias and relu."""

    def build(x: Any, w: Any, b: Any) -> Any:
        y = call("conv", x, w, data_layout="NSC", kernel_layout="SIO")
        return call("relu", call("add", y, b))

    shapes = (1, size, size, inputs), (1, 1, inputs, outputs), (outputs,)
    made = function_of(build, *((shape, F32) for shape in shapes))
    return Function(made.params, made.body, {"primitive": True, "constants": (1, 2)})


def agrees(function: Function, target: Target, seed: int, run: str = "execute") -> None:
    """The default and two random configs, on small whole numbers: sums are exact in any order."""
    rng = np.random.default_rng(seed)
    space = last_columns.space(function, target)
    assert space is not None
    workload = Workload.from_function(function)
    arrays = [rng.integers(-3, 4, p.type.shape).astype(F32) for p in workload.function.params]
    for config in configs(ConfigSpace((space,)), rng, 2):
        check(workload, target, config, arrays, run)


@bounded
@given(
    st.integers(2, 90), st.integers(8, 70), st.integers(1, 4), st.integers(1, 4),
    FLAG, FLAG, FLAG, st.sampled_from(TARGETS), st.integers(0, 999),
)  # fmt: skip
def test_products(
    m: int, k: int, vectors: int, rest: int, turned: bool, bias: bool, residual: bool,
    target: Target, seed: int,
) -> None:  # fmt: skip
    lanes = target.lanes(F32)
    n = vectors * lanes + min(rest, lanes // 4)
    agrees(product(m, k, n, turned, bias, residual), target, seed)


@pytest.mark.parametrize("columns", [17, 18, 19, 20, 33, 36])
def test_pointwise_convolutions(columns: int) -> None:
    agrees(pointwise(9, columns, columns), Target.host(1), columns)


def test_the_interpreter_agrees() -> None:
    agrees(product(37, 19, 18, residual=True), ZEN5, 0, "interpret")
    agrees(product(37, 19, 18, turned=True), HASWELL, 0, "interpret")


def test_weights_are_parted() -> None:
    w = np.arange(3 * 9).reshape(3, 9)
    vectors, last = parted(w, 4, False)[:24].reshape(2, 3, 4), parted(w, 4, False)[24:]
    np.testing.assert_array_equal(vectors[1], w[:, 4:8])
    np.testing.assert_array_equal(last, w[:, 8])
    np.testing.assert_array_equal(parted(w.T, 4, True), parted(w, 4, False))
    np.testing.assert_array_equal(parted(w[None, None], 4, False), parted(w, 4, False))


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (product(64, 64, 32), "whole vectors"),
        (product(64, 64, 21), "more than a quarter of a vector behind them"),
        (product(64, 64, 15), "no whole vector"),
        (product(64, 64, 113), "many vectors"),
        (product(64, 7, 17), "short sums"),
        (product(1, 64, 17), "one row"),
        (variable(product(64, 64, 17)), "no constant weights"),
    ],
)
def test_it_does_not_apply_to(function: Function, why: str) -> None:
    assert last_columns.space(function, ZEN5) is None, why
    with pytest.raises(ScheduleError, match="no product of few columns more than whole vectors"):
        last_columns.schedule(function, ZEN5, {})


@pytest.mark.parametrize(
    ("function", "sketch"),
    [
        (pointwise(56, 17, 17), "last_columns"),
        (pointwise(56, 18, 18), "last_columns"),
        (pointwise(56, 64, 20), "last_columns"),
        (pointwise(56, 20, 20), "contraction"),  # as fast on one core, 1.0 on two
    ],
)
def test_the_default_is_what_was_faster(function: Function, sketch: str) -> None:
    """0.77 to 0.97 × the time on an Emerald Rapids, which has the same model."""
    assert config_space(Workload.from_function(function), SAPPHIRE).default["sketch"] == sketch


def test_cores_take_a_task_each() -> None:
    function = pointwise(56, 17, 17)
    workload = Workload.from_function(function)
    program = schedule_workload(workload, SAPPHIRE, config_space(workload, SAPPHIRE).default)
    (loop,) = parallel_loops(program)
    assert loop.extent.value == 2  # type: ignore[union-attr]


def test_little_work_stays_on_one_core() -> None:
    """10² of 17 channels take twice as long on two cores."""
    workload = Workload.from_function(pointwise(10, 17, 17))
    assert config_space(workload, SAPPHIRE).default["tasks"] == 0


def test_features() -> None:
    space = last_columns.space(product(300, 40, 33), SAPPHIRE)
    assert space is not None
    nest = features_of_valid(ConfigSpace((space,)))
    assert (nest.operations >= 2.0 * 300 * 40 * 33).all()

"""Products of few columns, lanes along their terms: every shape agrees with NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sketch_harness import check, configs, function_of
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import ConfigSpace, config_space, narrow
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

F32 = "float32"
ZEN5 = Target("llvm -mcpu=znver5 -num-cores=1")
TARGETS = [
    Target.host(2), Target("llvm -mcpu=haswell")
]  # fmt: skip
FLAG = st.booleans()
bounded = settings(max_examples=10, deadline=None, derandomize=True, database=None)


def agrees(
    build: Any, shapes: list[tuple[int, ...]], constants: tuple[int, ...], target: Target, seed: int
) -> None:
    """The default and two random configs, on small whole numbers: sums are exact in any order."""
    rng = np.random.default_rng(seed)
    made = function_of(build, *((shape, F32) for shape in shapes))
    function = Function(made.params, made.body, {"primitive": True, "constants": constants})
    space = narrow.space(function, target)
    assert space is not None
    workload = Workload.from_function(function)
    arrays = [rng.integers(-3, 4, p.type.shape).astype(F32) for p in workload.function.params]
    for config in configs(ConfigSpace((space,)), rng, 2):
        check(workload, target, config, arrays, "execute")


def followed(value: Any, rest: tuple[Any, ...]) -> Any:
    for operand in rest:
        value = call("add", value, operand)
    return call("relu", value) if rest else value


@bounded
@given(
    st.integers(2, 40), st.integers(1, 6), st.integers(8, 70), FLAG, FLAG, FLAG,
    st.sampled_from(TARGETS), st.integers(0, 999),
)  # fmt: skip
def test_products(
    m: int, n: int, k: int, turned: bool, bias: bool, residual: bool, target: Target, seed: int
) -> None:
    shapes = [(m, k), (n, k) if turned else (k, n), *[(n,)] * bias, *[(m, n)] * residual]

    def build(a: Any, b: Any, *rest: Any) -> Any:
        return followed(call("matmul", a, b, transpose_b=turned), rest)

    agrees(build, shapes, (1,), target, seed)


@bounded
@given(
    st.integers(1, 2), st.integers(1, 9), st.integers(2, 9), st.integers(8, 40), st.integers(1, 4),
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 2), st.integers(0, 2)), FLAG,
    st.sampled_from(TARGETS), st.integers(0, 999),
)  # fmt: skip
def test_convolutions(
    n: int, h: int, w: int, inputs: int, outputs: int, window: tuple[int, int, int, int],
    bias: bool, target: Target, seed: int,
) -> None:  # fmt: skip
    kh, kw, stride, pad = window
    rows, columns = ((e + 2 * pad - k) // stride + 1 for e, k in ((h, kh), (w, kw)))
    assume(min(rows, columns) > 0 and rows * columns > 1)
    attrs: dict[str, Any] = {
        "strides": (stride, stride), "padding": ((pad, pad), (pad, pad)),
        "data_layout": "NSC", "kernel_layout": "SIO",
    }  # fmt: skip
    shapes = [(n, h, w, inputs), (kh, kw, inputs, outputs), *[(outputs,)] * bias]
    agrees(lambda x, f, *r: followed(call("conv", x, f, **attrs), r), shapes, (1,), target, seed)


def convolution(inputs: int, **attrs: Any) -> Function:
    """A 3×3 convolution of an image of 12 × 28 pixels to one channel."""
    attrs = {"padding": ((1, 1), (1, 1)), "data_layout": "NSC", "kernel_layout": "SIO", **attrs}
    made = function_of("conv", ((1, 12, 28, inputs), F32), ((3, 3, inputs, 1), F32), **attrs)
    return Function(made.params, made.body, {"primitive": True, "constants": (1,)})


@pytest.mark.parametrize(
    ("function", "terms"),
    [
        (convolution(17), (3, 51)),  # four vectors of 16 instead of six
        (convolution(17, strides=(2, 2)), (3, 51)),
        (convolution(17, dilations=(2, 1), padding=((2, 2), (1, 1))), (3, 51)),
        (convolution(17, dilations=(1, 2), padding=((1, 1), (2, 2))), (3, 3, 17)),  # not together
        (convolution(16), (3, 3, 16)),  # full vectors
        (convolution(31), (3, 3, 31)),  # six vectors either way
    ],
)
def test_taps_across_are_terms_where_that_fills_vectors(
    function: Function, terms: tuple[int, ...]
) -> None:
    c = narrow.narrow_of(function, 16)
    assert c is not None
    assert tuple(axis.extent for axis in c.reduce) == terms
    workload, rng = Workload.from_function(function), np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, p.type.shape).astype(F32) for p in workload.function.params]
    for target in TARGETS:
        space = narrow.space(function, target)
        assert space is not None
        check(workload, target, space.default, arrays, "execute")


@pytest.mark.parametrize("attrs", [
    {},
    {"strides": (2, 2)},
    {"strides": (1, 2), "padding": ((0, 2), (2, 0))},
    {"dilations": (2, 1), "padding": ((2, 2), (1, 1))},
])  # fmt: skip
@pytest.mark.parametrize("inputs", [17, 16])
def test_results_one_above_the_other_share_rows(attrs: dict[str, Any], inputs: int) -> None:
    workload = Workload.from_function(convolution(inputs, **attrs))
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, p.type.shape).astype(F32) for p in workload.function.params]
    for rh, rw, ku in ((2, 4, 1), (3, 2, 1), (4, 1, 1), (2, 2, 2) if inputs > 16 else (4, 3, 1)):
        config = {"sketch": "narrow", "rh": rh, "rw": rw, "ku": ku, "tasks": 0}
        check(workload, TARGETS[0], config, arrays, "execute")


@pytest.mark.parametrize(("cpu", "tasks"), [("znver5", [0, 0]), ("emeraldrapids", [1, 0])])
def test_cores_of_a_mesh_share_short_sums(cpu: str, tasks: list[int]) -> None:
    """Results lie in lines that they have written; not eight of them, which each had little."""

    def default(cores: int) -> object:
        space = narrow.space(product(784, 1, 17), Target(f"llvm -mcpu={cpu} -num-cores={cores}"))
        assert space is not None
        return space.default["tasks"]

    assert [default(cores) for cores in (2, 8)] == tasks


@pytest.mark.parametrize("cpu", ["znver4", "znver5"])
def test_rows_are_shared_where_windows_overlap_downwards(cpu: str) -> None:
    target = Target(f"llvm -mcpu={cpu} -num-cores=1")
    overlapping = narrow.space(convolution(17), target)
    assert overlapping is not None
    assert int(overlapping.default["rh"]) > 1
    for other in (
        convolution(17, strides=(3, 1), padding=((0, 0), (1, 1))),
        product(64, 1, 64),
    ):
        space = narrow.space(other, target)
        assert space is not None
        assert [k.choices for k in space.knobs if k.name == "rh"] == [(1,)]


def product(m: int, n: int, k: int, constants: tuple[int, ...] = (1,)) -> Function:
    made = function_of("matmul", ((m, k), F32), ((k, n), F32))
    return Function(made.params, made.body, {"primitive": True, "constants": constants})


UNFIT = {
    "many columns": product(64, 9, 64),
    "few terms": product(64, 2, 7),
    "one row": product(1, 2, 64),
    "two variable operands": product(64, 2, 64, ()),
}


@pytest.mark.parametrize("name", UNFIT)
def test_it_leaves_to_other_sketches(name: str) -> None:
    assert narrow.space(UNFIT[name], ZEN5) is None


def test_the_default_knows_where_combining_lanes_costs_more_than_it_saves() -> None:
    sketches = {
        (n, k): config_space(Workload.from_function(product(3136, n, k)), ZEN5).default["sketch"]
        for n, k in ((1, 17), (3, 64), (4, 17), (8, 17))
    }
    assert sketches == {
        (1, 17): "narrow", (3, 64): "narrow", (4, 17): "contraction", (8, 17): "contraction"
    }  # fmt: skip

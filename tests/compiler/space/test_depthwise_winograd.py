"""Depthwise convolutions by Winograd's method: within the stated error of the direct sum, on all
shapes, and the default where it takes less time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from convolutions import convolution, default_with, space_by, verify_configs
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import draw, verify
from tunefarm.compiler.ir import Function
from tunefarm.compiler.packing import pack
from tunefarm.compiler.space import (
    Config,
    ConfigSpace,
    config_space,
    depthwise_winograd,
    schedule_workload,
)
from tunefarm.compiler.space.depthwise_winograd.knobs import direct_cycles, work_cycles
from tunefarm.compiler.space.depthwise_winograd.program import depthwise_of
from tunefarm.compiler.space.estimate import cycles_on_one_core
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.worker.roofline import scheduled_operations

HOST = Target.host(2)
AVX2 = Target("llvm -mcpu=haswell -num-cores=1")
ZEN4 = Target("llvm -mcpu=znver4 -num-cores=1")
FLAG = st.booleans()


def depthwise(shape: tuple[int, ...], **attrs: object) -> Function:
    return convolution(shape, shape[-1], groups=shape[-1], **attrs)  # type: ignore[arg-type]


def space_of(function: Function, target: Target = ZEN4) -> ConfigSpace:
    return space_by(depthwise_winograd, function, target)


def configured(function: Function, **knobs: int) -> Config:
    return default_with(space_of(function), **knobs)


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 3), st.integers(1, 17), st.integers(2, 15), st.integers(16, 51),
    st.tuples(*[st.integers(0, 1)] * 4), FLAG, FLAG, FLAG, st.sampled_from([HOST, AVX2]),
    st.integers(0, 9999),
)  # fmt: skip
def test_odd_shapes_under_random_configs(
    n: int, h: int, w: int, channels: int, pads: tuple[int, int, int, int], bias: bool,
    residual: bool, relu: bool, target: Target, seed: int,
) -> None:  # fmt: skip
    top, bottom, left, right = pads
    h, w = max(h, 3 - top - bottom), max(w, 4 - left - right)
    function = depthwise(
        (n, h, w, channels), padding=((top, bottom), (left, right)), bias=bias,
        residual=residual, relu=relu,
    )  # fmt: skip
    verify_configs(function, target, space_of(function), seed)


@pytest.mark.parametrize("target", [HOST, AVX2, Target("llvm -mcpu=apple-m1 -num-cores=1")])
def test_the_interpreter_agrees(target: Target) -> None:
    function = depthwise((2, 5, 7, 19), residual=True)
    config = configured(function, rh=3, nb=2, by_column=1)
    verify(function, target, config, draw(function, np.random.default_rng(3)), "interpret")


@pytest.mark.parametrize("rows", [1, 7])
def test_the_error_is_as_stated(rows: int) -> None:
    function = depthwise((1, 56, 56, 64), bias=False, relu=False)
    arrays = draw(function, np.random.default_rng(2))
    assert (
        verify(function, HOST, configured(function, rh=rows, nb=4, by_column=rows == 1), arrays)
        < 5e-7
    )


UNFIT = {
    "stride 2": depthwise((1, 9, 9, 16), strides=(2, 2)),
    "dilation 2": depthwise((1, 9, 9, 16), dilations=(2, 2)),
    "five taps": depthwise((1, 9, 9, 16), kernel=(5, 5)),
    "a row of taps": depthwise((1, 9, 9, 16), kernel=(1, 3)),
    "variable weights": depthwise((1, 9, 9, 16), constants=()),
    "few channels": depthwise((1, 9, 9, 3)),
    "one column": depthwise((1, 9, 1, 16)),
    "results of one tap": depthwise((1, 9, 9, 16), padding=((1, 1), (2, 0))),
    "two results a channel": convolution((1, 9, 9, 16), 32, groups=16),
    "groups of two channels": convolution((1, 9, 9, 32), 32, groups=16),
    "another type": depthwise((1, 9, 9, 16), dtype="float64"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_other_convolutions_have_no_such_sketch(name: str) -> None:
    assert depthwise_winograd.space(UNFIT[name], ZEN4) is None


def test_a_strict_target_has_no_such_sketch() -> None:
    function = depthwise((1, 28, 28, 192))
    strict = Target(f"{ZEN4} -precision=strict")
    assert depthwise_winograd.space(function, strict) is None
    assert config_space(Workload.from_function(function), strict).default["sketch"] == "contraction"


@pytest.mark.parametrize(
    ("size", "channels", "sketch"),
    [
        (28, 192, "depthwise_winograd"), (112, 32, "depthwise_winograd"),
        (14, 576, "depthwise_winograd"), (7, 960, "depthwise_winograd"),
        (28, 24, "depthwise_winograd"), (28, 17, "image_rows_winograd"),
        (28, 33, "image_rows_winograd"),
        (3, 64, "contraction"), (7, 1024, "contraction"), (28, 36, "image_rows"),
        (34, 32, "depthwise_winograd"), (112, 64, "depthwise_winograd"), (28, 256, "contraction"),
        (14, 512, "contraction"), (14, 256, "contraction"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cores", [1, 2])
def test_a_zen_4_has_it_as_the_default_where_it_takes_less_time(
    size: int, channels: int, sketch: str, cores: int
) -> None:
    workload = Workload.from_function(depthwise((1, size, size, channels), bias=False))
    target = Target(f"llvm -mcpu=znver4 -num-cores={cores}")
    assert config_space(workload, target).default["sketch"] == sketch


@pytest.mark.parametrize(
    ("size", "channels", "rows"),
    [
        (56, 128, 3), (112, 64, 3), (33, 32, 3), (17, 64, 3), (34, 32, 0), (28, 192, 0),
        (112, 32, 5), (56, 64, 5), (28, 128, 5), (24, 192, 0),  # every other row
    ],
)  # fmt: skip
def test_columns_go_first_where_loads_would_wait_for_stores(
    size: int, channels: int, rows: int
) -> None:
    """``rows`` of a tile of such a column; 0 where whole rows are faster."""
    function = depthwise((1, size, size, channels))
    default = config_space(Workload.from_function(function), ZEN4).default
    assert (default["sketch"], default["by_column"]) == ("depthwise_winograd", int(rows > 0))
    assert not rows or default["rh"] == rows


@pytest.mark.parametrize(
    ("cpu", "has"), [("znver5", True), ("haswell", False), ("znver3", False), ("rocketlake", False)]
)
def test_other_processors_have_it_by_a_search_at_most(cpu: str, has: bool) -> None:
    workload = Workload.from_function(depthwise((1, 28, 28, 192)))
    space = config_space(workload, Target(f"llvm -mcpu={cpu} -num-cores=1"))
    assert space.default["sketch"] == "contraction"
    assert ("depthwise_winograd" in {s.sketch for s in space.sketches}) == has


@pytest.mark.parametrize("target", [ZEN4, Target("llvm -mcpu=znver5 -num-cores=4")])
def test_the_default_is_of_its_space(target: Target) -> None:
    for size in (2, 5, 7, 13, 14, 28, 33, 56, 112, 150):
        for channels in (16, 24, 33, 72, 96, 160, 200, 528, 960, 1152):
            space = space_of(depthwise((1, size, size, channels)), target)
            assert space.valid(space.encode(space.default)[None])[0], (size, channels)


def test_cores_share_the_rows_or_the_channels() -> None:
    target = Target("llvm -mcpu=znver4 -num-cores=2")
    for size, channels in ((28, 192), (7, 960), (112, 32)):
        default = space_of(depthwise((1, size, size, channels)), target).default
        blocks = -(-size // int(default["rh"])) * -(-channels // 16 // int(default["nb"]))
        assert blocks >= 2


def test_the_model_counts_what_a_kernel_executes() -> None:
    function = depthwise((2, 28, 30, 192))
    c = depthwise_of(function)
    assert c is not None
    config = configured(function, rh=7, nb=1, by_column=0)
    products = 2 * (28 * 3 - 2) * 15 * 4 * 192
    assert scheduled_operations(space_of(function), config) == 2 * products
    columns = {name: np.array([value]) for name, value in config.items()}
    cycles = float(work_cycles(c, ZEN4, 16, columns)[0])
    direct = 2 * (28 * 3 - 2) * (30 * 3 - 2) * 192 / (2 * 16)
    assert products / (2 * 16) < cycles < direct_cycles(c, 16) == direct
    default = {name: np.array([v]) for name, v in space_of(function).default.items()}
    assert cycles_on_one_core(function, ZEN4) == work_cycles(c, ZEN4, 16, default)[0]


def test_weights_are_transformed_when_they_are_packed() -> None:
    function = depthwise((1, 8, 8, 40), bias=False)
    program = schedule_workload(Workload.from_function(function), HOST, configured(function))
    layout = program.layouts[1]
    weights = np.random.default_rng(0).standard_normal((3, 3, 1, 40)).astype("float32")
    packed = pack(weights, layout, program.params[1].shape)
    across = [[-1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]
    wanted = np.einsum("klco,jl->kjco", weights.astype(np.float64), across).astype("float32")
    plain = pack(wanted, replace(layout, transform=""), packed.shape)
    np.testing.assert_allclose(packed, plain, rtol=1e-6)

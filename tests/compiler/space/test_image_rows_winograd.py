"""Depthwise convolutions along rows by Winograd's method: within the stated error of the direct
sum, on all shapes, and the default where channels fill no vectors."""

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
    image_rows_winograd,
    schedule_workload,
)
from tunefarm.compiler.space.estimate import cycles_on_one_core
from tunefarm.compiler.space.image_rows_winograd.knobs import work_cycles
from tunefarm.compiler.space.image_rows_winograd.program import rows_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.worker.roofline import scheduled_operations

HOST = Target.host(2)
AVX2 = Target("llvm -mcpu=haswell -num-cores=1")
ZEN4 = Target("llvm -mcpu=znver4 -num-cores=1")
NEON = Target("llvm -mcpu=apple-m1 -num-cores=1")
FLAG = st.booleans()


def depthwise(shape: tuple[int, ...], bias: bool = True, **attrs: object) -> Function:
    constants = {"constants": (1, 2) if bias else (1,)} | attrs
    return convolution(shape, shape[-1], bias=bias, groups=shape[-1], **constants)  # type: ignore[arg-type]


def space_of(function: Function, target: Target = ZEN4) -> ConfigSpace:
    return space_by(image_rows_winograd, function, target)


def configured(function: Function, **knobs: int) -> Config:
    return default_with(space_of(function), **knobs)


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 3), st.integers(1, 19), st.integers(2, 19), st.integers(2, 41),
    st.tuples(FLAG, FLAG), FLAG, FLAG, FLAG, st.sampled_from([HOST, AVX2]), st.integers(0, 9999),
)  # fmt: skip
def test_odd_shapes_under_random_configs(
    n: int, h: int, w: int, channels: int, pads: tuple[bool, bool], bias: bool,
    residual: bool, relu: bool, target: Target, seed: int,
) -> None:  # fmt: skip
    top, bottom = map(int, pads)
    h = max(h, 3 - top - bottom)
    channels += 3 if channels in (15, 16, 30, 31, 32) else 0  # these fill vectors as they are
    function = depthwise(
        (n, h, w, channels), bias, padding=((top, bottom), (1, 1)), residual=residual, relu=relu
    )
    verify_configs(function, target, space_of(function), seed)


@pytest.mark.parametrize("target", [HOST, AVX2, NEON])
def test_the_interpreter_agrees(target: Target) -> None:
    function = depthwise((2, 5, 7, 19), residual=True)
    config = configured(function, rh=4)
    verify(function, target, config, draw(function, np.random.default_rng(3)), "interpret")


@pytest.mark.parametrize("rows", [2, 14])
def test_the_error_is_as_stated(rows: int) -> None:
    function = depthwise((1, 56, 56, 33), bias=False, relu=False)
    arrays = draw(function, np.random.default_rng(2))
    assert verify(function, HOST, configured(function, rh=rows), arrays) < 5e-7


UNFIT = {
    "stride 2": depthwise((1, 9, 9, 17), strides=(2, 2)),
    "dilation 2": depthwise((1, 9, 9, 17), dilations=(2, 2)),
    "five taps": depthwise((1, 9, 9, 17), kernel=(5, 5)),
    "variable weights": depthwise((1, 9, 9, 17), constants=()),
    "a variable bias": depthwise((1, 9, 9, 17), constants=(1,)),
    "shorter rows": depthwise((1, 9, 9, 17), padding=((1, 1), (0, 1))),
    "full vectors": depthwise((1, 9, 9, 32)),
    "groups of two channels": convolution((1, 9, 9, 34), 34, groups=17),
    "another type": depthwise((1, 9, 9, 17), dtype="float64"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_other_convolutions_have_no_such_sketch(name: str) -> None:
    assert image_rows_winograd.space(UNFIT[name], ZEN4) is None


def test_a_strict_target_has_no_such_sketch() -> None:
    function = depthwise((1, 28, 28, 17))
    strict = Target(f"{ZEN4} -precision=strict")
    assert image_rows_winograd.space(function, strict) is None
    assert config_space(Workload.from_function(function), strict).default["sketch"] == "image_rows"


@pytest.mark.parametrize(
    ("size", "channels", "sketch"),
    [
        (28, 17, "image_rows_winograd"), (56, 33, "image_rows_winograd"),
        (112, 3, "image_rows_winograd"), (28, 24, "depthwise_winograd"),
        (28, 36, "image_rows"), (8, 17, "image_rows"), (28, 64, "depthwise_winograd"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("cores", [1, 2])
def test_a_zen_4_has_it_as_the_default_where_channels_fill_no_vectors(
    size: int, channels: int, sketch: str, cores: int
) -> None:
    workload = Workload.from_function(depthwise((1, size, size, channels)))
    target = Target(f"llvm -mcpu=znver4 -num-cores={cores}")
    assert config_space(workload, target).default["sketch"] == sketch


@pytest.mark.parametrize(
    ("cpu", "has"), [("znver5", True), ("haswell", False), ("znver3", False), ("rocketlake", False)]
)
def test_other_processors_have_it_by_a_search_at_most(cpu: str, has: bool) -> None:
    workload = Workload.from_function(depthwise((1, 28, 28, 17)))
    space = config_space(workload, Target(f"llvm -mcpu={cpu} -num-cores=1"))
    assert space.default["sketch"] != "image_rows_winograd"
    assert ("image_rows_winograd" in {s.sketch for s in space.sketches}) == has


@pytest.mark.parametrize("target", [ZEN4, Target("llvm -mcpu=znver5 -num-cores=4")])
def test_the_default_is_of_its_space(target: Target) -> None:
    for size in (2, 3, 5, 7, 13, 28, 33, 56, 112, 150):
        for channels in (2, 3, 8, 17, 24, 33, 72, 100):
            space = space_of(depthwise((1, size, size, channels)), target)
            assert space.valid(space.encode(space.default)[None])[0], (size, channels)


@pytest.mark.parametrize(("size", "one", "two"), [(28, 28, 14), (56, 28, 28), (14, 14, 8)])
def test_cores_share_the_rows(size: int, one: int, two: int) -> None:
    function = depthwise((1, size, size, 17))
    assert space_of(function).default["rh"] == one
    assert space_of(function, Target("llvm -mcpu=znver4 -num-cores=2")).default["rh"] == two


def test_the_model_counts_what_a_kernel_executes() -> None:
    function = depthwise((2, 27, 30, 17))
    c = rows_of(function)
    assert c is not None
    space = space_of(function)
    config = configured(function, rh=14)
    products = 2 * 14 * 12 * 32 * 16  # 32 vectors of a row, 12 products of two rows
    assert scheduled_operations(space, config) == 2 * products
    default = {name: np.array([v]) for name, v in space.default.items() if name != "sketch"}
    assert cycles_on_one_core(function, ZEN4) == work_cycles(c, 16, default)[0]


def test_weights_are_transformed_and_repeated_when_they_are_packed() -> None:
    function = depthwise((1, 8, 48, 20), bias=False)
    program = schedule_workload(Workload.from_function(function), HOST, configured(function))
    layout = program.layouts[1]
    # 80 numbers are five vectors of 16, 40 five of 8.
    repeats = {8: 2, 16: 4}[HOST.lanes("float32")]
    assert layout.transform == f"winograd2x1, repeat {repeats}"
    weights = np.random.default_rng(0).standard_normal((3, 3, 1, 20)).astype("float32")
    packed = pack(weights, layout, program.params[1].shape)
    down = [[-1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]]
    wanted = np.einsum("kjco,pk->pjco", weights.astype(np.float64), down).astype("float32")
    plain = pack(np.tile(wanted, repeats), replace(layout, transform=""), packed.shape)
    np.testing.assert_allclose(packed, plain, rtol=1e-6)

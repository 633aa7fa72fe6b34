"""Winograd's method with filters transformed in registers: within its stated error of the direct
sum, on all shapes."""

from __future__ import annotations

import numpy as np
import pytest
from convolutions import WIDE, convolution, default_with, space_by, verify_configs
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import draw, verify
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.packing import pack
from tunefarm.compiler.space import (
    Config,
    ConfigSpace,
    config_space,
    schedule_workload,
    winograd_online,
)
from tunefarm.compiler.space.winograd.convolution import convolution_of
from tunefarm.compiler.space.winograd_online.default import cycles
from tunefarm.compiler.space.winograd_online.knobs import held_bytes, products
from tunefarm.compiler.space.winograd_online.transforms import scaled_transforms
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload
from tunefarm.worker.roofline import scheduled_operations

HOST = Target.host(2)


def space_of(function: Function, target: Target = WIDE) -> ConfigSpace:
    return space_by(winograd_online, function, target)


def configured(function: Function, **knobs: int) -> Config:
    return default_with(space_of(function), **{"nb": 1, "kb": 1, "ku": 1, **knobs})


def test_the_points_compute_a_filter_of_scaled_taps() -> None:
    t = scaled_transforms()
    data, taps = np.random.default_rng(0).standard_normal((2, 6))
    scaled = taps[:3] * (1, 3 / 4, 9 / 16)
    result = np.array(t.result) @ ((np.array(t.filter) @ scaled) * (np.array(t.data) @ data))
    np.testing.assert_allclose(result, np.correlate(data, taps[:3], "valid"), rtol=1e-12)
    assert set(np.abs(np.array(t.filter)).flat) == {0, 1, 2, 4}


@settings(max_examples=9, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 3), st.integers(1, 13), st.integers(1, 8), st.integers(16, 40),
    st.integers(16, 40), st.tuples(*[st.integers(0, 2)] * 4), st.booleans(), st.booleans(),
    st.booleans(), st.integers(0, 9999),
)  # fmt: skip
def test_odd_shapes_under_random_configs(
    n: int, h: int, w: int, c: int, o: int, pads: tuple[int, int, int, int], bias: bool,
    residual: bool, relu: bool, seed: int,
) -> None:  # fmt: skip
    top, bottom, left, right = pads
    h, w = max(h, 5 - top - bottom), max(w, 5 - left - right)
    w = min(w, 10 - left - right)  # two columns of tiles
    function = convolution((n, h, w, c), o, ((top, bottom), (left, right)), bias, residual, relu)
    verify_configs(function, HOST, space_of(function), seed)


@pytest.mark.parametrize(
    ("image", "of_image"),
    [((8, 8), 144), ((7, 7), 121), ((6, 6), 100), ((5, 7), 99), ((4, 3), 30), ((3, 8), 60)],
)
def test_last_tiles_take_fewer_products(image: tuple[int, int], of_image: int) -> None:
    function = convolution((1, *image, 20), 35)
    c = convolution_of(function)
    assert c is not None
    assert products(c) == of_image
    config = configured(function, rt=1, kb=2 if image[0] <= 4 else 1, ku=2, nb=2)
    assert verify(function, HOST, config, draw(function, np.random.default_rng(2))) < 5e-6


def test_the_interpreter_agrees() -> None:
    function = convolution((2, 5, 6, 16), 19, residual=True)
    arrays = draw(function, np.random.default_rng(3))
    verify(function, HOST, configured(function, rt=1), arrays, "interpret")
    function = convolution((1, 3, 7, 18), 17)
    arrays = draw(function, np.random.default_rng(4))
    verify(function, HOST, configured(function, rt=1, kb=2), arrays, "interpret")


@pytest.mark.parametrize(("rows", "kb"), [(7, 1), (4, 1), (4, 4)])
def test_the_error_is_as_stated(rows: int, kb: int) -> None:
    function = convolution((1, rows, 7, 512), 64, bias=False, relu=False)
    config = configured(function, rt=1, nb=2, kb=kb)
    assert verify(function, HOST, config, draw(function, np.random.default_rng(2))) < 5e-6


UNFIT = {
    "stride 2": convolution((1, 9, 9, 16), 16, strides=(2, 2)),
    "variable weights": convolution((1, 9, 9, 16), 16, constants=()),
    "few channels": convolution((1, 9, 9, 3), 32),
    "two rows": convolution((1, 2, 9, 16), 16),
    "more columns than registers": convolution((1, 9, 40, 16), 16),
}


@pytest.mark.parametrize("name", UNFIT)
def test_other_convolutions_have_no_such_sketch(name: str) -> None:
    assert winograd_online.space(UNFIT[name], WIDE) is None


def test_blocks_that_leave_inputs_out_are_refused() -> None:
    function = convolution((1, 7, 7, 18), 16)
    with pytest.raises(ScheduleError, match="kb is 4, and does not divide the 18 inputs"):
        winograd_online.schedule(function, HOST, configured(function) | {"kb": 4})


def test_a_strict_target_has_no_such_sketch() -> None:
    strict = Target("llvm -mcpu=znver4 -num-cores=2 -precision=strict")
    assert winograd_online.space(convolution((1, 7, 7, 512), 512), strict) is None


@pytest.mark.parametrize(
    ("cpu", "size", "channels", "sketch"),
    [
        ("znver4", 7, 512, "winograd_online"), ("znver4", 8, 512, "winograd_online"),
        ("znver4", 7, 128, "winograd_online"), ("znver4", 14, 256, "winograd"),
        ("znver4", 4, 512, "contraction"), ("znver5", 7, 512, "winograd_online"),
        ("znver5", 28, 128, "winograd"),
    ],
)  # fmt: skip
def test_it_is_the_default_of_few_pixels_with_many_weights(
    cpu: str, size: int, channels: int, sketch: str
) -> None:
    workload = Workload.from_function(convolution((1, size, size, channels), channels))
    target = Target(f"llvm -mcpu={cpu} -num-cores=2")
    assert config_space(workload, target, from_memory=True).default["sketch"] == sketch


def test_blocks_of_inputs_fit_into_the_second_cache() -> None:
    of_inputs = {
        channels: space_of(convolution((1, 7, 7, channels), channels), WIDE).default["kb"]
        for channels in (256, 512, 1024)
    }
    assert of_inputs == {256: 1, 512: 2, 1024: 4}


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("cpu", ["emeraldrapids", "znver5"])
def test_weights_of_a_block_fit_into_a_first_cache_that_products_wait_for(
    cpu: str, cores: int
) -> None:
    target = Target(f"llvm -mcpu={cpu} -num-cores={cores}")
    for channels in (256, 512, 1024):
        blocks = int(space_of(convolution((1, 7, 7, channels), channels), target).default["kb"])
        assert 9 * 16 * 4 * channels // blocks <= 0.8 * target.l1_bytes


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("batch", [2, 3, 4, 8])
def test_batches_on_a_mesh_are_by_winograds_method_along_rows(batch: int, cores: int) -> None:
    """Each image reads its weights again as fast as the first one; beside a matrix unit, where that
    was not timed, other methods are the default."""
    workload = Workload.from_function(convolution((batch, 7, 7, 512), 512))
    cpu = f"llvm -mcpu=emeraldrapids -num-cores={cores}"
    plain = config_space(workload, Target(f"{cpu} -mattr=-amx-tile")).default
    assert plain["sketch"] == "winograd_1d"
    if batch == 8:
        assert config_space(workload, Target(cpu)).default["sketch"] != "winograd_1d"


def test_a_kernel_holds_and_executes_what_the_model_counts() -> None:
    function = convolution((1, 7, 7, 64), 128, bias=False, relu=False)
    config = configured(function, rt=1, nb=2)
    workload = Workload.from_function(function)
    program = schedule_workload(workload, HOST, config)
    c, lanes = convolution_of(function), HOST.lanes("float32")
    assert c is not None
    tiles, results = held_bytes(c, lanes), 4 * 6 * 2 * 4 * lanes * HOST.num_cores
    workspace = emit_llvm(lower(program), HOST).workspace_bytes
    assert tiles <= workspace <= tiles + results  # short buffers lie on the stack
    made = 121 * 64 * 128
    assert scheduled_operations(space_of(function), config) == 2 * made
    columns = {name: np.array([value]) for name, value in config.items()}
    assert cycles(c, WIDE, 16, columns)[0] > made / (2 * 16) / WIDE.num_cores


def test_weights_keep_their_size() -> None:
    function = convolution((1, 7, 7, 16), 32, bias=False)
    program = schedule_workload(Workload.from_function(function), HOST, configured(function, rt=1))
    weights = np.random.default_rng(0).standard_normal((3, 3, 16, 32)).astype("float32")
    packed = pack(weights, program.layouts[1], program.params[1].shape)
    assert packed.size == weights.size
    lanes, scale = HOST.lanes("float32"), 9 / 16 * 3 / 4
    wanted = weights[2, 1, 5, lanes : 2 * lanes] * scale
    np.testing.assert_allclose(packed[1, 5, 2, 1], wanted, rtol=1e-6)

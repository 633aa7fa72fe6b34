"""Winograd's method along rows: within its stated error of the direct sum, on all shapes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from convolutions import WIDE, convolution, default_with, random_configs, space_by, verify_configs
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import draw, verify
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.ir import Function
from tunefarm.compiler.packing import pack
from tunefarm.compiler.space import (
    Config,
    ConfigSpace,
    config_space,
    schedule_workload,
    winograd_1d,
)
from tunefarm.compiler.space.winograd.transforms import ROW_TILES, transforms_of_rows
from tunefarm.compiler.space.winograd_1d.convolution import row_convolution_of
from tunefarm.compiler.space.winograd_1d.default import cycles
from tunefarm.compiler.space.winograd_1d.knobs import (
    fewer_products,
    product_bytes,
    products_of_row,
    tile_bytes,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload
from tunefarm.worker.roofline import scheduled_operations

HOST = Target.host(2)
ZEN5 = Target("llvm -mcpu=znver5 -num-cores=2")


def space_of(function: Function, target: Target = HOST) -> ConfigSpace:
    return space_by(winograd_1d, function, target)


def configured(function: Function, **knobs: int) -> Config:
    return default_with(space_of(function, WIDE), **{"nb": 1, "nv": 1, "ku": 1, **knobs})


@pytest.mark.parametrize(
    ("taps", "tile"), [(n, t) for n, tiles in ROW_TILES.items() for t in tiles]
)
def test_the_matrices_compute_a_filter(taps: int, tile: int) -> None:
    t = transforms_of_rows(tile, 1, taps)
    assert t.points == tile + taps - 1
    data, filters = np.random.default_rng(0).standard_normal((2, t.points))
    filters = filters[:taps]
    result = np.array(t.result) @ ((np.array(t.filter) @ filters) * (np.array(t.data) @ data))
    np.testing.assert_allclose(result, np.correlate(data, filters, "valid"), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("tile", ROW_TILES[3])
def test_the_points_of_stride_2_in_another_order_compute_a_filter(tile: int) -> None:
    t = transforms_of_rows(tile, 2)
    data, filters = np.random.default_rng(0).standard_normal((2, t.points))
    weights = np.array(t.filter) @ filters[:3]
    first, behind = t.shared.start, t.shared.stop
    of = [
        p if p < first else first if p < behind else p - len(t.shared) + 1 for p in range(t.points)
    ]
    result = np.array(t.result) @ (weights[of] * (np.array(t.data) @ data))
    wanted = np.correlate(data, filters[:3], "valid")[::2]
    np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-12)
    # A tile without its last result does not need the last two points.
    assert not np.array(t.result)[:-1, -2:].any()


@settings(max_examples=14, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 2), st.integers(1, 13), st.integers(2, 14), st.integers(16, 40),
    st.integers(16, 40), st.tuples(*[st.integers(0, 2)] * 4), st.booleans(), st.booleans(),
    st.booleans(), st.sampled_from((1, 2)), st.integers(0, 9999),
)  # fmt: skip
def test_odd_shapes_under_random_configs(
    n: int, h: int, w: int, c: int, o: int, pads: tuple[int, int, int, int], bias: bool,
    residual: bool, relu: bool, stride: int, seed: int,
) -> None:  # fmt: skip
    top, bottom, left, right = pads
    h, w = max(h, 3 - top - bottom), max(w, 3 + stride - left - right)
    function = convolution(
        (n, h, w, c), o, ((top, bottom), (left, right)), bias, residual, relu,
        strides=(stride, stride),
    )  # fmt: skip
    verify_configs(function, HOST, space_of(function), seed)


KERNELS = [(1, 3), (3, 1), (1, 5), (5, 1), (5, 5), (1, 7), (7, 1), (7, 7), (3, 5), (5, 2), (2, 7)]


@settings(max_examples=16, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 2), st.integers(1, 17), st.integers(1, 17), st.integers(16, 40),
    st.integers(16, 40), st.tuples(*[st.integers(0, 6)] * 4), st.booleans(),
    st.sampled_from(KERNELS), st.integers(0, 9999),
)  # fmt: skip
def test_other_kernels_under_random_configs(
    n: int, h: int, w: int, c: int, o: int, pads: tuple[int, int, int, int], residual: bool,
    kernel: tuple[int, int], seed: int,
) -> None:  # fmt: skip
    # Each result reads a pixel: of padding alone they are 0, and so is what they may be off by.
    most = (kernel[0] - 1, kernel[0] - 1, kernel[1] - 1, kernel[1] - 1)
    top, bottom, left, right = (min(p, m) for p, m in zip(pads, most, strict=True))
    # Two results along the transformed dimension, and one across.
    h, w = max(h, kernel[0] + 1 - top - bottom), max(w, kernel[1] + 1 - left - right)
    function = convolution(
        (n, max(h, 1), max(w, 1), c), o, ((top, bottom), (left, right)), residual=residual,
        kernel=kernel,
    )  # fmt: skip
    verify_configs(function, HOST, space_of(function), seed)


@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 2), st.integers(1, 9), st.integers(3, 23), st.integers(16, 35),
    st.integers(16, 40), st.integers(0, 2), st.integers(0, 2), st.booleans(), st.booleans(),
    st.integers(0, 9999),
)  # fmt: skip
def test_rows_that_skip_every_other_pixel(
    n: int, across: int, along: int, c: int, o: int, before: int, behind: int, turned: bool,
    residual: bool, seed: int,
) -> None:  # fmt: skip
    along = max(along, 5 - before - behind)
    size, pads, kernel, strides = (across, along), ((0, 0), (before, behind)), (1, 3), (1, 2)
    if turned:
        size, pads, kernel, strides = size[::-1], pads[::-1], kernel[::-1], strides[::-1]
    function = convolution(
        (n, *size, c), o, pads, residual=residual, kernel=kernel, strides=strides
    )
    verify_configs(function, HOST, space_of(function), seed)


@pytest.mark.parametrize(
    ("shape", "kernel", "pads", "strides"),
    [((2, 1, 401, 20), (1, 5), ((0, 0), (3, 1)), (1, 1)),
     ((1, 130, 1, 24), (3, 1), ((0, 2), (0, 0)), (1, 1)),
     ((1, 1, 1000, 16), (1, 7), ((0, 0), (3, 3)), (1, 1)),
     ((2, 1, 391, 17), (1, 3), ((0, 0), (1, 2)), (1, 2)),
     ((1, 266, 1, 16), (3, 1), ((1, 1), (0, 0)), (2, 1))],
)  # fmt: skip
def test_a_long_row_is_cut_into_parts(
    shape: tuple[int, ...], kernel: tuple[int, int], pads: Any, strides: tuple[int, int]
) -> None:
    function = convolution(shape, 35, pads, residual=True, kernel=kernel, strides=strides)
    c = row_convolution_of(function)
    assert c is not None
    assert c.cut
    assert 32 <= c.width <= 56
    rng = np.random.default_rng(0)
    arrays, space = draw(function, rng), space_of(function)
    for config in [space.default, *random_configs(space, rng, 3)]:
        verify(function, HOST, config, arrays)


@pytest.mark.parametrize(("kernel", "tile"), [((1, 7), 3), ((5, 1), 4), ((5, 5), 2)])
def test_the_interpreter_agrees_of_other_kernels(kernel: tuple[int, int], tile: int) -> None:
    function = convolution((2, 9, 8, 16), 19, ((2, 2), (3, 3)), residual=True, kernel=kernel)
    config = configured(function, tile_w=tile, rh=2, rt=1)
    verify(function, HOST, config, draw(function, np.random.default_rng(3)), "interpret")


@pytest.mark.parametrize(
    ("kernel", "error"),
    [((1, 3), 3e-6), ((1, 5), 3e-6), ((5, 5), 8e-6), ((7, 1), 8e-6), ((7, 7), 8e-6)],
)
@pytest.mark.parametrize("size", [20, 18])  # of which the last has fewer products
def test_the_error_of_other_kernels_is_as_stated(
    kernel: tuple[int, int], error: float, size: int
) -> None:
    pads = tuple((n // 2, n // 2) for n in kernel)
    function = convolution((1, size, size, 192), 48, pads, bias=False, relu=False, kernel=kernel)
    tile = 2 if kernel == (7, 7) else 4
    config = configured(function, tile_w=tile, rh=4, rt=5)
    assert verify(function, HOST, config, draw(function, np.random.default_rng(2))) < error


def test_sequences_that_halve_are_made_so() -> None:
    """Those of speech models: 0.8 × the time of the direct sum (Zen 5), of which the error is
    1.9e-6 of the largest result."""
    function = convolution(
        (1, 1, 799, 512), 512, ((0, 0), (1, 1)), kernel=(1, 3), strides=(1, 2), relu=False,
    )  # fmt: skip
    target = Target("llvm -mcpu=znver5 -num-cores=2")
    default = config_space(Workload.from_function(function), target).default
    assert (default["sketch"], default["tile_w"]) == ("winograd_1d", 4)
    small = convolution((1, 1, 99, 192), 48, ((0, 0), (1, 1)), kernel=(1, 3), strides=(1, 2))
    config = configured(small, tile_w=4, rh=1, rt=5)
    assert verify(small, HOST, config, draw(small, np.random.default_rng(2))) < 3e-6


@pytest.mark.parametrize("kernel", [(1, 7), (7, 1), (3, 1), (5, 5)])
@pytest.mark.parametrize("cores", [1, 2])
def test_kernels_without_another_method_are_made_so(kernel: tuple[int, int], cores: int) -> None:
    """Inception's: 0.45 to 0.6 × the time of the direct sum (Zen 5)."""
    pads = tuple((n // 2, n // 2) for n in kernel)
    workload = Workload.from_function(convolution((1, 17, 17, 160), 160, pads, kernel=kernel))
    target = Target(f"llvm -mcpu=znver5 -num-cores={cores}")
    assert config_space(workload, target).default["sketch"] == "winograd_1d"


@pytest.mark.parametrize(
    ("image", "stride", "tile", "of_row"),
    [
        ((7, 7), 1, 2, 15), ((7, 7), 1, 4, 11), ((5, 5), 1, 4, 9), ((6, 9), 1, 2, 19),
        ((7, 6), 1, 4, 10), ((14, 14), 2, 2, 18), ((14, 14), 2, 4, 16), ((9, 5), 2, 2, 8),
        ((10, 10), 2, 4, 18),
    ],
)  # fmt: skip
def test_the_last_tile_of_a_row_takes_fewer_products(
    image: tuple[int, int], stride: int, tile: int, of_row: int
) -> None:
    function = convolution((1, *image, 20), 35, strides=(stride, stride))
    width, rows = -(-image[1] // stride), -(-image[0] // stride)
    config = configured(function, tile_w=tile, rh=rows, rt=-(-width // tile), ku=2)
    c = row_convolution_of(function)
    assert c is not None
    columns = {name: np.array([value]) for name, value in config.items()}
    assert products_of_row(c, columns)[0] == of_row
    # Of five results four and one: of stride 2 a tile that lacks more than one takes all.
    assert fewer_products(c, columns)[0] == (of_row < c.transforms(tile).points * -(-width // tile))
    arrays = draw(function, np.random.default_rng(2))
    assert verify(function, HOST, config, arrays) < 5e-6
    if image[0] < 7:
        verify(function, HOST, config, arrays, "interpret")


@pytest.mark.parametrize(("tile", "stride"), [(2, 1), (4, 2)])
def test_the_interpreter_agrees(tile: int, stride: int) -> None:
    function = convolution((2, 5, 6, 16), 19, residual=True, strides=(stride, stride))
    config = configured(function, tile_w=tile, rh=2, rt=1)
    verify(function, HOST, config, draw(function, np.random.default_rng(3)), "interpret")


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("tile", "error"), [(2, 2e-6), (4, 4e-6)])
def test_the_error_is_as_stated(tile: int, error: float, stride: int) -> None:
    size = 14 * stride
    function = convolution(
        (1, size, size, 256), 64, bias=False, relu=False, strides=(stride, stride)
    )
    config = configured(function, tile_w=tile, rh=7, rt=2, nv=2)
    assert verify(function, HOST, config, draw(function, np.random.default_rng(2))) < error


UNFIT = {
    "stride 3": convolution((1, 9, 9, 16), 16, strides=(3, 3)),
    "seven taps of stride 2": convolution((1, 19, 19, 16), 16, kernel=(7, 7), strides=(2, 2)),
    "five taps of two strides": convolution((1, 9, 19, 16), 16, kernel=(1, 5), strides=(1, 2)),
    "rows apart, pixels not": convolution((1, 9, 9, 16), 16, strides=(2, 1)),
    "four taps": convolution((1, 9, 9, 16), 16, kernel=(4, 4)),
    "nine taps": convolution((1, 9, 19, 16), 16, kernel=(1, 9)),
    "groups": convolution((1, 9, 9, 32), 32, groups=2),
    "dilation": convolution((1, 19, 19, 16), 16, kernel=(5, 5), dilations=(2, 2)),
    "channels first": convolution(
        (1, 16, 9, 9), 16, kernel=(1, 5), data_layout="NCS", out_layout="NSC"
    ),
    "variable weights": convolution((1, 9, 9, 16), 16, constants=()),
    "few channels": convolution((1, 9, 9, 3), 32),
    "one column": convolution((1, 9, 1, 16), 16),
}


@pytest.mark.parametrize("name", UNFIT)
def test_other_convolutions_have_no_such_sketch(name: str) -> None:
    assert winograd_1d.space(UNFIT[name], HOST) is None


def test_a_strict_target_has_no_such_sketch() -> None:
    function = convolution((1, 7, 7, 512), 512)
    assert winograd_1d.space(function, Target(f"{ZEN5} -precision=strict")) is None


@pytest.mark.parametrize(
    ("shape", "outputs", "stride", "sketch"),
    [
        ((1, 7, 7, 512), 512, 1, "winograd_online"), ((1, 14, 14, 512), 512, 2, "winograd_1d"),
        ((1, 28, 28, 128), 128, 1, "winograd"), ((1, 3, 3, 16), 16, 1, "contraction"),
    ],
)  # fmt: skip
def test_it_is_the_default_of_few_pixels_with_many_weights(
    shape: tuple[int, ...], outputs: int, stride: int, sketch: str
) -> None:
    workload = Workload.from_function(convolution(shape, outputs, strides=(stride, stride)))
    assert config_space(workload, ZEN5).default["sketch"] == sketch


@pytest.mark.parametrize(("cpu", "tile"), [("znver4", 4), ("znver5", 2)])
def test_tiles_are_as_large_as_memory_is_fast_beside_products(cpu: str, tile: int) -> None:
    """On two cores 7² × 512 takes 18.9 MB of weights for 119 million multiply-adds by tiles of 4,
    12.6 MB for 159 million by tiles of 2; these are the default where weights come from memory."""
    function = convolution((1, 7, 7, 512), 512)
    for from_memory, wanted in ((True, tile), (False, 4)):
        target = Target(f"llvm -mcpu={cpu} -num-cores=2", weights_in_memory=from_memory)
        assert space_of(function, target).default["tile_w"] == wanted


def test_a_kernel_holds_and_executes_what_the_model_counts() -> None:
    function = convolution((1, 28, 28, 128), 128, bias=False, relu=False)
    config = configured(function, tile_w=4, rh=4, rt=7, nb=2)
    workload = Workload.from_function(function)
    program = schedule_workload(workload, HOST, config)
    columns = {name: np.array([value]) for name, value in config.items()}
    c, lanes = row_convolution_of(function), HOST.lanes("float32")
    assert c is not None
    (tiles,), (results,) = tile_bytes(c, lanes, columns), product_bytes(c, lanes, columns)
    workspace = emit_llvm(lower(program), HOST).workspace_bytes / HOST.num_cores
    assert tiles <= workspace <= tiles + results  # short buffers lie on the stack
    products = 28 * 3 * 7 * 6 * 128 * 128
    assert scheduled_operations(space_of(function), config) == 2 * products
    assert cycles(c, ZEN5, 16, columns)[0] > products / (2 * 16) / ZEN5.num_cores


def test_weights_of_columns_are_transformed_when_they_are_packed() -> None:
    function = convolution((1, 9, 8, 16), 32, ((2, 2), (0, 0)), bias=False, kernel=(5, 1))
    config = configured(function, tile_w=4, rh=1, rt=1)
    program = schedule_workload(Workload.from_function(function), HOST, config)
    layout, shape = program.layouts[1], program.params[1].shape
    weights = np.random.default_rng(0).standard_normal((5, 1, 16, 32)).astype("float32")
    across = np.array(transforms_of_rows(4, 1, 5).filter)
    wanted = np.einsum("klco,jk->jlco", weights.astype(np.float64), across).astype("float32")
    plain = pack(wanted, replace(layout, transform=""), shape)
    np.testing.assert_allclose(pack(weights, layout, shape), plain, rtol=1e-6)


@pytest.mark.parametrize("stride", [1, 2])
def test_weights_are_transformed_when_they_are_packed(stride: int) -> None:
    function = convolution((1, 8, 8, 16), 32, bias=False, strides=(stride, stride))
    config = configured(function, tile_w=4, rh=1, rt=1)
    program = schedule_workload(Workload.from_function(function), HOST, config)
    layout = program.layouts[1]
    weights = np.random.default_rng(0).standard_normal((3, 3, 16, 32)).astype("float32")
    packed = pack(weights, layout, program.params[1].shape)
    across = np.array(transforms_of_rows(4, stride).filter)
    wanted = np.einsum("klco,jl->kjco", weights.astype(np.float64), across).astype("float32")
    plain = pack(wanted, replace(layout, transform=""), packed.shape)
    np.testing.assert_allclose(packed, plain, rtol=1e-6)

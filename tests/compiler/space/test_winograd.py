"""Winograd's method: exact matrices, and kernels within their stated error of the direct sum."""

from __future__ import annotations

import re
from dataclasses import replace
from math import prod

import numpy as np
import pytest
from convolutions import WIDE, convolution, verify_configs
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import draw, parallel_loops, verify
from tunefarm.compiler.build import build_kernel
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.ir import Function
from tunefarm.compiler.packing import pack
from tunefarm.compiler.space import (
    ConfigSpace,
    config_space,
    schedule_workload,
    winograd,
    winograd_1d,
)
from tunefarm.compiler.space.winograd.convolution import convolution_of
from tunefarm.compiler.space.winograd.ends import fewer_products
from tunefarm.compiler.space.winograd.memory import (
    BY_COLUMN,
    BY_GROUP,
    held_bytes,
    shared_tiles,
)
from tunefarm.compiler.space.winograd.transforms import (
    FILTERS,
    TILES,
    continuation,
    phases,
    transforms,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

F32 = "float32"
HOST = Target.host(2)
FEW = Target("llvm -mcpu=haswell -num-cores=2")  # of 16 registers


def winograd_space(function: Function, target: Target = HOST) -> ConfigSpace:
    space = winograd.space(function, target)
    assert space is not None
    return ConfigSpace((space,))


@pytest.mark.parametrize(
    ("taps", "stride", "tile"),
    [(taps, stride, tile) for taps, stride in FILTERS for tile in TILES[taps]],
)
def test_the_matrices_compute_a_filter(taps: int, stride: int, tile: int) -> None:
    apart = phases(taps)
    t, count, step = transforms(tile, stride, taps), -(-taps // apart), stride // apart
    assert t.points == {(3, 1): tile + 2, (3, 2): 2 * tile + 1, (7, 2): tile + 3}[taps, stride]
    assert t.filters == (tile + 2 if (taps, stride) == (3, 2) else t.points)
    data, filters = np.random.default_rng(0).standard_normal((2, t.points))
    weights = np.array(t.filter) @ filters[:count]
    of_points = weights[np.minimum(np.arange(t.points), t.filters - 1)]
    result = np.array(t.result) @ (of_points * (np.array(t.data) @ data))
    wanted = np.correlate(data, filters[:count], "valid")[::step]
    np.testing.assert_allclose(result, wanted, rtol=1e-12, atol=1e-12)
    for parts in (t.data_parts, t.result_parts):
        assert sorted(k for part in parts for k in part) == list(range(t.points))


@pytest.mark.parametrize(("tile", "results"), [(2, 1), (4, 1), (4, 2), (4, 3)])
def test_few_results_need_few_products(tile: int, results: int) -> None:
    t, staying = transforms(tile), results + 2
    data, filters = np.random.default_rng(0).standard_normal((2, t.points))
    factors = continuation(tile, results, 3)
    for y in range(staying, tile + 1):
        data[y] = np.dot(factors, data[y - staying : y])
    inputs = np.array(t.data) @ data
    np.testing.assert_allclose(inputs[staying : tile + 1], 0, atol=1e-12)
    products = ((np.array(t.filter) @ filters[:3]) * inputs)[:staying]
    np.testing.assert_allclose(
        np.array(t.result)[:results, :staying] @ products,
        np.correlate(data[:staying], filters[:3], "valid"),
        rtol=1e-12, atol=1e-12,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "image", "kernel", "tile", "rows", "rw"),
    [
        (1, (26, 31), 7, (3, 3), 2, 2), (2, (19, 44), 7, (3, 2), 3, 4),
        (1, (13, 22), 3, (4, 2), 2, 3), (1, (11, 12), 3, (2, 4), 2, 3),
        (1, (17, 9), 3, (4, 4), 2, 1), (1, (31, 41), 7, (4, 4), 2, 2),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_row", [BY_GROUP, BY_COLUMN])
def test_products_of_a_register_tile_at_a_time(
    batch: int, image: tuple[int, int], kernel: int, tile: tuple[int, int], rows: int, rw: int,
    by_row: int,
) -> None:  # fmt: skip
    padding = ((kernel // 2, kernel // 2),) * 2
    strides = (2, 2) if kernel == 7 else (1, 1)
    function = convolution(
        (batch, *image, 3 if kernel == 7 else 16), 35, padding, kernel=(kernel, kernel),
        strides=strides,
    )  # fmt: skip
    knobs = {"mb": rows, "rw": rw, "nb": 1, "nv": 2, "ku": 1, "by_row": by_row, "next_panel": 1}
    if by_row == BY_COLUMN:
        knobs |= {"rw": min(rw, 2), "nv": 1, "next_panel": 0}
    space = winograd_space(function, WIDE)
    config = {**space.default, **tiled(tile), **knobs}
    assert space.valid(space.encode(config)[None])[0]
    arrays = draw(function, np.random.default_rng(2))
    assert verify(function, HOST, config, arrays) < 5e-6
    if prod(image) < 200 or tile == (3, 3):  # larger ones take the interpreter ten seconds
        verify(function, HOST, config, arrays, "interpret")


@pytest.mark.parametrize(
    ("image", "tile", "rw"),
    [
        ((14, 14), (4, 4), 12), ((14, 14), (4, 4), 6), ((7, 7), (2, 2), 12), ((13, 13), (4, 4), 3),
        ((7, 7), (4, 4), 2), ((9, 22), (4, 4), 5), ((14, 8), (4, 4), 2), ((8, 14), (4, 4), 6),
        ((14, 6), (4, 2), 3), ((3, 5), (2, 2), 4),
    ],
)  # fmt: skip
def test_the_last_tiles_take_fewer_products(
    image: tuple[int, int], tile: tuple[int, int], rw: int
) -> None:
    function = convolution((1, *image, 20), 35)
    rows = -(-image[0] // tile[0])
    knobs = {"mb": rows, "rw": rw, "nb": 1, "nv": 2, "ku": 1, "by_row": 0, "next_panel": 1}
    config = {**winograd_space(function).default, **tiled(tile), **knobs}
    c = convolution_of(function)
    assert c is not None
    assert fewer_products(c, {name: np.array([value]) for name, value in config.items()})[0]
    arrays = draw(function, np.random.default_rng(2))
    assert verify(function, HOST, config, arrays) < 3e-6
    if image[0] < 9:
        verify(function, HOST, config, arrays, "interpret")


@pytest.mark.parametrize(
    ("image", "stride", "rw"), [((7, 7), 1, 12), ((9, 5), 1, 4), ((9, 13), 2, 3)]
)
def test_cores_share_the_tiles_of_an_image(image: tuple[int, int], stride: int, rw: int) -> None:
    function = convolution((1, *image, 20), 70, strides=(stride, stride))
    rows = -(-image[0] // stride // 2)
    knobs = {"mb": rows, "rw": rw, "nb": 1, "nv": 2, "ku": 1, "by_row": 0, "next_panel": 1}
    config = {**winograd_space(function).default, **tiled((2, 2)), **knobs}
    program = schedule_workload(Workload.from_function(function), HOST, config)
    assert len(parallel_loops(program)) == 2
    arrays = draw(function, np.random.default_rng(4))
    for run in ("execute", "interpret"):
        verify(function, HOST, config, arrays, run)


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 2), st.integers(2, 14), st.integers(2, 14), st.integers(16, 40),
    st.integers(16, 40), st.tuples(*[st.integers(0, 2)] * 4), st.booleans(), st.booleans(),
    st.booleans(), st.sampled_from((1, 2)), st.integers(0, 9999),
)  # fmt: skip
def test_odd_shapes_under_random_configs(
    n: int, h: int, w: int, c: int, o: int, pads: tuple[int, int, int, int], bias: bool,
    residual: bool, relu: bool, stride: int, seed: int,
) -> None:  # fmt: skip
    top, bottom, left, right = pads
    # Two rows and columns of results at least: the sketch leaves fewer to the direct sum.
    h, w = max(h, 3 + stride - top - bottom), max(w, 3 + stride - left - right)
    function = convolution(
        (n, h, w, c), o, ((top, bottom), (left, right)), bias, residual, relu,
        strides=(stride, stride),
    )  # fmt: skip
    verify_configs(function, HOST, winograd_space(function), seed)


@settings(max_examples=8, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 2), st.integers(3, 29), st.integers(3, 29), st.integers(2, 5),
    st.integers(16, 40), st.tuples(*[st.integers(0, 4)] * 4), st.booleans(), st.booleans(),
    st.booleans(), st.integers(0, 9999),
)  # fmt: skip
def test_seven_taps_of_stride_2_under_random_configs(
    n: int, h: int, w: int, c: int, o: int, pads: tuple[int, int, int, int], bias: bool,
    residual: bool, channels_last: bool, seed: int,
) -> None:  # fmt: skip
    top, bottom, left, right = pads
    h, w = max(h, 9 - top - bottom), max(w, 9 - left - right)
    function = convolution(
        (n, h, w, c) if channels_last else (n, c, h, w), o, ((top, bottom), (left, right)), bias,
        residual, kernel=(7, 7), strides=(2, 2), data_layout="NSC" if channels_last else "NCS",
        out_layout="NSC",
    )  # fmt: skip
    verify_configs(function, HOST, winograd_space(function), seed)


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 2), st.integers(2, 14), st.integers(2, 14), st.integers(2, 4),
    st.integers(16, 40), st.integers(16, 40), st.booleans(), st.booleans(),
    st.sampled_from((1, 2)), st.integers(0, 9999),
)  # fmt: skip
def test_groups_under_random_configs(
    n: int, h: int, w: int, groups: int, c: int, o: int, bias: bool, residual: bool, stride: int,
    seed: int,
) -> None:  # fmt: skip
    size = (max(h, 1 + stride), max(w, 1 + stride))
    function = convolution(
        (n, *size, groups * c), groups * o, bias=bias, residual=residual,
        strides=(stride, stride), groups=groups,
    )  # fmt: skip
    verify_configs(function, HOST, winograd_space(function), seed)


@pytest.mark.parametrize("groups", [1, 3])
def test_a_block_whose_products_reach_over_every_tile_has_them_all(groups: int) -> None:
    """Blocks of nine tiles by fours in sixteen registers: the last one's were not transformed."""
    function = convolution((1, 10, 8, 18 * groups), 23 * groups, ((0, 0), (2, 1)), groups=groups)
    config = {**winograd_space(function, FEW).default, **tiled((2, 4)), "mb": 3, "nb": 1, "rw": 4}
    config |= {"nv": 2, "ku": 2, "by_row": 0, "next_panel": 0}
    assert verify(function, FEW, config, draw(function, np.random.default_rng(2))) < 5e-6


@pytest.mark.parametrize("shape", [(5, 3, 32, 38), (14, 14, 72, 48)])
def test_the_interpreter_agrees_of_groups(shape: tuple[int, int, int, int]) -> None:
    *image, inputs, outputs = shape
    function = convolution((1, *image, inputs), outputs, residual=True, groups=2)
    config = {**winograd_space(function).default, **tiled((2, 4)), "mb": 1, "rw": 1, "by_row": 0}
    verify(function, HOST, config, draw(function, np.random.default_rng(3)), "interpret")


@pytest.mark.parametrize(("channels", "groups"), [(288, 18), (96, 4), (512, 2)])
@pytest.mark.parametrize("cores", [1, 2])
def test_groups_that_fill_vectors_are_made_so(channels: int, groups: int, cores: int) -> None:
    """RegNet's and ResNeSt's: 0.3 to 0.6 × the time of the direct sum (Zen 5)."""
    function = convolution((1, 14, 14, channels), channels, groups=groups)
    target = Target(f"llvm -mcpu=znver5 -num-cores={cores}")
    default = config_space(Workload.from_function(function), target).default
    assert default["sketch"] == "winograd"
    # The tiles that a block holds are those of one group.
    program = schedule_workload(Workload.from_function(function), target, default)
    held = re.search(r"allocate tile_in: float32\[[\d, ]*, (\d+)\] ", str(lower(program)))
    assert held is not None
    assert int(held[1]) <= -(-channels // groups // 16) * 16 + 16


@pytest.mark.parametrize(("tile", "stride"), [((2, 2), 1), ((4, 2), 1), ((2, 4), 2)])
def test_the_interpreter_agrees(tile: tuple[int, int], stride: int) -> None:
    function = convolution((1, 5, 3, 16), 19, residual=True, strides=(stride, stride))
    rng = np.random.default_rng(3)
    config = {**winograd_space(function).default, **tiled(tile), "mb": 1, "rw": 1, "by_row": 0}
    verify(function, HOST, config, draw(function, rng), "interpret")


def tiled(tile: tuple[int, int]) -> dict[str, int]:
    return {"tile_h": tile[0], "tile_w": tile[1]}


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("tile", "error"), [((2, 2), 2e-6), ((2, 4), 4e-6), ((4, 4), 5e-6)])
def test_the_error_is_as_stated(tile: tuple[int, int], error: float, stride: int) -> None:
    size = 14 * stride
    function = convolution(
        (1, size, size, 256), 64, bias=False, relu=False, strides=(stride, stride)
    )
    space = winograd_space(function)
    rows = space.sample(np.random.default_rng(1), 500)
    configs = [space.decode(r) for r in rows[space.valid(rows)]]
    config = next(c for c in configs if tiled(tile).items() <= dict(c).items())
    assert verify(function, HOST, config, draw(function, np.random.default_rng(2))) < error


@pytest.mark.parametrize(("tile", "error"), [((2, 2), 2e-6), ((3, 3), 2e-6), ((4, 4), 4e-6)])
def test_the_error_of_seven_taps_is_as_stated(tile: tuple[int, int], error: float) -> None:
    function = convolution(
        (1, 3, 48, 48), 64, ((3, 3), (3, 3)), bias=False, relu=False, kernel=(7, 7), strides=(2, 2),
        data_layout="NCS", out_layout="NSC",
    )  # fmt: skip
    config = {**winograd_space(function).default, **tiled(tile), "mb": 1, "rw": 4}
    assert verify(function, HOST, config, draw(function, np.random.default_rng(2))) < error


UNFIT = {
    "stride 3": convolution((1, 9, 9, 16), 16, strides=(3, 3)),
    "two strides": convolution((1, 9, 9, 16), 16, strides=(1, 2)),
    "dilation": convolution((1, 9, 9, 16), 16, dilations=(2, 2)),
    "groups of few": convolution((1, 9, 9, 32), 32, groups=4),
    "groups of seven taps": convolution(
        (1, 19, 19, 32), 32, kernel=(7, 7), strides=(2, 2), groups=2
    ),
    "seven taps of stride 1": convolution((1, 19, 19, 16), 16, kernel=(7, 7)),
    "channels first": convolution((1, 16, 9, 9), 16, data_layout="NCS", out_layout="NSC"),
    "five taps": convolution((1, 9, 9, 16), 16, kernel=(5, 5)),
    "variable weights": convolution((1, 9, 9, 16), 16, constants=()),
    "few channels": convolution((1, 9, 9, 3), 32),
    "one row": convolution((1, 1, 9, 16), 16),
    "double": convolution((1, 9, 9, 16), 16, dtype="float64"),
}


@pytest.mark.parametrize("name", UNFIT)
def test_other_convolutions_have_no_such_sketch(name: str) -> None:
    assert winograd.space(UNFIT[name], HOST) is None
    assert config_space(Workload.from_function(UNFIT[name]), HOST).default["sketch"] != "winograd"


def test_it_is_the_default_where_it_saves_enough() -> None:
    large = config_space(Workload.from_function(convolution((1, 28, 28, 128), 128)), HOST)
    small = config_space(Workload.from_function(convolution((1, 3, 3, 16), 16)), HOST)
    assert large.default["sketch"] == "winograd"
    assert small.default["sketch"] == "contraction"
    methods = {"winograd", "winograd_1d", "winograd_online"}
    assert {s.sketch for s in small.sketches} == {*methods, "contraction"}


@pytest.mark.parametrize(
    ("target", "sketch"),
    [
        ("znver5 -num-cores=1", "winograd"),
        ("znver5 -num-cores=2", "winograd_1d"),
        ("emeraldrapids -num-cores=1", "winograd_1d"),
    ],
)
def test_weights_decide_at_512_channels_by_how_fast_they_come(target: str, sketch: str) -> None:
    function = convolution((1, 7, 7, 512), 512)
    cold = Target(f"llvm -mcpu={target}", weights_in_memory=True)
    tiles, rows = winograd.space(function, cold), winograd_1d.space(function, cold)
    assert tiles is not None
    assert rows is not None
    assert rows.preferred == (sketch == "winograd_1d")
    # many hints at once would hold up the loads
    assert max(tiles.default["ku"], rows.default["ku"]) <= 2


@pytest.mark.parametrize("from_memory", [False, True])
def test_cores_on_a_mesh_have_tiles_of_their_own(from_memory: bool) -> None:
    """Tiles that two cores of an Emerald Rapids share take 1.8 × the time."""
    workload = Workload.from_function(convolution((1, 28, 28, 128), 128))
    function = convolution_of(workload.function)
    assert function is not None
    for mcpu, are_shared in (("emeraldrapids", False), ("znver5", True)):
        target = Target(f"llvm -mcpu={mcpu} -num-cores=2")
        default = config_space(workload, target, from_memory).default
        k = {name: np.array([value]) for name, value in default.items() if name != "sketch"}
        assert shared_tiles(function, target, 16, k) == are_shared


@pytest.mark.parametrize("cores", [1, 2])
def test_a_mesh_asks_for_the_next_tiles_rows(cores: int) -> None:
    """Seven by four tiles of a point, fourteen at a time: rows of 64 terms and a vector of padding,
    five lines each, in 64 steps."""
    workload = Workload.from_function(convolution((1, 14, 14, 64), 64))
    knobs = {"tile_h": 2, "tile_w": 4, "mb": 7, "nb": 1, "rw": 14, "nv": 2, "ku": 1, "by_row": 0}
    asked = {}
    for mcpu in ("emeraldrapids", "znver5"):
        target = Target(f"llvm -mcpu={mcpu} -num-cores={cores}")
        config = {"sketch": "winograd", **knobs, "next_panel": 1}
        program = schedule_workload(workload, target, config)
        asked[mcpu] = re.findall(r"prefetch (\d lines?) into L1 at (\w+)", str(lower(program)))
    assert asked["znver5"] == [("1 line", "p1")]
    assert asked["emeraldrapids"] == [("2 lines", "tile_in"), ("1 line", "p1")]


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("from_memory", [False, True])
def test_sixteen_registers_take_tiles_of_longer_steps(cores: int, from_memory: bool) -> None:
    """7² × 512 along rows took 1.16 × the time, by tiles of two terms 1.2 (Zen 3); with 256 inputs
    tiles of 4 × 4, whose weights half of the third level does not keep, took 1.8."""
    target = Target(f"llvm -mcpu=znver3 -num-cores={cores}")
    for channels in (512, 256):
        workload = Workload.from_function(convolution((1, 7, 7, channels), 512))
        default = config_space(workload, target, from_memory).default
        assert (default["sketch"], default["ku"]) == ("winograd", 4)
        assert int(default["tile_h"]) * int(default["tile_w"]) < 16
    deep = Workload.from_function(convolution((1, 14, 14, 512), 512, strides=(2, 2)))
    assert config_space(deep, target, from_memory).default["sketch"] == "winograd_1d"


def test_cores_together_hold_little_of_the_first_layer() -> None:
    """A run of a ResNet on two cores needs it beside the result, its largest tensor."""
    function = convolution(
        (1, 3, 224, 224), 64, ((3, 3), (3, 3)), kernel=(7, 7), strides=(2, 2),
        data_layout="NCS", out_layout="NSC",
    )  # fmt: skip
    workload = Workload.from_function(function)
    one, two = (
        config_space(workload, Target(f"llvm -mcpu=znver5 -num-cores={n}")).default for n in (1, 2)
    )
    assert (one["by_row"], two["by_row"]) == (BY_GROUP, BY_GROUP)
    target = Target("llvm -mcpu=znver5 -num-cores=2")
    assert build_kernel(workload, target, two).workspace_bytes < 3 << 18


@pytest.mark.parametrize(
    ("mcpu", "size", "by_row", "group"),
    [
        ("znver4", 224, BY_COLUMN, (4, 1)),  # loads take less time than multiply-adds
        ("znver4", 512, BY_COLUMN, (4, 1)),
        ("znver4", 192, BY_COLUMN, (4, 1)),
        ("znver5", 224, BY_GROUP, (4, 2)),  # they would take more
        ("haswell", 224, 0, (6, 2)),
    ],
)
def test_products_stay_in_registers_where_loads_are_fast(
    mcpu: str, size: int, by_row: int, group: tuple[int, int]
) -> None:
    function = convolution(
        (1, 3, size, size), 64, ((3, 3), (3, 3)), kernel=(7, 7), strides=(2, 2),
        data_layout="NCS", out_layout="NSC",
    )  # fmt: skip
    target = Target(f"llvm -mcpu={mcpu} -num-cores=1")
    default = config_space(Workload.from_function(function), target).default
    assert (default["by_row"], (default["rw"], default["nv"])) == (by_row, group)


@pytest.mark.parametrize(
    ("size", "inputs", "outputs", "grouped"),
    [
        (28, 17, 16, True),
        (28, 48, 16, True),
        (28, 49, 16, False),  # more than three vectors of terms
        (14, 17, 16, True),  # four tiles of a row, in registers
        (14, 16, 16, True),
        (28, 17, 32, False),  # two vectors of outputs
        (28, 16, 32, False),  # five tiles of a row's seven fit, and two are left
        (56, 16, 32, True),  # three register tiles of 14, as without groups
    ],
)
def test_one_panel_of_short_sums_is_made_a_register_tile_at_a_time(
    size: int, inputs: int, outputs: int, grouped: bool
) -> None:
    function = convolution((1, size, size, inputs), outputs)
    target = Target("llvm -mcpu=znver4 -num-cores=1")
    default = config_space(Workload.from_function(function), target).default
    assert default["sketch"] == "winograd"
    assert (int(default["by_row"]) >= BY_GROUP) is grouped


@pytest.mark.parametrize(("outputs", "short"), [(24, True), (40, True), (28, False), (32, False)])
def test_a_short_last_vector_is_worth_a_smaller_tile_where_it_is_faster(
    outputs: int, short: bool
) -> None:
    """0.9 × the time of 56² on one core of a Zen 4."""
    workload = Workload.from_function(convolution((1, 56, 56, 24), outputs))
    vectors = {}
    for cpu in ("znver4", "znver5"):
        default = config_space(workload, Target(f"llvm -mcpu={cpu} -num-cores=1")).default
        vectors[cpu] = int(default["rw"]) * int(default["nv"])
    assert (vectors["znver4"] <= 16) is short
    assert vectors["znver5"] > 16


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("outputs", [16, 112, 160, 176, 240, 320, 768])
@pytest.mark.parametrize("size", [30, 56, 112])
def test_the_default_of_short_sums_is_one_of_the_space(size: int, outputs: int, cores: int) -> None:
    function = convolution((1, size, size, 16), outputs)
    target = Target(f"llvm -mcpu=znver4 -num-cores={cores}")
    space = config_space(Workload.from_function(function), target)
    assert space.valid(space.encode(space.default)[None])[0]


def test_a_panel_of_short_sums_and_few_lanes() -> None:
    function = convolution((1, 28, 28, 17), 16)
    arrays = draw(function, np.random.default_rng(4))
    default = winograd_space(function).default
    assert verify(function, HOST, {**default, "by_row": BY_GROUP, "rw": 7}, arrays) < 5e-6


@pytest.mark.parametrize(
    ("kernel", "stride", "image", "tile"),
    [
        (3, 1, (14, 14), (4, 4)), (3, 1, (17, 11), (2, 4)), (3, 1, (9, 13), (4, 4)),
        (3, 2, (15, 18), (2, 4)), (3, 2, (11, 9), (4, 2)), (7, 2, (19, 22), (4, 4)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("by_row", [0, 1])
def test_few_registers_take_transforms_in_loops(
    kernel: int, stride: int, image: tuple[int, int], tile: tuple[int, int], by_row: int
) -> None:
    function = convolution(
        (1, *image, 12), 19, ((kernel // 2, kernel // 2),) * 2, True, True, True,
        kernel=(kernel, kernel), strides=(stride, stride),
    )  # fmt: skip
    space = winograd_space(function, FEW)
    config = {**space.default, **tiled(tile), "mb": 2, "rw": 3, "nv": 2, "by_row": by_row}
    assert space.valid(space.encode(config)[None])[0]
    workload = Workload.from_function(function)
    text = str(schedule_workload(workload, FEW, config))
    assert re.search("allocate rows_in: .* in local", text)
    assert re.search("allocate rows_out: .* in local", text)
    assert verify(function, FEW, config, draw(function, np.random.default_rng(2))) < 5e-6


def test_a_small_tile_fits_few_registers() -> None:
    """The 16 points of 2 × 2 results: its transforms are unrolled."""
    function = convolution((1, 14, 14, 16), 16)
    config = {**winograd_space(function, FEW).default, **tiled((2, 2))}
    text = str(schedule_workload(Workload.from_function(function), FEW, config))
    assert re.search("allocate rows_in: .* in register", text)


@pytest.mark.parametrize("by_row", [0, 1])
@pytest.mark.parametrize("target", [FEW, WIDE], ids=["few registers", "many"])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_kernel_holds_what_the_model_counts(target: Target, by_row: int, groups: int) -> None:
    function = convolution((1, 28, 28, 128), 128, groups=groups)
    config = {"tile_h": 2, "tile_w": 4, "mb": 5, "nb": 2, "rw": 6, "nv": 2, "by_row": by_row}
    config |= {"ku": 2, "next_panel": 0}
    workload = Workload.from_function(function)
    program = schedule_workload(workload, target, {"sketch": "winograd", **config})
    columns = {name: np.array([value]) for name, value in config.items()}
    c = convolution_of(function, every=True)
    assert c is not None
    (held,) = held_bytes(c, target, target.lanes(F32), columns)
    workspace = emit_llvm(lower(program), target).workspace_bytes
    assert workspace == pytest.approx(held * target.num_cores, rel=0.04)


@pytest.mark.parametrize("by_row", [0, 1])
@pytest.mark.parametrize("size", [(24, 56), (27, 53)])
def test_the_last_register_tile_of_a_block_is_short(size: tuple[int, int], by_row: int) -> None:
    """14 tiles by fives are 5, 5 and 4, and no tile of the next block is transformed for this."""
    function = convolution((1, *size, 8), 16)
    config = {**winograd_space(function, FEW).default, **tiled((4, 4)), "by_row": by_row}
    config |= {"mb": 1, "rw": 5, "nv": 2, "nb": 1}
    workload = Workload.from_function(function)
    lowered = lower(schedule_workload(workload, FEW, config))
    transformed = re.search(r"allocate tile_in: float32\[6, 6, (\d+), ", str(lowered))
    assert transformed is not None
    assert int(transformed[1]) <= 15
    assert verify(function, FEW, config, draw(function, np.random.default_rng(2))) < 5e-6


def test_blocks_that_end_inside_an_image_of_several_hold_the_phases_of_all() -> None:
    """So a task's default has none: of four images of 224² they took four times the time."""
    function = convolution(
        (4, 3, 224, 224), 64, ((3, 3), (3, 3)), kernel=(7, 7), strides=(2, 2),
        data_layout="NCS", out_layout="NSC",
    )  # fmt: skip
    one, c = Target("llvm -mcpu=znver5 -num-cores=1"), convolution_of(function)
    assert c is not None
    default = winograd_space(function, one).default
    for rows in (2, 3):  # of 38 of an image
        config = {**default, "mb": rows}
        columns = {n: np.array([v]) for n, v in config.items() if n != "sketch"}
        (held,) = held_bytes(c, one, one.lanes(F32), columns)
        program = schedule_workload(Workload.from_function(function), one, config)
        workspace = emit_llvm(lower(program), one).workspace_bytes
        assert workspace == pytest.approx(held, rel=0.04)
    assert default["mb"] == 2


def test_a_strict_target_has_no_such_sketch() -> None:
    strict = Target(f"{HOST} -precision=strict")
    workload = Workload.from_function(convolution((1, 28, 28, 128), 128))
    assert [s.sketch for s in config_space(workload, strict).sketches] == ["contraction"]


def test_padding_that_is_not_zero_is_left_to_others() -> None:
    function = convolution((1, 28, 28, 128), 128, pad_value=1.0)
    assert winograd.space(function, HOST) is None
    assert winograd_1d.space(function, HOST) is None


def test_weights_are_transformed_when_they_are_packed() -> None:
    function = convolution((1, 8, 8, 16), 32, bias=False)
    config = {**winograd_space(function).default, **tiled((2, 4))}
    program = schedule_workload(Workload.from_function(function), HOST, config)
    layout = program.layouts[1]
    weights = np.random.default_rng(0).standard_normal((3, 3, 16, 32)).astype(F32)
    packed = pack(weights, layout, program.params[1].shape)
    above, across = (np.array(transforms(tile).filter) for tile in (2, 4))
    wanted = np.einsum("ik,klco,jl->ijco", above, weights.astype(np.float64), across).astype(F32)
    plain = pack(wanted, replace(layout, transform=""), packed.shape)
    np.testing.assert_allclose(packed, plain, rtol=1e-6)

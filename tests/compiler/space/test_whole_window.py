"""Depthwise convolutions whose taps are all unrolled agree with NumPy."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import check, parallel_loops
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space, contraction
from tunefarm.compiler.space.config import Config
from tunefarm.compiler.space.contraction.shape import PANELS_INSIDE
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.ir import Allocate
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.visit import walk_stmt
from tunefarm.compiler.workload import Workload

HOST = Target.host(2)
ZEN4 = Target("llvm -mcpu=znver4 -num-cores=1")
ZEN4_2 = Target("llvm -mcpu=znver4 -num-cores=2")
ZEN5 = Target("llvm -mcpu=znver5 -num-cores=1")
SAME = ((1, 1), (1, 1))


def depthwise(size: tuple[int, int], channels: int, taps: tuple[int, int] = (3, 3),
              behind: str = "relu", **attrs: Any) -> Function:  # fmt: skip
    x = Var("x", TensorType((1, *size, channels), "float32"))
    weights = Var("w", TensorType((*taps, 1, channels), "float32"))
    body = call("conv", x, weights, groups=channels, data_layout="NSC", kernel_layout="SIO",
                **({"padding": SAME} | attrs))  # fmt: skip
    return Function((x, weights), call(behind, body), {"primitive": True, "constants": (1,)})


@settings(max_examples=12, deadline=None, derandomize=True, database=None)
@given(
    st.tuples(st.integers(3, 17), st.integers(3, 17)), st.integers(2, 40),
    st.sampled_from([(3, 3), (2, 5), (5, 3)]), st.sampled_from([(1, 1), (2, 2), (1, 2)]),
    st.tuples(*[st.integers(0, 3)] * 4), st.integers(0, 9999),
)  # fmt: skip
def test_random_tiles_of_whole_windows(
    size: tuple[int, int], channels: int, taps: tuple[int, int], strides: tuple[int, int],
    pads: tuple[int, int, int, int], seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    padding = ((pads[0] + 1, pads[1]), (pads[2] + 1, pads[3]))
    function = depthwise(size, channels, taps, padding=padding, strides=strides)
    space = contraction.space(function, HOST)
    assert space is not None
    drawn = {knob.name: rng.choice(np.array(knob.choices), 4000) for knob in space.knobs}
    drawn["ku"][:] = taps[0] * taps[1]
    allowed = np.all([c.holds(drawn) for c in space.constraints], axis=0)
    arrays = [rng.integers(-3, 4, p.type.shape).astype("float32") for p in function.params]
    for row in np.flatnonzero(allowed)[:2]:
        config = {name: values[row].item() for name, values in drawn.items()}
        config["sketch"] = "contraction"
        check(Workload.from_function(function), HOST, config, arrays, "execute")


@pytest.mark.parametrize(("size", "channels", "stride", "tile"), [
    ((11, 9), 17, 2, (2, 2, 2)),  # a last row and a last column of their own
    ((14, 15), 31, 2, (2, 7, 2)),
    ((13, 8), 40, 1, (1, 7, 2)),  # a last panel of half a vector
    ((9, 9), 5, 2, (4, 4, 1)),
])  # fmt: skip
@pytest.mark.parametrize("blocks", [1, 3])
def test_tiles_finish_a_row_before_the_next(
    size: tuple[int, int], channels: int, stride: int, tile: tuple[int, int, int], blocks: int
) -> None:
    """The sums of one row are in registers, and results agree with NumPy."""
    function = depthwise(size, channels, strides=(stride, stride))
    space = contraction.space(function, ZEN4)
    assert space is not None
    config = space.default | dict(zip(("rw", "rh", "nv"), tile, strict=True))
    config |= {"ku": 9, "mb": blocks, "nb": 1}
    wide, _, vectors = tile
    lanes = 16 if channels > 8 else 8
    assert register_sums(function, config) == {wide * vectors * lanes}
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, p.type.shape).astype("float32") for p in function.params]
    check(Workload.from_function(function), ZEN4, config, arrays, "interpret")


def test_tiles_of_few_sums_keep_all() -> None:
    """Seven sums of one vector: more of one row would not cover the latency of multiply-adds."""
    function = depthwise((14, 14), 17)
    config = contraction_default(function, ZEN4) | {"rw": 1, "rh": 7, "nv": 1, "ku": 9}
    assert register_sums(function, config) == {7 * 16}


@pytest.mark.parametrize(("size", "channels", "tile"), [
    (28, 17, (2, 2, 2)),
    (14, 22, (7, 1, 2)),  # seven rows
    (112, 30, (1, 7, 2)),  # 1.9 MB: vectors side by side share the lines that they cross
    (28, 24, (7, 1, 2)),  # half of all loads meet one line
    (28, 16, (14, 1, 1)),
])  # fmt: skip
def test_pixels_two_apart_that_cross_lines_run_row_by_row(
    size: int, channels: int, tile: tuple[int, int, int]
) -> None:
    default = contraction_default(depthwise((size, size), channels, strides=(2, 2)), ZEN4)
    assert tuple(default[n] for n in ("rw", "rh", "nv")) == tile


@pytest.mark.parametrize(("size", "channels"), [(28, 17), (28, 24), (56, 31)])
@pytest.mark.parametrize("cores", [1, 2])
def test_two_columns_go_down_the_image_on_a_mesh(size: int, channels: int, cores: int) -> None:
    """Seven rows take 0.85 to 0.97 × the time of two (Emerald Rapids), cores as many each."""
    target = Target(f"llvm -mcpu=emeraldrapids -mattr=-amx-tile -num-cores={cores}")
    default = contraction_default(depthwise((size, size), channels, strides=(2, 2)), target)
    assert [default[n] for n in ("rw", "rh", "nv")] == [2, 7, 2]


def test_windows_beyond_both_ends_have_more_bodies() -> None:
    """The last of 55 rows is read beside padding, of 56 beside another: 24 KB of code for 11."""
    target = Target("llvm -mcpu=emeraldrapids -mattr=-amx-tile -num-cores=1")
    odd, even = (
        contraction_default(depthwise((size, size), 17, strides=(2, 2)), target)["rh"]
        for size in (55, 56)
    )
    assert (odd, even) == (4, 7)


def test_many_cores_of_a_mesh_share_small_tiles() -> None:
    target = Target("llvm -mcpu=emeraldrapids -mattr=-amx-tile -num-cores=8")
    default = contraction_default(depthwise((28, 28), 17, strides=(2, 2)), target)
    assert [default[n] for n in ("rw", "rh", "nv")] == [2, 2, 2]


def test_blocks_have_all_their_rows_where_tiles_run_row_by_row() -> None:
    """56² by blocks of 12 and 2 tiles took 1.4 × the time of blocks of 14."""
    for cores in (1, 2, 3):
        target = Target(f"llvm -mcpu=znver4 -num-cores={cores}")
        default = contraction_default(depthwise((56, 56), 31, strides=(2, 2)), target)
        tiles = 28 // int(default["rh"])
        assert tiles % int(default["mb"]) == 0 or int(default["mb"]) > tiles


def register_sums(function: Function, config: Config) -> set[int]:
    """The elements of the tiles of registers that a kernel has."""
    program = lower(contraction.schedule(function, ZEN4, config))
    tiles = [s.buffer for s in walk_stmt(program.body) if isinstance(s, Allocate)]
    return {prod(b.shape) for b in tiles if b.scope == "register"}


def contraction_default(function: Function, target: Target) -> Config:
    space = contraction.space(function, target)
    assert space is not None
    return space.default


@pytest.mark.parametrize(("size", "channels", "stride", "tile"), [
    (112, 48, 1, (1, 7, 1)),  # 4.8 MB of images
    (28, 192, 2, (7, 1, 2)),
])  # fmt: skip
def test_tiles_are_tall_where_images_exceed_the_second_cache(
    size: int, channels: int, stride: int, tile: tuple[int, int, int]
) -> None:
    function = depthwise((size, size), channels, strides=(stride, stride))
    default = config_space(Workload.from_function(function), ZEN5).default
    assert tuple(default[n] for n in ("rw", "rh", "nv")) == tile
    assert default["ku"] == 9


@pytest.mark.parametrize(("size", "channels", "stride", "taps", "tile"), [
    (7, 1024, 1, 3, (3, 1, 4)), (14, 512, 1, 3, (3, 2, 2)), (28, 256, 1, 3, (2, 2, 2)),
    (14, 768, 1, 3, (7, 2, 1)),  # every other row
    (14, 512, 2, 3, (7, 1, 2)), (56, 128, 2, 3, (2, 2, 2)), (14, 512, 1, 5, (7, 1, 2)),
])  # fmt: skip
def test_tiles_take_all_panels_in_turn_where_loads_would_wait_for_stores(
    size: int, channels: int, stride: int, taps: int, tile: tuple[int, int, int]
) -> None:
    """By panels, 7² × 1024 takes 35 µs instead of 11.5 on a Zen 4, 14² × 512 37 instead of 16.

    Two at a time and all rows, where the second level keeps image and results; else all.
    """
    pad = taps // 2
    function = depthwise(
        (size, size), channels, (taps, taps), padding=((pad, pad), (pad, pad)),
        strides=(stride, stride),
    )  # fmt: skip
    space = contraction.space(function, ZEN4)
    assert space is not None
    default = space.default
    assert default["order"] == PANELS_INSIDE
    assert tuple(default[n] for n in ("rw", "rh", "nv")) == tile
    results = -(-size // stride)
    if 4 * channels * (size**2 + results**2) <= ZEN4.l2_bytes:
        assert default["nb"] == 2
        assert int(default["mb"]) * int(default["rh"]) >= results
    else:
        assert int(default["nv"]) * int(default["nb"]) * 16 >= channels


@pytest.mark.parametrize(("size", "channels", "inside"), [
    (7, 1024, True), (7, 960, False), (14, 512, True), (14, 576, False), (33, 32, True),
    (7, 512, True), (7, 640, False),
])  # fmt: skip
def test_tiles_take_a_panel_at_a_time_elsewhere(size: int, channels: int, inside: bool) -> None:
    space = contraction.space(depthwise((size, size), channels), ZEN4)
    assert space is not None
    assert space.default["order"] == (PANELS_INSIDE if inside else "mn")


@pytest.mark.parametrize(("size", "channels", "stride", "tile", "order"), [
    (7, 960, 1, (2, 2, 2), "mn"), (14, 384, 1, (3, 2, 2), "mn"),  # the second level keeps all
    (14, 576, 2, (2, 2, 2), "mn"),
    (14, 576, 1, (1, 7, 1), "mn"), (28, 240, 1, (1, 7, 1), "mn"),
    (28, 240, 2, (7, 1, 2), "mn"), (56, 128, 2, (7, 1, 2), "mn"),
    (112, 96, 2, (1, 7, 1), "mn"),
    (28, 256, 1, (7, 1, 2), "mn"), (14, 768, 1, (7, 1, 2), "mn"),  # pixels a KiB apart
    (56, 128, 1, (2, 4, 1), PANELS_INSIDE),  # rows meet
    (112, 32, 1, (1, 7, 1), PANELS_INSIDE),  # every other one does
    (112, 96, 1, (1, 7, 1), PANELS_INSIDE),
    (7, 1024, 1, (3, 1, 4), PANELS_INSIDE), (14, 512, 1, (3, 2, 2), PANELS_INSIDE),
    (14, 512, 2, (3, 1, 4), PANELS_INSIDE), (28, 256, 2, (3, 2, 2), PANELS_INSIDE),
    (14, 1024, 1, (2, 2, 4), "mn"),  # and more than the second level keeps
])  # fmt: skip
def test_where_multiply_adds_outrun_lines(
    size: int, channels: int, stride: int, tile: tuple[int, int, int], order: str
) -> None:
    """By the model of a Zen 4 these layers take 1.15 × the time in the mean of 31."""
    default = contraction_default(depthwise((size, size), channels, strides=(stride,) * 2), ZEN5)
    assert (tuple(default[n] for n in ("rw", "rh", "nv")), default["order"]) == (tile, order)


@pytest.mark.parametrize("channels", [64, 512])
def test_gelu_finds_registers_beside_sums(channels: int) -> None:
    for behind, vectors in (("relu", 3 * 2 * 2), ("silu", 3 * 2 * 2), ("gelu", 2 * 2 * 2)):
        chosen = contraction_default(depthwise((28, 28), channels, behind=behind), ZEN5)
        assert prod(int(chosen[name]) for name in ("rw", "rh", "nv")) == vectors, behind
    on_others = [
        contraction_default(depthwise((28, 28), channels, behind=behind), ZEN4)
        for behind in ("relu", "gelu")
    ]
    assert on_others[0] == on_others[1], "not timed there"


@pytest.mark.parametrize(("size", "channels", "stride", "tile"), [
    (28, 120, 1, (2, 7, 1)), (56, 72, 1, (2, 7, 1)), (28, 40, 2, (2, 4, 1)), (56, 33, 2, (2, 4, 1)),
    (14, 200, 1, (1, 7, 1)), (28, 300, 1, (1, 7, 1)),  # a tile exceeds half of the first level
])  # fmt: skip
def test_tiles_take_all_lines_that_pixels_share(
    size: int, channels: int, stride: int, tile: tuple[int, int, int]
) -> None:
    """28² × 120 by panels on each of two cores takes 2.1 × the time: they write the same lines."""
    function = depthwise((size, size), channels, strides=(stride, stride))
    default = contraction_default(function, ZEN5)
    assert tuple(default[n] for n in ("rw", "rh", "nv")) == tile
    assert default["order"] == (PANELS_INSIDE if tile[0] == 2 else "mn")
    two = contraction_default(function, Target("llvm -mcpu=znver5 -num-cores=2"))
    assert two["order"] == ("mn" if size == 14 else PANELS_INSIDE)  # the second level holds it
    assert int(two["nb"]) * int(two["nv"]) * 16 >= channels
    assert int(two["mb"]) * int(two["rh"]) < -(-size // stride)  # of one core


@pytest.mark.parametrize("cores", [4, 8, 16])
@pytest.mark.parametrize(("size", "channels"), [(28, 120), (14, 200), (7, 1000)])
def test_every_core_has_rows_of_pixels_that_share_lines(
    size: int, channels: int, cores: int
) -> None:
    target = Target(f"llvm -mcpu=znver5 -num-cores={cores}")
    default = contraction_default(depthwise((size, size), channels), target)
    d = {name: int(default[name]) for name in ("rh", "mb", "nv", "nb")}
    rows = -(-size // (d["rh"] * d["mb"]))
    panels = -(-channels // (16 * d["nv"] * d["nb"]))
    assert rows * panels >= min(cores, size)
    if cores <= 4:
        assert (rows, panels) == (4, 1)


@pytest.mark.parametrize(("channels", "shared"), [(16, False), (17, True), (24, True)])
def test_short_windows_whose_loads_meet_two_lines_are_shared(channels: int, shared: bool) -> None:
    target = Target("llvm -mcpu=znver5 -num-cores=2")
    function = depthwise((28, 28), channels, strides=(2, 2))
    config = contraction_default(function, target)
    program = lower(contraction.schedule(function, target, config))
    assert bool(parallel_loops(program)) == shared


@pytest.mark.parametrize(("size", "channels", "taps", "ku"), [
    (56, 24, 3, 9),
    (28, 24, 3, 3),
    (112, 17, 5, 5),  # of 25 taps the code would be five times as long
])  # fmt: skip
def test_rows_of_large_images_have_all_taps_at_once(
    size: int, channels: int, taps: int, ku: int
) -> None:
    """56² × 24 takes 0.85 × the time of a column of taps after the other, 28² × 24 1.0 ×."""
    pad = taps // 2
    function = depthwise((size, size), channels, (taps, taps), padding=((pad, pad), (pad, pad)))
    default = config_space(Workload.from_function(function), ZEN5).default
    assert (default["sketch"], default["ku"]) == ("image_rows", ku)


@pytest.mark.parametrize("target", [ZEN4, ZEN5])
def test_rows_apart_are_no_pixels_apart(target: Target) -> None:
    """Neighbours along the row share what they read, as without strides."""
    function = depthwise((28, 28), 120, (5, 5), padding=((2, 2), (2, 2)), strides=(2, 1))
    default = contraction_default(function, target)
    assert (default["rw"], default["ku"]) == (14, 5)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize(("size", "channels", "stride", "taps", "tile"), [
    (112, 32, 1, 3, (1, 4, 9)), (28, 192, 1, 3, (1, 4, 9)), (14, 576, 1, 3, (2, 2, 9)),
    (7, 960, 1, 3, (1, 4, 9)), (56, 144, 2, 3, (1, 4, 9)), (7, 1152, 1, 5, (1, 7, 1)),
    # Neighbours share lines: 16 sums of 4 × 4, a row at a time, took 1.03 to 1.37 × the time.
    (28, 24, 1, 3, (4, 1, 9)), (56, 33, 1, 3, (4, 1, 9)), (28, 17, 2, 3, (2, 2, 9)),
])  # fmt: skip
def test_sixteen_registers_hold_few_sums_of_all_taps(
    size: int, channels: int, stride: int, taps: int, tile: tuple[int, int, int], cores: int
) -> None:
    """0.78 × the time of a tap at a time, panel by panel, in the mean of 20 layers (Zen 3)."""
    pad = taps // 2
    function = depthwise(
        (size, size), channels, (taps, taps), padding=((pad, pad), (pad, pad)),
        strides=(stride, stride),
    )  # fmt: skip
    default = contraction_default(function, Target(f"llvm -mcpu=znver3 -num-cores={cores}"))
    assert tuple(default[n] for n in ("rw", "rh", "ku")) == tile
    assert default["order"] == PANELS_INSIDE
    assert int(default["nb"]) * 8 * cores >= min(channels, 512)


def test_cores_share_panels_that_tiles_take_in_turn() -> None:
    target = Target("llvm -mcpu=znver4 -num-cores=2")
    for size, channels in ((7, 1024), (14, 512), (28, 256)):
        space = contraction.space(depthwise((size, size), channels), target)
        assert space is not None
        d = {name: int(space.default[name]) for name in ("rh", "mb", "nv", "nb")}
        blocks = -(-size // (d["rh"] * d["mb"])) * -(-channels // (16 * d["nv"] * d["nb"]))
        assert blocks % 2 == 0


@pytest.mark.parametrize(("size", "channels", "stride", "rows", "panels"), [
    (7, 512, 1, 7, 2), (8, 512, 1, 8, 2), (14, 512, 1, 14, 2), (28, 256, 2, 14, 2),
    (28, 256, 1, 14, 8), (56, 128, 2, 14, 4),  # beyond the second level
    (8, 128, 1, 4, 4),  # in the first
])  # fmt: skip
def test_cores_take_short_runs_of_channels_or_halves_of_the_rows(
    size: int, channels: int, stride: int, rows: int, panels: int
) -> None:
    """By halves of the channels, 7² × 512 takes as long on two cores of a Zen 4 as on one."""
    default = contraction_default(depthwise((size, size), channels, strides=(stride,) * 2), ZEN4_2)
    assert default["order"] == PANELS_INSIDE
    assert (int(default["mb"]) * int(default["rh"]), default["nb"]) == (rows, panels)


@pytest.mark.parametrize(("target", "size", "channels", "taps", "rows"), [
    (ZEN4, 14, 672, 5, 7), (ZEN5, 14, 672, 5, 7), (ZEN4, 28, 240, 3, 14), (ZEN4_2, 28, 240, 3, 7),
])  # fmt: skip
def test_blocks_have_the_rows_of_a_core_where_the_second_level_keeps_images(
    target: Target, size: int, channels: int, taps: int, rows: int
) -> None:
    """14² × 672 by 5 × 5 taps takes 12.7 µs on a Zen 4, by blocks of three rows 17.9."""
    pad = taps // 2
    function = depthwise(
        (size, size), channels, (taps, taps), padding=((pad, pad), (pad, pad)), strides=(2, 2)
    )
    space = contraction.space(function, target)
    assert space is not None
    assert int(space.default["mb"]) * int(space.default["rh"]) == rows


def test_other_processors_and_products_keep_the_order_of_blocks() -> None:
    arm = contraction.space(depthwise((7, 7), 1024), Target("llvm -mcpu=apple-m1 -num-cores=1"))
    assert arm is not None
    assert arm.default["order"] == "mn"
    x, weights = (Var(n, TensorType((64, 64), "float32")) for n in "xw")
    function = Function((x, weights), call("matmul", x, weights), {"primitive": True})
    product = contraction.space(function, ZEN5)
    assert product is not None
    (order,) = (k.choices for k in product.knobs if k.name == "order")
    assert order == ("nm", "mn")


@pytest.mark.parametrize("target", [HOST, Target("llvm -mcpu=haswell -num-cores=2")])
@pytest.mark.parametrize(("channels", "taps", "knobs"), [
    (70, 3, {"rw": 3, "rh": 2, "nv": 2, "ku": 9, "mb": 2, "nb": 3}),
    (70, 3, {"rw": 2, "rh": 2, "nv": 2, "ku": 1, "mb": 1, "nb": 2}),
    (33, 5, {"rw": 7, "rh": 1, "nv": 1, "ku": 5, "mb": 3, "nb": 4}),
])  # fmt: skip
@pytest.mark.parametrize("stride", [1, 2])
def test_tiles_that_take_all_panels_compute_the_same(
    target: Target, channels: int, taps: int, knobs: dict[str, int], stride: int
) -> None:
    pad = taps // 2
    function = depthwise((9, 11), channels, (taps, taps), padding=((pad, pad), (pad, pad)),
                         strides=(stride, stride))  # fmt: skip
    space = contraction.space(function, target)
    assert space is not None
    config = {**space.default, **knobs, "order": PANELS_INSIDE}
    rng = np.random.default_rng(5)
    arrays = [rng.integers(-3, 4, p.type.shape).astype("float32") for p in function.params]
    for how in ("interpret", "execute"):
        check(Workload.from_function(function), target, config, arrays, how)


@pytest.mark.parametrize(("size", "channels", "stride", "tile", "order"), [
    (24, 768, 1, (6, 1, 2), "mn"), (28, 256, 1, (7, 1, 2), "mn"), (48, 384, 2, (3, 1, 4), "mn"),
    (14, 512, 1, (7, 1, 2), PANELS_INSIDE),  # pixels of 2 KB, which meet in two sets
    (56, 128, 2, (2, 1, 3), PANELS_INSIDE),  # pixels that are read 1 KB apart
])  # fmt: skip
def test_wide_windows_take_panels_in_turn_where_pixels_meet_in_few_sets(
    size: int, channels: int, stride: int, tile: tuple[int, int, int], order: str
) -> None:
    function = depthwise((size, size), channels, (5, 5), padding=((2, 2), (2, 2)),
                         strides=(stride, stride))  # fmt: skip
    default = contraction_default(function, ZEN5)
    assert tuple(default[n] for n in ("rw", "rh", "nv")) == tile
    assert default["order"] == order
    if order == "mn":
        assert default["mb"] == size // stride  # one block of all rows for each panel


@pytest.mark.parametrize(("size", "channels", "stride", "taps"), [
    (64, 16, 1, (5, 5)),  # one vector of channels
    (28, 384, 2, (2, 8)),  # three pixels by four vectors would be too much code
    (3, 192, 1, (5, 5)), (4, 256, 2, (5, 5)),
])  # fmt: skip
def test_wide_windows_have_a_default_that_is_a_choice(
    size: int, channels: int, stride: int, taps: tuple[int, int]
) -> None:
    function = depthwise((size, size), channels, taps, strides=(stride, stride),
                         padding=((taps[0] // 2,) * 2, (taps[1] // 2,) * 2))  # fmt: skip
    space = config_space(Workload.from_function(function), ZEN5)
    for sketch in space.sketches:
        default = {**sketch.default, "sketch": sketch.sketch}
        assert space.valid(space.encode(default)[None]).all()


@pytest.mark.parametrize(("target", "stride", "wide", "taps"), [
    (ZEN5, 1, 14, 5), (ZEN5, 2, 7, 5), (ZEN4, 1, 14, 5), (ZEN4, 2, 14, 25),
])  # fmt: skip
def test_wider_windows_run_a_row_of_taps_at_a_time(
    target: Target, stride: int, wide: int, taps: int
) -> None:
    """Unrolled, 5 × 5 taps at 28² had 18,000 lines of text and took 2.5 × the time."""
    function = depthwise((28, 28), 120, (5, 5), padding=((2, 2), (2, 2)), strides=(stride, stride))
    default = config_space(Workload.from_function(function), target).default
    assert tuple(default[n] for n in ("rw", "rh", "nv", "ku")) == (wide, 1, 1, taps)


@pytest.mark.parametrize(("size", "channels", "stride", "ku"), [
    (56, 96, 1, 7), (28, 256, 1, 7),
    (28, 192, 2, 1),  # neighbours share fewer loads
    (14, 512, 1, 1),  # pixels of 2 KB, which meet in two sets of the first cache
])  # fmt: skip
def test_windows_too_large_to_unroll_take_a_row_of_taps(
    size: int, channels: int, stride: int, ku: int, recwarn: pytest.WarningsRecorder
) -> None:
    """Also of images beyond the second cache, as in ConvNeXt; NumPy warns of nothing."""
    padding = ((3, 3), (3, 3))
    function = depthwise((size,) * 2, channels, (7, 7), padding=padding, strides=(stride,) * 2)
    default = contraction_default(function, ZEN5)
    assert default["ku"] == ku
    assert contraction_default(function, Target("llvm -mcpu=znver3 -num-cores=1"))["ku"] < 7
    assert not recwarn.list


@pytest.mark.parametrize(("size", "channels"), [(8, 960), (14, 512), (16, 256), (28, 256)])
def test_cores_of_a_mesh_have_rows_of_their_own(size: int, channels: int) -> None:
    """By runs of two panels these take 1.5 to 2.4 × the time on two cores of a Granite Rapids."""
    target = Target("llvm -mcpu=graniterapids -num-cores=2")
    default = contraction_default(depthwise((size, size), channels), target)
    assert default["order"] == PANELS_INSIDE
    assert int(default["nv"]) * int(default["nb"]) * 16 >= channels
    blocks = -(-size // (int(default["rh"]) * int(default["mb"])))
    assert blocks % 2 == 0


@pytest.mark.parametrize(("size", "channels"), [(8, 960), (4, 1024)])
def test_more_cores_than_rows_share_channels(size: int, channels: int) -> None:
    target = Target("llvm -mcpu=graniterapids -num-cores=32")
    default = contraction_default(depthwise((size, size), channels), target)
    panels = -(-channels // (16 * int(default["nv"]) * int(default["nb"])))
    assert panels * -(-size // (int(default["rh"]) * int(default["mb"]))) >= 8

"""Channels beyond whole vectors by Winograd's method: tiles of a row side by side, as lanes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from convolutions import WIDE, convolution, default_with, space_by, verify_configs
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import draw, executed, verify
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import Config, schedule_workload, winograd
from tunefarm.compiler.space.winograd.convolution import convolution_of
from tunefarm.compiler.space.winograd.memory import held_bytes, lone_channels, tile_padding
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

HOST = Target.host(1)
FEW = Target("llvm -mcpu=znver3 -num-cores=1")  # of 16 registers


def lone_in(function: Function, target: Target, config: Config) -> int:
    """Lone channels of one config."""
    c = convolution_of(function)
    assert c is not None
    k = {name: np.array([value]) for name, value in config.items() if name != "sketch"}
    return int(lone_channels(c, target, target.lanes("float32"), k)[0])


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(
    st.sampled_from([1, 1, 2]), st.integers(9, 30), st.integers(9, 30), st.sampled_from([1, 2]),
    st.sampled_from([17, 18, 33]), st.sampled_from([16, 17]), st.integers(0, 2),
    st.integers(0, 2), st.booleans(), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_channels_beyond_whole_vectors(
    n: int, h: int, w: int, stride: int, c: int, o: int, top: int, left: int, residual: bool,
    seed: int,
) -> None:  # fmt: skip
    """Every stride, padding, batch and tail: what the lanes of a row's tiles read."""
    function = convolution(
        (n, h, w, c), o, ((top, 1), (left, 1)), residual=residual, strides=(stride, stride)
    )
    for target in (HOST, FEW):
        verify_configs(function, target, space_by(winograd, function, target), seed)


@pytest.mark.parametrize(
    ("size", "inputs", "lone"),
    [
        (28, 17, 1), (28, 18, 2), (56, 18, 2), (56, 20, 4), (28, 33, 1),
        (28, 16, 0), (28, 24, 0),
        (28, 19, 0), (56, 21, 0),  # too many for a row of tiles
        (14, 36, 0),  # products of the last tiles are left out
    ],
)  # fmt: skip
def test_few_channels_are_taken_by_themselves(size: int, inputs: int, lone: int) -> None:
    function = convolution((1, size, size, inputs), 16)
    default = space_by(winograd, function, WIDE).default
    assert lone_in(function, WIDE, default) == lone
    text = str(lower(schedule_workload(Workload.from_function(function), WIDE, default)))
    assert ("lone_in" in text) == (lone > 0)


@pytest.mark.parametrize("target", [WIDE, FEW])
def test_seven_tiles_of_a_row_are_one_vector(target: Target) -> None:
    """No masks, and the sum's steps read either whole channels or lone ones."""
    function = convolution((1, 28, 28, 17), 16)
    default = space_by(winograd, function, target).default
    text = str(lower(schedule_workload(Workload.from_function(function), target, default)))
    assert re.search(r"allocate lone_in: float32\[6, 6, 1, \d, 8\] in local", text)
    sums = [line for line in text.splitlines() if "product_register[" in line and "p1[" in line]
    assert sums
    assert not any("select" in line for line in sums)
    assert sum("tile_in[" in line for line in sums) == sum("lone_in[" in line for line in sums)


@pytest.mark.parametrize("by_row", [0, 1, 2, 3])
@pytest.mark.parametrize("tiles", [(2, 2), (2, 4), (4, 4)])
def test_every_way_to_make_products(by_row: int, tiles: tuple[int, int]) -> None:
    function = convolution((1, 20, 24, 17), 16, residual=True)
    arrays = draw(function, np.random.default_rng(3))
    space = space_by(winograd, function, WIDE)
    config = default_with(
        space, tile_h=tiles[0], tile_w=tiles[1], mb=2, nb=1, rw=3, nv=1, ku=4, by_row=by_row,
        next_panel=0,
    )  # fmt: skip
    assert lone_in(function, WIDE, config) == 1
    assert verify(function, WIDE, config, arrays) < 5e-6


def test_an_image_of_one_pixel() -> None:
    function = convolution((1, 1, 1, 17), 16, ((2, 2), (6, 6)))
    default = space_by(winograd, function, WIDE).default
    assert lone_in(function, WIDE, default) == 1
    arrays = draw(function, np.random.default_rng(5))
    (wanted,) = evaluate(function, arrays)
    program = lower(schedule_workload(Workload.from_function(function), WIDE, default))
    result = np.full(wanted.shape, 77, wanted.dtype)
    executed(program, WIDE, arrays, [result])
    np.testing.assert_allclose(result, wanted, atol=5e-6 * np.abs(wanted).max())


@pytest.mark.parametrize(
    ("images", "rows", "tiles", "lone"),
    [
        (1, 4, 4, True), (8, 1, 13, True), (8, 13, 13, True),
        (8, 4, 4, False),  # 13 rows of tiles: a block ends inside an image
        (8, 1, 5, False),  # of 13 tiles a row: a register tile reads the next row's
        (1, 1, 5, True),
    ],
)  # fmt: skip
def test_blocks_copy_the_pixels_of_their_own_image(
    images: int, rows: int, tiles: int, lone: bool
) -> None:
    """One that may end inside an image, of several, would copy those of all: 32 images of 68² took
    8 × the time."""
    function = convolution((images, 52, 52, 17), 16)
    config = {"tile_h": 4, "tile_w": 4, "mb": rows, "nb": 1, "rw": tiles, "nv": 1, "ku": 4}
    config |= {"by_row": 0, "next_panel": 0}
    assert (lone_in(function, WIDE, config) > 0) == lone
    workload = Workload.from_function(function)
    text = str(lower(schedule_workload(workload, WIDE, {"sketch": "winograd", **config})))
    assert set(re.findall(r"allocate plane: float32\[(\d+),", text)) == ({"1"} if lone else set())


@pytest.mark.parametrize("target", [WIDE, FEW], ids=["many registers", "few"])
@pytest.mark.parametrize(("size", "inputs", "stride"), [(112, 18, 1), (113, 33, 2)])
def test_a_kernel_holds_what_the_model_counts(
    target: Target, size: int, inputs: int, stride: int
) -> None:
    function = convolution((1, size, size, inputs), 16, strides=(stride, stride))
    config = {"tile_h": 2, "tile_w": 4, "mb": 8, "nb": 1, "rw": 7, "nv": 1, "by_row": 1}
    config |= {"ku": 8, "next_panel": 0}
    assert lone_in(function, target, config) > 0
    program = schedule_workload(
        Workload.from_function(function), target, {"sketch": "winograd", **config}
    )
    c = convolution_of(function)
    assert c is not None
    columns = {name: np.array([value]) for name, value in config.items()}
    (held,) = held_bytes(c, target, target.lanes("float32"), columns)
    workspace = emit_llvm(lower(program), target).workspace_bytes
    assert workspace == pytest.approx(held * target.num_cores, rel=0.01)


@pytest.mark.parametrize("lanes", [4, 8, 16])
@pytest.mark.parametrize("inputs", [17, 36, 48, 64, 80, 112, 256])
def test_rows_of_transformed_tiles_are_an_odd_number_of_vectors(inputs: int, lanes: int) -> None:
    """Planes of 16 such tiles, those of 14² pixels, meet in a quarter of the sets; an even number
    of lines would let them meet in an eighth or fewer, and more of them than a set has ways."""
    c = convolution_of(convolution((1, 14, 14, inputs), 16))
    assert c is not None
    vectors = -(-inputs // lanes)
    assert (vectors * lanes + tile_padding(c, lanes)) // lanes == vectors + (vectors % 2 == 0)

"""Winograd's method of volumes: frame by frame, the inputs those of all frames that one reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from convolutions import convolution, default_with, space_by, verify_configs
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import draw, verify
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import (
    schedule_workload,
    winograd,
    winograd_1d,
    winograd_online,
)
from tunefarm.compiler.space.winograd.convolution import Frames, convolution_of
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

HOST = Target.host(2)
FEW = Target("llvm -mcpu=haswell -num-cores=2")  # of 16 registers


def volume(
    shape: tuple[int, ...],
    outputs: int,
    taps: tuple[int, int, int] = (3, 3, 3),
    strides: tuple[int, int, int] = (1, 1, 1),
    **attrs: Any,
) -> Function:
    padding = attrs.pop("padding", tuple((t // 2, t // 2) for t in taps))
    attrs = {"dilations": (1, 1, 1), **attrs}
    return convolution(shape, outputs, padding, kernel=taps, strides=strides, **attrs)  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(
    st.tuples(st.integers(1, 2), st.integers(1, 5), st.integers(3, 13), st.integers(3, 13)),
    st.tuples(st.sampled_from((1, 2)), st.sampled_from((16, 17, 33, 48))),
    st.sampled_from((1, 2, 3, 4)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.booleans(),
)
def test_random_volumes(
    image: tuple[int, int, int, int],
    channels: tuple[int, int],
    deep: int,
    strides: tuple[int, int],
    beyond: tuple[int, int],
    residual: bool,
) -> None:
    """``channels`` are vectors of inputs, and outputs; ``beyond`` what the first and the last frame
    lack."""
    if image[1] + sum(beyond) < deep:
        return
    inputs = channels[0] * HOST.lanes("float32")
    function = volume(
        (*image, inputs), channels[1], (deep, 3, 3), (strides[0], *strides[1:] * 2),
        padding=(beyond, (1, 1), (1, 1)), residual=residual,
    )  # fmt: skip
    for target in (HOST, FEW):
        verify_configs(function, target, space_by(winograd, function, target), seed=deep)


@pytest.mark.parametrize("by_row", [0, 1])
def test_the_program_before_and_after_code_is_made_of_it(by_row: int) -> None:
    function = volume((1, 3, 6, 9, 16), 17)
    space = space_by(winograd, function, HOST)
    config = default_with(space, tile_h=2, tile_w=4, mb=2, rw=3, by_row=by_row)
    arrays = draw(function, np.random.default_rng(3))
    verify(function, HOST, config, arrays, "interpret")
    assert verify(function, HOST, config, arrays) < 5e-6


def test_the_frames_of_a_result() -> None:
    strided = volume((2, 7, 9, 9, 32), 32, strides=(2, 1, 1))
    c = convolution_of(strided, every=True)
    assert c is not None
    assert c.frames == Frames(extent=7, results=4, taps=3, stride=2, padding=1)
    assert (c.batch, c.depth, c.images_read) == (8, 96, 20)  # of 24 taps 4 are beyond the ends
    assert convolution_of(strided) is None


@pytest.mark.parametrize(
    "function",
    [
        volume((1, 4, 9, 9, 24), 32),  # vectors of two frames
        volume((1, 4, 9, 9, 32), 32, (3, 5, 5)),
        volume((1, 4, 9, 9, 32), 32, strides=(1, 1, 2)),
        volume((1, 8, 9, 9, 32), 32, dilations=(2, 1, 1)),
        volume((1, 4, 9, 9, 32), 32, groups=2),
        volume((1, 4, 9, 9, 32), 32, pad_value=1.0),
        volume((1, 4, 9, 9, 32), 32, constants=()),
    ],
)
def test_what_is_left_to_others(function: Function) -> None:
    assert winograd.space(function, Target("llvm -mcpu=znver5 -num-cores=2")) is None


def test_a_config_for_vectors_of_two_frames_misfits() -> None:
    function = volume((1, 4, 9, 9, 24), 32)
    target = Target("llvm -mcpu=znver5 -num-cores=2")
    config = space_by(winograd, volume((1, 4, 9, 9, 32), 32), target).default
    with pytest.raises(ScheduleError, match="two frames"):
        schedule_workload(Workload.from_function(function), target, config)


def test_sketches_of_images_leave_volumes_alone() -> None:
    function = volume((1, 4, 7, 7, 64), 64)
    assert winograd_online.space(function, HOST) is None
    assert winograd_1d.space(function, HOST) is None


@pytest.mark.parametrize(("frames", "preferred"), [(8, True), (1, False)])
def test_frames_beyond_the_ends_are_no_work_of_the_direct_sum(frames: int, preferred: bool) -> None:
    """Of a single frame it has a third of all products."""
    function = volume((1, frames, 28, 28, 64), 64)
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    space = winograd.space(function, target)
    assert space is not None
    assert space.preferred == preferred

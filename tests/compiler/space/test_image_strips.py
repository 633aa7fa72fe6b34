"""Depthwise convolutions in strips down the image: every shape agrees with NumPy, each row is
loaded once, and rows ask for the lines that they store to."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from convolutions import convolution, default_with, space_by, verify_configs
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sketch_harness import draw, parallel_loops, verify
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import (
    Config,
    ConfigSpace,
    config_space,
    image_strips,
    schedule_workload,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

NAME = "image_strips"
ZEN4 = Target("llvm -mcpu=znver4 -num-cores=2")
NEON = Target("llvm -mcpu=apple-m1 -num-cores=1")
FLAG = st.booleans()


def depthwise(
    shape: tuple[int, ...], bias: bool = False, relu: bool = False, **attrs: Any
) -> Function:
    constants = {"constants": (1, 2) if bias else (1,)} | attrs
    return convolution(shape, shape[-1], bias=bias, relu=relu, groups=shape[-1], **constants)


def space_of(function: Function, target: Target = ZEN4) -> ConfigSpace:
    return space_by(image_strips, function, target)


@settings(max_examples=15, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 3), st.integers(1, 31), st.integers(2, 19), st.integers(2, 41),
    st.tuples(st.integers(1, 4), st.integers(2, 3)), st.integers(1, 2),
    st.tuples(st.integers(1, 2), st.integers(1, 2)), FLAG, FLAG, FLAG, st.integers(0, 999),
)  # fmt: skip
@example(1, 29, 7, 17, (3, 3), 1, (1, 1), True, True, True, 1)
@example(2, 8, 16, 16, (3, 3), 1, (1, 1), True, False, True, 2)
@example(1, 1, 2, 2, (3, 3), 1, (1, 1), False, False, False, 3)
def test_random_shapes_and_configs(
    n: int, h: int, w: int, channels: int, kernel: tuple[int, int], stride: int,
    dilations: tuple[int, int], bias: bool, residual: bool, relu: bool, seed: int,
) -> None:  # fmt: skip
    rng = np.random.default_rng(seed)
    down, across = (d * (k - 1) for d, k in zip(dilations, kernel, strict=True))
    left, top = int(rng.integers(0, across + 1)), int(rng.integers(0, down + 1))
    padding = ((top, max(int(rng.integers(0, 3)), down + 1 - top - h)), (left, across - left))
    function = depthwise(
        (n, h, w, channels), bias, relu, residual=residual, kernel=kernel,
        padding=padding, strides=(stride, 1), dilations=dilations,
    )  # fmt: skip
    held = kernel[1] * (kernel[0] + down + 1) <= 24  # weights, and rows that windows share
    assert (image_strips.space(function, ZEN4) is not None) is held
    if held:
        verify_configs(function, ZEN4, space_of(function), seed)


@pytest.mark.parametrize("target", [ZEN4, NEON])
def test_the_interpreter_agrees(target: Target) -> None:
    function = depthwise((2, 9, 5, 7), bias=True, relu=True, residual=True)
    space = space_of(function, target)
    config = default_with(space, rows=5, ahead=2, image_ahead=1)
    verify(function, target, config, draw(function, np.random.default_rng(3)), "interpret")


UNFIT = {
    "a stride along the row": depthwise((1, 9, 9, 17), strides=(1, 2)),
    "results narrower than the image": depthwise((1, 9, 9, 17), padding=((1, 1), (0, 1))),
    "weights that vary": depthwise((1, 9, 9, 17), constants=()),
    "a bias that varies": depthwise((1, 9, 9, 17), bias=True, constants=(1,)),
    "25 taps": depthwise((1, 9, 9, 17), kernel=(5, 5), padding=((2, 2), (2, 2))),
    "channels that share inputs": convolution((1, 9, 9, 34), 34, groups=17),
}


@pytest.mark.parametrize("name", UNFIT)
def test_it_leaves_to_other_sketches(name: str) -> None:
    assert image_strips.space(UNFIT[name], ZEN4) is None


def test_sixteen_registers_hold_no_strip() -> None:
    assert image_strips.space(depthwise((1, 9, 9, 17)), Target("llvm -mcpu=haswell")) is None


def test_a_function_without_rows_of_the_image_is_refused() -> None:
    config: Config = {"sketch": NAME, "rows": 9, "ahead": 0, "image_ahead": 0}
    with pytest.raises(ScheduleError, match="no depthwise convolution of stride 1 along rows"):
        image_strips.schedule(UNFIT["a stride along the row"], ZEN4, config)


def text_of(function: Function, **knobs: int) -> str:
    workload, target = Workload.from_function(function), Target("llvm -mcpu=znver4 -num-cores=1")
    config = default_with(space_of(function, target), **knobs)
    return emit_llvm(lower(schedule_workload(workload, target, config)), target).text


def test_each_row_of_a_strip_is_loaded_once() -> None:
    """Three vectors of each of ten rows, and nine of weights, in each of three pieces of code: the
    sides of the image and what is inside."""
    text = text_of(depthwise((1, 10, 16, 16)), ahead=0, image_ahead=0)
    assert 30 + 9 <= len(re.findall(r"= load <16 x float>", text)) <= 3 * (30 + 9)


def asked_for(text: str) -> list[tuple[str, int]]:
    """The arrays, and the elements in them, that hints ask for; in code without loops."""
    places = re.findall(r"call void @llvm\.prefetch\.p0\(ptr (%\w+),", text)
    pattern = r"(%\w+) = getelementptr inbounds float, ptr %(p\d), i64 (\d+)"
    found = {name: (array, int(offset)) for name, array, offset in re.findall(pattern, text)}
    return [found[place] for place in places]


@pytest.mark.parametrize("ahead", [1, 2])
def test_each_row_asks_for_a_line_of_a_later_strip(ahead: int) -> None:
    """The last element of its vector, so many strips on: of results in the row itself, of the image
    that of the tap to the right in the row below."""
    function, none = depthwise((1, 10, 2, 8)), {"ahead": 0, "image_ahead": 0}  # of one strip
    end, below = 15 + 16 * ahead, 16 + 8
    assert asked_for(text_of(function, **none | {"ahead": ahead})) == [
        ("p2", 16 * row + end) for row in range(10)
    ]
    assert asked_for(text_of(function, **none | {"image_ahead": ahead})) == [
        ("p0", 16 * row + below + end) for row in range(10)
    ]
    assert not asked_for(text_of(function, **none))


def default_of(size: int, channels: int, cores: int = 1, cpu: str = "emeraldrapids") -> Config:
    workload = Workload.from_function(depthwise((1, size, size, channels)))
    return config_space(workload, Target(f"llvm -mcpu={cpu} -num-cores={cores}")).default


@pytest.mark.parametrize(("size", "channels", "preferred"), [
    (28, 17, True), (28, 24, True), (56, 200, True), (14, 333, True),
    (56, 96, True),  # whole lines of a large image
    (28, 16, False), (28, 192, False),  # of others
    (56, 128, False),  # rows that meet in the sets of the first cache, whose channels take turns
    (28, 5, False),  # less than half of a vector
    (7, 17, False),
])  # fmt: skip
@pytest.mark.parametrize("cores", [1, 2])
def test_where_strips_are_the_default_on_a_mesh(
    size: int, channels: int, preferred: bool, cores: int
) -> None:
    assert (default_of(size, channels, cores)["sketch"] == NAME) is preferred


def test_elsewhere_they_are_a_choice() -> None:
    function = depthwise((1, 28, 28, 17))
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    space = config_space(Workload.from_function(function), target)
    assert space.default["sketch"] == "image_rows"
    assert space.sketch(NAME).default["ahead"] == 1


@pytest.mark.parametrize("function", [
    depthwise((1, 28, 28, 17), kernel=(1, 3), padding=((0, 0), (1, 1))),
    depthwise((1, 84, 28, 17), strides=(3, 1)),
])  # fmt: skip
def test_windows_that_share_no_rows_have_another_default(function: Function) -> None:
    target = Target("llvm -mcpu=emeraldrapids -num-cores=1")
    assert config_space(Workload.from_function(function), target).default["sketch"] != NAME


def test_more_cores_than_blocks_have_another_default() -> None:
    assert [default_of(14, 100, cores)["sketch"] == NAME for cores in (2, 4, 8)] == [1, 1, 0]


def test_vectors_shorter_than_lines_ask_for_nothing() -> None:
    assert space_of(depthwise((1, 28, 28, 17)), NEON).default["ahead"] == 0


def test_blocks_are_what_tasks_take_in_the_features() -> None:
    space = image_strips.space(depthwise((2, 28, 28, 17)), ZEN4)
    assert space is not None
    knobs = {"rows": [7, 14], "ahead": [1, 1], "image_ahead": [0, 1]}
    nest = space.nest({name: np.array(values) for name, values in knobs.items()})
    assert nest.parallelism.tolist() == [8, 4]
    assert nest.tiles["l2"]["y.1"].tolist() == [7, 14]
    assert nest.extra["image_ahead"].tolist() == [0, 1]


def test_rows_of_a_block() -> None:
    """As many as are near each other, as many blocks for each core; few blocks where each reads
    weights that the first cache does not keep."""
    assert default_of(80, 17, cores=2)["rows"] == 14  # three blocks of 27 would leave one waiting
    assert default_of(9, 17, cores=2)["rows"] == 9  # one core has it all
    assert default_of(28, 17)["rows"] == 28
    assert default_of(28, 17, cores=2)["rows"] == 14
    assert default_of(40, 20)["rows"] == 20
    assert default_of(28, 200)["rows"] == 7
    assert default_of(28, 333)["rows"] == 28


def test_the_image_is_asked_for_on_one_core() -> None:
    assert [default_of(28, 17, cores)["image_ahead"] for cores in (1, 2)] == [1, 0]


@pytest.mark.parametrize(("size", "tasks"), [(28, 1), (9, 0)])
def test_cores_share_blocks_of_what_does_enough(size: int, tasks: int) -> None:
    workload = Workload.from_function(depthwise((1, size, size, 17)))
    target = Target("llvm -mcpu=emeraldrapids -num-cores=2")
    program = schedule_workload(workload, target, default_of(size, 17, cores=2))
    assert len(parallel_loops(program)) == tasks

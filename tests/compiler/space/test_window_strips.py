"""Maxima and averages in strips down the image agree with NumPy's, whatever windows and knobs."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from poolings import HOST, WINDOWS, check_windows, pooled
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.space import Config, config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

NAME = "window_strips"


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(*WINDOWS)
@example((1, 12, 11, 17), (3, 3), (1, 1), ((1, 1), (1, 1)), "max float32", 0)
@example((1, 11, 12, 33), (3, 3), (2, 2), ((1, 1), (0, 1)), "max float32", 1)
@example((1, 3, 2, 1), (3, 3), (1, 1), ((1, 1), (1, 1)), "max float32", 3)
@example((2, 7, 9, 16), (2, 3), (3, 1), ((0, 2), (1, 0)), "max int8", 2)
@example((1, 16, 12, 17), (3, 3), (1, 1), ((1, 1), (1, 1)), "avg float32", 0)
@example((1, 11, 12, 33), (3, 3), (2, 2), ((1, 1), (0, 1)), "avg float32", 1)
@example((2, 8, 16, 17), (4, 4), (1, 1), ((1, 2), (0, 2)), "avg float32", 1)
@example((2, 7, 9, 16), (2, 3), (3, 1), ((1, 2), (1, 0)), "avg whole", 2)
@example((1, 8, 28, 20), (3, 3), (1, 1), ((1, 1), (1, 1)), "avg float32", 3)
@example((1, 32, 31, 3), (5, 5), (1, 1), ((2, 2), (2, 2)), "avg whole", 4)
@example((2, 29, 16, 5), (3, 2), (1, 1), ((1, 1), (0, 1)), "max float32", 5)
@example((1, 1, 8, 4), (2, 2), (3, 1), ((1, 1), (0, 1)), "avg float32", 6)
def test_strips_agree_with_numpy(
    data: tuple[int, ...],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    kind: str,
    seed: int,
) -> None:
    check_windows(NAME, data, kernel, strides, padding, kind, seed)


def default_of(
    size: int, channels: int, stride: int = 1, op: str = "max_pool", target: str = "-num-cores=1"
) -> tuple[Config, bool]:
    """A Zen 4's default of windows of 3 × 3 in strips, and whether it is the task's."""
    pool = pooled((1, size, size, channels), (3, 3), (stride, stride), op=op)
    space = config_space(pool, Target(f"llvm -mcpu=znver4 {target}"))
    (strips,) = [s for s in space.sketches if s.sketch == NAME]
    assert space.encode(space.default) is not None
    return strips.default, space.default["sketch"] == NAME


@pytest.mark.parametrize(
    ("size", "channels", "stride", "preferred"),
    [
        (28, 17, 1, True),
        (28, 16, 1, True),
        (112, 64, 1, True),  # of two rows, that begin in the same sets of the first cache
        (56, 33, 2, True),
        (56, 64, 2, True),
        (112, 3, 2, False),  # three lanes of a vector
    ],
)
def test_where_strips_are_the_default(
    size: int, channels: int, stride: int, preferred: bool
) -> None:
    assert default_of(size, channels, stride)[1] is preferred


def test_windows_of_five_rows_want_long_strips() -> None:
    """Each strip sums four rows of the image that the next one sums again."""

    def default(size: int, channels: int) -> Config:
        pool = pooled((1, size, size, channels), (5, 5), padding=((2, 2), (2, 2)))
        return config_space(pool, Target("llvm -mcpu=znver4 -num-cores=1")).default

    assert (default(28, 17)["sketch"], default(28, 17)["rows"]) == (NAME, 28)
    assert default(14, 64)["sketch"] == "window_passes"  # of seven rows


def test_a_processor_of_sixteen_registers_keeps_two_passes() -> None:
    pool = pooled((1, 28, 28, 17), (3, 3))
    space = config_space(pool, Target("llvm -mcpu=haswell -num-cores=1"))
    assert space.default["sketch"] == "window_passes"


def test_rows_of_a_strip() -> None:
    """As many as the first cache holds, in blocks of about equal height, one for each core."""
    assert default_of(28, 17)[0]["rows"] == 28
    assert default_of(40, 24)[0]["rows"] == 20
    assert default_of(28, 17, target="-num-cores=2")[0]["rows"] == 14
    assert default_of(112, 40)[0]["rows"] == 14
    assert default_of(56, 64)[0]["rows"] == 4  # rows half of 4 KiB apart
    assert default_of(56, 33, stride=2)[0]["rows"] == 7


def test_width_of_a_strip() -> None:
    """A vector, or all channels of a pixel apart; of two pixels if they leave lanes empty."""

    def width(size: int, channels: int, stride: int = 1) -> tuple[object, object]:
        default, _ = default_of(size, channels, stride)
        return default["nv"], default["tile"]

    assert width(28, 17) == (1, 1)
    assert width(56, 33, stride=2) == (3, 2)
    assert width(56, 64, stride=2) == (4, 1)


@pytest.mark.parametrize(
    ("size", "channels", "op", "cpu", "shifted"),
    [
        (28, 17, "avg_pool", "znver4", True),
        (28, 17, "avg_pool", "haswell", False),  # vectors of half a line
        (28, 17, "max_pool", "znver4", False),
        (28, 24, "avg_pool", "znver4", False),  # neighbours begin at halves of lines
        (27, 17, "avg_pool", "znver4", False),  # whose last line ends beyond the image
    ],
)
def test_lines_of_averages_are_loaded_once(
    size: int, channels: int, op: str, cpu: str, shifted: bool
) -> None:
    workload = pooled((1, size, size, channels), (3, 3), op=op)
    target = Target(f"llvm -mcpu={cpu} -num-cores=1")
    (strips,) = [s for s in config_space(workload, target).sketches if s.sketch == NAME]
    text = emit_llvm(lower(schedule_workload(workload, target, strips.default)), target).text
    neighbours = ", ".join(f"i32 {15 + lane}" for lane in range(16))  # a pixel is 17 numbers away
    assert (f"<16 x i32> <{neighbours}>" in text) is shifted


def test_a_row_takes_one_row_of_sums_from_the_image() -> None:
    """The others stand in registers: three loads a vector in code without tests, not nine."""
    workload = pooled((1, 28, 28, 16), (3, 3))
    target = Target("llvm -mcpu=znver4 -num-cores=1")
    config = {"sketch": NAME, "rows": 28, "nv": 1, "tile": 1, "lines": 0, "tasks": 0}
    text = emit_llvm(lower(schedule_workload(workload, target, config)), target).text
    # Strips inside, at the left and at the right: a border has no neighbour there.
    assert text.count("= load <16 x float>") == 28 * (3 + 2 + 2)


@pytest.mark.parametrize(
    "workload",
    [
        pooled((1, 9, 9, 17), (1, 3)),
        pooled((1, 4, 4, 1), (3, 3), (2, 2)),
        pooled((1, 17, 9, 9), (3, 3), data_layout="NCS"),
        pooled((1, 30, 30, 17), (11, 11), padding=((9, 9), (9, 9))),
        pooled((1, 14, 14, 384), (3, 3)),  # two rows take more than a quarter of the first cache
        pooled((1, 14, 14, 512), (3, 3)),
    ],
)
def test_other_windows_have_no_strips(workload: Workload) -> None:
    target = Target("llvm -mcpu=znver4 -num-cores=1")
    assert all(s.sketch != NAME for s in config_space(workload, target).sketches)


def test_a_config_for_something_else_is_refused() -> None:
    config = {"sketch": NAME, "rows": 1, "nv": 1, "tile": 1, "lines": 0, "tasks": 0}
    with pytest.raises(ScheduleError, match="no maximum or average over overlapping windows"):
        schedule_workload(pooled((1, 9, 9, 17), (1, 3)), HOST, config)

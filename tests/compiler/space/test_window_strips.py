"""Maxima and averages in strips down the image agree with NumPy's, whatever windows and knobs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from poolings import HOST, WINDOWS, check_windows, pooled
from sketch_harness import check
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.codegen.llvm_compile import assembly
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
    """A vector, two to four that share loads, or all channels of a pixel apart; of two pixels if
    they leave lanes empty."""

    def width(
        size: int, channels: int, stride: int = 1, op: str = "max_pool"
    ) -> tuple[object, object]:
        default, _ = default_of(size, channels, stride, op=op)
        return default["nv"], default["tile"]

    assert width(28, 16) == (1, 1)
    assert width(28, 9) == (2, 1)
    assert width(28, 17) == (3, 1)
    assert width(28, 17, op="avg_pool") == width(28, 33, op="avg_pool") == (4, 1)
    assert width(28, 8, op="avg_pool") == (3, 1)  # each vector is loaded
    assert width(112, 17) == (1, 1)  # image and result leave the second cache
    assert width(56, 33, stride=2) == (3, 2)
    assert width(56, 64, stride=2) == (4, 1)


def test_strips_ask_for_lines_to_store_to_on_a_mesh() -> None:
    """Where image and result leave the first cache, side by side, and not by lines."""

    def default(size: int, channels: int, op: str = "max_pool", stride: int = 1) -> Config:
        pool = pooled((1, size, size, channels), (3, 3), (stride, stride), op=op)
        return config_space(pool, Target("llvm -mcpu=emeraldrapids -num-cores=1")).default

    assert default(28, 17)["ahead"] == default(28, 17, "avg_pool")["ahead"] == 1
    assert default(28, 17, "avg_pool")["nv"] == 3
    assert default(14, 24)["ahead"] == default(28, 33, "avg_pool")["ahead"] == 0
    assert default(56, 17, stride=2)["ahead"] == default_of(28, 17)[0]["ahead"] == 0


@pytest.mark.parametrize(("cpu", "vectors", "lines"), [("znver4", 3, 3), ("haswell", 3, 2)])
def test_all_lines_of_a_later_strip_are_asked_for(cpu: str, vectors: int, lines: int) -> None:
    workload, target = pooled((1, 8, 28, 17), (3, 3)), Target(f"llvm -mcpu={cpu} -num-cores=1")
    knobs = {"rows": 8, "nv": vectors, "tile": 1, "lines": 0, "ahead": 1, "tasks": 0}
    text = text_of(workload, target, {"sketch": NAME, **knobs})
    pieces = text.count("call void @llvm.prefetch") // (8 * lines)
    assert text.count("call void @llvm.prefetch") == 8 * lines * pieces > 0
    assert text_of(workload, target, {"sketch": NAME, **knobs, "ahead": 0}).count("prefetch") == 0


def text_of(workload: Workload, target: Target, config: Config) -> str:
    return emit_llvm(lower(schedule_workload(workload, target, config)), target).text


@pytest.mark.parametrize(
    ("size", "channels", "op", "cpu", "way", "first"),
    [
        (28, 33, "avg_pool", "znver4", 1, 15),  # by lines: a pixel is 33 numbers away
        (28, 17, "avg_pool", "znver4", 2, 1),  # between loads: two pixels are 34 numbers away
        (27, 17, "avg_pool", "znver4", 2, 1),
        (28, 17, "max_pool", "znver4", 2, 1),
        (28, 17, "avg_pool", "haswell", 0, None),  # vectors of half a line
        (28, 24, "avg_pool", "znver4", 0, None),  # neighbours begin at halves of lines
        (27, 33, "avg_pool", "znver4", 0, None),  # whose last line ends beyond the image
        (28, 33, "max_pool", "znver4", 0, None),
    ],
)
def test_vectors_that_meet_two_lines_are_put_together(
    size: int, channels: int, op: str, cpu: str, way: int, first: int | None
) -> None:
    workload = pooled((1, size, size, channels), (3, 3), op=op)
    target = Target(f"llvm -mcpu={cpu} -num-cores=1")
    (strips,) = [s for s in config_space(workload, target).sketches if s.sketch == NAME]
    assert strips.default["lines"] == way
    text = text_of(workload, target, strips.default)
    shifts = (", ".join(f"i32 {n + lane}" for lane in range(16)) for n in range(1, 16))
    found = [n for n, lanes in enumerate(shifts, 1) if f"<16 x i32> <{lanes}>" in text]
    assert first in found if first else not found


def test_vectors_between_loads_read_nothing_else() -> None:
    """A row of three vectors takes three loads to the left, two in the middle, two to the right."""
    workload = pooled((1, 28, 28, 17), (3, 3))
    target = Target("llvm -mcpu=znver4 -num-cores=1")
    config: Config = {
        "sketch": NAME,
        "rows": 28,
        "nv": 3,
        "tile": 1,
        "lines": 2,
        "ahead": 0,
        "tasks": 0,
    }
    lines = text_of(workload, target, config).splitlines()
    begin = next(n for n, line in enumerate(lines) if line.startswith("loop"))
    end = next(n for n, line in enumerate(lines) if line.startswith("exit"))
    inside = "\n".join(lines[begin:end])
    assert inside.count("= load <16 x float>") == 28 * 7
    assert inside.count("= shufflevector") == 28 * 2


@pytest.mark.parametrize(("size", "stride"), [(28, 1), (56, 2)])
def test_maxima_keep_in_registers_what_they_share(size: int, stride: int) -> None:
    """One comparison tests two terms for NaN; out of order LLVM would spill hundreds of times."""
    workload = pooled((1, size, size, 17), (3, 3), (stride, stride))
    target = Target("llvm -mcpu=znver4 -num-cores=1")
    text = assembly(text_of(workload, target, default_of(size, 17, stride)[0]), target)
    assert text.count("Spill") <= 2
    assert text.count("vcmpordps") > text.count("vfixupimmps")


@pytest.mark.parametrize("kernel", [2, 3, 4, 5])
@pytest.mark.parametrize("lines", [0, 2])
def test_nan_of_either_sign_is_the_maximum(kernel: int, lines: int) -> None:
    pad = (kernel // 2, kernel - 1 - kernel // 2)
    workload = pooled((1, 12, 24, 17), (kernel, kernel), padding=(pad, pad))
    rng = np.random.default_rng(kernel)
    values = rng.standard_normal((1, 12, 24, 17)).astype(np.float32)
    values[rng.random(values.shape) < 0.01] = np.nan
    values[rng.random(values.shape) < 0.01] = np.copysign(np.float32(np.nan), -1)
    config: Config = {
        "sketch": NAME,
        "rows": 12,
        "nv": 3,
        "tile": 1,
        "lines": lines,
        "ahead": 0,
        "tasks": 0,
    }
    check(workload, HOST, config, [values], "execute")


def test_a_row_takes_one_row_of_sums_from_the_image() -> None:
    """The others stand in registers: three loads a vector in code without tests, not nine."""
    workload = pooled((1, 28, 28, 16), (3, 3))
    target = Target("llvm -mcpu=znver4 -num-cores=1")
    config = {"sketch": NAME, "rows": 28, "nv": 1, "tile": 1, "lines": 0, "ahead": 0, "tasks": 0}
    text = text_of(workload, target, config)
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
    config = {"sketch": NAME, "rows": 1, "nv": 1, "tile": 1, "lines": 0, "ahead": 0, "tasks": 0}
    with pytest.raises(ScheduleError, match="no maximum or average over overlapping windows"):
        schedule_workload(pooled((1, 9, 9, 17), (1, 3)), HOST, config)

"""Maxima and averages in two passes agree with NumPy's, whatever the windows and the knobs."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from poolings import HOST, WINDOWS, check_windows, pooled
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.space import config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload


@settings(max_examples=10, deadline=None, derandomize=True, database=None)
@given(*WINDOWS)
@example((1, 12, 11, 17), (3, 3), (1, 1), ((1, 1), (1, 1)), "max float32", 0)
@example((1, 11, 12, 33), (3, 3), (2, 2), ((1, 1), (0, 1)), "max float32", 1)
@example((1, 3, 2, 1), (3, 3), (1, 1), ((1, 1), (1, 1)), "max float32", 3)
@example((2, 7, 9, 16), (2, 3), (3, 1), ((0, 2), (1, 0)), "max int8", 2)
@example((1, 12, 11, 17), (3, 3), (1, 1), ((1, 1), (1, 1)), "avg float32", 0)
@example((1, 11, 12, 33), (3, 3), (2, 2), ((1, 1), (0, 1)), "avg float32", 1)
@example((2, 8, 9, 17), (4, 4), (1, 1), ((1, 2), (0, 2)), "avg float32", 1)
@example((2, 7, 9, 16), (2, 3), (3, 1), ((1, 2), (1, 0)), "avg whole", 2)
@example((1, 9, 28, 20), (3, 3), (1, 1), ((1, 1), (1, 1)), "avg float32", 3)
@example((1, 7, 30, 7), (3, 2), (1, 1), ((1, 1), (0, 1)), "avg whole", 4)
def test_passes_agree_with_numpy(
    data: tuple[int, ...],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    kind: str,
    seed: int,
) -> None:
    check_windows("window_passes", data, kernel, strides, padding, kind, seed)


@pytest.mark.parametrize(
    ("size", "channels", "stride", "op", "sketch"),
    [
        (28, 17, 1, "max_pool", "window_passes"),
        (28, 16, 1, "max_pool", "window_passes"),
        (14, 512, 1, "max_pool", "window"),
        (56, 33, 2, "max_pool", "window_passes"),
        (56, 64, 2, "max_pool", "window"),
        (56, 100, 2, "avg_pool", "window"),
    ],
)
def test_where_two_passes_come_before_one(
    size: int, channels: int, stride: int, op: str, sketch: str
) -> None:
    """Channels that leave lanes empty, or short rows of windows a pixel apart."""
    target = Target("llvm -mcpu=znver5 -num-cores=1")
    pool = pooled((1, size, size, channels), (3, 3), (stride, stride), op=op)
    sketches = [s.sketch for s in config_space(pool, target).sketches]
    assert next(s for s in sketches if s != "window_strips") == sketch


def test_blocks_of_rows() -> None:
    """Two rows of short ones, four of those that leave the first cache, a block for each core; one
    where the cache holds no more, and where windows are apart."""

    def rows(data: tuple[int, ...], stride: int = 1, size: int = 3, cores: int = 1) -> object:
        side = size // 2
        pool = pooled(data, (size, size), (stride, stride), ((side, side), (side, side)))
        target = Target(f"llvm -mcpu=znver4 -num-cores={cores}")
        space = config_space(pool, target)
        (passes,) = [s for s in space.sketches if s.sketch == "window_passes"]
        return passes.default["rows"]

    assert rows((1, 28, 28, 17)) == 2
    assert rows((1, 28, 28, 17), cores=16) == 1
    assert rows((1, 13, 13, 17), size=5) == 4
    assert rows((1, 112, 112, 40)) == 4
    assert rows((1, 56, 56, 33)) == 1
    assert rows((1, 28, 28, 17), stride=2) == 1


@pytest.mark.parametrize(
    ("op", "stride", "cpu", "shifted"),
    [
        ("avg_pool", 1, "znver4", True),
        ("avg_pool", 1, "haswell", False),  # vectors of half a line
        ("avg_pool", 2, "znver4", False),
        ("max_pool", 1, "znver4", False),
    ],
)
def test_averages_a_pixel_apart_are_put_together_from_lines(
    op: str, stride: int, cpu: str, shifted: bool
) -> None:
    workload = pooled((1, 28, 28, 17), (3, 3), (stride, stride), op=op)
    target = Target(f"llvm -mcpu={cpu} -num-cores=1")
    config = {"sketch": "window_passes", "rows": 2, "cv": 2, "nv": 2, "tile": 1, "tasks": 0}
    text = emit_llvm(lower(schedule_workload(workload, target, config)), target).text
    neighbours = ", ".join(f"i32 {15 + lane}" for lane in range(16))  # a pixel is 17 numbers away
    assert (f"<16 x i32> <{neighbours}>" in text) is shifted


@pytest.mark.parametrize(
    "workload",
    [
        pooled((1, 9, 9, 17), (3, 3), (1, 3)),
        pooled((1, 9, 9, 17), (1, 3)),
        pooled((1, 4, 4, 1), (3, 3), (2, 2)),
        pooled((1, 4, 1, 1), (3, 3)),
        pooled((1, 9, 9, 17), (3, 3), dilations=(2, 2)),
        pooled((1, 9, 9, 17), (3, 3), padding=((3, 0), (1, 1))),
        pooled((1, 17, 9, 9), (3, 3), data_layout="NCS"),
        pooled(  # windows of nothing but padding have no average
            (1, 9, 9, 17), (3, 3), padding=((1, 1), (3, 0)), op="avg_pool", counted=((0, 0), (0, 0))
        ),
        pooled(
            (1, 30, 30, 17),
            (11, 11),
            padding=((9, 9), (9, 9)),
            op="avg_pool",
            counted=((0, 0), (0, 0)),
        ),
        pooled((1, 9, 9, 17), (3, 3), dtype="float16", op="avg_pool"),
    ],
)
def test_other_windows_have_one_pass(workload: Workload) -> None:
    assert all(s.sketch != "window_passes" for s in config_space(workload, HOST).sketches)
    config = {"sketch": "window_passes", "rows": 1, "cv": 1, "nv": 1, "tile": 1, "tasks": 0}
    with pytest.raises(ScheduleError, match="no maximum or average over overlapping windows"):
        schedule_workload(workload, HOST, config)

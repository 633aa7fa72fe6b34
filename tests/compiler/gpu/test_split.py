"""Reductions of few results whose terms are shared out over blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulation import emulate
from gpu_harness import (
    ARCHS,
    F32,
    HOPPER,
    assembled,
    check,
    emitted,
    function_of,
    lowered,
    needs_ptxas,
)
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.workload import Workload

HALF = "float16"


def reduced(shape: tuple[int, ...], axes: tuple[int, ...], dtype: str = F32) -> Workload:
    def body(x: Any) -> Any:
        return call("relu", call("mean", call("exp", x), axes=axes, keepdims=False))

    return Workload.from_function(function_of(body, (shape, dtype)))


def plain(operator: str, shape: tuple[int, ...], axis: int, dtype: str = F32) -> Workload:
    return Workload.from_function(
        function_of(operator, (shape, dtype), axes=(axis,), keepdims=False)
    )


CASES = {
    "one number of odd terms": plain("sum", (70001,), 0),
    "one number of a matrix": reduced((333, 200), (0, 1)),
    "rows": plain("max", (3, 65544), 1, HALF),
    "columns": plain("sum", (777, 91), 0, HALF),
    "columns, with what follows": reduced((300, 96), (0,)),
    "images": reduced((2, 20, 21, 40), (1, 2), HALF),
}


@pytest.mark.parametrize("name", CASES)
def test_a_reduction_agrees(name: str) -> None:
    workload = CASES[name]
    space = config_space(workload, HOPPER)
    assert space.default["sketch"] == "gpu_split"
    assert space.valid(space.encode(space.default)[None])[0]
    emulate(workload)
    rows = space.sample(np.random.default_rng(0), 200)
    drawn = map(space.decode, rows[space.valid(rows)])
    for config in [c for c in drawn if c["sketch"] == "gpu_split"][:3]:
        emulate(workload, config)


def test_parts_agree_in_lock_step() -> None:
    for workload in (plain("sum", (1, 300), 1), plain("sum", (70, 5), 0)):
        config = {"sketch": "gpu_split", "split": 4, "vec": 1, "threads": 32}
        check(workload, config)


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHS)
def test_kernels_assemble_without_spills(arch: str) -> None:
    for workload in (plain("sum", (1 << 24,), 0), plain("sum", (1 << 14, 1024), 0, HALF)):
        program = lowered(workload)
        code, _ = emitted(program)
        first, second = (np.prod(launch.grid) for launch in code.launches)
        assert first >= 128 >= second
        assembled(program, arch)


def test_what_one_kernel_is_enough_for() -> None:
    def sketches(workload: Workload) -> list[str]:
        return [s.sketch for s in config_space(workload, HOPPER).sketches]

    assert "gpu_split" not in sketches(plain("sum", (4096, 8192), 1))  # many rows
    assert "gpu_split" not in sketches(plain("sum", (49, 512), 0))  # few terms
    assert sketches(plain("sum", (20000,), 0))[0] == "gpu_rows"
    softmax = Workload.from_function(function_of("softmax", ((1, 70000), F32), axis=-1))
    assert "gpu_split" not in sketches(softmax)
    with pytest.raises(ScheduleError, match="no reduction whose terms can be shared out"):
        lowered(softmax, {"sketch": "gpu_split", "split": 4, "vec": 1, "threads": 32})

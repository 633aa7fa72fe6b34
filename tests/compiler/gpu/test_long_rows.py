"""Softmax and normalisations of few long rows, each shared out over blocks."""

from __future__ import annotations

import numpy as np
import pytest
from emulation import emulate
from gpu_harness import F32, HOPPER, assembled, check, function_of, lowered, needs_ptxas
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.workload import Workload

HALF = "float16"


def softmax(*shape: int, dtype: str = F32) -> Workload:
    return Workload.from_function(function_of("softmax", (shape, dtype), axis=-1))


def layer_norm(*shape: int, dtype: str = F32) -> Workload:
    scale = (shape[-1:], dtype)
    return Workload.from_function(
        function_of(
            lambda x, g, b: call(
                "relu", call("layer_norm", x, g, b, axis=-1, epsilon=1e-5)
            ), (shape, dtype), scale, scale,
        )
    )  # fmt: skip


def config_of(split: int, vec: int, threads: int) -> Config:
    return {"sketch": "gpu_long_rows", "split": split, "vec": vec, "threads": threads}


CASES = {
    "parts that do not divide a row": (softmax(2, 8200), config_of(4, 4, 64)),
    "odd rows of halves": (softmax(3, 8195, dtype=HALF), config_of(4, 1, 32)),
    "two axes of rows": (softmax(1, 2, 8192, dtype=HALF), config_of(8, 8, 128)),
    "what follows, other operands": (layer_norm(2, 8200, dtype=HALF), config_of(8, 8, 64)),
    "one row": (layer_norm(1, 8200), config_of(16, 2, 32)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_long_row_agrees(name: str) -> None:
    workload, config = CASES[name]
    emulate(workload, config)


def test_in_lock_step() -> None:
    check(softmax(2, 70), config_of(4, 1, 32))


@needs_ptxas
@pytest.mark.parametrize("arch", ["sm_90a", "sm_100"])
def test_it_is_assembled(arch: str) -> None:
    workload = softmax(4, 128256, dtype=HALF)
    assert len(assembled(lowered(workload), arch).kernels) == 3


def test_which_rows_are_shared_out() -> None:
    workload = softmax(4, 128256, dtype=HALF)
    space = config_space(workload, HOPPER)
    assert space.default == config_of(32, 8, 256)
    assert space.valid(space.encode(space.default)[None])[0]
    rows = space.sample(np.random.default_rng(0), 200)
    drawn = list(map(space.decode, rows[space.valid(rows)]))
    mine = [c for c in drawn if c["sketch"] == "gpu_long_rows"]
    assert mine
    assert all(int(c["split"]) % int(c["vec"]) == 0 for c in mine)
    assert config_space(softmax(60, 8192), HOPPER).default["sketch"] == "gpu_rows"  # short
    for other in (softmax(4096, 8192), softmax(2, 1000)):  # many, too short
        assert "gpu_long_rows" not in [s.sketch for s in config_space(other, HOPPER).sketches]
    summed = Workload.from_function(
        function_of("sum", ((4, 65536), F32), axes=(1,), keepdims=False)
    )
    with pytest.raises(ScheduleError, match="no rows whose stages can be shared out"):
        lowered(summed, config_of(4, 1, 32))

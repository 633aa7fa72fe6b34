"""A warp a row: reductions by shuffles agree with NumPy, on rows of any length."""

from __future__ import annotations

import re

import numpy as np
import pytest
from gpu_harness import F32, HOPPER, check, emitted, function_of, lowered
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.schedule import combine_in_warp, enclose_threads
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.space.program import create_program
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.workload import Workload

ROWS = {
    "softmax": function_of("softmax", ((5, 40), F32), axis=-1),
    "softmax of an odd row": function_of("softmax", ((3, 2, 37), F32), axis=-1),
    "layer norm": function_of(
        lambda x, g, b: call("layer_norm", x, g, b, axis=-1),
        ((3, 64), F32), ((64,), F32), ((64,), F32),
    ),
    "mean": function_of("mean", ((6, 45), F32), axes=(1,), keepdims=False),
    "half": function_of("softmax", ((3, 48), "float16"), axis=-1),
    "largest": function_of("max", ((4, 70), "int32"), axes=(1,), keepdims=True),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows_agree_under_random_configs(name: str) -> None:
    workload = Workload.from_function(ROWS[name])
    space = config_space(workload, HOPPER)
    assert space.default["sketch"] == "gpu_rows"
    rows = space.sample(np.random.default_rng(3), 64)
    mine = [r for r in rows[space.valid(rows)] if r[0] == 0]
    for row in mine[:4]:
        check(workload, space.decode(row))


def test_a_warp_combines_by_shuffles_without_shared_memory() -> None:
    program = lowered(Workload.from_function(ROWS["softmax"]))
    code, ptx = emitted(program)
    assert len(re.findall(r"shfl\.sync\.bfly", ptx)) == 10  # the largest, and the sum
    assert "bar.sync" not in ptx
    assert code.launches[0].block[0] == 32


def test_what_a_warp_cannot_combine() -> None:
    workload = Workload.from_function(ROWS["mean"])
    program = lowered(workload)
    assert "warp_add(" in str(program)
    program = create_program(workload.function)
    block = s.remaining_blocks(program)[0]
    *_, loop = s.loops_of(program, block)
    with pytest.raises(ScheduleError, match="has 45 iterations; a warp combines 2, 4 … 32"):
        combine_in_warp(program, block, loop)
    with pytest.raises(ScheduleError, match=r"'blockIdx.x' is no axis of threads"):
        enclose_threads(program, loop, "blockIdx.x", 4)

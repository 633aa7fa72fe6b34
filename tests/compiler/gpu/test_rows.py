"""A team of threads a row: reductions by shuffles agree with NumPy, on rows of any length."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from emulation import run_program
from gpu_harness import (
    ARCHS,
    F32,
    HOPPER,
    assembled,
    check,
    compare,
    emitted,
    function_of,
    inputs_of,
    lowered,
    needs_ptxas,
)
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.gpu.schedule import enclose_threads
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.space.program import create_program
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import Barrier
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.interpreter import interpret
from tunefarm.compiler.tir.visit import seq, transform_stmt
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
    "a single row": function_of("softmax", ((1, 100), F32), axis=-1),
    "one number": function_of("sum", ((7, 30), F32), axes=(0, 1), keepdims=False),
    "largest": function_of("max", ((4, 70), "int32"), axes=(1,), keepdims=True),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_rows_agree_under_random_configs(name: str) -> None:
    workload = Workload.from_function(ROWS[name])
    space = config_space(workload, HOPPER)
    assert space.default["sketch"] == "gpu_rows"
    rows = space.sample(np.random.default_rng(3), 64)
    mine = [space.decode(r) for r in rows[space.valid(rows)] if r[0] == 0]
    for config in mine[:4]:
        check(workload, config)
    agrees_emulated(workload, [space.default, *mine[:8]])


def agrees_emulated(workload: Workload, configs: Sequence[Config]) -> None:
    arrays = inputs_of(workload)
    (want,) = evaluate(workload.function, arrays)
    for config in configs:
        got = run_program(lowered(workload, config), arrays)[0]
        compare(got.reshape(np.shape(want)), want, f"{workload.summary} {config}")


LONG = {
    "softmax": function_of("softmax", ((3, 4096), "float16"), axis=-1),
    "softmax of a prime row": function_of("softmax", ((2, 9973), F32), axis=-1),
    "layer norm": function_of(
        lambda x, g, b: call("layer_norm", x, g, b, axis=-1),
        ((5, 1536), "bfloat16"), ((1536,), "bfloat16"), ((1536,), "bfloat16"),
    ),
    "sums": function_of("sum", ((2, 3, 40, 56), F32), axes=(2, 3), keepdims=False),
}  # fmt: skip


@pytest.mark.parametrize("name", LONG)
@pytest.mark.parametrize("kept", [0, 1])
def test_teams_of_several_warps_agree(name: str, kept: int) -> None:
    workload = Workload.from_function(LONG[name])
    space = config_space(workload, HOPPER)
    kept = min(kept, max(space.sketches[0].knobs[3].choices))
    configs = []
    for team, rows in ((64, 2), (256, 1), (1024, 1)):
        config = {**space.default, "team": team, "rows": rows, "kept": kept}
        if space.valid(space.encode(config)[None])[0]:
            configs.append(config)
    assert configs
    agrees_emulated(workload, configs)


@pytest.mark.parametrize("name", ["softmax", "mean", "half"])
def test_warps_of_a_team_meet_where_they_must(name: str) -> None:
    workload = Workload.from_function(ROWS[name])
    config = config_space(workload, HOPPER).default
    program = check(workload, {**config, "vec": 1, "team": 64, "rows": 2, "kept": 0})
    bare = replace(
        program,
        body=transform_stmt(program.body, lambda n: seq() if isinstance(n, Barrier) else None),
    )
    arrays = [np.zeros(p.shape, numpy_dtype(p.dtype)) for p in program.params]
    with pytest.raises(ScheduleError, match=r"_warps\[.*without a barrier"):
        interpret(bare, arrays)


def test_a_row_is_read_once_by_16_bytes() -> None:
    function = function_of("softmax", ((512, 4096), "float16"), axis=-1)
    code, ptx = emitted(lowered(Workload.from_function(function)))
    assert code.launches[0].grid == (512, 1, 1)
    assert code.launches[0].block == (128, 1, 1)
    assert len(re.findall(r"ld\.global\.nc\.v4\.b32", ptx)) == 4
    assert len(re.findall(r"st\.global\.v4\.b32", ptx)) == 4
    assert len(re.findall(r"[ls][dt]\.global", ptx)) == 8
    assert ptx.count("bar.sync") == 2  # the largest, and the sum


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("name", ["softmax of a prime row", "layer norm"])
def test_rows_assemble_without_spills(name: str, arch: str) -> None:
    workload = Workload.from_function(LONG[name])
    assembled(lowered(workload, target=Target(f"cuda -arch={arch}")), arch)


@needs_ptxas
def test_what_is_kept_fits_in_registers() -> None:
    workload = Workload.from_function(LONG["layer norm"])
    space = config_space(workload, HOPPER)
    rows = space.sample(np.random.default_rng(1), 300)
    mine = [space.decode(r) for r in rows[space.valid(rows)] if r[0] == 0]
    kept = [c for c in mine if c["kept"]]
    assembled(lowered(workload, min(kept, key=lambda c: int(c["team"]))), "sm_80")
    threads = {**space.default, "team": 512, "rows": 4}
    assert not space.valid(space.encode(threads)[None])[0]


def test_a_warp_combines_by_shuffles_without_shared_memory() -> None:
    program = lowered(Workload.from_function(ROWS["softmax"]))
    code, ptx = emitted(program)
    assert len(re.findall(r"shfl\.sync\.bfly", ptx)) == 10  # the largest, and the sum
    assert "bar.sync" not in ptx
    assert code.launches[0].block[0] == 32


def test_threads_lie_along_axes_of_threads() -> None:
    program = create_program(ROWS["mean"])
    (block, *_) = s.remaining_blocks(program)
    *_, loop = s.loops_of(program, block)
    with pytest.raises(ScheduleError, match=r"'blockIdx.x' is no axis of threads"):
        enclose_threads(program, loop, "blockIdx.x", 4)

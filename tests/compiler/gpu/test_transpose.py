"""Moves through tiles: they agree with NumPy, and lie side by side on either side."""

from __future__ import annotations

import re
from typing import Any

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
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload


def joined(x: Any, y: Any, b: Any) -> Any:
    turned = [call("transpose", v, axes=(0, 2, 1)) for v in (x, y)]
    return call("relu", call("add", call("add", *turned), b))


MOVES = {
    "odd": function_of("transpose", ((37, 41), F32), axes=(1, 0)),
    "channels first": function_of("transpose", ((2, 5, 7, 12), F32), axes=(0, 3, 1, 2)),
    "heads": function_of("transpose", ((1, 10, 9, 16), "float16"), axes=(0, 2, 3, 1)),
    "bytes": function_of("transpose", ((36, 40), "int8"), axes=(1, 0)),
    "two at once": function_of(
        joined, ((2, 18, 20), F32), ((2, 18, 20), F32), ((18,), F32)
    ),
    "of bfloats": function_of("transpose", ((2, 66, 34), "bfloat16"), axes=(0, 2, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_a_move_agrees_under_random_configs(name: str) -> None:
    workload = Workload.from_function(MOVES[name])
    space = config_space(workload, HOPPER)
    assert space.default["sketch"] == "gpu_transpose"
    rows = space.sample(np.random.default_rng(5), 40)
    mine = [c for c in map(space.decode, rows[space.valid(rows)]) if c["sketch"] == "gpu_transpose"]
    arrays = inputs_of(workload)
    (want,) = evaluate(workload.function, arrays)
    check(workload, min(mine, key=lambda c: (int(c["tile"]), int(c["threads"]))), arrays)
    for config in mine[:4]:
        program = lowered(workload, config)
        compare(run_program(program, arrays)[0].reshape(want.shape), want, f"{name} {config}")


def test_both_sides_are_coalesced() -> None:
    function = function_of("transpose", ((1024, 768), "float16"), axes=(1, 0))
    workload = Workload.from_function(function)
    knobs = {"tile": 64, "vec": 2, "threads": 256}
    code, ptx = emitted(lowered(workload, {"sketch": "gpu_transpose", **knobs}))
    assert code.launches[0].grid == (16 * 12, 1, 1)
    assert len(re.findall(r"cp\.async\.ca\.shared\.global", ptx)) == 8
    assert len(re.findall(r"st\.global\.(b32|v2\.b16)", ptx)) == 8
    assert ptx.count("bar.sync") == 1
    assert not re.search(r"st\.shared|ld\.global", ptx)


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHS)
def test_moves_assemble_without_spills(arch: str) -> None:
    workload = Workload.from_function(MOVES["two at once"])
    assembled(lowered(workload, target=Target(f"cuda -arch={arch}")), arch)


def test_rows_that_stay_rows_need_no_tile() -> None:
    for function in (
        function_of("transpose", ((4, 6, 32), F32), axes=(1, 0, 2)),
        function_of("transpose", ((3, 50), F32), axes=(1, 0)),
        function_of("relu", ((5, 24), F32)),
        function_of("softmax", ((5, 24), F32), axis=0),
    ):
        workload = Workload.from_function(function)
        space = config_space(workload, HOPPER)
        assert "gpu_transpose" not in [s.sketch for s in space.sketches]
        with pytest.raises(ScheduleError, match="does not turn rows into columns"):
            lowered(workload, {"sketch": "gpu_transpose", "tile": 32, "vec": 1, "threads": 256})

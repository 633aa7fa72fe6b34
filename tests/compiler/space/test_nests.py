"""Work shared out among cores."""

from __future__ import annotations

import pytest
from tunefarm.compiler import te
from tunefarm.compiler.space.nests import share_out
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.facts import loops_below
from tunefarm.compiler.tir.ir import Const, LoopKind


@pytest.mark.parametrize(
    ("count", "tasks_per_core", "tasks", "size"),
    [
        (28, 2, 4, 7),
        (7, 2, 7, 1),
        (14, 2, 7, 2),
        (30, 2, 6, 5),  # 5 tasks of 6 would end later than 8, 8, 8 and 6
        (13, 2, 4, 4),  # not in 13 tasks, more than twice as many
        (3, 1, 3, 1),
        (3, 2, 3, 1),
    ],
)
def test_tasks_are_equally_long_where_they_end_as_soon(
    count: int, tasks_per_core: int, tasks: int, size: int
) -> None:
    x = te.placeholder((count, 16), "float32", "x")
    y = te.compute((count, 16), lambda i, j: x[i, j] + x[i, j], "y")
    program = te.create_prim_func([x, y], "kernel")
    row, _ = s.loops_of(program, "y")
    program = share_out(program, [row], tasks_per_core, Target("llvm -num-cores=2"))
    parallel, *inside = loops_below(program.body)
    assert parallel.kind is LoopKind.PARALLEL
    extents = [loop.extent.value for loop in (parallel, *inside) if isinstance(loop.extent, Const)]
    assert extents == [tasks, *([size] if size > 1 else []), 16]

"""Hints for the next panel of weights: all its lines, in iterations that run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod

import pytest
from sketch_harness import function_of
from tunefarm.compiler.ir import Call, Expr, Function
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.ir import Const, For, Prefetch, Stmt
from tunefarm.compiler.tir.ir import Expr as Index
from tunefarm.compiler.tir.ir import Var as LoopVar
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.visit import children, substitute
from tunefarm.compiler.workload import Workload

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
LINE = 16  # elements


def with_constant(function: Function) -> Workload:
    attrs = {**function.attrs, "constants": (1,)}
    return Workload.from_function(Function(function.params, function.body, attrs))


def product(rows: int, depth: int, columns: int) -> Workload:
    types = ((rows, depth), "float32"), ((depth, columns), "float32")
    return with_constant(function_of("matmul", *types))


def convolution(height: int, width: int, channels: int) -> Workload:
    types = ((1, height, width, channels), "float32"), ((3, 3, channels, 64), "float32")

    def same(x: Expr, w: Expr) -> Call:
        layouts = {"data_layout": "NSC", "kernel_layout": "SIO"}
        return call("conv", x, w, padding=((1, 1), (1, 1)), **layouts)

    return with_constant(function_of(same, *types))


def asked(stmt: Stmt, at: Mapping[LoopVar, Index]) -> Iterator[tuple[Prefetch, int]]:
    """The first element that each hint asks for, as the loops run."""
    if not isinstance(stmt, For):
        for child in children(stmt):
            yield from asked(child, at)
        return
    start, extent = substitute(stmt.start, at), substitute(stmt.extent, at)
    assert isinstance(start, Const)
    assert isinstance(extent, Const)
    for value in range(int(start.value), int(start.value) + int(extent.value)):
        now = {**at, stmt.var: Const(value)}
        for hint in stmt.prefetch:
            first = substitute(hint.offset, now)
            assert isinstance(first, Const)
            yield hint, int(first.value)
        if hints_below(stmt.body):
            yield from asked(stmt.body, now)


def hints_below(stmt: Stmt) -> bool:
    own = isinstance(stmt, For) and bool(stmt.prefetch)
    return own or any(map(hints_below, children(stmt)))


CONTRACTION = {"sketch": "contraction", "rh": 1, "ku": 2, "order": "nm"}
CONTRACTION |= dict.fromkeys(("pack_lhs", "pack_rhs", "prefetch"), 0)
STRASSEN = {"sketch": "strassen", "ku": 2, "by_tile": 0}
WINOGRAD = {"sketch": "winograd", "tile_h": 2, "tile_w": 2, "ku": 2, "by_row": 0}


@pytest.mark.parametrize(
    ("workload", "config"),
    [
        (product(49, 64, 128), CONTRACTION | {"rw": 10, "nv": 2, "mb": 6, "nb": 1}),
        (product(49, 40, 96), CONTRACTION | {"rw": 7, "nv": 1, "mb": 8, "nb": 2}),
        (product(98, 64, 128), STRASSEN | {"rw": 10, "nv": 1, "mb": 5, "nb": 4}),
        (product(98, 64, 128), STRASSEN | {"rw": 10, "nv": 1, "mb": 5, "nb": 2}),
        (product(98, 64, 64), STRASSEN | {"rw": 10, "nv": 1, "mb": 2, "nb": 2}),
        (convolution(7, 7, 64), WINOGRAD | {"rw": 6, "nv": 2, "mb": 4, "nb": 2}),
    ],
    ids=[
        "more tiles than rows",
        "shares below a line",
        "strassen",
        "blocks of panels",
        "blocks of rows",
        "winograd",
    ],
)
def test_every_line_behind_the_first_panel_is_asked_for(workload: Workload, config: Config) -> None:
    lowered = lower(schedule_workload(workload, TARGET, {**config, "next_panel": 1}))
    *_, depth, width = lowered.params[1].shape
    found = {
        first // LINE + line
        for hint, first in asked(lowered.body, {})
        for line in range(hint.lines)
    }
    panels = set(range(depth * width // LINE, prod(lowered.params[1].shape) // LINE))
    assert panels <= found

"""Merged dimensions: how few are left, and when iterators must stay apart."""

from __future__ import annotations

from typing import Any

import pytest
from sketch_harness import function_of
from tunefarm.compiler.ops import call
from tunefarm.compiler.space.flatten import flatten
from tunefarm.compiler.space.nests import INTRINSIC_COSTS, cost_of, inline_all
from tunefarm.compiler.space.program import create_program
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Intrinsic
from tunefarm.compiler.tir.schedule.tree import blocks, store_of
from tunefarm.compiler.tir.visit import walk_expr

F32 = "float32"


def flat(op: Any, *shapes: tuple[int, ...], **attrs: Any) -> PrimFunc:
    function = function_of(op, *((s, F32) for s in shapes), **attrs)
    return flatten(inline_all(create_program(function)))


def extents(program: PrimFunc) -> list[list[int]]:
    return [[i.extent for i in b.iters] for b in blocks(program.body)]


def shuffle(x: Any) -> Any:
    parts = call("reshape", x, shape=(1, 3, 3, 2, 5))
    turned = call("transpose", parts, axes=(0, 1, 2, 4, 3))
    return call("reshape", turned, shape=(1, 3, 3, 10))


@pytest.mark.parametrize(
    ("program", "left"),
    [
        (flat("add", (2, 3, 5, 7), (2, 3, 5, 7)), [[210]]),
        (flat("add", (2, 3, 5, 7), (7,)), [[30, 7]]),
        (flat("add", (2, 3, 5, 7), (2, 3, 1, 1)), [[6, 35]]),
        (flat("add", (1, 1), (1,)), [[]]),
        (flat("transpose", (2, 3, 5, 7), axes=(0, 2, 3, 1)), [[2, 35, 3]]),
        (flat("transpose", (2, 3, 5, 7), axes=(0, 1, 3, 2)), [[6, 7, 5]]),
        (flat("concat", (4, 3, 2), (4, 3, 5), axis=2), [[12, 7]]),
        (flat("sum", (4, 3, 5), axes=(1, 2), keepdims=False), [[4, 15]]),
        (flat("sum", (4, 3, 5), axes=(0, 1), keepdims=True), [[5, 12]]),
        (flat("softmax", (2, 7, 3, 5), axis=1), [[2, 15, 7], [2, 15, 7], [2, 7, 15]]),
        (flat("slice", (7, 5, 3), begin=(2, 0, 0), size=(4, 5, 3), strides=(1, 1, 1)), [[60]]),
        (flat("slice", (7, 5, 3), begin=(0, 1, 0), size=(7, 3, 3), strides=(1, 1, 1)), [[7, 9]]),
        (flat(shuffle, (1, 3, 3, 10)), [[9, 5, 2]]),
    ],
    ids=lambda x: "" if isinstance(x, PrimFunc) else str(x),
)
def test_dimensions_merge(program: PrimFunc, left: list[list[int]]) -> None:
    assert extents(program) == left


def test_parameters_become_vectors() -> None:
    program = flat("add", (2, 3, 5), (5,))
    assert [p.shape for p in program.params] == [(30,), (5,), (30,)]


def test_a_quotient_of_channels_becomes_the_group() -> None:
    program = flat("group_norm", (2, 6, 5), (6,), (6,), groups=3)
    last = list(blocks(program.body))[-1]
    assert [i.extent for i in last.iters] == [2, 3, 2, 5]
    assert "//" not in str(program)


def test_what_stands_in_several_places_stays_one_node() -> None:
    """The normalised value, which GELU by tanh reads five times, is computed and counted once."""

    def build(x: Any, scale: Any) -> Any:
        return call("gelu", call("rms_norm", x, scale), approximate=True)

    *_, last = blocks(flat(build, (3, 40), (40,)).body)
    value = store_of(last).value
    roots = [e for e in walk_expr(value) if isinstance(e, Intrinsic) and e.name == "sqrt"]
    assert len(roots) == 5
    assert len(set(roots)) == 1
    assert cost_of(value) < 2 * cost_of(roots[0]) + INTRINSIC_COSTS["tanh"] + 20

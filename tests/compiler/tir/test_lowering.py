"""Lowering's own phases: what does nothing goes, conditions leave loops, callers add passes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tir_harness as harness
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.tir import (
    Allocate,
    Buffer,
    Const,
    For,
    If,
    Load,
    LoopKind,
    PrimFunc,
    Seq,
    Store,
    Var,
)
from tunefarm.compiler.tir.transform.conditions import unswitch_loops
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.transform.no_ops import remove_no_ops
from tunefarm.compiler.tir.visit import seq

X, Y = Buffer("x", (5,)), Buffer("y", (5,))
i, k = Var("i"), Var("k")
COPY = For(i, Const(5), Store(Y, (i,), Load(X, (i,))))


def program(*stmts: For | If | Allocate | Store) -> PrimFunc:
    return PrimFunc("f", (X, Y), seq(*stmts))


def test_what_does_nothing_is_left_out() -> None:
    tile, chained = Buffer("tile", (5,), scope="local"), Buffer("chained", (5,), scope="local")
    fill = seq(Store(tile, (k,), Load(X, (k,))), Store(chained, (k,), Load(tile, (k,))))
    unread = Allocate(tile, Allocate(chained, For(k, Const(5), fill)))
    itself = For(k, Const(5), If(k < 3, Store(Y, (k,), Load(Y, (k,)))))
    never = For(k, Const(0), Store(Y, (k,), Const(1.0, "float32")))
    cleaned = remove_no_ops(program(COPY, unread, itself, never))
    assert str(cleaned) == str(program(COPY))
    untouched = program(COPY)
    assert remove_no_ops(untouched) is untouched


def test_an_empty_branch_leaves_the_other() -> None:
    store = Store(Y, (i,), Const(1.0, "float32"))
    loop = For(i, Const(5), If(i < 3, Store(Y, (i,), Load(Y, (i,))), store))
    cleaned = remove_no_ops(program(COPY, loop))
    assert "else" not in str(cleaned)
    x = np.arange(5, dtype=np.float32)
    assert harness.interpreted(cleaned, [x])[0].tolist() == [0, 1, 2, 1, 1]


def add(value: float) -> Store:
    return Store(Y, (i,), Load(Y, (i,)) + Const(value, "float32"))


@pytest.mark.parametrize(
    "body",
    [If(i < 3, add(1), add(2)), seq(add(4), If(i < 3, add(1)), add(8)), If(i < 3, add(1))],
    ids=["else", "among others", "alone"],
)
def test_a_condition_is_asked_once(body: Seq | If) -> None:
    plain = program(COPY, For(i, Const(5), For(k, Const(4), body)))
    switched = unswitch_loops(plain)
    text = str(switched)
    assert text.index("if i < 3") < text.index("for k in")
    x = np.arange(5, dtype=np.float32)
    want = harness.interpreted(plain, [x])
    assert np.array_equal(harness.interpreted(switched, [x]), want)
    assert np.array_equal(harness.compiled(lower(plain), [x]), want)


def test_large_bodies_are_not_written_twice() -> None:
    body = seq(*(add(v) for v in range(5)), If(i < 3, add(1)))
    plain = program(COPY, For(i, Const(5), For(k, Const(4), body)))
    assert str(unswitch_loops(plain)) == str(plain)
    late = program(COPY, For(i, Const(5), For(k, Const(4), If(k < 2, add(1), add(2)))))
    assert str(unswitch_loops(late)) == str(late)


def test_what_a_loop_inside_an_unrolled_one_uses_is_allocated_there() -> None:
    tile = Buffer("tile", (3, 5), scope="register")
    rows, out = Buffer("rows", (3, 5)), Buffer("out", (3, 5))
    body = seq(Store(tile, (i, k), Load(rows, (i, k)) * 2.0), Store(out, (i, k), tile[i, k] + 1.0))
    unrolled = For(i, Const(3), For(k, Const(5), body), LoopKind.UNROLLED)
    lowered = lower(PrimFunc("f", (rows, out), unrolled, buffers=(tile,)))
    text = str(lowered)
    assert text.index("for k in") < text.index("allocate tile: float32[1, 1] in register")
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    assert np.array_equal(harness.compiled(lowered, [x])[0], x * 2 + 1)


def test_callers_add_passes_of_their_own() -> None:
    seen = []

    def renamed(p: PrimFunc) -> PrimFunc:
        seen.append(str(p))
        return replace(p, name="mine")

    lowered = lower(program(COPY), extra={"after:compact_buffers": [renamed], "before:finish": []})
    assert lowered.name == "mine"
    assert len(seen) == 1
    with pytest.raises(TunefarmError, match="'after:nothing' is no place in lowering; places are"):
        lower(program(COPY), extra={"after:nothing": [renamed]})

"""Register tiles keep their elements across branches, iterations and vectors of other lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tir_harness as h
from tunefarm.compiler import te
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import (
    Allocate,
    Buffer,
    Const,
    Expr,
    For,
    If,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.transform.lower import lower

X, Y = Buffer("X", (8,)), Buffer("Y", (8,))
T = Buffer("T", (8,), scope="register")
I, J = Var("i"), Var("j")  # noqa: E741


def store(buffer: Buffer, index: Expr | int, value: Expr) -> Store:
    return Store(buffer, (Const(index) if isinstance(index, int) else index,), value)


def loop(var: Var, extent: int, body: Stmt, kind: LoopKind = LoopKind.SERIAL) -> For:
    return For(var, Const(extent), body, kind)


def agree(*stmts: Stmt) -> Any:
    """The outputs of a program with the tile T, equal when interpreted and compiled."""
    program = PrimFunc("f", (X, Y), Allocate(T, Seq(stmts)))
    arrays = [np.arange(8, dtype="float32") + 1]
    want = h.interpreted(program, arrays)
    h.same(h.compiled(program, arrays), want, str(program))
    return want[0]


def test_a_first_value_stored_in_the_first_iteration_is_carried_to_the_last() -> None:
    """No decompose_reduction: ``for k: if k == 0: T = 0; T += x[k]`` and T is read after."""
    x, k = te.placeholder((3, 5), name="x"), te.reduce_axis(5)
    t = te.compute((3,), lambda i: te.sum(x[i, k], [k]), name="T")
    y = te.compute((3,), lambda i: t[i] * 2, name="Y")
    program = te.create_prim_func([x, y])
    arrays = h.whole_numbers(program)
    want = h.interpreted(program, arrays)
    rows = s.loops_of(program, "T")[0]
    program = s.unroll(s.set_scope(program, "T", "register"), rows)
    program = s.unroll(program, s.loops_of(program, "Y")[0])
    h.same(h.compiled(lower(program), arrays), want, str(program))


def test_an_element_stored_before_a_loop_and_one_stored_in_it() -> None:
    body = Seq((If(I.equal(0), store(T, 1, X[7])), store(T, 1, T[1] + X[I])))
    total = agree(
        store(T, 0, X[0]),
        loop(I, 4, body),
        loop(I, 8, store(Y, I, T[0] + T[1])),
    )
    assert total[0] == 1 + 8 + 1 + 2 + 3 + 4


def test_nested_loops_carry_what_the_first_of_all_iterations_stores() -> None:
    first = If(I.equal(0) & J.equal(0), store(T, 0, X[0]))
    nest = loop(I, 3, loop(J, 4, Seq((first, store(T, 0, T[0] + X[I + J])))))
    agree(nest, loop(I, 8, store(Y, I, T[0])))


def test_a_tile_stored_in_one_branch_is_read_in_another_of_the_same_condition() -> None:
    inside = Seq((
        store(Y, I, Const(0.0, "float32")),
        If(I < 5, store(T, 0, X[I])),
        If(I < 5, store(Y, I, T[0] * X[I])),
    ))  # fmt: skip
    assert agree(loop(I, 8, inside)).tolist() == [1, 4, 9, 16, 25, 0, 0, 0]


def test_a_tile_stored_in_elements_is_read_in_vectors_and_the_other_way_round() -> None:
    elements = loop(I, 8, store(T, I, X[I] * 3), LoopKind.UNROLLED)
    vector = loop(J, 5, store(Y, J, T[J + 2]), LoopKind.VECTORIZED)
    rest = loop(I, 3, store(Y, I + 5, X[I]))
    assert agree(elements, vector, rest).tolist() == [9, 12, 15, 18, 21, 1, 2, 3]
    vector = loop(J, 8, store(T, J, X[J] * 3), LoopKind.VECTORIZED)
    elements = loop(I, 8, store(Y, I, T[I] + T[0]), LoopKind.UNROLLED)
    assert agree(vector, elements).tolist() == [3 * n + 6 for n in range(8)]


def test_elements_inside_a_stored_vector_cannot_be_stored_alone() -> None:
    vector = loop(J, 8, store(T, J, X[J]), LoopKind.VECTORIZED)
    body = Seq((vector, store(T, 3, X[0]), loop(I, 8, store(Y, I, T[0]))))
    program = PrimFunc("f", (X, Y), Allocate(T, body))
    with pytest.raises(ScheduleError, match=r"register T\[3\] is stored in vectors of different"):
        emit_llvm(program, Target.host())


@pytest.mark.parametrize("limit", [0, 1, 3, 8])
@pytest.mark.parametrize("scope", ["register", "local"])
def test_masked_lanes_that_agree_store_once(limit: int, scope: str) -> None:
    """Lanes whose mask is known only at run time, or now, all store ``x[0]``."""
    tile = Buffer("S", (1,), scope=scope)
    for condition in (X[J] < Const(limit + 0.5, "float32"), Const(limit) > J):
        lanes = loop(J, 8, If(condition, store(tile, 0, X[1])), LoopKind.VECTORIZED)
        body = Seq((store(tile, 0, X[7]), lanes, loop(I, 8, store(Y, I, tile[0]))))
        program = PrimFunc("f", (X, Y), Allocate(tile, body))
        arrays = [np.arange(8, dtype="float32") + 1]
        want = h.interpreted(program, arrays)
        assert want[0][0] == (2 if limit else 8)
        h.same(h.compiled(program, arrays), want, str(program))

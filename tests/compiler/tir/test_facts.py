"""Facts of nodes, and rewrites that enter only what they change."""

from __future__ import annotations

from tunefarm.compiler.tir import facts
from tunefarm.compiler.tir.ir import Buffer, Const, For, If, Load, Seq, Stmt, Store, Var
from tunefarm.compiler.tir.visit import substitute, substitute_stmt, transform_accesses, with_body

A, B, C = Buffer("A", (8,)), Buffer("B", (8,)), Buffer("C", (8,))
I, J = Var("i"), Var("j")  # noqa: E741


def nest() -> For:
    """for i: { B[i] = A[i];  for j: if j < i: C[j] = B[j] }"""
    copy = Store(B, (I,), Load(A, (I,)))
    inner = For(J, Const(4), If(J < I, Store(C, (J,), Load(B, (J,)))))
    return For(I, Const(8), Seq((copy, inner)))


def parts(loop: For) -> tuple[Stmt, ...]:
    assert isinstance(loop.body, Seq)
    return loop.body.stmts


def test_facts_cover_a_statement_and_all_below_it() -> None:
    loop = nest()
    assert facts.variables_below(loop) == {I, J}
    assert facts.buffers_read_below(loop) == {A, B}
    assert facts.buffers_stored(loop) == {B, C}
    assert facts.kinds_below(loop) == {For, Seq, Store, If}
    assert [inner.var for inner in facts.loops_below(loop)] == [I, J]


def test_facts_of_a_part_do_not_speak_of_what_is_beside_it() -> None:
    copy, inner = parts(nest())
    assert facts.variables_below(copy) == {I}
    assert facts.buffers_read_below(inner) == {B}
    assert If not in facts.kinds_below(copy)


def test_a_rewrite_keeps_what_it_does_not_change() -> None:
    loop = nest()
    copy, inner = parts(loop)
    changed = substitute_stmt(loop, {J: Const(2)})
    assert isinstance(changed, For)
    assert parts(changed)[0] is copy
    assert parts(changed)[1] is not inner
    assert facts.variables_below(changed) == {I}
    assert substitute_stmt(loop, {Var("k"): Const(1)}) is loop
    expr = I * 8 + J
    assert substitute(expr, {Var("k"): Const(1)}) is expr


def test_accesses_are_rewritten_loads_first() -> None:
    loop, other = nest(), Buffer("D", (8,))
    changed = transform_accesses(
        loop,
        {B},
        lambda load: Load(other, load.indices),
        lambda store: Store(other, store.indices, store.value),
    )
    assert facts.buffers_read_below(changed) == {A, other}
    assert facts.buffers_stored(changed) == {other, C}


def test_a_loop_around_its_own_body_stays() -> None:
    loop = nest()
    assert with_body(loop, loop.body) is loop

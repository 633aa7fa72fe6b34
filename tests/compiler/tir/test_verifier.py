"""The verifier accepts what the compiler makes and names what is wrong with the rest."""

from __future__ import annotations

import pytest
from tunefarm.compiler import te
from tunefarm.compiler.tir.ir import (
    Allocate,
    Binary,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    If,
    IterVar,
    Load,
    LoopKind,
    PrimFunc,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.verifier import verify

X, Y = Buffer("x", (4,)), Buffer("y", (4,))
T = Buffer("t", (4,))
ROW, COLUMN = Var("i"), Var("j")
ONE = Const(1.0, "float32")


def program(body: Stmt, buffers: tuple[Buffer, ...] = ()) -> PrimFunc:
    return PrimFunc("f", (X, Y), body, 1, buffers)


def loop(body: Stmt, kind: LoopKind = LoopKind.SERIAL, extent: Expr | None = None) -> For:
    return For(ROW, extent if extent is not None else Const(4), body, kind)


def store(value: Expr = ONE, index: Expr = ROW, buffer: Buffer = Y) -> Store:
    return Store(buffer, (index,), value)


def block(*bindings: Expr, predicate: Expr | None = None) -> Block:
    return Block("b", (IterVar(COLUMN, 4),), bindings, store(index=COLUMN), None, predicate)


MALFORMED: dict[str, tuple[Stmt, str]] = {
    "free variable": (loop(store(index=COLUMN)), "variable j is used where it is not defined"),
    "variable after its loop": (
        Seq((loop(store()), store())),
        "variable i is used where it is not defined",
    ),
    "shadowed loop": (loop(loop(store())), "loop variable i is bound twice"),
    "missing index": (loop(Store(Y, (), ONE)), "y has 1 dimensions and 0 indices"),
    "extra index": (loop(store(Load(X, (ROW, ROW)))), "x has 1 dimensions and 2 indices"),
    "float index": (loop(store(index=ONE)), "an index of y has dtype float32, not int64"),
    "mixed operands": (
        loop(store(Binary("add", ONE, Const(1), "float32"))),
        "add of float32 and int64",
    ),
    "mistyped comparison": (
        loop(store(Binary("lt", ONE, ONE, "float32"))),
        "lt of float32 is said to be float32, not bool",
    ),
    "mistyped value": (loop(store(Const(1, "int32"))), "value for y has dtype int32, not float32"),
    "select of two dtypes": (
        loop(store(Select(ROW < 2, ONE, Const(1), "float32"))),
        "a select's other value has dtype int64, not float32",
    ),
    "numeric condition": (loop(If(ROW, store())), "a condition has dtype int64, not bool"),
    "missing binding": (loop(block()), "block b binds 0 of 1 iterators"),
    "numeric predicate": (
        loop(block(ROW, predicate=ROW)),
        "the predicate of b has dtype int64, not bool",
    ),
    "iterator of a loop's name": (
        For(COLUMN, Const(4), block(COLUMN)),
        "an iterator of b is bound twice",
    ),
    "lanes without number": (
        For(COLUMN, Const(4), loop(store(), LoopKind.VECTORIZED, COLUMN)),
        "vectorized loop i has no constant bounds",
    ),
    "copies without number": (
        For(COLUMN, Const(4), loop(store(), LoopKind.UNROLLED, COLUMN)),
        "unrolled loop i has no constant bounds",
    ),
    "stored input": (loop(store(buffer=X)), "the input x is stored to"),
    "read of nothing": (loop(store(Load(T, (ROW,)))), "t is used where it is not allocated"),
    "read after its scope": (
        Seq((Allocate(T, loop(store(buffer=T))), loop(store(Load(T, (ROW,)))))),
        "t is used where it is not allocated",
    ),
    "allocated twice": (Allocate(T, Allocate(T, loop(store()))), "t is allocated twice"),
}


@pytest.mark.parametrize("name", sorted(MALFORMED))
def test_a_malformed_program_is_named_with_its_text(name: str) -> None:
    body, reason = MALFORMED[name]
    with pytest.raises(AssertionError, match=reason) as raised:
        verify(program(body))
    assert "def f(x: float32[4], out y: float32[4]):" in str(raised.value)


def test_lowering_leaves_no_block_and_no_loose_buffer() -> None:
    with pytest.raises(AssertionError, match="block b is left after lowering"):
        verify(program(loop(block(ROW))), lowered=True)
    with pytest.raises(AssertionError, match="t is not allocated"):
        verify(program(loop(store()), (T,)), lowered=True)


def test_well_formed_programs_pass_before_and_after_lowering() -> None:
    x, k = te.placeholder((3, 5), name="x"), te.reduce_axis(5)
    s = te.compute((3,), lambda i: te.sum(x[i, k], [k]), name="s")
    y = te.compute((3,), lambda i: te.if_then_else(i >= 1, s[i - 1], s[i]), name="y")
    whole = te.create_prim_func([x, y])
    assert verify(whole) is whole
    assert verify(lower(whole), lowered=True)


def test_lowering_verifies_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = program(loop(store(index=COLUMN)))
    monkeypatch.setenv("TUNEFARM_VERIFY", "1")
    with pytest.raises(AssertionError, match="variable j"):
        lower(wrong)
    monkeypatch.setenv("TUNEFARM_VERIFY", "0")
    assert lower(wrong).body is not None

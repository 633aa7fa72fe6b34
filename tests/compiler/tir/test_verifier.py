"""The verifier passes what the compiler makes and tells what is wrong with the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tunefarm.compiler import te
from tunefarm.compiler.tir.ir import (
    Allocate,
    Binary,
    Block,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    IterVar,
    LoopKind,
    PackedLayout,
    PrimFunc,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.transform import lower as lowering
from tunefarm.compiler.tir.transform.lower import PHASES, lower
from tunefarm.compiler.tir.verifier import VerifyError, verify
from tunefarm.compiler.tir.visit import transform_stmt

X, Y = Buffer("x", (4, 3)), Buffer("y", (4,))
N = Buffer("n", (4,), "int32")
T = Buffer("t", (2,))
i, j, k = Var("i"), Var("j"), Var("k")
ONE, TWO = Const(1.0, "float32"), Const(2, "int32")
TRUE = Const(True, "bool")


def looped(stmt: Stmt, extent: int = 4, **rest: Any) -> PrimFunc:
    """``for i: stmt`` from the inputs x and n to y."""
    return PrimFunc("f", (X, N, Y), For(i, Const(extent), stmt, **rest))


def valued(value: Expr) -> PrimFunc:
    return looped(Store(Y, (i,), value))


def reduction(**changes: Any) -> PrimFunc:
    """y[i] = sum of x[i, k], as a block."""
    a, b = Var("a"), Var("b")
    body, init = Store(Y, (a,), Y[a] + X[a, b]), Store(Y, (a,), Const(0.0, "float32"))
    block = Block("sum", (IterVar(a, 4), IterVar(b, 3, "reduce")), (i, k), body, init)
    return looped(For(k, Const(3), replace(block, **changes)))


VALID: dict[str, PrimFunc] = {
    "a store": valued(ONE),
    "a reduction": reduction(),
    "a load that a branch spares": valued(Select(i >= 1, Y[i - 1], ONE, "float32")),
    "a load that is never made": looped(If(i < 0, Store(Y, (i - 9,), ONE)), start=Const(0)),
    "a loop that may be empty": looped(For(j, Const(2) - i, Store(Y, (i + 9,), ONE)), 4),
    "an allocation": looped(Allocate(T, Seq((Store(T, (Const(1),), ONE), Store(Y, (i,), T[1]))))),
    "the same loop twice": PrimFunc("f", (Y,), Seq((valued(ONE).body, valued(ONE).body))),
}


@pytest.mark.parametrize("name", VALID)
def test_a_program_that_keeps_the_rules_passes(name: str) -> None:
    assert verify(VALID[name]) is VALID[name]


BROKEN: dict[str, tuple[PrimFunc, str]] = {
    "variable out of scope": (
        valued(X[i, j]),
        "variable j is used where it is not bound in loop i",
    ),
    "variable bound twice": (looped(For(i, Const(2), Store(Y, (i,), ONE))), "i is bound twice"),
    "variable of another dtype": (
        PrimFunc("f", (Y,), For(Var("z", "int32"), Const(4), Store(Y, (Const(0),), ONE))),
        "variable z has dtype int32",
    ),
    "buffer out of scope": (valued(T[0]), "buffer t is used where it does not live"),
    "buffer after its allocation": (
        looped(Seq((Allocate(T, Store(T, (Const(0),), ONE)), Store(Y, (i,), T[0])))),
        "buffer t is used where it does not live",
    ),
    "buffer twice": (replace(valued(ONE), buffers=(Y,)), "buffer y is declared twice"),
    "too few indices": (
        looped(Store(Y, (i,), te.Load(X, (i,)))),
        "x has 2 dimensions and 1 indices",
    ),
    "index of another dtype": (
        looped(Store(Y, (N[i],), ONE)),
        r"an index of y, n\[i\], has dtype int32",
    ),
    "certain to miss": (
        looped(Store(Y, (i + 4,), ONE)),
        r"y of shape \(4,\) is indexed i \+ 4",
    ),
    "certain to miss below": (valued(X[i, i - 4]), r"x of shape \(4, 3\) is indexed i - 4"),
    "stored dtype": (valued(N[i]), "y holds float32 and is stored int32"),
    "stored input": (looped(Store(X, (i, Const(0)), ONE)), "input x is stored to"),
    "mixed operands": (
        valued(Cast(Binary("add", N[i], i, "int32"), "float32")),
        r"n\[i\] \+ i mixes int32, int64",
    ),
    "comparison with a wrong dtype": (
        valued(Binary("lt", X[i, 0], ONE, "float32")),
        "has dtype float32, not bool",
    ),
    "logic on numbers": (
        valued(Binary("xor", ONE, ONE, "float32")),
        "is logic on float32",
    ),
    "bits of floats": (valued(Binary("shl", ONE, ONE, "float32")), "is bit arithmetic on float32"),
    "branches that differ": (valued(Select(TRUE, ONE, TWO, "float32")), "mixes float32, int32"),
    "condition": (looped(If(i, Store(Y, (i,), ONE))), "condition i has dtype int64"),
    "no such intrinsic": (valued(Intrinsic("prefetch", (ONE,), "float32")), "no intrinsic"),
    "arguments": (valued(Intrinsic("exp", (ONE, ONE), "float32")), "has 2 arguments"),
    "not of a number": (valued(Intrinsic("not", (ONE,), "float32")), "has dtype float32"),
    "constant": (
        valued(Cast(Const(1.5, "int32"), "float32")),
        "constant 1.5 is no int32",
    ),
    "dtype": (valued(Cast(ONE, "float8")), "has dtype float8"),
    "scope": (replace(valued(ONE), buffers=(replace(T, scope="nowhere"),)), "has scope 'nowhere'"),
    "parameter in a register": (
        PrimFunc("f", (replace(Y, scope="local"),), Seq(())),
        "parameter y has scope local",
    ),
    "loop bound": (
        PrimFunc("f", (Y,), For(i, Const(4, "int32"), Store(Y, (i,), ONE))),
        "a bound of loop i, int32.4., has dtype int32",
    ),
    "lanes without number": (
        looped(For(j, i, Store(Y, (i,), ONE), LoopKind.VECTORIZED)),
        "vectorized loop j has no constant extent",
    ),
    "no outputs": (replace(valued(ONE), outputs=0), "0 outputs of 3 parameters"),
    "packed output": (
        replace(valued(ONE), layouts={2: PackedLayout(((4,),), (0, 1))}),
        "layouts names what is not an input",
    ),
    "two blocks of a name": (
        PrimFunc("f", (X, N, Y), Seq((reduction().body, reduction().body))),
        "two blocks have the name sum",
    ),
    "bindings": (reduction(bindings=(i,)), "2 iterators have 1 bindings in loop i / loop k"),
    "init without a reduction": (
        reduction(iters=(IterVar(Var("a"), 4), IterVar(Var("b"), 3))),
        "an init without a reduction",
    ),
    "block of statements": (reduction(body=Seq(())), "a block's init and body are stores"),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_is_told(name: str) -> None:
    program, reason = BROKEN[name]
    with pytest.raises(VerifyError, match=reason) as caught:
        verify(program)
    assert str(caught.value).endswith(f"\n{program}"), "the program's text belongs to the error"


def test_two_loops_share_a_variable_only_after_lowering() -> None:
    program = reduction()
    other = transform_stmt(
        program.body, lambda s: replace(s, name="again") if isinstance(s, Block) else None
    )
    with pytest.raises(VerifyError, match="two loops have the variable i"):
        verify(replace(program, body=Seq((program.body, other))))


def test_lowering_leaves_no_block_and_no_loose_buffer() -> None:
    assert verify(lower(reduction()), lowered=True)
    with pytest.raises(VerifyError, match="block sum is left after lowering"):
        verify(reduction(), lowered=True)
    with pytest.raises(VerifyError, match="buffer t has no place after lowering"):
        verify(replace(valued(ONE), buffers=(T,)), lowered=True)


def test_a_register_tile_may_be_large_until_it_is_compacted() -> None:
    tile = Buffer("r", (1 << 21,), scope="register")
    assert verify(replace(valued(ONE), buffers=(tile,)))
    program = valued(ONE)
    with pytest.raises(VerifyError, match="register buffer r has shape"):
        verify(replace(program, body=Allocate(tile, program.body)), lowered=True)


def test_lowering_verifies_every_phase_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_VERIFY", "0")
    wrong = valued(X[i, j])
    assert lower(wrong).body is not None
    with pytest.raises(VerifyError, match="variable j"):
        lower(wrong, checked=True)
    monkeypatch.setenv("TUNEFARM_VERIFY", "1")
    with pytest.raises(VerifyError, match="variable j"):
        lower(wrong)
    for index in range(len(PHASES)):
        broken = [*PHASES]
        broken[index] = lambda p: replace(p, outputs=9)
        monkeypatch.setattr(lowering, "PHASES", tuple(broken))
        with pytest.raises(VerifyError, match="9 outputs of 3 parameters"):
            lower(reduction())

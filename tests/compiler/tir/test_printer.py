"""Programs print so that one can read them, and different things have different names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tunefarm.compiler import te
from tunefarm.compiler.tir.ir import (
    Allocate,
    Barrier,
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
    Prefetch,
    PrimFunc,
    Select,
    Seq,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.printer import print_expr

A, B, C = Buffer("A", (4, 3)), Buffer("B", (3, 8)), Buffer("C", (4, 8))
i, j, k = Var("i"), Var("j"), Var("k")
LOOPS = """\
def main(A: float32[4, 3], const B: float32[3, 8], out C: float32[4, 8]):
    allocate whole: float32[7] in local
    # B is packed: split ((), (4,)), order (1, 0, 2)
    for i in parallel(4):
        allocate tile: float32[8] in register
        for j in vectorized(8):
            tile[j] = float32(0.0)
        for k in range(i, extent=3):
            if k < 3 and i + k < 4:
                C[i, 0] = A[i + k, k] * B[k, 0]
            else:
                C[i, 0] = select(k == 3, max(A[i, 0], tile[0]), exp(tile[1]))
        for j.1 in unrolled(2):
            C[i, j.1] = float32(i)
"""
BLOCKS = """\
def main(A: float32[4, 3], out C: float32[4, 8]):
    for i in range(4):
        for k in range(3):
            block sum:
                v = spatial(4, i)
                r = reduce(3, k)
                where k < 2
                init:
                    C[v, 0] = float32(0.0)
                C[v, 0] = C[v, 0] + A[v, r]
"""


def test_loops_and_statements() -> None:
    tile, other = Buffer("tile", (8,), scope="register"), Var("j")
    zero = Const(0.0, "float32")
    inside = binary("and", k < 3, i + k < 4)
    choice = Select(
        binary("eq", k, 3),
        te.maximum(A[i, 0], tile[0]),
        Intrinsic("exp", (tile[1],), "float32"),
        "float32",
    )
    product = Store(C, (i, Const(0)), A[i + k, k] * B[k, 0])
    body = Seq((
        For(j, Const(8), Store(tile, (j,), zero), LoopKind.VECTORIZED),
        For(k, Const(3), If(inside, product, Store(C, (i, Const(0)), choice)), start=i),
        For(other, Const(2), Store(C, (i, other), Cast(i, "float32")), LoopKind.UNROLLED),
    ))  # fmt: skip
    program = PrimFunc(
        "main",
        (A, B, C),
        For(i, Const(4), Allocate(tile, body), LoopKind.PARALLEL),
        buffers=(Buffer("whole", (7,), scope="local"),),
        layouts={1: PackedLayout(((), (4,)), (1, 0, 2))},
        constants=frozenset({1}),
    )
    assert str(program) == LOOPS


def test_blocks_show_iterators_predicate_and_first_value() -> None:
    v, r = Var("v"), Var("r")
    block = Block(
        "sum",
        (IterVar(v, 4), IterVar(r, 3, "reduce")),
        (i, k),
        Store(C, (v, Const(0)), C[v, 0] + A[v, r]),
        Store(C, (v, Const(0)), Const(0.0, "float32")),
        k < 2,
    )
    program = PrimFunc("main", (A, C), For(i, Const(4), For(k, Const(3), block)))
    assert str(program) == BLOCKS


EXPRESSIONS: list[tuple[Expr, str]] = [
    ((i + j) * 4 + k, "(i + j) * 4 + k"),
    (i + (j + k), "i + (j + k)"),
    (i - (j - k), "i - (j - k)"),
    (i + -3, "i - 3"),
    ((i + -3) * 2, "(i - 3) * 2"),
    (i * 4 // 8 % 3, "i * 4 // 8 % 3"),
    (i // (j * 2), "i // (j * 2)"),
    (binary("and", i < 3, binary("or", j < 4, k >= 5)), "i < 3 and (j < 4 or k >= 5)"),
    (binary("eq", i < 3, j < 4), "(i < 3) == (j < 4)"),
    (Binary("shl", i, j + k, "int64"), "i << j + k"),
    (Binary("min", i, j + 1, "int64"), "min(i, j + 1)"),
    (Const(True, "bool"), "True"),
    (Const(2.5, "float64"), "float64(2.5)"),
    (Intrinsic("pow", (Const(2.0, "float32"), A[i, k]), "float32"), "pow(float32(2.0), A[i, k])"),
]


@pytest.mark.parametrize(("expr", "text"), EXPRESSIONS, ids=[t for _, t in EXPRESSIONS])
def test_parentheses_stand_where_they_must(expr: Expr, text: str) -> None:
    assert print_expr(expr) == text


@pytest.mark.parametrize(("expr", "text"), [p for p in EXPRESSIONS if p[0].dtype == "int64"])
def test_python_reads_index_arithmetic_as_it_is_meant(expr: Expr, text: str) -> None:
    for values in ({"i": 7, "j": 2, "k": 5}, {"i": 0, "j": 3, "k": 1}):
        assert eval(text, {"min": min}, dict(values)) == _value(expr, values)


def _value(expr: Expr, values: dict[str, int]) -> int:
    match expr:
        case Var(name):
            return values[name]
        case Const(value):
            return int(value)
        case Binary(op, a, b, _):
            x, y = _value(a, values), _value(b, values)
            operations = {
                "add": x + y, "sub": x - y, "mul": x * y, "min": min(x, y), "shl": x << max(y, 0),
                "floordiv": x // (y or 1), "floormod": x % (y or 1),
            }  # fmt: skip
            return operations[op]
    raise AssertionError(expr)


def test_names_are_made_different() -> None:
    twins = tuple(replace(A, name="x") for _ in range(3))
    program = PrimFunc("f", twins, Store(twins[2], (Const(0), Const(1)), twins[1][2, 0]))
    assert str(program) == (
        "def f(x: float32[4, 3], x.1: float32[4, 3], out x.2: float32[4, 3]):\n"
        "    x.2[0, 1] = x.1[2, 0]\n"
    )


@pytest.mark.parametrize(
    "node, text",
    [
        (A, "<Buffer A: float32[4, 3]>"),
        (A[i, 0] * 2.0, "<Binary A[i, 0] * float32(2.0)>"),
        (IterVar(i, 4), "<IterVar i = spatial(4)>"),
        (For(i, Const(4), Seq(())), "<For i in range(4)>"),
        (If(i < 3, Seq(())), "<If i < 3>"),
        (Seq((Barrier(), Barrier(2))), "<Seq of 2>"),
        (Barrier(2), "<Barrier (2 pending)>"),
        (Prefetch(A, i * 3, 2), "<Prefetch 2 lines into L1 at A + i * 3>"),
        (Store(A, (i, j), Const(1.0, "float32")), "<Store A[i, j] = float32(1.0)>"),
        (Block("sum", (), (), Seq(())), "<Block sum>"),
        (Allocate(B, Seq(())), "<Allocate B: float32[3, 8]>"),
        (
            PrimFunc("main", (A, B), Seq(())),
            "<PrimFunc main(A: float32[4, 3], out B: float32[3, 8])>",
        ),
        (te.placeholder((7,), name="x"), "<Tensor x: float32[7]>"),
        (te.sum(A[0, k := te.reduce_axis(3)], [k]), "<Reduce add of <Load A[0, k]> over k>"),
    ],
)
def test_a_node_shows_itself_on_one_line(node: object, text: str) -> None:
    assert repr(node) == text


def test_the_line_of_a_node_is_short_however_often_it_reads_the_same() -> None:
    value: Expr = A[0, 0]
    for _ in range(18):
        value = value + value
    loops: For = For(i, Const(4), Store(A, (i, j), value))
    tensor = te.compute((3,), lambda i: value)
    for node in (value, value > 1.0, loops, loops.body, PrimFunc("main", (A,), loops), tensor):
        assert len(repr(node)) < 130
    assert repr(value).startswith("<Binary … + … + (… + …)")

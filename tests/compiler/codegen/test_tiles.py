"""Nests of tiled loops as instructions of a matrix unit: what is refused, what C code has."""

from __future__ import annotations

import pytest
from tunefarm.compiler.codegen.c import emit_c
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.ir import (
    Allocate,
    Buffer,
    Const,
    Expr,
    For,
    Intrinsic,
    LoopKind,
    Prefetch,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
)

TARGET = Target("llvm -mcpu=sapphirerapids")
ROW, LANE, GROUP = Var("i"), Var("j"), Var("k")


def tiled(body: Stmt, **extents: int) -> Stmt:
    """``body`` inside tiled loops over rows, lanes and groups, in this order."""
    for var in reversed((ROW, LANE, GROUP)):
        if var.name in extents:
            body = For(var, Const(extents[var.name]), body, LoopKind.TILED)
    return body


def program(rows: int, tiles: int = 1, lane: int = 4, lines: int = 0) -> PrimFunc:
    """Tiles of sums of 16 groups one below the other, of A and B in memory. Before them so many
    lines of B are asked for, in runs of two."""
    a = Buffer("a", (rows * tiles, 64), "uint8")
    b = Buffer("b", (16, 16, lane), "int8")
    sums = Buffer("sums", (rows * tiles, 16), "int32", "tile")
    out = Buffer("out", (rows * tiles, 16), "int32")

    def each(number: int) -> list[Stmt]:
        row: Expr = ROW + number * rows
        factors = [a[row, GROUP * 4 + q] for q in range(4)]
        factors += [b[GROUP, LANE, q] for q in range(4)]
        product = Intrinsic("x86.tdpbusd", (sums[row, LANE], *factors), "int32")
        return [
            tiled(Store(sums, (row, LANE), Const(0, "int32")), i=rows, j=16),
            tiled(Store(sums, (row, LANE), product), i=rows, j=16, k=16),
            tiled(Store(out, (row, LANE), sums[row, LANE]), i=rows, j=16),
        ]

    stages = zip(*map(each, range(tiles)), strict=True)
    body: Stmt = Seq(tuple(stmt for stage in stages for stmt in stage))
    if lines:
        hint = Prefetch(b, Const(0), lines, level=2, apart=8, run=2)
        body = For(Var("t"), Const(1), body, prefetch=(hint,))
    return PrimFunc("kernel", (a, b, out), Allocate(sums, body))


def test_registers_are_told_their_shapes_first_and_left_at_the_end() -> None:
    text = emit_llvm(program(7), TARGET).text
    calls = [line.split("@")[1].split("(")[0] for line in text.splitlines() if "  call" in line]
    assert calls == [
        "llvm.x86.ldtilecfg", "llvm.x86.tilezero", "llvm.x86.tileloadd64", "llvm.x86.tileloadd64",
        "llvm.x86.tdpbusd", "llvm.x86.tilestored64", "llvm.x86.tilerelease",
    ]  # fmt: skip
    rows = {0: 7, 1: 7, 7: 16}  # sums, A and B
    told = sum(count << 8 * register for register, count in rows.items())
    assert f"store i64 {told - (1 << 64 if told >> 63 else 0)}," in text


def test_a_tile_of_b_is_loaded_once_for_many_of_a() -> None:
    text = emit_llvm(program(16, tiles=6), TARGET).text
    assert text.count("call void @llvm.x86.tileloadd64(") == 6 + 1
    assert text.count("call void @llvm.x86.tdpbusd(") == 6


@pytest.mark.parametrize(("tiles", "lines"), [(2, 4), (3, 4), (4, 2), (1, 5)])
def test_what_a_loop_asks_for_is_asked_for_among_its_products(tiles: int, lines: int) -> None:
    text = emit_llvm(program(16, tiles, lines=lines), TARGET).text
    calls = [
        line for line in text.splitlines() if "tdpbusd(i8 " in line or "prefetch.p0(ptr " in line
    ]
    asked = [0]
    for call in calls:
        asked = [*asked, 0] if "tdpbusd" in call else [*asked[:-1], asked[-1] + 1]
    assert len(asked) == tiles + 1
    assert sum(asked) == lines
    assert asked[0] == 0
    assert max(asked) - min(asked[1:]) <= 1
    bytes_apart = [64 * (n // 2 * 8 + n % 2) for n in range(lines)]
    assert all(f"i64 {apart}\n" in text for apart in bytes_apart[1:])


def test_more_sums_than_registers_are_refused() -> None:
    with pytest.raises(ScheduleError, match="more than 8 tile registers"):
        emit_llvm(program(16, tiles=8), TARGET)


def test_other_nests_are_refused() -> None:
    with pytest.raises(ScheduleError, match="terms of a group do not stand side by side"):
        emit_llvm(program(16, lane=8), TARGET)
    out = Buffer("out", (16, 16), "int32")
    plain = tiled(Store(out, (ROW, LANE), Const(1, "int32")), i=16, j=16)
    with pytest.raises(ScheduleError, match="no instruction for what it stores"):
        emit_llvm(PrimFunc("kernel", (out,), plain), TARGET)
    inner = For(LANE, Const(16), Store(out, (ROW, LANE), Const(0, "int32")))
    with pytest.raises(ScheduleError, match="loop j stands inside it"):
        emit_llvm(PrimFunc("kernel", (out,), For(ROW, Const(16), inner, LoopKind.TILED)), TARGET)


def test_c_code_has_the_plain_loops() -> None:
    text = emit_c(program(16))
    assert "tdpbusd" not in text
    assert text.count("for (") == 2 + 3 + 2

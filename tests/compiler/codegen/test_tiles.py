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


def program(rows: int, tiles: int = 1, lane: int = 4) -> PrimFunc:
    """Tiles of sums of 16 groups one below the other, of A and B in memory."""
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
    steps = [stmt for stage in stages for stmt in stage]
    return PrimFunc("kernel", (a, b, out), Allocate(sums, Seq(tuple(steps))))


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

"""Epilogues beside the next sum: the same results, in shares for any number of steps."""

from __future__ import annotations

import numpy as np
import pytest
import tir_harness as harness
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir import Allocate, Buffer, Const, For, Load, LoopKind, PrimFunc, Store
from tunefarm.compiler.tir import Var as LoopVar
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Cast, Expr, Stmt
from tunefarm.compiler.tir.transform.overlap import overlap_sums
from tunefarm.compiler.tir.visit import seq, substitute_stmt

TILES, LANES = 5, 4
t, m, k, i, j = (LoopVar(name) for name in "tmkij")


def program(
    steps: int,
    rows: int = 3,
    halves: int = 1,
    kind: LoopKind = LoopKind.OVERLAPPED,
    scope: str = "local",
    inplace: bool = False,
) -> PrimFunc:
    """y[t, r] = 2 · Σ x[t, k] · (r + 1) + 1, by tiles of ``rows``; r counts those of all halves."""
    x = Buffer("x", (TILES, max(steps, halves * rows)))
    y = Buffer("y", (TILES, halves * rows, LANES))
    held = Buffer("p", (halves * rows, LANES), scope=scope)
    tile = Buffer("s", (rows, LANES), scope="tile")

    def each(body: Stmt, kind: LoopKind = LoopKind.UNROLLED, extent: int = rows) -> Stmt:
        return For(i, Const(extent), For(j, Const(LANES), body, LoopKind.UNROLLED), kind)

    row = m * rows + i
    term = Load(x, (t, k)) * Cast(row + 1, "float32")
    product = each(Store(tile, (i, j), Load(tile, (i, j)) + term))
    sums: Stmt = seq(
        each(Store(tile, (i, j), Const(0.0, "float32"))),
        For(k, Const(steps), product),
        each(Store(held, (row, j), Load(tile, (i, j)))),
    )
    sums = For(m, Const(halves), sums) if halves > 1 else substitute_stmt(sums, {m: Const(0)})
    value = Load(held, (i, j)) * 2.0 + 1.0
    body = seq(sums, each(Store(y, (t, i, j), value), LoopKind.SERIAL, halves * rows))
    if inplace:
        body = seq(body, Store(x, (t, Const(0)), Const(0.0, "float32")))
    return PrimFunc("f", (x, y), For(t, Const(TILES), Allocate(held, Allocate(tile, body)), kind))


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 7, 20])
def test_any_number_of_steps_and_rows(steps: int, rows: int, halves: int) -> None:
    plain = program(steps, rows, halves)
    made = overlap_sums(plain)
    values = np.random.default_rng(steps).integers(-9, 9, plain.params[0].shape)
    arrays = [values.astype(np.float32)]
    (want,) = harness.interpreted(plain, arrays)
    (got,) = harness.interpreted(made, arrays)
    np.testing.assert_array_equal(got, want)
    assert f"for t in range({TILES + 1})" in str(made)


def test_what_is_stored_before_the_end_of_a_sum_is_kept_twice() -> None:
    assert "p: float32[3, 4]" in str(overlap_sums(program(4)))
    assert "p: float32[2, 6, 4]" in str(overlap_sums(program(4, halves=2)))


def test_other_loops_stay_as_they_are() -> None:
    plain = program(4, kind=LoopKind.SERIAL)
    assert overlap_sums(plain) is plain
    with pytest.raises(ScheduleError, match="t is parallel; only a serial loop can be overlapped"):
        s.overlap(program(4, kind=LoopKind.PARALLEL), t)


def stays_serial(plain: PrimFunc) -> bool:
    return f"for t in range({TILES}):" in str(overlap_sums(plain))


def test_sums_do_not_wait_for_the_epilogue() -> None:
    assert not stays_serial(program(4))
    assert stays_serial(program(4, inplace=True))
    assert stays_serial(program(4, scope="register"))


def test_epilogues_that_shares_would_change_stay_in_one() -> None:
    """One that goes on with its own results, and one that reads what the next sums store."""
    x, y = Buffer("x", (TILES, 4)), Buffer("y", (TILES, 3))
    held, total = (Buffer(name, (3,), scope="local") for name in "pq")
    tile = Buffer("s", (3,), scope="tile")
    sums = seq(
        For(k, Const(4), Store(tile, (Const(0),), Load(tile, (Const(0),)) + Load(x, (t, k)))),
        For(i, Const(3), Store(held, (i,), Load(tile, (i,))), LoopKind.UNROLLED),
    )
    twice = For(i, Const(3), Store(total, (i,), Load(held, (i,)) * 2.0))
    turned = For(i, Const(3), Store(y, (t, i), Load(total, (2 - i,))))
    plain = For(i, Const(3), Store(y, (t, i), Load(held, (i,))))

    def overlapped(body: Stmt) -> Stmt:
        return For(t, Const(TILES), Allocate(tile, body), LoopKind.OVERLAPPED)

    own = Allocate(held, Allocate(total, seq(sums, twice, turned)))
    outlives = Allocate(held, overlapped(seq(sums, plain)))
    for body in (overlapped(own), outlives):
        assert stays_serial(PrimFunc("f", (x, y), body))
    assert not stays_serial(PrimFunc("f", (x, y), overlapped(Allocate(held, seq(sums, plain)))))


def filled(
    tiles: int, steps: int, rows: int, registers: int = 2, changes: bool = False, whole: bool = True
) -> PrimFunc:
    """y[t, c] = Σ x[t, k] · (c + 1), of rows that each tile first copies, doubled."""
    count: Expr = Const(tiles)
    x = Buffer("x", (tiles, steps, rows))
    y = Buffer("y", (tiles, registers, LANES))
    length = Buffer("n", (1,), "int64")
    copy = Buffer("p", (steps, rows), scope="local")
    tile = Buffer("s", (registers, LANES), scope="tile")
    c = LoopVar("c")
    if not whole:
        count = Load(length, (Const(0),))

    def each(body: Stmt) -> Stmt:
        lanes = For(j, Const(LANES), body, LoopKind.UNROLLED)
        return For(c, Const(registers), lanes, LoopKind.UNROLLED)

    twice = Store(copy, (k, i), Load(x, (t, k, i)) * 2.0)
    term = Load(copy, (k, Const(0))) * Cast(c + 1, "float32")
    body = seq(
        For(k, Const(steps), For(i, Const(rows), twice)),
        each(Store(tile, (c, j), Const(0.0, "float32"))),
        For(k, Const(steps), each(Store(tile, (c, j), Load(tile, (c, j)) + term))),
        each(Store(y, (t, c, j), Load(tile, (c, j)))),
    )
    if changes:
        body = seq(body, Store(x, (t, Const(0), Const(0)), Const(0.0, "float32")))
    loop = For(t, count, Allocate(copy, Allocate(tile, body)), LoopKind.OVERLAPPED)
    return PrimFunc("f", (length, x, y), loop)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize(("tiles", "steps"), [(1, 3), (2, 1), (5, 4), (6, 7)])
def test_what_a_tile_reads_is_made_beside_the_one_before(
    tiles: int, steps: int, rows: int, whole: bool
) -> None:
    plain = filled(tiles, steps, rows, whole=whole)
    made = overlap_sums(plain)
    values = np.random.default_rng(steps).integers(-9, 9, plain.params[1].shape)
    arrays = [np.array([tiles]), values.astype(np.float32)]
    (want,) = harness.interpreted(plain, arrays)
    (got,) = harness.interpreted(made, arrays)
    np.testing.assert_array_equal(got, want)
    assert "p_next: float32" in str(made)
    assert f"for t_pair in range({(tiles + 1) // 2 if whole else '(n[0] + 1) // 2'})" in str(made)


def test_fills_that_the_sums_change_stay_where_they_are() -> None:
    assert "p_next" not in str(overlap_sums(filled(4, 3, 2, changes=True)))

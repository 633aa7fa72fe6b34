"""Epilogues beside the next sum, and fills beside the one before: the same results, in shares for
any number of steps."""

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
from tunefarm.compiler.tir.transform.simplify import simplify
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
    tiles: int, steps: int, rows: int, registers: int = 2, panels: int = 1, whole: bool = True
) -> PrimFunc:
    """y[t, p, c] = Σ x[t, k] · (c + 1) · (p + 1), of rows that each tile first copies, doubled."""
    x = Buffer("x", (tiles, steps, rows))
    y = Buffer("y", (tiles, panels, registers, LANES))
    length = Buffer("n", (1,), "int64")
    copy = Buffer("p", (steps, rows), scope="local")
    tile = Buffer("s", (registers, LANES), scope="tile")
    c, panel = LoopVar("c"), LoopVar("panel")
    count: Expr = Const(tiles) if whole else Load(length, (Const(0),))

    def each(body: Stmt) -> Stmt:
        lanes = For(j, Const(LANES), body, LoopKind.UNROLLED)
        return For(c, Const(registers), lanes, LoopKind.UNROLLED)

    twice = Store(copy, (k, i), Load(x, (t, k, i)) * 2.0)
    term = Load(copy, (k, Const(0))) * Cast((c + 1) * (panel + 1), "float32")
    sums = seq(
        each(Store(tile, (c, j), Const(0.0, "float32"))),
        For(k, Const(steps), each(Store(tile, (c, j), Load(tile, (c, j)) + term))),
        each(Store(y, (t, panel, c, j), Load(tile, (c, j)))),
    )
    body = seq(For(k, Const(steps), For(i, Const(rows), twice)), For(panel, Const(panels), sums))
    loop = For(t, count, Allocate(copy, Allocate(tile, body)), LoopKind.OVERLAPPED)
    return PrimFunc("f", (length, x, y), loop)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(("rows", "registers"), [(1, 1), (3, 2), (8, 3)])
@pytest.mark.parametrize(
    ("tiles", "steps", "panels"), [(1, 3, 1), (2, 1, 1), (5, 4, 2), (6, 7, 1), (3, 2, 3)]
)
def test_what_a_tile_reads_is_made_beside_the_one_before(
    tiles: int, steps: int, panels: int, rows: int, registers: int, whole: bool
) -> None:
    plain = filled(tiles, steps, rows, registers, panels, whole)
    made = overlap_sums(plain)
    values = np.random.default_rng(steps).integers(-9, 9, plain.params[1].shape)
    arrays = [np.array([tiles]), values.astype(np.float32)]
    (want,) = harness.interpreted(plain, arrays)
    (got,) = harness.interpreted(made, arrays)
    np.testing.assert_array_equal(got, want)
    count = (tiles + 1) // 2 if whole else "(n[0] + 1) // 2"
    assert f"for t_pair in range({count})" in str(made)


def test_a_share_of_a_fill_stands_behind_each_register_tile() -> None:
    """Of 4 · 3 elements one behind each of four steps of three tiles, into the other buffer."""
    text = str(simplify(overlap_sums(filled(4, 4, 3, registers=3)))).splitlines()
    (start,) = (n for n, line in enumerate(text) if "for t_pair" in line)
    step = next(
        n for n, line in enumerate(text) if n > start and line.strip() == "for k in range(4):"
    )
    lines = [line.strip() for line in text[step + 1 : step + 6]]
    assert lines[0] == "for c in unrolled(3):"
    assert lines[1] == "for j in unrolled(4):"
    assert lines[2].startswith("s[c, j] = s[c, j] + p[k, 0]")
    assert lines[3].startswith("for k_i in range(k * 3 + c, extent=")
    assert lines[4].startswith("p_next[")


def test_fills_that_cannot_run_ahead_stay_where_they_are() -> None:
    """What the sums change, what outlives an iteration, and what goes on with its own results."""
    x, y = Buffer("x", (TILES, 4)), Buffer("y", (TILES,))
    copy, other = (Buffer(name, (4,), scope="local") for name in "pq")
    kept = Buffer("p", (4,), scope="register")
    tile = Buffer("s", (1,), scope="tile")
    at = (Const(0),)

    def fill(into: Buffer, value: Expr) -> Stmt:
        return For(i, Const(4), Store(into, (i,), value))

    def sums(of: Buffer) -> Stmt:
        total = Store(tile, at, Load(tile, at) + Load(of, (k,)))
        start = Store(tile, at, Const(0.0, "float32"))
        return seq(start, For(k, Const(4), total), Store(y, (t,), Load(tile, at)))

    def loop(body: Stmt) -> Stmt:
        return For(t, Const(TILES), Allocate(tile, body), LoopKind.OVERLAPPED)

    plain = fill(copy, Load(x, (t, i)))
    change = Store(x, (t, Const(0)), Const(0.0, "float32"))
    total = For(i, Const(4), Store(other, at, Load(other, at) + Load(x, (t, i))))
    refused = [
        loop(Allocate(copy, seq(plain, sums(copy), change))),
        Allocate(copy, loop(seq(plain, sums(copy)))),
        loop(Allocate(kept, seq(fill(kept, Load(x, (t, i))), sums(kept)))),
        loop(Allocate(copy, Allocate(other, seq(
            fill(other, Load(x, (t, i))), fill(copy, Load(other, (3 - i,))), sums(copy),
        )))),
        loop(Allocate(copy, Allocate(other, seq(
            Store(other, at, Const(0.0, "float32")), total,
            fill(copy, Load(x, (t, i)) - Load(other, at)), sums(copy),
        )))),
    ]  # fmt: skip
    values = np.random.default_rng(1).integers(-9, 9, x.shape).astype(np.float32)
    for body in refused:
        program = PrimFunc("f", (x, y), body)
        made = overlap_sums(program)
        assert "_next" not in str(made)
        (want,) = harness.interpreted(program, [values.copy()])
        (got,) = harness.interpreted(made, [values.copy()])
        np.testing.assert_array_equal(got, want)
    accepted = overlap_sums(PrimFunc("f", (x, y), loop(Allocate(copy, seq(plain, sums(copy))))))
    assert "p_next" in str(accepted)


def test_a_loop_whose_fill_stays_still_overlaps_its_epilogue() -> None:
    x, y = Buffer("x", (TILES, 4)), Buffer("y", (TILES, 3))
    start, held = (Buffer(name, (3,), scope="local") for name in "pq")
    tile = Buffer("s", (3,), scope="tile")
    body = seq(
        Store(start, (Const(0),), Load(x, (t, Const(0)))),  # no nest of loops
        Store(tile, (Const(0),), Load(start, (Const(0),))),
        For(k, Const(4), Store(tile, (Const(0),), Load(tile, (Const(0),)) + Load(x, (t, k)))),
        For(i, Const(3), Store(held, (i,), Load(tile, (Const(0),))), LoopKind.UNROLLED),
        For(i, Const(3), Store(y, (t, i), Load(held, (i,)))),
    )
    around = Allocate(start, Allocate(held, Allocate(tile, body)))
    program = PrimFunc("f", (x, y), For(t, Const(TILES), around, LoopKind.OVERLAPPED))
    assert f"for t in range({TILES + 1})" in str(overlap_sums(program))

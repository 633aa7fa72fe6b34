"""Code for borders: as few bodies as there are kinds of tiles, and short where it runs seldom."""

from __future__ import annotations

import numpy as np
import pytest
import tir_harness as harness
from hypothesis import given, settings
from hypothesis import strategies as st
from tunefarm.compiler import te
from tunefarm.compiler.tir import Buffer, Const, For, If, Load, LoopKind, PrimFunc, Store, Var
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.facts import buffers_stored
from tunefarm.compiler.tir.ir import Expr, Prefetch
from tunefarm.compiler.tir.printer import print_program
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.transform.rolling import roll
from tunefarm.compiler.tir.visit import walk_stmt

LANES = 8


def convolution(
    size: int, depth: int, columns: int, rows: tuple[int, int], vectors: int = 1, unrolled: int = 1
) -> PrimFunc:
    """A 3×3 convolution of a padded size × size map in register tiles of rows × vectors."""
    x = te.placeholder((size, size, depth), name="X")
    width = vectors * LANES
    w = te.placeholder((3, 3, depth, -(-columns // width) * width), name="W")
    p, q, k = (te.reduce_axis(n) for n in (3, 3, depth))

    def element(i: Expr, j: Expr, o: Expr) -> Expr:
        y, z = i + p - 1, j + q - 1
        inside = (y >= 0) & (y < size) & (z >= 0) & (z < size)
        return te.sum(te.if_then_else(inside, x[y, z, k], 0.0) * w[p, q, k, o], [p, q, k])

    c = te.compute((size, size, columns), element, name="C")
    program = te.create_prim_func([x, w, c])
    i, j, o, *taps, k = s.loops_of(program, "C")
    program, write = s.cache_write(program, "C", "register")
    program, (i0, i1) = s.split(program, i, rows[0])
    program, (j0, j1) = s.split(program, j, rows[1])
    program, (o0, o1, o2) = s.split(program, o, vectors, LANES)
    program, (k0, k1) = s.split(program, k, unrolled)
    program = s.reorder(program, o0, i0, j0, *taps, k0, k1, i1, j1, o1, o2)
    for loop in (k1, i1, j1, o1):
        program = s.unroll(program, loop)
    program = s.reverse_compute_at(s.vectorize(program, o2), write, j0)
    *steps, lanes = s.loops_of(program, write)[3:]
    program, (step, lane) = s.split(program, lanes, LANES)
    for loop in (*steps, step):
        program = s.unroll(program, loop)
    return s.decompose_reduction(s.vectorize(program, lane), "C", taps[0])


def bodies(program: PrimFunc) -> int:
    """How many times the sum is written, as stores of what they load."""
    lines = [line for line in str(lower(program)).splitlines() if "C_register[" in line]
    return sum(line.count("C_register[") == 2 for line in lines)


@pytest.mark.parametrize(
    ("size", "rows", "count"),
    [
        (8, (1, 1), 1),  # loop bounds say all
        (8, (1, 8), 3),  # a column of taps each
        (8, (2, 4), 9),  # first, inner and last rows of tiles, and the same of columns
        (8, (3, 1), 4),  # first, inner, and the last tile of two rows with two outcomes
    ],
)
def test_borders_get_a_body_for_each_kind_of_tile(
    size: int, rows: tuple[int, int], count: int
) -> None:
    assert bodies(convolution(size, 16, LANES, rows)) == count


@pytest.mark.parametrize(("rows", "count"), [(24, 1), (22, 2), (39, 2)])
def test_tiles_that_a_short_block_has_not_are_no_kind_of_their_own(rows: int, count: int) -> None:
    """Blocks of four tiles of four rows: in the last one the loop over tiles ends earlier."""
    x, w = te.placeholder((rows, 64), name="X"), te.placeholder((64, LANES), name="W")
    k = te.reduce_axis(64, "k")
    c = te.compute((rows, LANES), lambda i, j: te.sum(x[i, k] * w[k, j], [k]), name="C")
    program = te.create_prim_func([x, w, c])
    i, j, k = s.loops_of(program, "C")
    program, write = s.cache_write(program, "C", "register")
    program, (block, tile, row) = s.split(program, i, 4, 4)
    program = s.reorder(program, block, tile, k, row, j)
    program = s.parallel(s.vectorize(s.unroll(program, row), j), block)
    program = s.reverse_compute_at(program, write, tile)
    row, lane = s.loops_of(program, write)[2:]
    program = s.vectorize(s.unroll(program, row), lane)
    program = s.decompose_reduction(program, "C", k)
    lowered = lower(program)
    assert str(lowered).count("= float32(0.0)") == bodies(program) == count
    rng = np.random.default_rng(0)
    arrays = [rng.integers(-3, 4, t.shape).astype("float32") for t in (x, w)]
    got, want = harness.compiled(lowered, arrays), harness.interpreted(program, arrays)
    harness.same(got, want, str(lowered))


def test_what_only_the_store_asks_does_not_double_the_sum() -> None:
    assert bodies(convolution(8, 16, 4 * LANES - 3, (1, 8), vectors=2)) == 3


def test_vectors_that_the_last_panel_does_not_have_are_left_out() -> None:
    """The second vector of the second panel: a fifth of the multiply-adds of 80 columns. What is
    asked is whether there is the vector, not which of its lanes there are."""
    program = convolution(8, 16, 2 * LANES + 3, (1, 8), vectors=2)
    assert bodies(program) == 6
    lanes = [
        loop.body
        for loop in walk_stmt(lower(program).body)
        if isinstance(loop, For) and loop.kind is LoopKind.VECTORIZED
    ]
    into_registers = [b for b in lanes if any(t.scope == "register" for t in buffers_stored(b))]
    assert into_registers
    assert not any(isinstance(stmt, If) for body in into_registers for stmt in walk_stmt(body))


def test_short_sums_are_not_asked_for_each() -> None:
    """Where a question would cost as much as what it decides, the loops around are cut."""
    text = str(lower(convolution(8, 2, LANES, (2, 1))))
    assert "else" not in text


def window(size: int, rows: int) -> PrimFunc:
    """A depthwise 3×3 convolution of a padded map in register tiles of rows, all taps unrolled."""
    x, w = te.placeholder((size, size, LANES), name="X"), te.placeholder((3, 3, LANES), name="W")
    p, q = te.reduce_axis(3), te.reduce_axis(3)

    def element(i: Expr, j: Expr, c: Expr) -> Expr:
        y, z = i + p - 1, j + q - 1
        inside = (y >= 0) & (y < size) & (z >= 0) & (z < size)
        return te.sum(te.if_then_else(inside, x[y, z, c], 0.0) * w[p, q, c], [p, q])

    program = te.create_prim_func([x, w, te.compute(x.shape, element, name="C")])
    i, j, c, *taps = s.loops_of(program, "C")
    program, write = s.cache_write(program, "C", "register")
    program, (i0, i1) = s.split(program, i, rows)
    program = s.reorder(program, i0, j, *taps, i1, c)
    program = s.reverse_compute_at(program, write, j)
    *_, row, lane = s.loops_of(program, write)
    for loop in (*taps, i1, row):
        program = s.unroll(program, loop)
    for loop in (c, lane):
        program = s.vectorize(program, loop)
    return s.decompose_reduction(program, "C", taps[0])


@pytest.mark.parametrize(
    ("size", "rows", "bodies"),
    [
        (12, 6, 3),  # first, inner and last columns; rows ask for 2 of 18 terms
        (18, 6, 3),
        (30, 6, 9),  # most tiles have all terms: they do not ask
        (16, 4, 9),  # 2 of 12 terms are many
        (16, 6, 9),  # the last tile lacks more than a term
    ],
)
def test_short_sums_at_many_borders_ask_for_the_terms(size: int, rows: int, bodies: int) -> None:
    program = window(size, rows)
    lowered = lower(program)
    assert str(lowered).count("= float32(0.0)") == bodies
    x, w = arrays = harness.whole_numbers(program)
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    expected = sum(padded[p : p + size, q : q + size] * w[p, q] for p in range(3) for q in range(3))
    assert np.array_equal(harness.interpreted(lowered, arrays)[0], expected)
    assert np.array_equal(harness.compiled(lowered, arrays)[0], expected)


@pytest.mark.parametrize(
    ("vectors", "versions"),
    [
        (9, 1),  # two rows of a tile may be beyond the last: 2 questions for 36 stores
        (3, 2),  # and for 12
    ],
)
def test_results_ask_where_few_of_a_tile_have_to(vectors: int, versions: int) -> None:
    x = te.placeholder((14, vectors, LANES), name="X")
    y = te.compute(x.shape, lambda i, v, o: x[i, v, o] * 2, name="Y")
    program = te.create_prim_func([x, y])
    i, v, o = s.loops_of(program, "Y")
    program, (_, row) = s.split(program, i, 4)
    for loop in (row, v):
        program = s.unroll(program, loop)
    program = s.vectorize(program, o)
    lowered = lower(program)
    assert str(lowered).count("] = X[") == versions
    arrays = harness.whole_numbers(program)
    assert np.array_equal(harness.interpreted(lowered, arrays)[0], arrays[0] * 2)
    assert np.array_equal(harness.compiled(lowered, arrays)[0], arrays[0] * 2)


def test_seldom_bodies_are_rolled() -> None:
    """Border tiles, a sixteenth of all, run their sum in a loop of steps; whole ones do not."""
    text = str(lower(convolution(32, 48, LANES, (2, 1), unrolled=4)))
    assert text.count("in range(12)") == 1
    assert text.count("in range(48)") == 2


@settings(max_examples=30, deadline=None)
@given(
    st.integers(3, 11),
    st.sampled_from([1, 8, 12]),
    st.integers(1, 20),
    st.tuples(st.integers(1, 4), st.integers(1, 5)),
    st.integers(1, 3),
    st.sampled_from([1, 2, 4]),
)
def test_tiles_of_any_shape_compute_the_convolution(
    size: int, depth: int, columns: int, rows: tuple[int, int], vectors: int, unrolled: int
) -> None:
    program = convolution(size, depth, columns, rows, vectors, unrolled)
    arrays = harness.whole_numbers(program)
    x, w = (np.asarray(a, np.float64) for a in arrays)
    padded = np.pad(x, ((1, 1), (1, 1), (0, 0)))
    expected = sum(
        padded[p : p + size, q : q + size] @ w[p, q, :, :columns]
        for p in range(3)
        for q in range(3)
    )
    lowered = lower(program)
    assert np.array_equal(harness.interpreted(lowered, arrays)[0], expected)
    assert np.array_equal(harness.compiled(lowered, arrays)[0], expected)


# --- rolling ------------------------------------------------------------------------------------

TABLE, TOTAL = Buffer("A", (64, 2)), Buffer("T", (2,), scope="register")
HIGH, LOW, UNIT = Var("k_0"), Var("k_1"), Var("u")


def steps(index: Expr, place: Expr = UNIT, hint: int = 8) -> For:
    """for k_0 in 8: for k_1 in unrolled(4): for u in unrolled(2): T[place] += A[index, u]"""
    total = Load(TOTAL, (place,)) + Load(TABLE, (index, UNIT))
    units = For(UNIT, Const(2), Store(TOTAL, (place,), total), LoopKind.UNROLLED)
    hints = (Prefetch(TABLE, HIGH * hint + 16, lines=3),)
    return For(HIGH, Const(8), For(LOW, Const(4), units, LoopKind.UNROLLED), prefetch=hints)


def text_of(loop: For) -> list[str]:
    lines = print_program(PrimFunc("f", (TABLE,), loop)).splitlines()
    return [line.strip() for line in lines[1:] if line.strip()]


def test_rolling_joins_a_loop_and_the_steps_of_its_sum() -> None:
    rolled = roll(steps(HIGH * 4 + LOW))
    assert isinstance(rolled, For)
    assert text_of(rolled) == [
        "for k_0 in range(32):",
        "# prefetch 1 line into L1 at A + 16 + k_0 * 2",
        "for u in unrolled(2):",
        "T[u] = T[u] + A[k_0, u]",
    ]


def test_rolling_leaves_out_hints_that_it_cannot_share_out() -> None:
    rolled = roll(steps(HIGH * 4 + LOW, hint=6))
    assert isinstance(rolled, For)
    assert rolled.prefetch == ()


@pytest.mark.parametrize(
    "loop",
    [
        steps(HIGH * 8 + LOW),  # not two digits of a number
        steps((HIGH * 4 + LOW) // 2),
        steps(HIGH * 4 + LOW, place=LOW),  # registers have constant places
    ],
    ids=["gaps", "division", "register"],
)
def test_what_is_not_a_number_stays_unrolled(loop: For) -> None:
    assert roll(loop) is loop

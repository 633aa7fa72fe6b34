"""Conditions of whole tiles: empty tiles are never entered, and full ones ask nothing inside."""

from __future__ import annotations

import numpy as np
import pytest
import tir_harness as harness
from hypothesis import given, settings
from hypothesis import strategies as st
from tunefarm.compiler import te
from tunefarm.compiler.tir import Allocate, Buffer, Const, For, If, Load, PrimFunc, Seq, Store, Var
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.transform.conditions import hoist_conditions
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.visit import seq


def tiled(rows: int, columns: int, depth: int, mb: int, rw: int, nb: int, lanes: int) -> PrimFunc:
    """A product in register tiles of rw × lanes, mb × nb tiles a block."""
    a, b = te.placeholder((rows, depth), name="A"), te.placeholder((depth, columns), name="B")
    k = te.reduce_axis(depth)
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], [k]), name="C")
    program = te.create_prim_func([a, b, c])
    i, j, k = s.loops_of(program, "C")
    program, write = s.cache_write(program, "C", "register")
    program, (m, i0, i1) = s.split(program, i, mb, rw)
    program, (n, j0, j1) = s.split(program, j, nb, lanes)
    program = s.reorder(program, m, n, j0, i0, k, i1, j1)
    program = s.vectorize(s.unroll(program, i1), j1)
    program = s.reverse_compute_at(program, write, i0)
    row, lane = s.loops_of(program, write)[-2:]
    program = s.vectorize(s.unroll(program, row), lane)
    program = s.decompose_reduction(program, "C", k)
    return s.fuse(program, m, n)[0]


def lines_of(program: PrimFunc) -> list[str]:
    return [line.strip() for line in str(lower(program)).splitlines()]


def test_tiles_that_divide_the_extent_ask_nothing() -> None:
    lines = lines_of(tiled(12, 24, 5, mb=2, rw=4, nb=2, lanes=8))
    assert not [line for line in lines if line.startswith(("if ", "else"))]
    assert sum("in range(5)" in line for line in lines) == 1  # one body for all tiles
    assert any("in range(min(2, " in line for line in lines)  # and the empty one is not entered


def test_a_ragged_edge_costs_one_more_body() -> None:
    lines = lines_of(tiled(14, 24, 5, mb=2, rw=4, nb=2, lanes=8))
    assert sum("in range(5)" in line for line in lines) == 2


@settings(max_examples=25, deadline=None)
@given(
    st.tuples(st.integers(1, 20), st.integers(1, 40), st.integers(1, 5)),
    st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 4, 7])),
    st.tuples(st.sampled_from([1, 2, 3]), st.sampled_from([4, 8])),
)
def test_tiles_of_any_shape_compute_the_product(
    shape: tuple[int, int, int], rows: tuple[int, int], columns: tuple[int, int]
) -> None:
    program = tiled(*shape, *rows, *columns)
    a, b = harness.whole_numbers(program)
    lowered = lower(program)
    assert np.array_equal(harness.interpreted(lowered, [a, b])[0], a @ b)
    assert np.array_equal(harness.compiled(lowered, [a, b])[0], a @ b)


@pytest.mark.parametrize("size", [4, 7])
def test_a_condition_stays_behind_what_it_reads(size: int) -> None:
    """for i: if flag[0] >= 0: out[i] = 1; flag[0] = -1   keeps its condition inside."""
    flag, out = Buffer("flag", (1,), "int64"), Buffer("out", (size,), "int64")
    source = Buffer("source", (1,), "int64")
    i, zero = Var("i"), Const(0)
    first = Store(flag, (zero,), Load(source, (zero,)))
    body = If(
        Load(flag, (zero,)) >= zero,
        seq(Store(out, (i,), Const(1)), Store(flag, (zero,), Const(-1))),
    )
    clear = For(j := Var("j"), Const(size), Store(out, (j,), zero))
    loop = For(i, Const(size), body)
    program = PrimFunc("f", (source, out), Seq((clear, Allocate(flag, Seq((first, loop))))))
    got = harness.interpreted(hoist_conditions(program), [np.array([3])])[0]
    assert got.tolist() == [1] + [0] * (size - 1)

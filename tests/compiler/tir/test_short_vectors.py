"""Vectors of few lanes: which loops become short, and that all agree with the interpreter."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tir_harness as harness
from hypothesis import given, settings
from hypothesis import strategies as st
from tunefarm.compiler import te
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Expr
from tunefarm.compiler.tir.transform.lower import lower

LANES = 8


def product(rows: int, columns: int, depth: int, vectors: int, dtype: str = "float32") -> PrimFunc:
    """Sums in registers, rows × vectors of them, and their stores."""
    width = -(-columns // (vectors * LANES)) * vectors * LANES
    a = te.placeholder((rows, depth), dtype, "A")
    b = te.placeholder((depth, width), dtype, "B")
    k = te.reduce_axis(depth, "k")
    c = te.compute((rows, columns), lambda i, j: te.sum(a[i, k] * b[k, j], [k]), name="C")
    program, write = s.cache_write(te.create_prim_func([a, b, c]), "C", "register")
    i, j, k0 = s.loops_of(program, "C")
    program, (i0, i1) = s.split(program, i, 2)
    program, (j0, j1, lane) = s.split(program, j, vectors, LANES)
    program = s.reorder(program, i0, j0, k0, i1, j1, lane)
    for loop in (i1, j1):
        program = s.unroll(program, loop)
    program = s.reverse_compute_at(s.vectorize(program, lane), write, j0)
    row, last = s.loops_of(program, write)[2:]
    program, (step, own_lane) = s.split(program, last, LANES)
    for loop in (row, step):
        program = s.unroll(program, loop)
    return s.decompose_reduction(s.vectorize(program, own_lane), "C", k0)


def doubled(columns: int) -> PrimFunc:
    """2 x + 1 of each element of a row, several vectors at a time."""
    x = te.placeholder((3, columns), name="X")
    y = te.compute((3, columns), lambda i, j: x[i, j] * 2.0 + 1.0, name="Y")
    program = te.create_prim_func([x, y])
    _, j = s.loops_of(program, "Y")
    program, (_, step, lane) = s.split(program, j, 2, LANES)
    return s.vectorize(s.unroll(program, step), lane)


def row_sums(columns: int) -> PrimFunc:
    """The sum of each row, a vector of its columns at a time."""
    x = te.placeholder((4, columns), name="X")
    k = te.reduce_axis(columns, "k")
    y = te.compute((4,), lambda i: te.sum(x[i, k], [k]), name="Y")
    program, write = s.cache_write(te.create_prim_func([x, y]), "Y", "register")
    i, columns_loop = s.loops_of(program, "Y")
    program, (_, lane) = s.split(program, columns_loop, LANES)
    return s.vectorize(s.reverse_compute_at(program, write, i), lane)


def lanes_of(program: PrimFunc) -> set[int]:
    """The lanes of all vectorized loops."""
    return {int(n) for n in re.findall(r"vectorized\((\d+)\)", str(lower(program)))}


def agrees(program: PrimFunc, target: Target | None = None) -> None:
    arrays = harness.whole_numbers(program)
    (wanted,) = harness.interpreted(program, arrays)
    lowered = lower(program)
    np.testing.assert_array_equal(harness.interpreted(lowered, arrays)[0], wanted)
    np.testing.assert_array_equal(harness.compiled(lowered, arrays, target)[0], wanted)


@pytest.mark.parametrize(
    ("columns", "lanes"),
    [
        (16, {8}), (17, {8}), (18, {8, 2}), (19, {8, 4}), (20, {8, 4}), (21, {8}),
        (4, {4}), (2, {2}), (1, set()),
    ],
)  # fmt: skip
def test_the_last_vector_has_the_lanes_that_are_wanted(columns: int, lanes: set[int]) -> None:
    """Of half a vector or less; what is stored to memory without a condition, and with one."""
    assert lanes_of(product(4, columns, 5, vectors=-(-columns // LANES))) == lanes
    agrees(product(4, columns, 5, vectors=-(-columns // LANES)))


def test_all_loops_of_a_register_have_its_lanes() -> None:
    """The zeros at first and the sums, on which there is no condition, and the stores."""
    text = str(lower(product(2, 17, 5, vectors=3)))
    assert text.count("C_register[i_1, 16]") == 1  # 0
    assert text.count("C_register[i_1.1, 16]") == 2  # the sum of itself and a term
    assert text.count("C_register[i0, 16]") == 1
    assert "if" not in text


def test_the_short_vector_need_not_be_the_last() -> None:
    """Of two vectors of the last panel one is short, and one has no lane."""
    program = product(2, 18, 5, vectors=2)
    assert lanes_of(program) == {8, 2}
    agrees(program)


def test_loops_from_memory_to_memory_stay() -> None:
    assert lanes_of(doubled(20)) == {8}
    agrees(doubled(20))


def test_lanes_that_are_combined_stay() -> None:
    """Their sums wait for one another, to be combined together."""
    assert lanes_of(row_sums(17)) == {8}
    agrees(row_sums(17))


def test_integers_stay() -> None:
    """They may be terms of instructions that have so many lanes and no fewer."""
    assert lanes_of(product(2, 17, 5, vectors=3, dtype="int32")) == {8}


def test_elements_that_others_read_keep_their_vector() -> None:
    """A register of which an element is read outside vectors is what it was."""
    x = te.placeholder((3, 9), name="X")
    t = te.compute((3, 9), lambda i, j: x[i, j] * 2.0, name="T")
    program = te.create_prim_func([x, te.compute((3, 9), lambda i, j: t[i, 0] + t[i, j], name="Y")])
    program = s.set_scope(program, "T", "register")
    i, j = s.loops_of(program, "Y")
    program = s.compute_at(s.unroll(program, j), "T", i)
    (own,) = s.loops_of(program, "T")[1:]
    program, (step, lane) = s.split(program, own, LANES)
    program = s.vectorize(s.unroll(program, step), lane)
    assert lanes_of(program) == {8}
    agrees(program)


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(
    st.integers(1, 5), st.integers(1, 40), st.integers(1, 6), st.integers(1, 4),
    st.sampled_from(["haswell", Target.host().mcpu]), st.booleans(),
)  # fmt: skip
def test_any_shape(
    rows: int, columns: int, depth: int, vectors: int, mcpu: str, padded: bool
) -> None:
    program = padded_rows(rows, columns) if padded else product(rows, columns, depth, vectors)
    agrees(program, Target(f"llvm -mcpu={mcpu}"))


def padded_rows(rows: int, columns: int) -> PrimFunc:
    """The sum of an element and of those above and below it, zeros outside."""
    x = te.placeholder((rows, columns), name="X")

    def element(i: Expr, j: Expr) -> Expr:
        def at(row: Expr) -> Expr:
            return te.if_then_else((row >= 0) & (row < rows), x[row, j], 0.0)

        return at(i - 1) + at(i) + at(i + 1)

    program = te.create_prim_func([x, te.compute((rows, columns), element, name="Y")])
    _, j = s.loops_of(program, "Y")
    program, (_, lane) = s.split(program, j, LANES)
    return s.vectorize(program, lane)

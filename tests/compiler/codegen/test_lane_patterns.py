"""Lanes that repeat few elements, or take every other one, without a load for each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tir_harness as h
from tunefarm.compiler import te
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Expr
from tunefarm.compiler.tir.transform.lower import lower

HOST = Target.host(1)


def text_and_check(program: PrimFunc, dtype: str) -> str:
    """The LLVM text of a program that agrees with its meaning."""
    rng = np.random.default_rng(1)
    arrays = [rng.integers(-9, 9, p.shape).astype(p.dtype) for p in program.params[:-1]]
    want = h.interpreted(program, arrays)
    lowered = lower(program)
    h.same(h.compiled(lowered, arrays), want, str(lowered))
    return emit_llvm(lowered, HOST).text


@pytest.mark.parametrize(("dtype", "count"), [("float16", 2), ("float32", 2), ("int8", 4)])
def test_few_elements_in_all_lanes_are_loaded_as_one_word(dtype: str, count: int) -> None:
    x = te.placeholder((5, count), dtype, "x")
    y = te.compute((5, 32), lambda i, j: x[i, j % count], "y")
    program = te.create_prim_func([x, y])
    program = s.vectorize(program, s.loops_of(program, "y")[-1])
    text = text_and_check(program, dtype)
    assert "gather" not in text
    bits = 8 * count * np.dtype(dtype).itemsize
    assert f"load i{bits}, ptr" in text


def test_fused_loops_index_what_stands_side_by_side() -> None:
    x = te.placeholder((4, 8, 2), "float32", "x")
    y = te.compute((4, 8, 2), lambda i, j, k: x[i, j, k] + 1.0, "y")
    program = te.create_prim_func([x, y])
    _, j, k = s.loops_of(program, "y")
    program, both = s.fuse(program, j, k)
    text = text_and_check(s.vectorize(program, both), "float32")
    assert "gather" not in text
    assert "load <16 x float>" in text


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool"])
@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("lanes", [2, 8, 32])
def test_two_rows_in_turn_are_two_loads(lanes: int, first: int, dtype: str) -> None:
    x = te.placeholder((6, 48), dtype, "x")

    def value(i: Expr, j: Expr, n: Expr) -> Expr:
        return x[2 * i + n % 2, j * (lanes // 2) + first + n // 2]

    y = te.compute((3, 2, lanes), value, "y")
    program = te.create_prim_func([x, y])
    program = s.vectorize(program, s.loops_of(program, "y")[-1])
    assert "gather" not in text_and_check(program, dtype)


@pytest.mark.parametrize(("rows", "columns"), [(5, 48), (6, 37), (5, 37), (4, 8)])
def test_two_rows_in_turn_with_zeros_behind_them(rows: int, columns: int) -> None:
    """A row that is not there, and columns that are not, of either row."""
    x = te.placeholder((rows, columns), "float32", "x")

    def value(i: Expr, j: Expr, n: Expr) -> Expr:
        row, column = 2 * i + n % 2, j * 16 + n // 2
        inside = (row < rows) & (column < columns)
        return te.if_then_else(inside, x[row, column], te.const(0, "float32"))

    y = te.compute((4, 3, 32), value, "y")
    program = te.create_prim_func([x, y])
    program = s.vectorize(program, s.loops_of(program, "y")[-1])
    assert "gather" not in text_and_check(program, "float32")


def test_lanes_are_compared_with_a_counter_in_words() -> None:
    """Half of the vectors that the counter's own 64 bits take."""
    x = te.placeholder((3, 37), "float32", "x")

    def value(i: Expr, j: Expr) -> Expr:
        return te.if_then_else(j < 37, x[i, j] * 2.0, te.const(1, "float32"))

    y = te.compute((3, 160), value, "y")
    program = te.create_prim_func([x, y])
    program, (_, lane) = s.split(program, s.loops_of(program, "y")[-1], 16)
    text = text_and_check(s.vectorize(program, lane), "float32")
    assert "icmp slt <16 x i32>" in text
    assert "icmp slt <16 x i64>" not in text


def test_other_rows_in_turn_are_gathered() -> None:
    """Where even lanes begin with the second row, or columns do not move with the rows."""
    x = te.placeholder((6, 48), "float32", "x")
    for value in (
        lambda i, n: x[2 * i + n % 2, 1 + (n + 1) // 2],
        lambda i, n: x[2 * i + (n + 1) % 2, (n + 1) // 2],
        lambda i, n: x[i + n % 3, n // 3],
    ):
        y = te.compute((3, 16), value, "y")
        program = te.create_prim_func([x, y])
        program = s.vectorize(program, s.loops_of(program, "y")[-1])
        assert "gather" in text_and_check(program, "float32")


@pytest.mark.parametrize(("sharing", "apart", "place"), [
    (4, 4, 0), (4, 4, 3), (2, 1, 0), (8, 8, 5), (4, 3, 2), (2, 6, 1), (16, 2, 1),
])  # fmt: skip
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_lanes_that_share_elements_take_them_from_one_load(
    sharing: int, apart: int, place: int, dtype: str
) -> None:
    """None beyond the end of the array, whose last elements the last lanes read."""
    x = te.placeholder((3, 32 // sharing * apart), dtype, "x")
    y = te.compute((3, 32), lambda i, j: x[i, j // sharing * apart + place], "y")
    program = te.create_prim_func([x, y])
    program, (_, lane) = s.split(program, s.loops_of(program, "y")[-1], 16)
    text = text_and_check(s.vectorize(program, lane), dtype)
    assert "gather" not in text
    element = {"float32": "float"}.get(dtype, "i8")
    elements = 16 // sharing * apart
    assert f"load {element if sharing == 16 else f'<{elements} x {element}>'}, ptr" in text


def test_shared_elements_outside_an_image_are_zeros() -> None:
    x = te.placeholder((3, 8), "float32", "x")
    y = te.compute(
        (5, 8),
        lambda i, j: te.if_then_else(
            (i >= 1) & (i < 4), x[i - 1, j // 4 * 4 + 1], te.const(0, "float32")
        ),
        "y",
    )
    program = te.create_prim_func([x, y])
    text = text_and_check(s.vectorize(program, s.loops_of(program, "y")[-1]), "float32")
    assert "masked" not in text


def test_lanes_whose_shared_element_is_not_known_are_gathered() -> None:
    x = te.placeholder((2, 8), "float32", "x")
    y = te.compute((2, 4, 8), lambda i, k, j: x[i, j // 4 * 4 + k], "y")
    program = te.create_prim_func([x, y])
    assert "gather" in text_and_check(s.vectorize(program, s.loops_of(program, "y")[-1]), "float32")


@pytest.mark.parametrize(
    "place",
    [
        lambda i, j: 7 - j // 4,  # backwards
        lambda i, j: (i + j) // 8,  # one element, or two
        lambda i, j: j // 2 * 40 + i,  # far apart
    ],
    ids=["backwards", "one", "apart"],
)
def test_lanes_that_share_otherwise_are_right(place: Callable[[Expr, Expr], Expr]) -> None:
    x = te.placeholder((160,), "float32", "x")
    y = te.compute((2, 8), lambda i, j: x[place(i, j)], "y")
    program = te.create_prim_func([x, y])
    i, j = s.loops_of(program, "y")
    text = text_and_check(s.vectorize(s.unroll(program, i), j), "float32")
    assert "load <2 x float>" not in text


@pytest.mark.parametrize("first", [0, 1])
def test_every_other_element_comes_in_two_loads(first: int) -> None:
    x = te.placeholder((3, 16), "float32", "x")
    y = te.compute((3, 8), lambda i, j: x[i, j * 2 + first], "y")
    program = te.create_prim_func([x, y])
    program = s.vectorize(program, s.loops_of(program, "y")[-1])
    text = text_and_check(program, "float32")
    assert text.count("load <8 x float>") == 2


@pytest.mark.parametrize(("dtype", "columns"), [("float32", 32), ("int8", 64), ("float32", 19)])
def test_what_no_lane_wants_is_read_from_zeros(dtype: str, columns: int) -> None:
    """Not by an empty mask from where there may be no memory, which processors find out slowly."""
    x, wanted = te.placeholder((5, columns), dtype, "x"), te.placeholder((6,), "int32", "wanted")
    y = te.compute(
        (6, columns),
        lambda i, j: te.if_then_else(wanted[i] > 0, x[i - 1, j], te.const(0, dtype)),
        "y",
    )
    program = te.create_prim_func([x, wanted, y])
    program, (_, lane) = s.split(
        program, s.loops_of(program, "y")[-1], 64 if dtype == "int8" else 16
    )
    program = lower(s.vectorize(program, lane))
    rows = np.array([0, 1, 1, 0, 0, 1], np.int32)
    arrays = [np.arange(1, 5 * columns + 1).reshape(5, columns).astype(dtype), rows]
    want = np.concatenate([arrays[0][:1] * 0, arrays[0]]) * rows[:, None].astype(dtype)
    h.same(h.compiled(program, arrays), [want], str(program))
    text = emit_llvm(program, Target("llvm -mcpu=znver5 -num-cores=1")).text
    whole_vectors = columns % 16 == 0
    assert text.count("ptr @zeros.64") == (1 if whole_vectors else 2)
    assert ("masked.load" in text) != whole_vectors


@pytest.mark.parametrize(
    ("dtype", "tail", "width"),
    [
        ("float32", 1, 1), ("float32", 3, 4), ("float32", 8, 8), ("float32", 9, 16),
        ("float64", 2, 2), ("float16", 4, 4), ("bfloat16", 7, 8), ("int8", 2, 2), ("bool", 5, 8),
    ],
)  # fmt: skip
def test_short_tails_move_as_narrow_vectors(dtype: str, tail: int, width: int) -> None:
    """From the last row to the first, so that a store of too many lanes would spoil a row."""
    rows, columns = 5, 16 + tail
    x = te.placeholder((rows, columns), dtype, "x")
    y = te.compute((rows, columns), lambda i, j: x[rows - 1 - i, j], "y")
    program = te.create_prim_func([x, y])
    program, (_, lane) = s.split(program, s.loops_of(program, "y")[-1], 16)
    program = lower(s.vectorize(program, lane))
    numbers = np.arange(rows * columns).reshape(rows, columns) % 3
    arrays = [numbers.astype(np.bool_ if dtype == "bool" else program.params[0].dtype)]
    h.same(h.compiled(program, arrays), [arrays[0][::-1]], str(program))
    text = emit_llvm(program, Target("llvm -mcpu=znver5 -num-cores=1")).text
    assert ("masked.load" in text) == ("masked.store" in text) == (tail != width)
    assert text.count(f" <{width} x i1> <i1 ") == (2 if 1 < tail < width < 16 else 0)

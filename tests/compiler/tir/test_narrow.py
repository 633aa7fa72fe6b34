"""Index types are narrowed where every step fits, and programs keep their meaning."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tir_harness as h
from hypothesis import given, settings
from random_expressions import Case, cases
from tunefarm.compiler import te
from tunefarm.compiler.tir.interpreter import interpret
from tunefarm.compiler.tir.ir import Binary, Buffer, Const, For, PrimFunc, Store, Var
from tunefarm.compiler.tir.transform.flatten import flatten_buffers
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.transform.narrow import narrow_indices
from tunefarm.compiler.tir.verifier import VerifyError, verify


def narrowed(program: PrimFunc) -> PrimFunc:
    return verify(narrow_indices(flatten_buffers(lower(program))), lowered=True)


def body(program: PrimFunc) -> list[str]:
    return [line.strip() for line in str(narrowed(program)).splitlines()[1:]]


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(cases)
def test_a_narrow_program_means_what_numpy_says(case: Case) -> None:
    program = narrowed(case.program)
    assert "int32" in str(program) or "for" not in str(program)
    arrays = h.operands(lower(case.program), case.arrays)
    interpret(program, [a.reshape(-1) for a in arrays])
    h.same(arrays[len(case.arrays) :], case.want, str(program))


def copied(rows: int, columns: int) -> PrimFunc:
    x = te.placeholder((rows, columns), name="x")
    return te.create_prim_func([x, te.compute((rows, columns), lambda i, j: x[i, j], name="y")])


def test_offsets_of_less_than_two_to_the_31_are_narrow() -> None:
    assert body(copied(1 << 15, 1 << 16)) == [
        "for i: int32 in range(32768):",
        "for j: int32 in range(65536):",
        "y[i * 65536 + j] = x[i * 65536 + j]",
    ]


def test_one_row_more_is_wide() -> None:
    assert body(copied((1 << 15) + 1, 1 << 16)) == [
        "for i: int32 in range(32769):",
        "for j: int32 in range(65536):",
        "y[int64(i) * 65536 + int64(j)] = x[int64(i) * 65536 + int64(j)]",
    ]


@pytest.mark.parametrize(("extent", "kind"), [(1 << 31, ""), ((1 << 31) - 1, ": int32")])
def test_a_loop_is_narrow_if_its_end_fits(extent: int, kind: str) -> None:
    x = te.placeholder((2,), name="x")
    program = te.create_prim_func([x, te.compute((extent,), lambda i: x[i % 2], name="y")])
    assert body(program)[0] == f"for i{kind} in range({extent}):"


def test_a_step_that_does_not_fit_is_wide_though_its_result_would() -> None:
    x = te.placeholder((13,), name="x")
    program = te.create_prim_func([x, te.compute((99,), lambda i: x[i * 10**9 % 13], name="y")])
    assert "y[i] = x[int64(i) * 1000000000 % 13]" in body(program)
    small = te.create_prim_func([x, te.compute((99,), lambda i: x[i * 10**7 % 13], name="y")])
    assert "y[i] = x[i * 10000000 % 13]" in body(small)


def test_indices_that_are_data_keep_their_type() -> None:
    x, at = te.placeholder((5, 8), name="x"), te.placeholder((3,), "int64", "at")
    rows = te.compute((3, 8), lambda i, j: x[at[i], j], name="rows")
    number = te.compute((3,), lambda i: i + at[i], name="number")
    text = body(te.create_prim_func([x, at, rows, number]))
    assert "rows[i * 8 + j] = x[at[i] * 8 + int64(j)]" in text
    assert "number[i.1] = int64(i.1) + at[i.1]" in text


def test_a_loop_and_its_bounds_have_one_dtype() -> None:
    y, i = Buffer("y", (3,)), Var("i", "int32")
    program = PrimFunc("f", (y,), For(i, Const(3), Store(y, (i,), Const(0.0, "float32"))))
    with pytest.raises(VerifyError, match="loop i of int32 has bounds of another dtype"):
        verify(program, lowered=True)
    with pytest.raises(VerifyError, match="variable i has dtype int32"):
        verify(program)


def test_narrow_arithmetic_wraps_in_the_interpreter() -> None:
    """So that a wrong narrowing shows."""
    y, i = Buffer("y", (3,)), Var("i", "int32")
    beyond = Binary("add", i, Const(2**31 - 1, "int32"), "int32")
    loop = For(
        i, Const(1, "int32"), Store(y, (beyond,), Const(0.0, "float32")), start=Const(1, "int32")
    )
    with pytest.raises(IndexError, match=re.escape("y[-2147483648] is outside (3,)")):
        interpret(PrimFunc("f", (y,), loop), [np.zeros(3, "float32")])

"""Tensor expressions by hand: programs, schedules, code, and refusals."""

from __future__ import annotations

import numpy as np
import pytest
from tunefarm.compiler.errors import ScheduleError, TunefarmError
from tunefarm.compiler.tir.interpreter import interpret

import tunefarm
from tunefarm import schedule, te


def matmul(n: int, m: int, k: int) -> te.PrimFunc:
    a, b = te.placeholder((n, k), name="A"), te.placeholder((k, m), name="B")
    r = te.reduce_axis(k)
    c = te.compute((n, m), lambda i, j: te.sum(a[i, r] * b[r, j], [r]), name="C")
    return te.create_prim_func([a, b, c])


def test_one_operator_by_hand_becomes_fast_code() -> None:
    program = matmul(33, 50, 17)
    i, j, k = schedule.loops_of(program, "C")
    program, _ = schedule.cache_write(program, "C", "register")
    program, (i0, i1) = schedule.split(program, i, 8)
    program, (j0, j1) = schedule.split(program, j, 16)
    program = schedule.reorder(program, i0, j0, k, i1, j1)
    program = schedule.reverse_compute_at(program, "C_write", j0)
    program = schedule.unroll(program, i1)
    program = schedule.vectorize(program, j1)
    rows, lanes = schedule.loops_of(program, "C_write")[-2:]
    program = schedule.vectorize(schedule.unroll(program, rows), lanes)
    program = schedule.decompose_reduction(program, "C", k)
    text = str(tunefarm.lower(program))
    assert "vectorized(16)" in text
    assert "block" not in text
    f = tunefarm.build(program)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((33, 17), dtype=np.float32)
    b = rng.standard_normal((17, 50), dtype=np.float32)
    np.testing.assert_allclose(f(a, b)[0], a @ b, rtol=1e-4, atol=1e-5)
    assert "vfmadd" in f.get_source("asm")


def test_a_reduction_over_nothing_is_its_neutral_element() -> None:
    x = te.placeholder((3, 0), name="x")
    r = te.reduce_axis(0)
    largest = te.compute((3,), lambda i: te.max(x[i, r], [r]), name="largest")
    out = np.zeros(3, "float32")
    interpret(te.create_prim_func([x, largest]), [np.zeros((3, 0), "float32"), out])
    assert (out == -np.inf).all()


def test_stages_between_are_intermediate_buffers() -> None:
    x = te.placeholder((4,), name="x")
    y = te.compute((4,), lambda i: x[i] + te.const(1.0, "float32"), name="y")
    z = te.compute((4,), lambda i: y[i] * y[i], name="z")
    program = te.create_prim_func([x, z])
    assert [b.name for b in program.buffers] == ["y"]
    out = np.zeros(4, "float32")
    interpret(program, [np.arange(4, dtype="float32"), out])
    assert out.tolist() == [1, 4, 9, 16]


def test_mistakes_are_told() -> None:
    x = te.placeholder((4, 5), name="x")
    with pytest.raises(IndexError, match="x has 2 dimensions and was indexed with 1"):
        x[0]
    y = te.compute((4, 5), lambda i, j: x[i, j], name="y")
    with pytest.raises(TunefarmError, match="placeholder x is read but not among the arguments"):
        te.create_prim_func([y])
    with pytest.raises(TunefarmError, match="placeholders first"):
        te.create_prim_func([y, x])
    with pytest.raises(TypeError, match="different dtypes, float32 and int64"):
        te.compute((4, 5), lambda i, j: x[i, j] + i)
    with pytest.raises(ScheduleError, match="no block 'z'"):
        schedule.find_block(te.create_prim_func([x, y]), "z")

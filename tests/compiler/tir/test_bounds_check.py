"""Programs built with bounds checks, on this host."""

from __future__ import annotations

import numpy as np
import pytest
from tunefarm.compiler import te
from tunefarm.compiler.errors import BoundsError
from tunefarm.compiler.tir import (
    Buffer,
    Const,
    For,
    Load,
    LoopKind,
    PrimFunc,
    Select,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.interpreter import interpret
from tunefarm.compiler.tir.transform.bounds_check import add_bounds_checks
from tunefarm.compiler.tir.transform.lower import lower

from tunefarm import api

A, B, C = Buffer("A", (13,)), Buffer("B", (13,), "int64"), Buffer("C", (13,))
i = Var("i")


def program(body: Stmt, kind: LoopKind = LoopKind.SERIAL) -> PrimFunc:
    return PrimFunc("shift", (A, B, C), For(i, Const(13), body, kind))


def arrays(where: int = 0) -> tuple[np.ndarray, np.ndarray]:
    index = np.arange(13)
    index[7] += where
    return np.arange(13, dtype=np.float32), index


@pytest.mark.parametrize("kind", [LoopKind.SERIAL, LoopKind.PARALLEL, LoopKind.VECTORIZED])
def test_a_read_outside_is_named(kind: LoopKind) -> None:
    checked = api.build(program(Store(C, (i,), A[i + 1]), kind), bounds_checks=True)
    with pytest.raises(BoundsError, match=r"shift reads A at index 13 of .* 0, .* extent 13;"):
        checked(*arrays())


@pytest.mark.parametrize("where", [-1_000_000_000, -8, 1_000_000_000])
def test_a_write_outside_is_named_and_not_made(where: int) -> None:
    checked = api.build(program(Store(C, (B[i],), A[i])), bounds_checks=True)
    with pytest.raises(BoundsError, match=f"shift writes C at index {7 + where} of"):
        checked(*arrays(where))
    (result,) = checked(*arrays())
    np.testing.assert_array_equal(result, np.arange(13))


def test_an_index_read_outside_is_named_before_it_is_used() -> None:
    value = Load(A, (Load(B, (i + 5,)),))
    with pytest.raises(BoundsError, match="reads B at index 17 "):
        api.build(program(Store(C, (i,), value)), bounds_checks=True)(*arrays())


def test_a_load_that_is_not_made_is_no_miss() -> None:
    value = Select(i < 12, A[i + 1], A[i], "float32")
    (result,) = api.build(program(Store(C, (i,), value)), bounds_checks=True)(*arrays())
    np.testing.assert_array_equal(result, [*range(1, 13), 12])


def test_what_lies_in_range_is_not_tested() -> None:
    assert add_bounds_checks(program(Store(C, (i,), A[i])))[1] == ()
    (access,) = add_bounds_checks(program(Store(C, (i,), A[i + 1])))[1]
    assert (access.buffer, access.dimension, access.extent, access.writes) == ("A", 0, 13, False)


def test_a_scheduled_product_with_a_rest_has_no_miss() -> None:
    m, n, k = 5, 7, 3
    a, b = te.placeholder((m, k), name="a"), te.placeholder((k, n), name="b")
    r = te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda x, y: te.sum(a[x, r] * b[r, y], [r]), name="c")
    p = te.create_prim_func([a, b, c])
    p, _ = s.cache_write(p, "c", "register")
    x, y = s.loops_of(p, "c")[:2]
    p, (_, _) = s.split(p, x, 2)
    p, (_, inner) = s.split(p, y, 4)
    p = s.vectorize(p, inner)
    left = np.random.default_rng(0).random((m, k), np.float32)
    right = np.random.default_rng(1).random((k, n), np.float32)
    (result,) = api.build(p, bounds_checks=True)(left, right)
    np.testing.assert_allclose(result, left @ right, rtol=1e-5)


def test_the_checked_program_runs_in_the_interpreter() -> None:
    checked, accesses = add_bounds_checks(program(Store(C, (B[i],), A[i])))
    results = np.zeros(13, np.float32), np.zeros((len(accesses), 2), np.int64)
    interpret(lower(checked, checked=True), [*arrays(100), *results])
    assert results[1].tolist() == [[1, 107]]

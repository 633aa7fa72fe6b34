"""Prefetches are hints: they print, survive other steps, reach the code and change no value."""

from __future__ import annotations

import re

import numpy as np
import pytest
import tir_harness as harness
from tunefarm.compiler import te
from tunefarm.compiler.codegen.c import emit_c
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import Const, Prefetch, PrimFunc, Var
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.transform.lower import lower


def product(n: int, m: int, depth: int) -> tuple[PrimFunc, list[Var]]:
    a, b = te.placeholder((n, depth), name="A"), te.placeholder((depth, m), name="B")
    k = te.reduce_axis(depth)
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], [k]), name="C")
    program = te.create_prim_func([a, b, c])
    return program, s.loops_of(program, "C")


@pytest.mark.parametrize("shape", [(3, 5, 7), (1, 1, 1), (8, 16, 1)])
def test_hints_change_no_value(shape: tuple[int, int, int]) -> None:
    program, (i, j, k) = product(*shape)
    b = program.params[1]
    hinted = s.prefetch(program, k, Prefetch(b, k * shape[1] + j + 10_000, lines=3, level=2))
    hinted = s.prefetch(hinted, i, Prefetch(b, i * -1_000_000))
    hinted, outer = s.fuse(hinted, i, j)
    hinted = s.parallel(hinted, outer)
    arrays = harness.whole_numbers(program)
    (want,) = harness.interpreted(program, arrays)
    assert np.array_equal(harness.interpreted(hinted, arrays)[0], want)
    assert np.array_equal(harness.compiled(lower(hinted), arrays)[0], want)


def test_a_hint_follows_its_variables_and_reaches_the_code() -> None:
    program, (_i, j, k) = product(4, 16, 8)
    hinted = s.prefetch(program, k, Prefetch(program.params[1], k * 16 + j + 32, 2))
    hinted, (_j0, _j1) = s.split(hinted, j, 4)
    assert "# prefetch 2 lines into L1 at B + k * 16 + (j_0 * 4 + j_1) + 32" in str(hinted)
    text = emit_llvm(lower(hinted), Target.host()).text
    assert text.count("call void @llvm.prefetch.p0") == 2


def test_a_hint_for_an_intermediate_buffer_goes_where_it_is_placed() -> None:
    """Rows of 8 elements stand 24 apart, and those of two iterations of ``i`` are held at once."""
    a, b = te.placeholder((6, 8), name="A"), te.placeholder((8, 16), name="B")
    k = te.reduce_axis(8)
    t = te.compute((6, 8), lambda i, j: a[i, j] + 1.0, name="T")
    c = te.compute((6, 16), lambda i, j: te.sum(t[i, k] * b[k, j], [k]), name="C")
    program = te.create_prim_func([a, b, c])
    i, _, k_loop = s.loops_of(program, "C")
    program, (block, row) = s.split(program, i, 2)
    program = s.compute_at(program, "T", block)
    (held,) = program.buffers
    first = (block * 2 + row + 1, Const(0))
    hinted = s.prefetch(program, k_loop, Prefetch(held, k_loop * 3, first=first))
    hinted = s.set_scope(hinted, "T", "local", padding=16)
    assert "at T[i_0 * 2 + i_1 + 1, 0] + k * 3" in str(hinted)
    assert "at T + i_1 * 24 + 24 + k * 3" in str(lower(hinted))
    arrays = harness.whole_numbers(program)
    (want,) = harness.interpreted(program, arrays)
    assert np.array_equal(harness.interpreted(hinted, arrays)[0], want)
    assert np.array_equal(harness.compiled(lower(hinted), arrays)[0], want)


def test_a_loop_of_one_iteration_keeps_its_hint() -> None:
    program, (i, _j, _k) = product(1, 16, 8)
    hinted = lower(s.prefetch(program, i, Prefetch(program.params[1], i * 16, level=2)))
    text = emit_llvm(hinted, Target.host()).text
    assert "i32 0, i32 2, i32 1)" in text  # a read, into the second cache, of data


def test_each_copy_of_an_unrolled_body_asks_for_a_line_of_its_own() -> None:
    program, (i, _j, k) = product(4, 16, 8)
    program = s.unroll(program, k)
    hinted = lower(s.prefetch(program, k, Prefetch(program.params[1], i * 128 + k * 16)))
    text = emit_llvm(hinted, Target.host()).text
    places = re.findall(r"call void @llvm\.prefetch\.p0\(ptr (%\w+),", text)
    assert len(set(places)) == len(places) == 8
    assert "__builtin_prefetch" in emit_c(hinted)


def test_loops_of_lanes_do_not_prefetch() -> None:
    program, (i, j, _k) = product(4, 16, 8)
    program = s.vectorize(program, j)
    with pytest.raises(ScheduleError, match="j is vectorized; only a serial, parallel or unrolled"):
        s.prefetch(program, j, Prefetch(program.params[1], j))
    with pytest.raises(ScheduleError, match="prefetch of 0 lines into L1"):
        s.prefetch(program, i, Prefetch(program.params[1], i, lines=0))

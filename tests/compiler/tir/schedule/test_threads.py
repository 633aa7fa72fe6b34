"""Blocks, threads and barriers: tiles shared by threads compute what NumPy does, on any shape."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import tir_harness as harness
from tunefarm.compiler import te
from tunefarm.compiler.codegen.c import emit_c
from tunefarm.compiler.codegen.llvm import emit_llvm
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import (
    Allocate,
    Barrier,
    Buffer,
    Const,
    For,
    If,
    Load,
    LoopKind,
    PrimFunc,
    Seq,
    Store,
    Var,
)
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.tir.verifier import VerifyError, verify
from tunefarm.compiler.tir.visit import seq, transform_stmt, walk_stmt


def product(n: int, m: int, depth: int) -> PrimFunc:
    a, b = te.placeholder((n, depth), name="A"), te.placeholder((depth, m), name="B")
    k = te.reduce_axis(depth)
    c = te.compute((n, m), lambda i, j: te.sum(a[i, k] * b[k, j], [k]), name="C")
    return te.create_prim_func([a, b, c])


def staged(
    n: int, m: int, depth: int, virtual: bool = False, double: bool = False, step: int = 3
) -> PrimFunc:
    """A product in tiles of 8 × 12 a block of 4 × 3 threads, whose operands the threads stage."""
    program = product(n, m, depth)
    a, b, _ = program.params
    i, j, k = s.loops_of(program, "C")
    program, write = s.cache_write(program, "C", "local")
    program, a_read = s.cache_read(program, "C", a, "shared")
    program, b_read = s.cache_read(program, "C", b, "shared")
    program, (bi, *inner) = s.split(program, i, *((2, 4) if virtual else (4, 2)))
    vi, ti = inner if virtual else reversed(inner)
    program, (bj, tj, j1) = s.split(program, j, 3, 4)
    program, (k0, k1) = s.split(program, k, step)
    rows = (vi, ti, tj, k0, k1) if virtual else (ti, tj, k0, k1, vi)
    program = s.reorder(program, bi, bj, *rows, j1)
    for loop, axis in ((bi, "blockIdx.y"), (bj, "blockIdx.x"), (ti, "threadIdx.y")):
        program = s.bind(program, loop, axis)
    program = s.bind(program, tj, "threadIdx.x")
    if virtual:
        program = s.bind(program, vi, "vthread")
    program = s.reverse_compute_at(program, write, tj)
    for block in (a_read, b_read):
        program = s.compute_at(program, block, k0)
        fill = s.loops_of(program, block)
        program, flat = s.fuse(program, *fill[fill.index(k0) + 1 :])
        program, (_, y, x) = s.split(program, flat, 4, 3)
        program = s.bind(s.bind(program, y, "threadIdx.y"), x, "threadIdx.x")
        if double:
            program = s.double_buffer(program, block)
    return s.decompose_reduction(program, "C", k0)


def barriers(program: PrimFunc) -> int:
    return sum(isinstance(n, Barrier) for n in walk_stmt(program.body))


def without(program: PrimFunc, number: int) -> PrimFunc:
    """The program without its barrier of a number."""
    found = [n for n in walk_stmt(program.body) if isinstance(n, Barrier)]
    rule = lambda n: Seq(()) if n is found[number] else None  # noqa: E731
    return replace(program, body=transform_stmt(program.body, rule))


@pytest.mark.parametrize("double", [False, True], ids=["", "double"])
@pytest.mark.parametrize("virtual", [False, True], ids=["", "virtual"])
@pytest.mark.parametrize("shape", [(16, 24, 6), (13, 17, 7), (5, 30, 11), (2, 1, 5)], ids=str)
def test_a_staged_product_equals_numpy(
    shape: tuple[int, int, int], virtual: bool, double: bool
) -> None:
    program = staged(*shape, virtual, double)
    a, b = harness.whole_numbers(program)
    lowered = lower(program, checked=True)
    assert np.array_equal(harness.interpreted(program, [a, b])[0], a @ b), str(program)
    assert np.array_equal(harness.interpreted(lowered, [a, b])[0], a @ b), str(lowered)


def test_a_missing_barrier_is_a_race() -> None:
    lowered = lower(staged(13, 17, 7))
    arrays = harness.whole_numbers(lowered)
    assert barriers(lowered) == 2
    for number in range(2):
        with pytest.raises(ScheduleError, match=r"_shared\[.*, without a barrier between them"):
            harness.interpreted(without(lowered, number), arrays)


def test_two_copies_need_one_barrier_an_iteration() -> None:
    lowered = lower(staged(13, 17, 7, double=True))
    loop = next(n for n in walk_stmt(lowered.body) if isinstance(n, For) and n.var.name == "k_0")
    assert sum(isinstance(n, Barrier) for n in walk_stmt(loop)) == 1
    assert "A_shared: float32[2, 8, 3] in shared" in str(lowered)


def test_a_barrier_that_some_threads_pass_by_is_refused() -> None:
    out, t = Buffer("out", (4,)), Var("t")
    store = Store(out, (t,), Const(1.0, "float32"))
    body = seq(If(t < 2, Barrier()), store)
    loop = For(t, Const(4), body, LoopKind.THREAD, axis="threadIdx.x")
    program = verify(PrimFunc("f", (out,), loop))
    with pytest.raises(ScheduleError, match="thread 0 of 4 waits at a barrier that thread 2 does"):
        harness.interpreted(program, [])


def test_threads_cannot_wait_under_a_condition_of_some() -> None:
    out, tile, t = Buffer("out", (4,)), Buffer("tile", (4,), scope="shared"), Var("t")
    fill = Store(tile, (t,), Const(1.0, "float32"))
    use = Store(out, (t,), Load(tile, (3 - t,)))
    loop = For(t, Const(4), If(t < 3, seq(fill, use)), LoopKind.THREAD, axis="threadIdx.x")
    with pytest.raises(ScheduleError, match="wait for each other at tile under a condition"):
        lower(PrimFunc("f", (out,), Allocate(tile, loop)))


def test_processors_refuse_threads() -> None:
    program = product(4, 4, 4)
    i = s.loops_of(program, "C")[0]
    lowered = lower(s.bind(program, i, "threadIdx.x"))
    with pytest.raises(
        ScheduleError, match=r"loop i is bound to threadIdx.x, which a CPU does not"
    ):
        emit_llvm(lowered, Target.host())
    with pytest.raises(ScheduleError, match=r"loop i is bound to threadIdx.x, which C99 does not"):
        emit_c(lowered)


def test_what_cannot_be_bound() -> None:
    program = product(4, 6, 5)
    i, j, k = s.loops_of(program, "C")
    with pytest.raises(ScheduleError, match=r"bound to 'warp'; axes: blockIdx.x"):
        s.bind(program, i, "warp")
    with pytest.raises(ScheduleError, match="k carries the reduction of C; a loop bound to"):
        s.bind(program, k, "threadIdx.x")
    with pytest.raises(ScheduleError, match="i is vectorized; only a plain serial loop"):
        s.bind(s.vectorize(program, i), i, "threadIdx.x")
    with pytest.raises(ScheduleError, match="has 4 threads in loop i and 6 in loop j"):
        s.bind(s.bind(program, i, "threadIdx.x"), j, "threadIdx.x")
    with pytest.raises(ScheduleError, match=r"j of blockIdx.x is inside loop i of threadIdx.x"):
        s.bind(s.bind(program, i, "threadIdx.x"), j, "blockIdx.x")
    square = product(4, 4, 5)
    i, j, _ = s.loops_of(square, "C")
    with pytest.raises(ScheduleError, match="depends on loop i of the same axis"):
        s.bind(s.bind(square, i, "threadIdx.x"), j, "threadIdx.x")


# --- on a CPU -----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(8, 16, 6), (7, 13, 5)], ids=str)
def test_virtual_threads_interleave(shape: tuple[int, int, int]) -> None:
    program = product(*shape)
    i, j, k = s.loops_of(program, "C")
    program, write = s.cache_write(program, "C", "local")
    program, (v, i1) = s.split(program, i, 4)
    program = s.bind(s.reorder(program, v, k, i1, j), v, "vthread")
    program = s.reverse_compute_at(program, write, v)
    program = s.decompose_reduction(program, "C", k)
    a, b = harness.whole_numbers(program)
    lowered = lower(program, checked=True)
    assert "vthread" in str(program)
    assert "vthread" not in str(lowered)
    assert "C_local: float32[2, 4," in str(lowered)
    for run in (harness.interpreted, harness.compiled):
        assert np.array_equal(run(lowered, [a, b])[0], a @ b), str(lowered)


@pytest.mark.parametrize("shape", [(8, 16, 12), (7, 13, 5), (3, 2, 4)], ids=str)
def test_a_double_buffer_is_filled_ahead(shape: tuple[int, int, int]) -> None:
    program = product(*shape)
    i, j, k = s.loops_of(program, "C")
    program, fill = s.cache_read(program, "C", program.params[1], "local")
    program, (k0, k1) = s.split(program, k, 4)
    program = s.reorder(program, k0, i, j, k1)
    program = s.double_buffer(s.compute_at(program, fill, k0), fill)
    a, b = harness.whole_numbers(program)
    lowered = lower(program, checked=True)
    assert "2 copies" in str(program)
    for run in (harness.interpreted, harness.compiled):
        assert np.array_equal(run(lowered, [a, b])[0], a @ b), str(lowered)


def test_what_cannot_be_filled_ahead() -> None:
    program = product(4, 6, 8)
    k = s.loops_of(program, "C")[-1]
    program, fill = s.cache_read(program, "C", program.params[1], "local")
    with pytest.raises(ScheduleError, match="B_local is not filled inside a serial loop"):
        s.double_buffer(program, fill)
    with pytest.raises(ScheduleError, match="C is a parameter; only an intermediate buffer"):
        s.double_buffer(program, "C")
    registers = s.set_scope(s.compute_at(program, fill, k), fill, "register")
    with pytest.raises(ScheduleError, match="B_local is in registers; only an intermediate"):
        s.double_buffer(registers, fill)


def test_a_fill_that_reads_what_the_loop_writes_stays() -> None:
    source, out = Buffer("source", (8,)), Buffer("out", (9,))
    tile, k, zero = Buffer("tile", (1,), scope="local", copies=2), Var("k"), Const(0)
    fill = Store(tile, (zero,), Load(out, (k,)) + Load(source, (k,)))
    body = Allocate(tile, seq(fill, Store(out, (k + 1,), Load(tile, (zero,)))))
    first = Store(out, (zero,), Const(0.0, "float32"))
    program = PrimFunc("f", (source, out), seq(first, For(k, Const(8), body)))
    with pytest.raises(ScheduleError, match="loop k writes out, which the fill of tile reads"):
        lower(program)


def test_a_shared_tile_lives_outside_of_the_threads() -> None:
    out, tile, t = Buffer("out", (4,)), Buffer("tile", (4,), scope="shared"), Var("t")
    body = Allocate(tile, Store(out, (t,), Const(1.0, "float32")))
    loop = For(t, Const(4), body, LoopKind.THREAD, axis="threadIdx.x")
    with pytest.raises(VerifyError, match="shared buffer tile is allocated inside a thread"):
        verify(PrimFunc("f", (out,), loop), lowered=True)

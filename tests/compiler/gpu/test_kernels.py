"""Kernels of programs: their launches and limits, races that the lock step finds, and ``ptxas``."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from gpu_harness import ARCHS, F32, HOPPER, assembled, emitted, function_of, lowered, needs_ptxas
from tunefarm.compiler import te
from tunefarm.compiler.errors import BuildError, ScheduleError
from tunefarm.compiler.gpu.emit import emit_gpu
from tunefarm.compiler.gpu.pipeline import fill_ahead
from tunefarm.compiler.gpu.ptx import ptx_of
from tunefarm.compiler.gpu.ptxas import assemble
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import (
    Allocate,
    Barrier,
    Buffer,
    Cast,
    Const,
    For,
    If,
    Intrinsic,
    Load,
    LoopKind,
    PrimFunc,
    Store,
    Var,
)
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.interpreter import interpret
from tunefarm.compiler.tir.verifier import VerifyError, verify
from tunefarm.compiler.tir.visit import seq, transform_stmt
from tunefarm.compiler.workload import Workload

HALVES = function_of("matmul", ((96, 80), "float16"), ((80, 72), "float16"))
SINGLES = function_of("matmul", ((96, 80), F32), ((80, 72), F32))
SOFTMAX = function_of("softmax", ((64, 197), F32), axis=-1)


def threads(body: object, count: int, var: Var, axis: str = "threadIdx.x") -> For:
    return For(var, Const(count), body, LoopKind.THREAD, axis=axis)  # type: ignore[arg-type]


def run(program: PrimFunc) -> np.ndarray:  # type: ignore[type-arg]
    arrays = [np.zeros(p.shape, p.dtype) for p in program.params]
    interpret(verify(program), arrays)
    return arrays[-1]


# --- lock step ----------------------------------------------------------------------------------


def test_reading_shared_memory_that_nobody_wrote_is_an_error() -> None:
    out, tile, t = Buffer("out", (4,)), Buffer("tile", (5,), scope="shared"), Var("t")
    fill = Store(tile, (t,), Const(1.0, F32))
    use = Store(out, (t,), Load(tile, (t + 1,)))
    body = threads(seq(fill, Barrier(), use), 4, t)
    with pytest.raises(ScheduleError, match=r"thread 3 reads tile\[4\] of shared memory, which no"):
        run(PrimFunc("f", (out,), Allocate(tile, body)))


def test_a_warp_exchanges_values() -> None:
    out, t = Buffer("out", (64,)), Var("t")
    value = Intrinsic("warp_add", (Cast(t, F32), Const(8)), F32)
    got = run(PrimFunc("f", (out,), threads(Store(out, (t,), value), 64, t)))
    wanted = np.arange(64.0).reshape(8, 8).sum(1).repeat(8)
    assert np.array_equal(got, wanted)


def test_an_exchange_that_some_threads_pass_by_is_refused() -> None:
    out, t = Buffer("out", (32,)), Var("t")
    value = Intrinsic("warp_max", (Const(1.0, F32), Const(32)), F32)
    body = threads(If(t < 20, Store(out, (t,), value)), 32, t)
    with pytest.raises(ScheduleError, match="thread 20 does not come to an exchange of values"):
        run(PrimFunc("f", (out,), body))
    narrow = Intrinsic("warp_max", (Const(1.0, F32), Const(12)), F32)
    program = PrimFunc("f", (out,), threads(Store(out, (t,), narrow), 32, t))
    with pytest.raises(VerifyError, match="does not combine 2, 4 … 32 threads' float32"):
        verify(program)


def test_every_barrier_of_a_product_is_needed() -> None:
    config = {"sketch": "gpu_mma", "wm": 1, "wn": 2, "mi": 1, "ni": 1, "bk": 16, "stages": 2}
    function = function_of("matmul", ((16, 32), "float16"), ((32, 16), "float16"))
    program = lowered(Workload.from_function(function), config)
    rule = lambda n: seq() if isinstance(n, Barrier) else None  # noqa: E731
    bare = replace(program, body=transform_stmt(program.body, rule))
    with pytest.raises(ScheduleError, match=r"[AB]\[.*, (without a barrier|whose copy)"):
        run(bare)


def test_what_may_still_be_copied_is_not_read() -> None:
    config = {"sketch": "gpu_mma", "wm": 1, "wn": 1, "mi": 1, "ni": 2, "bk": 16, "stages": 3}
    function = function_of("matmul", ((16, 80), "float16"), ((80, 16), "float16"))
    program = lowered(Workload.from_function(function), config)
    assert "barrier(1 pending)" in str(program)
    _, ptx = emitted(program)
    assert "cp.async.commit_group" in ptx
    assert re.search(r"cp\.async\.wait_group\s+1;", ptx)
    rule = lambda n: Barrier(2) if isinstance(n, Barrier) and n.pending else None  # noqa: E731
    late = replace(program, body=transform_stmt(program.body, rule))
    run(program)
    with pytest.raises(ScheduleError, match=r"reads A\[2, 0, 0, 0\], whose copy may be under way"):
        run(late)


def test_only_shared_tiles_have_several_stages() -> None:
    program = create_prim(8)
    program, fill = s.cache_read(program, "C", program.params[0], "local")
    program = s.compute_at(program, fill, s.loops_of(program, "C")[-1])
    with pytest.raises(ScheduleError, match="is in local memory; only a shared tile has 3 stages"):
        fill_ahead(program, fill, 3)


def create_prim(depth: int) -> PrimFunc:
    a = te.placeholder((4, depth), name="A")
    k = te.reduce_axis(depth)
    return te.create_prim_func([a, te.compute((4,), lambda i: te.sum(a[i, k], [k]), name="C")])


# --- launches -----------------------------------------------------------------------------------


def test_reductions_of_the_whole_become_kernels_of_their_own() -> None:
    function = function_of(
        lambda x: call("subtract", x, call("max", x, axes=(0,), keepdims=True)), ((9, 8), F32)
    )
    code, ptx = emitted(lowered(Workload.from_function(function)))
    assert [x.name for x in code.launches] == ["kernel_0", "kernel_1"]
    assert code.workspace_bytes >= 8 * 4
    assert ptx.count(".visible .entry") == 2


def test_more_shared_memory_than_48_kib_is_asked_for() -> None:
    config = {"sketch": "gpu_mma", "wm": 4, "wn": 2, "mi": 2, "ni": 4, "bk": 64, "stages": 3}
    code, _ = emitted(lowered(Workload.from_function(HALVES), config))
    assert code.launches[0].dynamic_bytes > 48 << 10
    assert "external addrspace(3) global [0 x i8]" in code.text


@pytest.mark.parametrize(
    ("count", "shape", "message"),
    [
        (2048, (4,), "a block has 2048 threads; at most 1024"),
        (32, (1 << 16,), "a block shares 262144 bytes; sm_90a has 232448"),
    ],
)
def test_what_a_block_cannot_hold(count: int, shape: tuple[int], message: str) -> None:
    out, tile, t = Buffer("out", (count,)), Buffer("tile", shape, scope="shared"), Var("t")
    fill = If(t < 4, Store(tile, (t,), Const(1.0, F32)))
    body = threads(seq(fill, Barrier(), Store(out, (t,), Load(tile, (Const(0),)))), count, t)
    with pytest.raises(ScheduleError, match=message):
        emit_gpu(PrimFunc("f", (out,), Allocate(tile, body)), HOPPER)


def test_what_all_threads_would_store_is_refused() -> None:
    out, other, t = Buffer("out", (4,)), Buffer("other", (1,)), Var("t")
    alone = Store(other, (Const(0),), Const(1.0, F32))
    inside = threads(Store(out, (t,), Const(1.0, F32)), 4, t)
    block = threads(seq(alone, inside), 2, Var("b"), "blockIdx.x")
    with pytest.raises(
        ScheduleError, match=r"other is stored outside of the loop over threadIdx.x"
    ):
        emit_gpu(PrimFunc("f", (out, other), block, 2), HOPPER)


def test_a_malformed_module_is_a_build_error() -> None:
    with pytest.raises(BuildError, match="LLVM cannot read the module"):
        ptx_of("define void @f() { ret i32 0 }", "sm_90a")


# --- the assembler ------------------------------------------------------------------------------


@needs_ptxas
@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize("function", [HALVES, SINGLES, SOFTMAX], ids=["mma", "simt", "rows"])
def test_kernels_assemble_without_spills(function: object, arch: str) -> None:
    workload = Workload.from_function(function)  # type: ignore[arg-type]
    made = assembled(lowered(workload, target=Target(f"cuda -arch={arch}")), arch)
    assert made.cubin.startswith(b"\x7fELF")
    assert all(0 < usage.registers <= 255 for usage in made.kernels.values())


@needs_ptxas
def test_what_the_assembler_refuses_is_a_build_error() -> None:
    with pytest.raises(BuildError, match="ptxas refuses the PTX for sm_90a"):
        assemble(".version 8.0\n.target sm_90a\n.address_size 64\nnonsense", "sm_90a")

"""Workspaces: each thread has tiles of its own, in room that nothing else has meanwhile."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tunefarm.compiler import te
from tunefarm.compiler.build import build_function, build_module
from tunefarm.compiler.codegen.llvm_compile import compile_llvm
from tunefarm.compiler.codegen.statements import STACK_TILE_BYTES
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Constant, Expr, Function, IRModule, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.runtime.graph_executor import GraphExecutor
from tunefarm.compiler.runtime.kernel import KernelFunction, load_kernel
from tunefarm.compiler.runtime.module import Module, load_module
from tunefarm.compiler.runtime.plan import (
    Argument,
    ExecutionPlan,
    KernelCall,
    Workspace,
    verify_plan,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s

CORES = 3
STRIDE = 256

# Iteration i marks its thread's area as busy, counts up to 2000, and stores the area's number at
# out[i], or -1 if it found it busy.
AREAS = f"""
declare void @tunefarm_parallel(ptr, ptr, ptr, i64, ptr, i64, i64)
define internal void @work(ptr %closure, i64 %i, ptr %scratch) {{
entry:
  %out = load ptr, ptr %closure
  %p.first = getelementptr ptr, ptr %closure, i64 1
  %first = load i64, ptr %p.first
  %busy = atomicrmw xchg ptr %scratch, i64 1 seq_cst
  br label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
  %next = add i64 %n, 1
  call void asm sideeffect "", "r"(i64 %next)
  %more = icmp ult i64 %next, 2000
  br i1 %more, label %loop, label %leave
leave:
  %idle = atomicrmw xchg ptr %scratch, i64 0 seq_cst
  %here = ptrtoint ptr %scratch to i64
  %offset = sub i64 %here, %first
  %area = udiv i64 %offset, {STRIDE}
  %alone = icmp eq i64 %busy, 0
  %result = select i1 %alone, i64 %area, i64 -1
  %place = getelementptr i64, ptr %out, i64 %i
  store i64 %result, ptr %place
  ret void
}}
define void @areas(ptr %pool, ptr %workspace, ptr %n, ptr %out) {{
  call void @llvm.memset.p0.i64(ptr %workspace, i8 0, i64 {STRIDE * CORES}, i1 false)
  %closure = alloca [2 x ptr]
  store ptr %out, ptr %closure
  %p.first = getelementptr ptr, ptr %closure, i64 1
  store ptr %workspace, ptr %p.first
  %count = load i64, ptr %n
  call void @tunefarm_parallel(ptr %pool, ptr @work, ptr %closure, i64 %count,
    ptr %workspace, i64 {STRIDE}, i64 {CORES})
  ret void
}}
"""
COUNT, OUT = TensorType((1,), "int64"), TensorType((500,), "int64")


def areas(target: Target, threads: int) -> KernelFunction:
    return load_kernel(
        [compile_llvm(AREAS, target)], "areas", [COUNT, OUT], target=target,
        workspace_bytes=STRIDE * CORES, threads=threads,
    )  # fmt: skip


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize("n", [1, 2, 5, 500])
def test_no_two_threads_share_an_area(target: Target, threads: int, n: int) -> None:
    kernel = areas(target, threads)
    for _ in range(20):
        (out,) = kernel(np.array([n]))
        assert out[:n].min() >= 0
        assert out[:n].max() < min(threads, CORES)


def test_calls_at_once_have_areas_of_their_own(target: Target) -> None:
    kernel, wrong = areas(target, 3), []

    def call_often() -> None:
        for _ in range(50):
            (out,) = kernel(np.array([100]))
            wrong.extend(out[:100][out[:100] < 0])

    callers = [threading.Thread(target=call_often) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert wrong == []


def network(channels: int, layers: int) -> IRModule:
    """3×3 convolutions with sums of what came before, by Winograd's method."""
    rng = np.random.default_rng(channels)
    x = Var("x", TensorType((1, channels, 28, 28), "float32"))
    y: Expr = x
    for _ in range(layers):
        w = rng.standard_normal((channels, channels, 3, 3)).astype(np.float32)
        w /= np.float32(3 * channels**0.5)
        made = call("conv", y, Constant(w), padding=((1, 1), (1, 1)))
        y = call("relu", call("add", made, y))
    return IRModule({"main": Function((x,), y)})


@cache
def model(channels: int = 64, layers: int = 4) -> Module:
    return build_module(network(channels, layers), Target.host(CORES))


def example(lib: Module) -> dict[str, Any]:
    return dict(lib.example_inputs(1))


def calls_of(plan: ExecutionPlan) -> list[KernelCall]:
    return [step for step in plan.steps if isinstance(step, KernelCall)]


def test_a_plan_has_room_for_the_tiles_of_every_core() -> None:
    lib = model()
    spaces = [c.workspace for c in calls_of(lib.plan) if c.workspace.bytes]
    assert len(spaces) >= 4
    for space in spaces:
        assert space.bytes > CORES * STACK_TILE_BYTES
        assert space.offset + space.bytes <= lib.plan.arena_bytes == lib.peak_bytes
    text = lib.get_source()
    assert f", i64 {CORES})" in text


def test_it_computes_what_it_should() -> None:
    lib = model()
    feeds = example(lib)
    (made,) = lib.run(feeds).values()
    (wanted,) = evaluate(network(64, 4).main, list(feeds.values()))
    np.testing.assert_allclose(made, wanted, atol=1e-4 * float(np.abs(wanted).max()))


@pytest.mark.parametrize("exported", [False, True])
def test_any_number_of_threads_gives_the_same_bits(exported: bool, tmp_path: Path) -> None:
    lib = model()
    feeds = example(lib)
    (alone,) = lib.run(feeds, threads=1).values()
    if exported:
        lib.export_library(tmp_path / "model.so")
        lib = load_module(tmp_path / "model.so")
    for threads in (1, 2, CORES, 8):
        for _ in range(3):
            (shared,) = lib.run(feeds, threads=threads).values()
            np.testing.assert_array_equal(shared.view(np.uint32), alone.view(np.uint32))


def test_a_workspace_meets_nothing_that_is_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workspaces full of rubbish before each kernel change nothing."""
    lib, plain = model(), GraphExecutor._call
    (wanted,) = lib.run(example(lib)).values()
    spoilt: list[int] = []

    def spoiling(executor: GraphExecutor, step: KernelCall, bound: Any, pointers: Any) -> Any:
        begin = step.workspace.offset
        bound.memory[begin : begin + step.workspace.bytes] = 0xA5
        spoilt.append(step.workspace.bytes)
        return plain(executor, step, bound, pointers)

    monkeypatch.setattr(GraphExecutor, "_call", spoiling)
    (made,) = lib.graph_executor().run(lib.check_inputs(example(lib)))
    np.testing.assert_array_equal(made, wanted)
    assert sum(spoilt) > 0


def test_models_at_once_on_one_pool_do_not_meet() -> None:
    libs = [model(), model(32, 2)]
    wanted = [next(iter(lib.run(example(lib), threads=1).values())) for lib in libs]
    wrong: list[int] = []

    def run_often(which: int) -> None:
        feeds = example(libs[which])
        for _ in range(30):
            (made,) = libs[which].run(feeds).values()
            if not np.array_equal(made, wanted[which]):
                wrong.append(which)

    threads = [threading.Thread(target=run_often, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def reversed_rows(rows: int) -> PrimFunc:
    """Each iteration fills a tile of its own, of ``rows`` × 128 floats, and reads it backwards."""
    x = te.placeholder((16, rows, 128), name="x")
    tile = te.compute(x.shape, lambda i, j, k: x[i, j, k] * 2, name="tile")
    y = te.compute(x.shape, lambda i, j, k: tile[i, rows - 1 - j, 127 - k], name="y")
    program = te.create_prim_func([x, y], "reversed_rows")
    (outer, *_) = s.loops_of(program, "y")
    program = s.compute_at(program, "tile", outer)
    return s.parallel(s.set_scope(program, "tile", "local"), outer)


@pytest.mark.parametrize("threads", [1, 2, CORES, 8])
def test_a_single_kernel_has_its_workspace(threads: int) -> None:
    rows = STACK_TILE_BYTES // (128 * 4)
    assert build_function(reversed_rows(rows), Target.host(CORES)).workspace_bytes == 0
    rows += 1
    kernel = replace(build_function(reversed_rows(rows), Target.host(CORES)), threads=threads)
    assert rows * 128 * 4 * CORES <= kernel.workspace_bytes < (rows + 1) * 128 * 4 * CORES
    x = np.random.default_rng(0).standard_normal((16, rows, 128)).astype(np.float32)
    for _ in range(10):
        (made,) = kernel(x)
        np.testing.assert_array_equal(made, 2 * x[:, ::-1, ::-1])


def test_areas_of_threads_are_not_pages_apart() -> None:
    (stride,) = re.findall(
        rf"ptr %v\d+, i64 (\d+), i64 {CORES}\)",
        build_function(reversed_rows(64), Target.host(CORES)).get_source(),
    )
    assert int(stride) > 64 * 128 * 4
    assert int(stride) % 4096
    assert int(stride) % 64 == 0


def refused(workspace: Workspace) -> str:
    call = KernelCall("add", (Argument("arena", 64),), "sum", workspace)
    with pytest.raises(BuildError) as caught:
        verify_plan(ExecutionPlan((), (), (call,), 1024, 0))
    return str(caught.value)


def test_a_workspace_lies_in_the_arena_beside_the_arguments() -> None:
    assert "bytes 0 to 128 of an arena of 1024" in refused(Workspace(0, 128))
    assert "where byte 64 is an argument" in refused(Workspace(0, 128))
    assert "bytes 960 to 1088 of an arena" in refused(Workspace(960, 128))
    assert "bytes 32 to 48 of an arena" in refused(Workspace(32, 16))
    call = KernelCall("add", (Argument("arena", 64),), "sum", Workspace(128, 896))
    verify_plan(ExecutionPlan((), (), (call,), 1024, 0))

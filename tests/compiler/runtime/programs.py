"""Small hand-written kernels, and a plan that uses them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tunefarm.compiler.codegen.llvm_compile import compile_llvm
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.runtime.arrays import lasting_bytes
from tunefarm.compiler.runtime.module import Module, create_module
from tunefarm.compiler.runtime.plan import (
    Argument,
    Copy,
    ExecutionPlan,
    KernelCall,
    Port,
    Workspace,
)
from tunefarm.compiler.target import Target

ROWS, LANES = 64, 16
MATRIX = TensorType((ROWS, LANES), "float32")

# out[i] = a[i] + b[i] row by row, on the pool.
ADD = """
declare void @tunefarm_parallel(ptr, ptr, ptr, i64, ptr, i64, i64)
define internal void @add_row(ptr %closure, i64 %row, ptr %scratch) {
  %a.at = load ptr, ptr %closure
  %p1 = getelementptr ptr, ptr %closure, i64 1
  %b.at = load ptr, ptr %p1
  %p2 = getelementptr ptr, ptr %closure, i64 2
  %c.at = load ptr, ptr %p2
  %pa = getelementptr <16 x float>, ptr %a.at, i64 %row
  %pb = getelementptr <16 x float>, ptr %b.at, i64 %row
  %pc = getelementptr <16 x float>, ptr %c.at, i64 %row
  %a = load <16 x float>, ptr %pa, align 4
  %b = load <16 x float>, ptr %pb
  %c = fadd <16 x float> %a, %b
  store <16 x float> %c, ptr %pc
  ret void
}
define void @add(ptr %pool, ptr %workspace, ptr %a, ptr %b, ptr %c) {
  %closure = alloca [3 x ptr]
  store ptr %a, ptr %closure
  %p1 = getelementptr ptr, ptr %closure, i64 1
  store ptr %b, ptr %p1
  %p2 = getelementptr ptr, ptr %closure, i64 2
  store ptr %c, ptr %p2
  call void @tunefarm_parallel(ptr %pool, ptr @add_row, ptr %closure, i64 64,
    ptr null, i64 0, i64 -1)
  ret void
}
"""

# out = 3 x, through the workspace; calls memcpy, reads a constant, an address in a table of
# addresses and a variable.
TRIPLE = """
@three = private unnamed_addr constant [16 x float] [float 3.0, float 3.0, float 3.0, float 3.0,
  float 3.0, float 3.0, float 3.0, float 3.0, float 3.0, float 3.0, float 3.0, float 3.0,
  float 3.0, float 3.0, float 3.0, float 3.0], align 64
@calls = global i64 0
@functions = global [1 x ptr] [ptr @row]
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)
define void @row(ptr %from, ptr %to) {
  %three = load <16 x float>, ptr @three
  %x = load <16 x float>, ptr %from
  %y = fmul <16 x float> %x, %three
  store <16 x float> %y, ptr %to
  ret void
}
define void @triple(ptr %pool, ptr %workspace, ptr %x, ptr %y) {
entry:
  %before = load i64, ptr @calls
  %after = add i64 %before, 1
  store i64 %after, ptr @calls
  call void @llvm.memcpy.p0.p0.i64(ptr %workspace, ptr %x, i64 4096, i1 false)
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %from = getelementptr <16 x float>, ptr %workspace, i64 %i
  %to = getelementptr <16 x float>, ptr %y, i64 %i
  %function = load volatile ptr, ptr @functions
  call void %function(ptr %from, ptr %to)
  %next = add i64 %i, 1
  %more = icmp ult i64 %next, 64
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
"""


@dataclass(frozen=True)
class Kernel:
    name: str
    object: bytes
    text: str


def compiled(name: str, text: str, target: Target) -> Kernel:
    return Kernel(name, compile_llvm(text, target), text)


def example_plan(weight_bytes: int) -> ExecutionPlan:
    """y = 3 (x + w), z = x."""
    x, y, z = Argument("input"), Argument("output"), Argument("output", index=1)
    return ExecutionPlan(
        inputs=(Port("x", MATRIX),),
        outputs=(Port("y", MATRIX), Port("z", MATRIX)),
        steps=(
            KernelCall("add", (x, Argument("weight"), Argument("arena", 64)), "x + w"),
            KernelCall("triple", (Argument("arena", 64), y), "3 (x + w)", Workspace(4160, 4096)),
            Copy(x, z, 4096, "copy"),
        ),
        arena_bytes=64 + 2 * 4096,
        weight_bytes=weight_bytes,
    )


def example_module(target: Target, threads: int | None = None) -> Module:
    weights = lasting_bytes(example_weight().nbytes)
    weights[:] = example_weight().reshape(-1).view(np.uint8)
    kernels = [compiled("add", ADD, target), compiled("triple", TRIPLE, target)]
    return create_module(example_plan(weights.nbytes), kernels, weights, target, threads=threads)


def example_weight() -> np.ndarray:
    return np.arange(ROWS * LANES, dtype=np.float32).reshape(ROWS, LANES)


def example_input(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((ROWS, LANES)).astype(np.float32)

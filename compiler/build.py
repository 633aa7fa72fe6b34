"""Building: every step from a workload and a config to code, and from a model to a module."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from tunefarm.compiler.codegen.llvm import LlvmKernel, emit_llvm
from tunefarm.compiler.codegen.llvm_compile import compile_llvm
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.space import Config, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload


@dataclass(frozen=True, slots=True)
class Kernel:
    """The object code of one scheduled program.

    ``params`` are the tensors that the code reads and writes, inputs first and packed, then
    ``outputs`` results; ``layouts`` says how a constant parameter is packed
    (``packing.pack(array, layouts.get(i), params[i].shape)``).
    """

    name: str
    object: bytes
    text: str
    params: tuple[TensorType, ...]
    outputs: int
    layouts: Mapping[int, PackedLayout]
    workspace_bytes: int
    parallel: bool

    @property
    def code_hash(self) -> str:
        """SHA-256 of the LLVM text: equal hashes mean equal code."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def build_kernel(
    workload: Workload, target: Target, config: Config, cache: bool = True
) -> Kernel:
    """Schedule, lower, print and compile one workload.

    Raises ScheduleError if the config cannot be applied, BuildError if there is no code for it.
    """
    return build_program(schedule_workload(workload, target, config), target, cache)


def build_program(program: PrimFunc, target: Target, cache: bool = True) -> Kernel:
    """Lower, print and compile a program (scheduled or not)."""
    if target.kind != "llvm":
        raise BuildError(f"target kind {target.kind!r} has no code generator here; use llvm")
    lowered = lower(program)
    code = emit_llvm(lowered, target)
    return kernel_of(lowered, code, compile_llvm(code.text, target, cache=cache))


def kernel_of(lowered: PrimFunc, code: LlvmKernel, object_code: bytes) -> Kernel:
    return Kernel(
        code.name,
        object_code,
        code.text,
        tuple(TensorType(p.shape, p.dtype) for p in lowered.params),
        lowered.outputs,
        dict(lowered.layouts),
        code.workspace_bytes,
        code.parallel,
    )

"""A scheduled program → the PTX of its kernels. No GPU is needed for that."""

from __future__ import annotations

from tunefarm.compiler import dump
from tunefarm.compiler.gpu.emit import GpuCode, emit_gpu
from tunefarm.compiler.gpu.lower import GPU_PHASES, lower_gpu
from tunefarm.compiler.gpu.ptx import ptx_of
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc


def build_gpu_program(program: PrimFunc, target: Target, stages: dump.Stages) -> Kernel:
    """Lower, print and compile a program for a target of kind "cuda": ``object`` is PTX text.

    Raises ScheduleError for a schedule that the GPU cannot run, BuildError if there is no code.
    """
    lowered = lower_gpu(program, extra=stages.phases([phase.__name__ for phase in GPU_PHASES]))
    code = emit_gpu(lowered, target)
    stages.write("llvm", lambda: code.text, ".ll")
    ptx = ptx_of(code.text, target.gpu.name)
    stages.write("ptx", lambda: ptx, ".ptx")
    return _kernel_of(lowered, code, ptx)


def _kernel_of(lowered: PrimFunc, code: GpuCode, ptx: str) -> Kernel:
    return Kernel(
        code.name,
        ptx.encode(),
        code.text,
        tuple(TensorType(p.shape, p.dtype) for p in lowered.params),
        lowered.outputs,
        dict(lowered.layouts),
        code.workspace_bytes,
        False,
        code.launches,
    )

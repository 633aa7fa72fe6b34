"""Candidates of one task, built together: what LLVM does for each module, it does once for all.

An empty module takes 0.9 ms of passes; and Python, LLVM and the loader each find the caches full of
the others' code and data when they take turns. Four candidates at a time take nine tenths of the
time of four alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunefarm.compiler.build import kernel_name, kernel_of
from tunefarm.compiler.codegen.llvm import LlvmKernel, emit_llvm, join_kernels
from tunefarm.compiler.codegen.llvm_compile import compile_llvm
from tunefarm.compiler.kernel import Kernel
from tunefarm.compiler.space import Config, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload


def build_together(
    workload: Workload, target: Target, configs: Sequence[Config]
) -> list[Kernel | None]:
    """The kernel of each config for a CPU, as ``build_kernel`` makes it, but for an object that
    all share and a name of its own in that; None for a config with which ``build_kernel`` fails.

    Raises BuildError if LLVM has no code for them.
    """
    written = [_written(workload, target, config) for config in configs]
    sound = [one for one in written if one is not None]
    if not sound:
        return [None] * len(configs)
    text, names = join_kernels([code for _, code in sound])
    together = compile_llvm(text, target, cache=False, verify=False)
    kernels = (
        replace(kernel_of(lowered, code, together), name=name)
        for (lowered, code), name in zip(sound, names, strict=True)
    )
    return [None if one is None else next(kernels) for one in written]


def _written(
    workload: Workload, target: Target, config: Config
) -> tuple[PrimFunc, LlvmKernel] | None:
    """The program of a candidate and its text; None if there is none, for whatever reason."""
    try:
        program = schedule_workload(workload, target, config)
        lowered = lower(replace(program, name=kernel_name(workload)))
        return lowered, emit_llvm(lowered, target)
    except Exception:  # whoever builds it alone learns which
        return None

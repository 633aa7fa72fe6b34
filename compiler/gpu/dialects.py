"""How kernels are spelled in LLVM text for each kind of GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of one of LLVM's back ends for GPUs.

    ``indices`` are the functions that give a block's or thread's number (i32) by axis. Pointers to
    global memory are of address space 1, to shared memory of 3, in all of them.
    """

    triple: str
    convention: str
    indices: Mapping[str, str]
    barrier: str
    declare_barrier: str
    attributes: str


def _indices(block: str, thread: str) -> dict[str, str]:
    return {
        f"{name}.{axis}": f"call i32 {text.format(axis)}"
        for name, text in (("blockIdx", block), ("threadIdx", thread))
        for axis in "xyz"
    }


NVPTX = Dialect(
    "nvptx64-nvidia-cuda",
    "ptx_kernel",
    _indices("@llvm.nvvm.read.ptx.sreg.ctaid.{}()", "@llvm.nvvm.read.ptx.sreg.tid.{}()"),
    "call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",
    "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)",
    'nounwind "no-builtins" "nvvm.maxntid"="{x},{y},{z}"',
)
AMDGCN = Dialect(
    "amdgcn-amd-amdhsa",
    "amdgpu_kernel",
    _indices("@llvm.amdgcn.workgroup.id.{}()", "@llvm.amdgcn.workitem.id.{}()"),
    "call void @llvm.amdgcn.s.barrier()",
    "declare void @llvm.amdgcn.s.barrier()",
    'nounwind "no-builtins" "amdgpu-flat-work-group-size"="{n},{n}"',
)

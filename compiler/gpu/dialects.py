"""How kernels are spelled in LLVM text for each kind of GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of one of LLVM's back ends for GPUs.

    ``indices`` are the calls that give a block's or thread's number by axis, ``barrier`` the lines
    that let threads wait for one another. Pointers to global memory are of address space 1, to
    shared memory of 3, in all of them; ``flat`` is that of pointers to either.
    """

    triple: str
    convention: str
    indices: Mapping[str, str]
    barrier: tuple[str, ...]
    declare_barrier: str
    attributes: str
    flat: int = 0


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
    ("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",),
    "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)",
    'nounwind "no-builtins" "nvvm.maxntid"="{x},{y},{z}"',
)
AMDGCN = Dialect(
    "amdgcn-amd-amdhsa",
    "amdgpu_kernel",
    _indices("@llvm.amdgcn.workgroup.id.{}()", "@llvm.amdgcn.workitem.id.{}()"),
    (
        'fence syncscope("workgroup") release',
        "call void @llvm.amdgcn.s.barrier()",
        'fence syncscope("workgroup") acquire',
    ),
    "declare void @llvm.amdgcn.s.barrier()",
    'nounwind "no-builtins" "amdgpu-flat-work-group-size"="{n},{n}"',
)
# The functions of OpenCL C, which the back end knows by their mangled names.
SPIRV = Dialect(
    "spirv64-unknown-unknown",
    "spir_kernel",
    {
        f"{name}.{axis}": f"call spir_func i64 @{function}(i32 {number})"
        for name, function in (
            ("blockIdx", "_Z12get_group_idj"),
            ("threadIdx", "_Z12get_local_idj"),
        )
        for number, axis in enumerate("xyz")
    },
    ("call spir_func void @_Z7barrierj(i32 1)",),
    "declare spir_func void @_Z7barrierj(i32)",
    'nounwind "no-builtins"',
    flat=4,
)

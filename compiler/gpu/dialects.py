"""How kernels are spelled in LLVM text for each kind of GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tunefarm.compiler.gpu.archs import WARP

Exchange = Callable[[str, int], tuple[str, str]]
"""Of a value and a bit: the call that gives the value of the thread of the warp whose number
differs by this bit, and what declares the function."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The words of one of LLVM's back ends for GPUs.

    ``indices`` are the calls that give a block's or thread's number by axis, ``barrier`` the lines
    that let threads wait for one another. Pointers to global memory are of address space 1, to
    shared memory of 3, in all of them; ``flat`` is that of pointers to either, ``own`` that of a
    thread's own arrays if they have another.

    ``exchanges`` are the shuffles of LLVM's types; others go as their bits. ``metadata`` stands at
    each kernel. ``shared_bytes`` of a block are declared, where a launch cannot ask for more.
    """

    triple: str
    convention: str
    indices: Mapping[str, str]
    barrier: tuple[str, ...]
    declare_barrier: str
    attributes: str
    exchanges: Mapping[str, Exchange]
    metadata: str = ""
    flat: int = 0
    own: int | None = None
    shared_bytes: int = 0


def _indices(block: str, thread: str) -> dict[str, str]:
    return {
        f"{name}.{axis}": f"call i32 {text.format(axis)}"
        for name, text in (("blockIdx", block), ("threadIdx", thread))
        for axis in "xyz"
    }


def _butterfly(kind: str, name: str) -> Exchange:
    function = f"@llvm.nvvm.shfl.sync.bfly.{name}"
    return lambda value, step: (
        f"call {kind} {function}(i32 -1, {kind} {value}, i32 {step}, i32 {WARP - 1})",
        f"declare {kind} {function}(i32, {kind}, i32, i32)",
    )


def _swizzle(value: str, step: int) -> tuple[str, str]:
    """Within 32 threads, also of waves of 64: AMD, "Instruction Set Architecture", DS_SWIZZLE_B32,
    the mode of bit masks."""
    function = "i32 @llvm.amdgcn.ds.swizzle"
    return (
        f"call {function}(i32 {value}, i32 {step << 10 | WARP - 1})",
        f"declare {function}(i32, i32)",
    )


def _shuffle(kind: str, letter: str) -> Exchange:
    function = f"spir_func {kind} @_Z21sub_group_shuffle_xor{letter}j"
    return lambda value, step: (
        f"call {function}({kind} {value}, i32 {step})",
        f"declare {function}({kind}, i32) convergent",
    )


NVPTX = Dialect(
    "nvptx64-nvidia-cuda",
    "ptx_kernel",
    _indices("@llvm.nvvm.read.ptx.sreg.ctaid.{}()", "@llvm.nvvm.read.ptx.sreg.tid.{}()"),
    ("call void @llvm.nvvm.barrier.cta.sync.aligned.all(i32 0)",),
    "declare void @llvm.nvvm.barrier.cta.sync.aligned.all(i32)",
    'nounwind "no-builtins" "nvvm.maxntid"="{x},{y},{z}"',
    {"float": _butterfly("float", "f32"), "i32": _butterfly("i32", "i32")},
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
    {"i32": _swizzle},
    own=5,
    shared_bytes=64 << 10,
)
# The functions of OpenCL C, which the back end knows by their mangled names. A warp is a sub-group
# of as many threads, which a device may have to be asked for. 64 KiB is what most have.
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
    "declare spir_func void @_Z7barrierj(i32) convergent",
    'convergent nounwind "no-builtins"',
    {"float": _shuffle("float", "f"), "i32": _shuffle("i32", "i")},
    f"!intel_reqd_sub_group_size !{{i32 {WARP}}}",
    flat=4,
    own=0,
    shared_bytes=64 << 10,
)

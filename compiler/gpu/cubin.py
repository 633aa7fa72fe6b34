"""Machine code of kernels, made ahead of the driver where NVIDIA's assembler is installed.

kernel = assembled(build_kernel(workload, target, config), "sm_90a")
kernel.cubin                  # None where there is no assembler: the driver compiles the PTX

It takes no GPU. The code is that of the driver's own compiler (the kernel as a whole program), of
the assembler's version instead of the driver's. nvJitLink is left out: it makes code that can be
linked with more, which takes other registers (a softmax 80 of them instead of 32).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from tunefarm.compiler.codegen import object_cache
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.gpu.ptxas import Usage, assemble, find_ptxas, ptxas_version

if TYPE_CHECKING:
    from tunefarm.compiler.kernel import Kernel


@dataclass(frozen=True, slots=True)
class Cubin:
    """Machine code of an architecture, what each kernel in it takes, who made it
    (``ptxas 13.0.88``), and what that warned of (products of warpgroups that it serialised)."""

    arch: str
    code: bytes = field(repr=False)
    kernels: Mapping[str, Usage]
    assembler: str
    warnings: tuple[str, ...] = ()

    def runs_on(self, arch: str) -> bool:
        """Whether a device of an architecture takes the code: its own or, unless it is bound to
        that (sm_90a), a later one with the same major number."""
        if self.arch == arch:
            return True
        mine, theirs = _number(self.arch), _number(arch)
        return self.arch[-1].isdigit() and mine // 10 == theirs // 10 and mine <= theirs


def _number(arch: str) -> int:
    return int("".join(filter(str.isdigit, arch)))


def assembled(kernel: Kernel, arch: str) -> Kernel:
    """The kernel with machine code for an architecture, from the cache of object code if it is
    there; as it was where there is no assembler, or one that does not know this code."""
    if kernel.cubin is not None or find_ptxas() is None:
        return kernel
    try:
        return replace(kernel, cubin=_made(kernel.object, arch))
    except BuildError:
        return kernel


def _made(ptx: bytes, arch: str) -> Cubin:
    key = hashlib.sha256(
        b"\0".join([b"cubin", ptxas_version().encode(), arch.encode(), ptx])
    ).hexdigest()
    kept = object_cache.load(key)
    if kept is not None:
        head, _, code = kept.partition(b"\n")
        return cubin_of(json.loads(head), code)
    made = assemble(ptx.decode(), arch)
    cubin = Cubin(arch, made.cubin, made.kernels, ptxas_version(), made.warnings)
    object_cache.store(key, json.dumps(told_of(cubin)).encode() + b"\n" + cubin.code)
    return cubin


def told_of(cubin: Cubin) -> dict[str, object]:
    """All of it but the code, as JSON values."""
    kernels = {name: asdict(usage) for name, usage in cubin.kernels.items()}
    told = {"arch": cubin.arch, "kernels": kernels, "assembler": cubin.assembler}
    return {**told, "warnings": list(cubin.warnings)}


def cubin_of(told: Mapping[str, object], code: bytes) -> Cubin:
    """The cubin of which ``told_of`` told."""
    kernels = {name: Usage(**usage) for name, usage in dict(told["kernels"]).items()}  # type: ignore[call-overload]
    said: list[str] = list(told.get("warnings", ()))  # type: ignore[call-overload]
    return Cubin(str(told["arch"]), code, kernels, str(told["assembler"]), tuple(said))

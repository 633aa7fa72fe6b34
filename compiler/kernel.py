"""What a build makes of one workload: code, and how to call it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.gpu.cubin import Cubin, cubin_of
from tunefarm.compiler.gpu.cubin import told_of as told_of_cubin
from tunefarm.compiler.gpu.launches import Launch, launch_from_json, launch_to_json
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.tir import PackedLayout


@dataclass(frozen=True, slots=True)
class Kernel:
    """The object code of one scheduled program.

    ``params`` are the tensors that the code reads and writes, inputs first and packed, then
    ``outputs`` results; ``layouts`` says how a constant parameter is packed
    (``packing.pack(array, layouts.get(i), params[i].shape)``). ``workspace_bytes`` are what a call
    needs beside them, 64-byte aligned, with room for tiles of each core of the target.

    For a GPU ``object`` is the text of PTX, ``launches`` are its kernels in order, and ``cubin`` is
    its machine code, if it was assembled.
    """

    name: str
    object: bytes
    text: str
    params: tuple[TensorType, ...]
    outputs: int
    layouts: Mapping[int, PackedLayout]
    workspace_bytes: int
    parallel: bool
    launches: tuple[Launch, ...] = ()
    cubin: Cubin | None = None

    def get_source(self, kind: str = "llvm") -> str:
        """The text as "llvm"; of a kernel for GPUs also as "ptx", and as "accesses": PTX with the
        sectors and bank conflicts of each access, which takes the emulator some seconds. BuildError
        for another."""
        if kind == "llvm":
            return self.text
        if kind not in ("ptx", "accesses") or not self.launches:
            has = "llvm, ptx and accesses" if self.launches else "llvm"
            raise BuildError(f"a kernel has no {kind!r} source here; it has {has}")
        if kind == "accesses":
            from tunefarm.compiler.gpu.traffic import annotated

            return annotated(self)
        return self.object.decode()

    @property
    def code_hash(self) -> str:
        """SHA-256 of the LLVM text: equal hashes mean equal code."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def told_of(kernel: Kernel) -> dict[str, Any]:
    """All of a kernel but its code and its text, as JSON values."""
    return {
        "name": kernel.name,
        "params": [[list(p.shape), p.dtype] for p in kernel.params],
        "outputs": kernel.outputs,
        "layouts": [
            [i, y.factors, y.order, y.transform, y.shape] for i, y in kernel.layouts.items()
        ],
        "workspace_bytes": kernel.workspace_bytes,
        "parallel": kernel.parallel,
        "launches": list(map(launch_to_json, kernel.launches)),
        "cubin": told_of_cubin(kernel.cubin) if kernel.cubin is not None else None,
    }


def kernel_of(
    told: Mapping[str, Any], code: bytes, text: str = "", machine_code: bytes = b""
) -> Kernel:
    """The kernel of which ``told_of`` told; ``machine_code`` is that of its cubin."""
    return Kernel(
        told["name"],
        code,
        text,
        tuple(TensorType(tuple(shape), dtype) for shape, dtype in told["params"]),
        told["outputs"],
        {
            index: PackedLayout(tuple(map(tuple, factors)), tuple(order), transform, tuple(shape))
            for index, factors, order, transform, shape in told["layouts"]
        },
        told["workspace_bytes"],
        told["parallel"],
        tuple(map(launch_from_json, told["launches"])),
        cubin_of(told["cubin"], machine_code) if told["cubin"] is not None else None,
    )


_HOST = "host "


def of_host(kernel: Kernel) -> Kernel:
    """The kernel of a processor under the name that it has in a plan for a GPU."""
    return replace(kernel, name=_HOST + kernel.name)


def is_of_host(kernel: Kernel) -> bool:
    return kernel.name.startswith(_HOST)


def symbol_of(kernel: Kernel) -> str:
    """The kernel's name in its object code."""
    return kernel.name.removeprefix(_HOST)

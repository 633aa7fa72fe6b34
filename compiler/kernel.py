"""What a build makes of one workload: code, and how to call it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.gpu.launches import Launch
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.tir import PackedLayout


@dataclass(frozen=True, slots=True)
class Kernel:
    """The object code of one scheduled program.

    ``params`` are the tensors that the code reads and writes, inputs first and packed, then
    ``outputs`` results; ``layouts`` says how a constant parameter is packed
    (``packing.pack(array, layouts.get(i), params[i].shape)``). ``workspace_bytes`` are what a call
    needs beside them, 64-byte aligned, with room for tiles of each core of the target.

    For a GPU ``object`` is the text of PTX, and ``launches`` are its kernels in order.
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

    def get_source(self, kind: str = "llvm") -> str:
        """The text as "llvm", or as "ptx" of a kernel for GPUs; BuildError for another."""
        if kind == "llvm":
            return self.text
        if kind != "ptx" or not self.launches:
            has = "llvm and ptx" if self.launches else "llvm"
            raise BuildError(f"a kernel has no {kind!r} source here; it has {has}")
        return self.object.decode()

    @property
    def code_hash(self) -> str:
        """SHA-256 of the LLVM text: equal hashes mean equal code."""
        return hashlib.sha256(self.text.encode()).hexdigest()


_HOST = "host "


def of_host(kernel: Kernel) -> Kernel:
    """The kernel of a processor under the name that it has in a plan for a GPU."""
    return replace(kernel, name=_HOST + kernel.name)


def is_of_host(kernel: Kernel) -> bool:
    return kernel.name.startswith(_HOST)


def symbol_of(kernel: Kernel) -> str:
    """The kernel's name in its object code."""
    return kernel.name.removeprefix(_HOST)

"""Kernels written by hand for the emulator, and their runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.emulator import DeviceMemory, load_ptx

HEADER = ".version 8.0\n.target sm_90a\n.address_size 64\n"
REGISTERS = """
    .reg .pred %p<9>;
    .reg .b16 %rs<9>;
    .reg .b32 %r<40>;
    .reg .b64 %rd<20>;
"""


def kernel_text(body: str, parameters: int = 2, shared_bytes: int = 0) -> str:
    """A kernel ``k`` of pointers: %rd1, %rd2 … are they, %r1 is %tid.x, %rd0 four times that."""
    names = [f"k_param_{n}" for n in range(parameters)]
    declared = ",\n".join(f"    .param .u64 .ptr .global .align 16 {n}" for n in names)
    loads = [f"    ld.param.b64 %rd{n + 1}, [{name}];" for n, name in enumerate(names)]
    shared = f"    .shared .align 128 .b8 k_shared[{shared_bytes}];\n" if shared_bytes else ""
    head = "\n".join([*loads, "    mov.u32 %r1, %tid.x;", "    mul.wide.u32 %rd0, %r1, 4;"])
    return (
        f"{HEADER}.visible .entry k(\n{declared}\n)\n{{{REGISTERS}{shared}{head}\n{body}\n"
        "    ret;\n}\n"
    )


def run_text(
    text: str,
    inputs: Sequence[NDArray[Any]],
    result: NDArray[Any],
    block: int = 32,
    grid: int = 1,
    dynamic_bytes: int = 0,
) -> NDArray[Any]:
    """What kernel ``k`` writes to its last parameter, an array like ``result``."""
    memory, addresses = DeviceMemory(), []
    for array in (*inputs, result):
        addresses.append(memory.allocate(array.nbytes))
        memory.write(addresses[-1], array)
    module = load_ptx(text)
    module.launch(memory, "k", (grid, 1, 1), (block, 1, 1), addresses, dynamic_bytes)
    written = memory.read(addresses[-1], result.nbytes)
    return np.asarray(written.view(result.dtype).reshape(result.shape))

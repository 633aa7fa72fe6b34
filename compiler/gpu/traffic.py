"""What the accesses of a built kernel cost, by the emulator: no GPU is needed, and no time is told.

for access in accesses_of(kernel):
    if access.excess > 1:
        print(access.text, access)
print(kernel.get_source("accesses"))       # PTX, with counts at the lines that read and write

A few blocks of the grid run on zeros: what they read and where does not depend on values, but for
gathers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.gpu.emulator import Access, DeviceMemory, Traffic, load_ptx
from tunefarm.compiler.runtime.cuda.emulated import map_of

if TYPE_CHECKING:
    from tunefarm.compiler.kernel import Kernel

BLOCKS = 4
"""Blocks of each launch that are looked at: the first, the last, and some between."""


def accesses_of(kernel: Kernel, blocks: int = BLOCKS) -> tuple[Access, ...]:
    """The accesses of a kernel for GPUs to global and shared memory, in the order of its PTX."""
    module, memory, traffic = load_ptx(kernel.object), DeviceMemory(), Traffic()
    places = []
    for param in kernel.params:
        array = np.zeros(max(param.size, 1), numpy_dtype(param.dtype))
        places.append(memory.allocate(array.nbytes))
        memory.write(places[-1], array)
    places.append(memory.allocate(kernel.workspace_bytes))
    memory.write(places[-1], np.zeros(kernel.workspace_bytes, np.uint8))
    for launch in kernel.launches:
        only = chosen_blocks(prod(launch.grid), blocks)
        given = [*places, *(map_of(each, places) for each in launch.maps)]
        module.launch(
            memory, launch.name, launch.grid, launch.block, given, launch.dynamic_bytes,
            traffic=traffic, only=only,
        )  # fmt: skip
    return traffic.accesses()


def chosen_blocks(total: int, count: int) -> Sequence[int]:
    """Up to ``count`` numbers below ``total``, the first and the last among them."""
    return sorted({round(n) for n in np.linspace(0, total - 1, min(count, total))})


def annotated(kernel: Kernel) -> str:
    """The PTX of a kernel with a remark at each line that reads or writes memory of more than one
    thread."""
    lines = kernel.object.decode().splitlines()
    for access in accesses_of(kernel):
        lines[access.line - 1] += f"  // {access.space}: {access}"
    return "\n".join(lines) + "\n"

"""NVIDIA architectures by the names of ``ptxas``: their limits, and what their code may use.

Source: NVIDIA, "CUDA C++ Programming Guide", tables of technical specifications. Multiprocessors
and caches are those of the largest card of data centres, or else of desktops.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

WARP = 32
MAX_THREADS = 1024  # of a block
MAX_REGISTERS = 255  # of a thread
REGISTERS = 65536  # of a multiprocessor, and at most of a block
STATIC_SHARED_BYTES = 48 << 10  # more has to be asked for at a launch
MAX_CLUSTER = 8  # blocks, on every GPU that has clusters
LARGE_CLUSTER = 16  # on those of data centres
MAX_GRID = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True, slots=True)
class GpuArch:
    """An architecture. ``shared_bytes`` are those that one block may have, ``threads`` those that
    a multiprocessor holds at once."""

    name: str
    people: str
    shared_bytes: int
    threads: int
    multiprocessors: int
    l2_bytes: int

    @property
    def number(self) -> int:
        """80 for sm_80, 90 for sm_90a."""
        return int(re.sub(r"\D", "", self.name))

    @property
    def has_async_copies(self) -> bool:
        """True if copies from global to shared memory can run on beside the threads."""
        return self.number >= 80

    @property
    def has_clusters(self) -> bool:
        """True if blocks can be launched together that reach each other's shared memory."""
        return self.number >= 90

    @property
    def most_cluster(self) -> int:
        """Blocks of the largest cluster; those of more than ``MAX_CLUSTER`` have to be allowed at
        a launch, and run where so many multiprocessors stand together."""
        if not self.has_clusters:
            return 1
        return LARGE_CLUSTER if self.number < 120 else MAX_CLUSTER

    @property
    def has_tensor_cores(self) -> bool:
        """True for the warp's ``mma.sync`` of float16, bfloat16, TF32 and int8."""
        return self.number >= 80


def _arch(
    name: str, people: str, shared_kib: int, threads: int, processors: int, l2_mib: int
) -> GpuArch:
    return GpuArch(name, people, shared_kib << 10, threads, processors, l2_mib << 20)


GPU_ARCHS: Mapping[str, GpuArch] = {
    arch.name: arch
    for arch in (
        _arch("sm_75", "Turing", 64, 1024, 72, 6),
        _arch("sm_80", "Ampere", 163, 2048, 108, 40),
        _arch("sm_86", "Ampere of desktops", 99, 1536, 84, 6),
        _arch("sm_89", "Ada", 99, 1536, 142, 96),
        _arch("sm_90", "Hopper", 227, 2048, 132, 50),
        _arch("sm_90a", "Hopper", 227, 2048, 132, 50),
        _arch("sm_100", "Blackwell", 227, 2048, 148, 126),
        _arch("sm_100a", "Blackwell", 227, 2048, 148, 126),
        _arch("sm_120", "Blackwell of desktops", 99, 1536, 170, 128),
    )
}

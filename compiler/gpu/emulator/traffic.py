"""What a kernel's accesses cost a GPU, counted while it is emulated: sectors and bank conflicts.

    traffic = Traffic()
    module.launch(memory, name, grid, block, arguments, traffic=traffic)
    for access in traffic.accesses():
        print(access)

A warp's request to global memory moves whole sectors of 32 bytes. Shared memory has 32 banks of
4 bytes: the words of a request that share a bank are read one after the other, but for a word that
several threads want; 8 and 16 bytes a thread go by half and by quarter of a warp, the rows of a
matrix eight at a time. Source: NVIDIA, "CUDA C++ Best Practices Guide", coalesced access and shared
memory; "Nsight Compute", memory tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.archs import WARP

if TYPE_CHECKING:
    from tunefarm.compiler.gpu.emulator.kinds import Values
    from tunefarm.compiler.gpu.emulator.parse import Instruction
    from tunefarm.compiler.gpu.emulator.wave import Wave

SECTOR_BYTES = 32
BANKS = 32
_WORD_BYTES = 4
_MATRIX_ROWS, _ROW_BYTES = 8, 16
Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Access:
    """One instruction's requests of warps to one memory: the sectors that they moved, or the passes
    over the banks that they took (``parts``), and the fewest that their bytes fit into (``least``).
    """

    line: int
    text: str
    space: str
    requests: int
    parts: int
    least: int

    @property
    def excess(self) -> float:
        """How many times as many parts as needed; 1 is perfect."""
        return self.parts / self.least

    def __str__(self) -> str:
        what = "sectors" if self.space == "global" else "passes"
        each, least = self.parts / self.requests, self.least / self.requests
        return f"{self.requests} requests, {each:.3g} {what} each ({least:.3g} needed)"


class Traffic:
    """Counts by instruction and memory."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, str], list[int]] = {}

    def accesses(self) -> tuple[Access, ...]:
        """What was counted, in the order of the text."""
        return tuple(Access(*key, *counts) for key, counts in sorted(self._counts.items()))

    def global_(self, i: Instruction, warps: Index, addresses: Values, size: int) -> None:
        """Count a request of threads of these warps: ``size`` bytes at an address of each."""
        if not len(addresses):
            return
        sectors = _count_unique(warps, addresses // np.uint64(SECTOR_BYTES))
        starts, counts = np.unique(_pairs(warps, addresses)[:, 0], return_counts=True)
        least = int((-(-counts * size // SECTOR_BYTES)).sum())
        self._add(i, "global", len(starts), sectors, least)

    def shared(
        self, i: Instruction, warps: Index, lanes: Index, addresses: Values, size: int
    ) -> None:
        """Count a request of lanes of these warps: ``size`` bytes at an address of each."""
        if not len(addresses):
            return
        together = WARP * _WORD_BYTES // max(size, _WORD_BYTES)  # lanes that go at the same time
        phases = warps * (WARP // together) + lanes // together
        passes, least = _passes(phases, addresses, size)
        self._add(i, "shared", len(np.unique(warps)), passes, least)

    def matrices(self, i: Instruction, addresses: Values, requests: int) -> None:
        """Count what warps read of matrices: the addresses of rows, eight for each matrix."""
        phases = np.arange(len(addresses)) // _MATRIX_ROWS
        passes, least = _passes(phases, addresses, _ROW_BYTES)
        self._add(i, "shared", requests, passes, least)

    def _add(self, i: Instruction, space: str, *counts: int) -> None:
        row = self._counts.setdefault((i.line, i.text, space), [0, 0, 0])
        for place, count in enumerate(counts):
            row[place] += count


def _passes(phases: Index, addresses: Values, size: int) -> tuple[int, int]:
    """Passes over the banks for threads that go phase by phase, and the fewest possible: one a
    phase."""
    words = max(size // _WORD_BYTES, 1)
    first = addresses // np.uint64(_WORD_BYTES)
    each = (first[:, None] + np.arange(words, dtype=np.uint64)).reshape(-1)
    wanted = _pairs(np.repeat(phases, words), each)  # a word that several want is read once
    banks = wanted[:, 0] * BANKS + wanted[:, 1] % BANKS
    found, counts = np.unique(banks, return_counts=True)
    of_phase = found // BANKS
    begins = np.flatnonzero(np.diff(of_phase, prepend=-1))
    return int(np.maximum.reduceat(counts, begins).sum()), len(begins)


def _pairs(groups: Index, values: Values) -> NDArray[np.int64]:
    """The different pairs, sorted."""
    pairs = np.stack([groups.astype(np.int64), values.astype(np.int64)], axis=1)
    return np.unique(pairs, axis=0)


def _count_unique(groups: Index, values: Values) -> int:
    return len(_pairs(groups, values))


def counted_global(i: Instruction) -> Callable[[Wave, Index, Values, int], None]:
    """What counts an instruction's requests to global memory, where anybody does."""

    def count(wave: Wave, threads: Index, addresses: Values, size: int) -> None:
        if wave.traffic is not None:
            wave.traffic.global_(i, wave.warp_of[threads], addresses, size)

    return count


def counted_shared(i: Instruction) -> Callable[[Wave, Index, Values, int], None]:
    """The same for shared memory."""

    def count(wave: Wave, threads: Index, addresses: Values, size: int) -> None:
        if wave.traffic is not None:
            warps, lanes = wave.warp_of[threads], wave.lane_of[threads]
            wave.traffic.shared(i, warps, lanes, addresses, size)

    return count

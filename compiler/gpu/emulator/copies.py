"""Asynchronous copies (``cp.async``) from global to shared memory, and the groups they are in.

The bytes are copied when their thread waits for them, and no sooner: until then shared memory holds
what it held, and to read it there is a fault.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.globals import GlobalMemory
from tunefarm.compiler.gpu.emulator.kinds import Values
from tunefarm.compiler.gpu.emulator.memory import check_alignment
from tunefarm.compiler.gpu.emulator.scratch import SharedMemory

Index = NDArray[np.intp]
_BYTE = np.dtype(np.uint8)


@dataclass(slots=True)
class Copy:
    """One instruction's copies of ``size`` bytes, for some threads.

    The first ``taken`` bytes come from ``sources``, the rest are zeros. ``groups`` count the
    groups that the thread had committed before.
    """

    threads: Index
    groups: Index
    targets: Values
    sources: Values
    taken: Values
    size: int

    def split(self, mine: NDArray[np.bool_]) -> tuple[Copy, Copy]:
        """The copies of chosen threads, and the others."""
        return self._only(mine), self._only(~mine)

    def _only(self, mine: NDArray[np.bool_]) -> Copy:
        return Copy(
            self.threads[mine], self.groups[mine], self.targets[mine], self.sources[mine],
            self.taken[mine], self.size,
        )  # fmt: skip


class Copies:
    """The copies under way of all threads."""

    def __init__(self, threads: int) -> None:
        self.pending: list[Copy] = []
        self._committed = np.zeros(threads, np.intp)

    def begin(
        self,
        threads: Index,
        targets: Values,
        sources: Values,
        taken: Values,
        size: int,
        shared: SharedMemory,
        memory: GlobalMemory,
    ) -> None:
        """Begin copies; Fault for addresses that are wrong already."""
        _gather(memory, threads, sources, taken, size)
        shared.begin_copy(threads, targets, size)
        groups = self._committed[threads]
        self.pending.append(Copy(threads, groups, targets, sources, taken, size))

    def commit(self, threads: Index) -> None:
        """What the threads began belongs to a group that is complete."""
        self._committed[threads] += 1

    def finish(
        self, chosen: Values, allowed: int | None, shared: SharedMemory, memory: GlobalMemory
    ) -> None:
        """Copy what chosen threads (a mask) wait for: all but their ``allowed`` newest groups, or
        all there is."""
        left = []
        for copy in self.pending:
            due = chosen[copy.threads]
            if allowed is not None:
                due = due & (copy.groups < self._committed[copy.threads] - allowed)
            if due.all():
                _copy(copy, shared, memory)
            elif due.any():
                now, later = copy.split(due)
                _copy(now, shared, memory)
                left.append(later)
            else:
                left.append(copy)
        self.pending = left


def _copy(copy: Copy, shared: SharedMemory, memory: GlobalMemory) -> None:
    words = _gather(memory, copy.threads, copy.sources, copy.taken, copy.size)
    shared.end_copy(copy.threads, copy.targets, words)


def _gather(
    memory: GlobalMemory, threads: Index, sources: Values, taken: Values, size: int
) -> Values:
    """Rows of bytes from global memory, zeros where none are taken."""
    check_alignment(sources, size, "copies")
    whole = taken == size
    if whole.all():
        return memory.load(threads, sources, _BYTE, size)
    rows = np.zeros((len(sources), size), np.uint8)
    mine = np.flatnonzero(whole)
    rows[mine] = _load(memory, threads, sources, mine, size)
    for byte in range(int(taken[~whole].max())):
        mine = np.flatnonzero(~whole & (taken > byte))
        rows[mine, byte] = _load(memory, threads, sources + np.uint64(byte), mine, 1)[:, 0]
    return rows


def _load(memory: GlobalMemory, threads: Index, sources: Values, mine: Index, size: int) -> Values:
    """Rows of bytes at some of the sources; faults have their places among all."""
    if not len(mine):
        return np.empty((0, size), np.uint8)
    try:
        return memory.load(threads[mine], sources[mine], _BYTE, size)
    except Fault as fault:
        raise Fault(int(mine[fault.position]), fault.problem) from None

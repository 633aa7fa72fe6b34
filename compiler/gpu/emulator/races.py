"""Who read and wrote each piece of memory: of a block since its last barrier, of a launch at all.

What one thread writes and another reads or writes with nothing between them is a race: on a GPU the
result would depend on which of them comes first. Threads of a warp are no exception, nor are values
that happen to be the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import Values

Index = NDArray[np.intp]
_THREADS = 1 << 11  # a mark is the number of barriers passed times this, and a thread's number
_SEVERAL = _THREADS - 1
_MANY = -1
_KEPT = 256  # reads that are not marked yet, and bounds of writes


@dataclass(frozen=True, slots=True)
class Access:
    """Threads read or write ``size`` bytes each at places among those of all blocks.

    ``low`` and ``high`` bound the addresses of these bytes within a block.
    """

    threads: Index
    places: Index
    size: int
    low: int
    high: int

    def meets(self, low: int, high: int) -> bool:
        """False if none of its bytes can be within these bounds."""
        return self.low < high and low < self.high


class Bounds:
    """Bounds of addresses within a block that were written; the many become one that has all."""

    def __init__(self) -> None:
        self._each: set[tuple[int, int]] = set()

    def add(self, low: int, high: int) -> None:
        self._each.add((low, high))
        if len(self._each) > _KEPT:
            lows, highs = zip(*self._each, strict=True)
            self._each = {(min(lows), max(highs))}

    def meet(self, low: int, high: int) -> bool:
        """False if none of the bytes within these bounds was written."""
        return any(low < end and begin < high for begin, end in self._each)

    def clear(self) -> None:
        self._each.clear()


class Unfenced:
    """Who wrote between which addresses within a block and has not fenced that since."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._each: dict[tuple[int, int], NDArray[np.bool_]] = {}

    def add(self, low: int, high: int, threads: Index) -> None:
        if (low, high) not in self._each:
            self._each[low, high] = np.zeros(self._threads, np.bool_)
        self._each[low, high][threads] = True
        if len(self._each) > _KEPT:
            lows, highs = zip(*self._each, strict=True)
            self._each = {(min(lows), max(highs)): np.any([*self._each.values()], axis=0)}

    def meet(self, low: int, high: int) -> bool:
        """False if none of the bytes within these bounds was written."""
        return any(low < end and begin < high for begin, end in self._each)

    def fence(self, threads: Index | None) -> None:
        """Some threads have fenced what they wrote, or all."""
        if threads is None:
            self._each.clear()
        for mask in self._each.values():
            mask[threads] = False
        self._each = {bounds: mask for bounds, mask in self._each.items() if mask.any()}


class BlockRaces:
    """Marks on pieces of ``granule`` bytes, the smallest that the kernel reads or writes.

    ``block_of`` has the block of each thread, ``pitch`` the bytes of a block. Reads are marked when
    something is written that they may meet, which the stages of a tile see to that it seldom is.
    """

    def __init__(self, block_of: Index, block_threads: int, pitch: int, granule: int) -> None:
        self._blocks = block_of
        self._own = np.arange(len(block_of), dtype=np.int32) % np.int32(block_threads)
        self._granule = granule
        count = (int(block_of[-1]) + 1) * pitch // granule
        self._readers = np.full(count, -1, np.int32)
        self._writers = np.full(count, -1, np.int32)
        self._epochs = np.zeros(int(block_of[-1]) + 1, np.int32)
        self._unmarked: list[Access] = []  # reads
        self._written = Bounds()  # since a barrier of all blocks

    def pass_barrier(self, blocks: Values) -> None:
        """All threads of some blocks (a mask) have waited for one another."""
        if blocks.all():
            self._unmarked.clear()
            self._written.clear()
        self._mark_reads(self._unmarked)
        self._unmarked.clear()
        self._epochs[blocks] += 1

    def read(self, access: Access) -> None:
        """Raises Fault if another thread wrote something of it since the last barrier."""
        if self._written.meet(access.low, access.high):
            rows, mark, begin = self._marks(access)
            found = self._rows(self._writers, access.size)[rows]
            self._check(found, mark, begin, "reads", "wrote")
        self._unmarked.append(access)
        if len(self._unmarked) > _KEPT:
            self._mark_reads(self._unmarked)
            self._unmarked.clear()

    def write(self, access: Access) -> None:
        """Raises Fault if another thread read or wrote something of it since the last barrier."""
        low, high = access.low, access.high
        self._mark_reads([read for read in self._unmarked if read.meets(low, high)])
        self._unmarked = [read for read in self._unmarked if not read.meets(low, high)]
        rows, mark, begin = self._marks(access)
        writers = self._rows(self._writers, access.size)
        self._check(self._rows(self._readers, access.size)[rows], mark, begin, "writes", "read")
        self._check(writers[rows], mark, begin, "writes", "wrote")
        writers[rows] = mark
        self._check(writers[rows], mark, begin, "writes", "wrote")
        self._written.add(low, high)

    def _mark_reads(self, accesses: Sequence[Access]) -> None:
        for access in accesses:
            rows, mark, begin = self._marks(access)
            readers = self._rows(self._readers, access.size)
            before = readers[rows]
            several = begin + np.int32(_SEVERAL)
            readers[rows] = np.where((before >= begin) & (before != mark), several, mark)
            shared = (readers[rows] != mark).any(axis=1)
            readers[rows[shared]] = several[shared]

    def _rows(self, marks: Values, size: int) -> Values:
        """The marks of each piece of ``size`` bytes, which places are multiples of."""
        return marks.reshape(-1, size // self._granule)

    def _marks(self, access: Access) -> tuple[Index, Values, Values]:
        """The piece that each thread means, its mark, and the lowest mark since the barrier."""
        begin = (self._epochs[self._blocks[access.threads]] * np.int32(_THREADS))[:, None]
        rows = access.places >> (access.size.bit_length() - 1)
        return rows, begin + self._own[access.threads][:, None], begin

    def _check(self, found: Values, mark: Values, begin: Values, does: str, did: str) -> None:
        """Fault if others than the threads themselves left a mark since the barrier."""
        wrong = (found >= begin) & (found != mark)
        if not wrong.any():
            return
        position, piece = (int(n) for n in np.argwhere(wrong)[0])
        other = int(found[position, piece] % _THREADS)
        who = "several threads" if other == _SEVERAL else f"thread number {other}"
        raise Fault(
            position,
            f"{does} shared memory that {who} of its block {did} since the last barrier",
        )


class LaunchRaces:
    """Marks on pieces of ``granule`` bytes of global memory, for the time of a launch.

    The compiler's kernels pass nothing from thread to thread there, so barriers make no difference.
    """

    def __init__(self, block_threads: int, granule: int) -> None:
        self._block_threads, self._granule = block_threads, granule
        self._marks: dict[int, tuple[Values, Values]] = {}  # readers and writers by allocation

    def read(self, base: int, room: int, threads: Index, rows: Index, size: int) -> None:
        """Threads, by their numbers in the launch, read pieces of ``size`` bytes of the ``room`` of
        an allocation."""
        if size < self._granule:  # a byte of a copy that takes only some
            rows, size = rows * size // self._granule, self._granule
        readers, writers = self._rows(base, room, size)
        mark = (threads + 1).astype(np.int32)[:, None]
        self._check(writers[rows], mark, "reads", "wrote")
        before = readers[rows]
        readers[rows] = np.where((before == 0) | (before == mark), mark, _MANY)
        shared = (readers[rows] != mark).any(axis=1)
        readers[rows[shared]] = _MANY

    def write(self, base: int, room: int, threads: Index, rows: Index, size: int) -> None:
        """Threads write pieces of ``size`` bytes."""
        readers, writers = self._rows(base, room, size)
        mark = (threads + 1).astype(np.int32)[:, None]
        self._check(readers[rows], mark, "writes", "read")
        self._check(writers[rows], mark, "writes", "wrote")
        writers[rows] = mark
        self._check(writers[rows], mark, "writes", "wrote")

    def _rows(self, base: int, room: int, size: int) -> tuple[Values, Values]:
        if base not in self._marks:  # pages of zeros that nobody touches cost nothing
            count = room // self._granule
            self._marks[base] = np.zeros(count, np.int32), np.zeros(count, np.int32)
        readers, writers = self._marks[base]
        each = size // self._granule
        return readers.reshape(-1, each), writers.reshape(-1, each)

    def _check(self, found: Values, mark: Values, does: str, did: str) -> None:
        """Fault if others than the threads themselves left a mark."""
        wrong = (found != 0) & (found != mark)
        if not wrong.any():
            return
        position, piece = (int(n) for n in np.argwhere(wrong)[0])
        block, own = divmod(int(found[position, piece]) - 1, self._block_threads)
        who = f"thread number {own} of block number {block}" if block >= 0 else "several threads"
        raise Fault(position, f"{does} global memory that {who} {did} in the same launch")

"""Who read and wrote each piece of shared memory since the last barrier of its block.

What one thread writes and another reads or writes with no barrier between them is a race: on a GPU
the result would depend on which of them comes first. Threads of a warp are no exception.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import Values

Index = NDArray[np.intp]
_THREADS = 1 << 11  # a mark is the number of barriers passed times this, and a thread's number
_SEVERAL = _THREADS - 1


class Races:
    """Marks on pieces of ``granule`` bytes, the smallest that the kernel reads or writes.

    ``block_of`` has the block of each thread, ``pitch`` the bytes of a block.
    """

    def __init__(self, block_of: Index, block_threads: int, pitch: int, granule: int) -> None:
        self._blocks = block_of
        self._own = np.arange(len(block_of)) % block_threads
        self._granule = granule
        count = (int(block_of[-1]) + 1) * pitch // granule
        self._readers = np.full(count, -1, np.int64)
        self._writers = np.full(count, -1, np.int64)
        self._epochs = np.zeros(int(block_of[-1]) + 1, np.int64)

    def pass_barrier(self, blocks: Values) -> None:
        """All threads of some blocks (a mask) have waited for one another."""
        self._epochs[blocks] += 1

    def read(self, threads: Index, places: Index, size: int) -> None:
        """Threads read ``size`` bytes at places among those of all blocks."""
        pieces, mark, begin = self._marks(threads, places, size)
        self._check(self._writers[pieces], mark, begin, "reads", "wrote")
        before = self._readers[pieces]
        several = np.broadcast_to(begin + _SEVERAL, pieces.shape)
        self._readers[pieces] = np.where((before >= begin) & (before != mark), several, mark)
        shared = self._readers[pieces] != mark
        self._readers[pieces[shared]] = several[shared]

    def write(self, threads: Index, places: Index, size: int) -> None:
        """Threads write ``size`` bytes at places among those of all blocks."""
        pieces, mark, begin = self._marks(threads, places, size)
        self._check(self._readers[pieces], mark, begin, "writes", "read")
        self._check(self._writers[pieces], mark, begin, "writes", "wrote")
        self._writers[pieces] = mark
        self._check(self._writers[pieces], mark, begin, "writes", "wrote")

    def _marks(self, threads: Index, places: Index, size: int) -> tuple[Index, Values, Values]:
        """The pieces that each thread means, its mark, and the lowest mark since the barrier."""
        each = np.arange(size // self._granule)
        pieces = (places // self._granule)[:, None] + each
        begin = (self._epochs[self._blocks[threads]] * _THREADS)[:, None]
        return pieces, begin + self._own[threads][:, None], begin

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

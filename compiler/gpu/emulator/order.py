"""Who may touch what in a block whose threads wait for one another at mbarriers.

For each thread it is known up to which time it has learnt what every other thread of its cluster of
blocks did:
by barriers of all, and by mbarriers, where those that arrive tell those that wait (vector clocks:
Mattern, "Virtual time and global states of distributed systems", 1989). To touch what another wrote
later than that is a race; so is to write what another read later. Copies that run by themselves
count as threads, one for each mbarrier that they tell of their end, and for each thread that asks
for copies from shared memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import Values
from tunefarm.compiler.gpu.emulator.races import Access

Index = NDArray[np.intp]
MOST_MARKS = 64  # mbarriers of a block
_MOST_SENDERS = 8  # threads of a block that ask for copies from shared memory
_UNDER_WAY = np.int32(2**31 - 1)  # the time of a copy that has not ended


@dataclass(slots=True)
class AsyncRead:
    """Pieces that were read at a time by threads or copies, ``who`` of their cluster, and bounds of
    the addresses within a block."""

    who: Index
    pieces: Index
    time: int
    low: int
    high: int


class BlockOrder:
    """The order of the accesses of shared memory, in pieces of ``granule`` bytes.

    ``block_of`` has the block of each thread, ``pitch`` the bytes of a block, of which ``cluster``
    are launched together. The threads of a block know the same if they learn ``together``, by
    barriers of all of them alone.
    """

    def __init__(
        self,
        block_of: Index,
        block_threads: int,
        pitch: int,
        granule: int,
        cluster: int = 1,
        together: bool = False,
    ) -> None:
        self._blocks, self._each, self._granule = block_of, block_threads, granule
        self._count = cluster * block_threads
        self._own = np.arange(len(block_of)) % self._count
        self._copies_from = self._count + cluster * MOST_MARKS
        whole = self._copies_from + cluster * _MOST_SENDERS
        self._knower = block_of if together else np.arange(len(block_of))  # the row of a thread
        self._known = np.zeros((int(self._knower[-1]) + 1, whole), np.int32)
        pieces = (int(block_of[-1]) + 1) * pitch // granule
        self._writers = np.full(pieces, -1, np.int32)
        self._written = np.zeros(pieces, np.int32)  # when
        self._rows = np.full(pieces, -1, np.intp)  # of an access that is looked at
        self._reads: list[AsyncRead] = []
        self._over = np.zeros_like(self._known)  # what may be followed by writes, not be read
        self._arrived = np.zeros(len(block_of), np.int32)  # at a barrier of the cluster, when
        self._telling = np.zeros(len(block_of), np.bool_)  # what they wrote before
        self._senders: dict[int, int] = {}  # by thread, who its copies are
        self._time = 1

    # --- accesses ------------------------------------------------------------------------------

    def read(self, access: Access) -> None:
        """Raises Fault if another thread or copy wrote something of it that is not known of."""
        pieces = self._pieces(access)
        self._check_writers(access, pieces, "reads")
        who = np.broadcast_to(self._own[access.threads][:, None], pieces.shape).reshape(-1)
        self._add_read(who, pieces, self._time, access)

    def _add_read(self, who: Index, pieces: Index, time: int, access: Access) -> AsyncRead:
        read = AsyncRead(who, pieces.reshape(-1), time, access.low, access.high)
        self._reads.append(read)
        return read

    def write(self, access: Access) -> None:
        """Raises Fault if another touched something of it and that is not known of."""
        pieces = self._pieces(access)
        self._check_writers(access, pieces, "writes")
        self._check_readers(access, pieces)
        self._writers[pieces] = self._own[access.threads][:, None]
        self._written[pieces] = self._time

    def begin_copy(self, access: Access, mark: int) -> None:
        """``write`` by a copy that begins now, and tells mbarrier number ``mark`` of its end."""
        self.write(access)
        pieces = self._pieces(access)
        self._writers[pieces] = self._count + mark
        self._written[pieces] = _UNDER_WAY

    def end_copy(self, access: Access) -> int:
        """The copy has ended; the time of that, which its mbarrier passes on."""
        self._written[self._pieces(access)] = self._time
        self._time += 1
        return self._time - 1

    def begin_send(self, access: Access) -> AsyncRead:
        """A copy that the thread of an access asked for reads on from now on; Fault if the thread
        does not know what others wrote there, or is one too many."""
        thread = int(access.threads[0])
        of_cluster = thread // self._count * self._count
        mine = [n for n in self._senders if n // self._count * self._count == of_cluster]
        number = self._senders.setdefault(thread, self._copies_from + len(mine))
        if number == self._known.shape[1]:
            raise Fault(0, f"more than {_MOST_SENDERS} threads of a block copy boxes from it")
        pieces = self._pieces(access)
        self._check_writers(access, pieces, "reads")
        return self._add_read(np.full(pieces.size, number), pieces, int(_UNDER_WAY), access)

    def end_send(self, thread: int, read: AsyncRead) -> None:
        """That copy reads no more, which the thread has waited for."""
        read.time = self._time
        self._known[self._knower[thread], self._senders[thread]] = self._time
        self._time += 1

    def _pieces(self, access: Access) -> Index:
        first = access.places // self._granule
        pieces: Index = first[:, None] + np.arange(access.size // self._granule)
        return pieces

    def _check_writers(self, access: Access, pieces: Index, does: str) -> None:
        who, when = self._writers[pieces], self._written[pieces]
        own = self._own[access.threads][:, None]
        rows = self._knower[access.threads][:, None]
        known = self._known[rows, who] >= when
        if does == "writes":
            known |= self._over[rows, who] >= when
        wrong = (who >= 0) & (who != own) & ~known
        if wrong.any():
            position, piece = (int(n) for n in np.argwhere(wrong)[0])
            raise Fault(position, self._problem(does, "wrote", int(who[position, piece])))

    def _check_readers(self, access: Access, pieces: Index) -> None:
        self._rows[pieces] = np.arange(len(pieces))[:, None]
        kept = []
        for read in self._reads:
            rows = self._rows[read.pieces]
            met = rows >= 0 if read.low < access.high and access.low < read.high else None
            if met is None or not met.any():
                kept.append(read)
                continue
            readers, rows = read.who[met], rows[met]
            writers = access.threads[rows]
            known = self._known[self._knower[writers], readers]
            unknown = np.maximum(known, self._over[self._knower[writers], readers]) < read.time
            wrong = np.flatnonzero(unknown & (self._own[writers] != readers))
            if len(wrong):
                self._rows[pieces] = -1
                first = int(wrong[0])
                raise Fault(int(rows[first]), self._problem("writes", "read", int(readers[first])))
            if not met.all():
                read.who, read.pieces = read.who[~met], read.pieces[~met]
                kept.append(read)
        self._reads = kept
        self._rows[pieces] = -1

    def _problem(self, does: str, did: str, who: int) -> str:
        whole = "block" if self._count == self._each else "cluster"
        other = f"thread number {who} of its {whole}" if who < self._count else "a copy"
        return f"{does} shared memory that {other} {did}, and does not know that this is over"

    # --- who tells whom ------------------------------------------------------------------------

    def pass_barrier(self, blocks: Values) -> None:
        """All threads of some blocks (a mask) have waited for one another."""
        for block in np.flatnonzero(blocks):
            self._join(int(block) * self._each, self._each)
        self._time += 1

    def arrive(self, threads: Index, tells: bool) -> None:
        """Threads tell their cluster that what they did so far is over, and perhaps let the others
        know what they wrote, before they wait for them."""
        self._arrived[threads], self._telling[threads] = self._time, tells
        self._time += 1

    def pass_cluster(self, clusters: Values) -> None:
        """All threads of some clusters (a mask) have waited until the others had arrived."""
        for cluster in np.flatnonzero(clusters):
            first = int(cluster) * self._count
            mine = np.arange(first, first + self._count)
            rows = np.unique(self._knower[mine])
            over = np.maximum(self._known[rows], self._over[rows]).max(axis=0)
            over[self._own[mine]] = self._arrived[mine]
            self._over[rows] = over
            telling = mine[self._telling[mine]]
            if len(telling):
                told = self._known[np.unique(self._knower[telling])].max(axis=0)
                told[self._own[telling]] = self._arrived[telling]
                self._known[rows] = np.maximum(self._known[rows], told)
        self._time += 1

    def pass_part(self, threads: Index) -> None:
        """Some threads of a block have waited for one another."""
        self._join_all(threads)
        self._time += 1

    def _join(self, first: int, count: int) -> None:
        self._join_all(slice(first, first + count))

    def _join_all(self, mine: slice | Index) -> None:
        rows = np.unique(self._knower[mine])
        joined = self._known[rows].max(axis=0)
        joined[self._own[mine]] = self._time
        self._known[rows] = joined

    def know(self, threads: Index, other: int, time: int) -> Values:
        """Which threads have learnt that what thread number ``other`` of their cluster did at a
        time is over."""
        rows = self._knower[threads]
        told = np.maximum(self._known[rows, other], self._over[rows, other]) >= time
        known: Values = told | (self._own[threads] == other)
        return known

    def knows_of_any(self, thread: int, block: int) -> bool:
        """Whether a thread has learnt of anything that threads of a block of its cluster did."""
        first = block * self._each % self._count
        mine = self._own[thread] // self._each * self._each == first
        row, others = self._knower[thread], slice(first, first + self._each)
        return bool(mine or self._known[row, others].any() or self._over[row, others].any())

    def check_end(self, block: int, block_bytes: int) -> None:
        """A block ends: Fault if another wrote to its memory and none of its threads knows."""
        first, pieces = block * self._each, block_bytes // self._granule
        who = self._writers[block * pieces : (block + 1) * pieces]
        when = self._written[block * pieces : (block + 1) * pieces]
        mine = first % self._count
        others = (who >= 0) & (who < self._count) & ((who < mine) | (who >= mine + self._each))
        known = self._known[np.unique(self._knower[first : first + self._each])].max(axis=0)
        if (others & (known[who] < when)).any():
            raise Fault(0, "ends, and others of its cluster may still write its shared memory")

    def number_of(self, thread: int) -> int:
        """The number of a thread in its cluster."""
        return int(self._own[thread])

    def told_by(self, thread: int) -> Values:
        """What a thread tells now that arrives somewhere: all it knows, and what it did itself."""
        told: Values = self._known[self._knower[thread]].copy()
        told[self._own[thread]] = self._time
        self._time += 1
        return told

    def told_by_copy(self, mark: int, time: int) -> Values:
        """What a copy tells that has ended."""
        told = np.zeros(self._known.shape[1], np.int32)
        told[self._count + mark] = time
        return told

    def tell(self, threads: Index, told: Values) -> None:
        """Threads have waited for those who told it."""
        rows = self._knower[threads]
        self._known[rows] = np.maximum(self._known[rows], told)

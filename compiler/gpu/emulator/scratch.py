"""Memory of blocks and of threads: shared and local, for all resident blocks at once.

Of shared memory it is known what nobody wrote, what an asynchronous copy may still write, and who
read and wrote what since the last barrier: to read the former, and races, are faults.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import UNSIGNED, Values
from tunefarm.compiler.gpu.emulator.memory import check_alignment
from tunefarm.compiler.gpu.emulator.order import AsyncRead, BlockOrder
from tunefarm.compiler.gpu.emulator.races import Access, BlockRaces, Unfenced

Index = NDArray[np.intp]
ROOM = 256  # what the bytes of each owner are rounded up to
WRITTEN, UNDER_WAY = 1, 2  # states of bytes of shared memory; 0 are those that nobody wrote
_GARBAGE = 0xA5


class LocalMemory:
    """``size`` bytes for each thread, at addresses from 0."""

    name = "local"

    def __init__(self, owner_of: Index, size: int) -> None:
        self.size = size
        self.pitch = -(-size // ROOM) * ROOM
        self._owner_of = owner_of
        self.data = _bytes((int(owner_of[-1]) + 1) * self.pitch, _GARBAGE)

    def load(self, threads: Index, addresses: Values, dtype: np.dtype[Any], lanes: int) -> Values:
        """Elements at an address of each thread, a row of ``lanes``."""
        size = dtype.itemsize * lanes
        return _rows(self.data, dtype, lanes, self.places(threads, addresses, size, "reads"))

    def store(self, threads: Index, addresses: Values, values: Values) -> None:
        """Set a row of elements at an address of each thread."""
        places = self.places(threads, addresses, _size(values), "writes")
        _set_rows(self.data, places, values)

    def places(self, threads: Index, addresses: Values, size: int, does: str) -> Index:
        """Where the bytes are among those of all owners; Fault for addresses beyond the end, or no
        multiples of ``size``."""
        check_alignment(addresses, size, does)
        if int(addresses.max()) + size > self.size:
            position = int(np.argmax(addresses))
            raise Fault(
                position,
                f"{does} {size} bytes at {int(addresses[position]):#x} of {self.name} memory, "
                f"which has {self.size}",
            )
        return self._owner_of[threads] * self.pitch + addresses.astype(np.intp)


class SharedMemory(LocalMemory):
    """Memory of blocks, with the state of each byte."""

    name = "shared"

    def __init__(
        self,
        block_of: Index,
        block_threads: int,
        size: int,
        granule: int,
        kind: Callable[[Index, int, int, int], BlockRaces | BlockOrder] = BlockRaces,
    ) -> None:
        super().__init__(block_of, size)
        self._states = _bytes(len(self.data), 0)
        self.races = kind(block_of, block_threads, self.pitch, granule)
        self._unfenced = Unfenced(len(block_of))

    def load(self, threads: Index, addresses: Values, dtype: np.dtype[Any], lanes: int) -> Values:
        access = self._access(threads, addresses, dtype.itemsize * lanes, "reads")
        self._refuse_unwritten(access, addresses, dtype, lanes)
        self.races.read(access)
        return _rows(self.data, dtype, lanes, access.places)

    def load_async(
        self, threads: Index, addresses: Values, dtype: np.dtype[Any], lanes: int
    ) -> Values:
        """``load`` by what runs on beside the threads: Fault also for what they wrote and did not
        fence."""
        self._refuse_unfenced(addresses, dtype.itemsize * lanes)
        return self.load(threads, addresses, dtype, lanes)

    def let_async_read(self, threads: Index | None) -> None:
        """Some threads have fenced what they wrote, or all."""
        self._unfenced.fence(threads)

    def store(
        self, threads: Index, addresses: Values, values: Values, placed: Index | None = None
    ) -> None:
        """Set a row of elements at an address of each thread, in its own block or in those of the
        threads ``placed``."""
        owners = threads if placed is None else placed
        access = self._access(owners, addresses, _size(values), "writes")
        access = replace(access, threads=threads)
        self._refuse_under_way(access, addresses)
        self._mark(access, WRITTEN)
        _set_rows(self.data, access.places, values)

    def begin_copy(self, threads: Index, addresses: Values, size: int) -> None:
        """From now on to read or write ``size`` bytes at the addresses is a fault."""
        access = self._access(threads, addresses, size, "writes")
        self._refuse_under_way(access, addresses)
        self._mark(access, UNDER_WAY)

    def end_copy(self, threads: Index, addresses: Values, values: Values) -> None:
        """The copy's bytes are there, as if their threads stored them now."""
        access = self._access(threads, addresses, _size(values), "writes")
        self._mark(access, WRITTEN)
        _set_rows(self.data, access.places, values)

    def begin_box(
        self, threads: Index, addresses: Values, size: int, mark: int, placed: Index
    ) -> None:
        """``begin_copy`` by a copy that runs by itself and tells mbarrier number ``mark``, to the
        blocks of the threads ``placed``."""
        assert isinstance(self.races, BlockOrder)
        access = replace(self._access(placed, addresses, size, "writes"), threads=threads)
        self._refuse_under_way(access, addresses)
        self.races.begin_copy(access, mark)
        self._set_states(access, UNDER_WAY)

    def end_box(self, threads: Index, addresses: Values, values: Values) -> int:
        """That copy's bytes are there; returns the time of it."""
        assert isinstance(self.races, BlockOrder)
        access = self._access(threads, addresses, _size(values), "writes")
        self._set_states(access, WRITTEN)
        _set_rows(self.data, access.places, values)
        return self.races.end_copy(access)

    def send(self, thread: int, addresses: Values, size: int) -> tuple[Values, AsyncRead]:
        """What a copy reads that a thread asks for, ``size`` bytes at each address, and reads on
        until that is ended (``BlockOrder.end_send``)."""
        assert isinstance(self.races, BlockOrder)
        access = self._access(np.full(len(addresses), thread), addresses, size, "reads")
        self._refuse_unfenced(addresses, size)
        self._refuse_unwritten(access, addresses, UNSIGNED[8], size)
        values = _rows(self.data, UNSIGNED[8], size, access.places)
        return values, self.races.begin_send(access)

    def pass_barrier(self, blocks: Values) -> None:
        """All threads of some blocks (a mask) have waited for one another."""
        self.races.pass_barrier(blocks)

    def _access(self, threads: Index, addresses: Values, size: int, does: str) -> Access:
        places = self.places(threads, addresses, size, does)
        low, high = int(addresses.min()), int(addresses.max())
        return Access(threads, places, size, low, high + size)

    def _mark(self, access: Access, state: int) -> None:
        self.races.write(access)
        self._unfenced.add(access.low, access.high, access.threads)
        self._set_states(access, state)

    def _set_states(self, access: Access, state: int) -> None:
        states = np.full((len(access.places), access.size), state, np.uint8)
        _set_rows(self._states, access.places, states)

    def _refuse_unfenced(self, addresses: Values, size: int) -> None:
        if self._unfenced.meet(int(addresses.min()), int(addresses.max()) + size):
            raise Fault(0, "reads shared memory that was written after the last fence.proxy.async")

    def _refuse_under_way(self, access: Access, addresses: Values) -> None:
        states = _rows(self._states, UNSIGNED[8], access.size, access.places)
        if (states == UNDER_WAY).any():
            position = int(np.flatnonzero((states == UNDER_WAY).any(axis=1))[0])
            raise Fault(position, _unready("writes", int(addresses[position]), access.size, True))

    def _refuse_unwritten(
        self, access: Access, addresses: Values, dtype: np.dtype[Any], lanes: int
    ) -> None:
        unsigned = UNSIGNED[8 * dtype.itemsize]
        states = _rows(self._states, unsigned, lanes, access.places)
        if (states == np.frombuffer(bytes([WRITTEN] * dtype.itemsize), unsigned)).all():
            return
        each = np.ascontiguousarray(states).view(np.uint8).reshape(-1, access.size)
        position = int(np.flatnonzero((each != WRITTEN).any(axis=1))[0])
        under_way = bool((each[position] == UNDER_WAY).any())
        raise Fault(position, _unready("reads", int(addresses[position]), access.size, under_way))


def _unready(does: str, address: int, size: int, under_way: bool) -> str:
    what = "a copy that may be under way writes" if under_way else "nobody wrote"
    return f"{does} {size} bytes at {address:#x} of shared memory, which {what}"


def _bytes(count: int, value: int) -> NDArray[np.uint8]:
    """Bytes at an address that any element may have."""
    made = np.full(count + ROOM, value, np.uint8)
    start = -made.ctypes.data % ROOM
    return made[start : start + count]


def _size(rows: Values) -> int:
    """Bytes of a row."""
    return int(rows.dtype.itemsize * rows.shape[1])


def _rows(data: NDArray[np.uint8], dtype: np.dtype[Any], lanes: int, places: Index) -> Values:
    """Elements at places that are multiples of what is read, a row of ``lanes`` at each."""
    shift = (dtype.itemsize * lanes).bit_length() - 1
    rows: Values = data.view(dtype).reshape(-1, lanes)[places >> shift]
    return rows


def _set_rows(data: NDArray[np.uint8], places: Index, values: Values) -> None:
    shift = _size(values).bit_length() - 1
    data.view(values.dtype).reshape(-1, values.shape[1])[places >> shift] = values

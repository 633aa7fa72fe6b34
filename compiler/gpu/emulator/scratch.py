"""Memory of blocks and of threads: shared and local, for all resident blocks at once.

Of shared memory it is known what nobody wrote and what an asynchronous copy may still write: to
read either is a fault.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import UNSIGNED, Values
from tunefarm.compiler.gpu.emulator.memory import check_alignment

ROOM = 256  # what the bytes of each owner are rounded up to
WRITTEN, UNDER_WAY = 1, 2  # states of bytes of shared memory; 0 are those that nobody wrote
_GARBAGE = 0xA5


class LocalMemory:
    """``size`` bytes for each of some owners (threads, or blocks), at addresses from 0."""

    name = "local"

    def __init__(self, owners: int, size: int) -> None:
        self.size = size
        self.pitch = -(-size // ROOM) * ROOM
        self.data = _bytes(owners * self.pitch, _GARBAGE)

    def load(self, owners: Values, addresses: Values, dtype: np.dtype[Any], lanes: int) -> Values:
        """Elements at an address of each owner, a row of ``lanes``."""
        return _rows_of(self.data, dtype, lanes)[
            self.rows(owners, addresses, dtype.itemsize * lanes, "reads")
        ]

    def store(self, owners: Values, addresses: Values, values: Values) -> None:
        """Set a row of elements at an address of each owner."""
        dtype, lanes = values.dtype, values.shape[1]
        rows = self.rows(owners, addresses, dtype.itemsize * lanes, "writes")
        _rows_of(self.data, dtype, lanes)[rows] = values

    def rows(self, owners: Values, addresses: Values, size: int, does: str) -> NDArray[np.intp]:
        """The numbers of pieces of ``size`` bytes; Fault for addresses beyond the end, or of no
        multiple of that."""
        check_alignment(addresses, size, does)
        if int(addresses.max()) + size > self.size:
            position = int(np.argmax(addresses))
            raise Fault(
                position,
                f"{does} {size} bytes at {int(addresses[position]):#x} of {self.name} memory, "
                f"which has {self.size}",
            )
        return (owners * self.pitch + addresses.astype(np.intp)) >> (size.bit_length() - 1)


class SharedMemory(LocalMemory):
    """Memory of blocks, with the state of each byte."""

    name = "shared"

    def __init__(self, owners: int, size: int) -> None:
        super().__init__(owners, size)
        self.states = _bytes(owners * self.pitch, 0)

    def load(self, owners: Values, addresses: Values, dtype: np.dtype[Any], lanes: int) -> Values:
        size = dtype.itemsize * lanes
        rows = self.rows(owners, addresses, size, "reads")
        unsigned = UNSIGNED[8 * dtype.itemsize]
        states = _rows_of(self.states, unsigned, lanes)[rows]
        good = int.from_bytes(bytes([WRITTEN] * dtype.itemsize), "little")
        if not (states == unsigned.type(good)).all():
            self._refuse(states, addresses, size)
        return _rows_of(self.data, dtype, lanes)[rows]

    def store(self, owners: Values, addresses: Values, values: Values) -> None:
        super().store(owners, addresses, values)
        self.mark(owners, addresses, values.dtype.itemsize * values.shape[1], WRITTEN)

    def mark(self, owners: Values, addresses: Values, size: int, state: int) -> None:
        """Set the state of ``size`` bytes at each address."""
        rows = self.rows(owners, addresses, size, "writes")
        _rows_of(self.states, UNSIGNED[8], size)[rows] = state

    def _refuse(self, states: Values, addresses: Values, size: int) -> None:
        each = np.ascontiguousarray(states).view(np.uint8).reshape(len(addresses), size)
        position = int(np.flatnonzero((each != WRITTEN).any(axis=1))[0])
        under_way = (each[position] == UNDER_WAY).any()
        what = "a copy that may be under way writes" if under_way else "nobody wrote"
        place = int(addresses[position])
        raise Fault(position, f"reads {size} bytes at {place:#x} of shared memory, which {what}")


def _bytes(count: int, value: int) -> NDArray[np.uint8]:
    """Bytes at an address that any element may have."""
    made = np.full(count + ROOM, value, np.uint8)
    start = -made.ctypes.data % ROOM
    return made[start : start + count]


def _rows_of(data: NDArray[np.uint8], dtype: np.dtype[Any], lanes: int) -> Values:
    return data.view(dtype).reshape(-1, lanes)

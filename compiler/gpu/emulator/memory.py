"""Global memory of an emulated GPU: allocations at real addresses of this process.

Every access of a kernel is held against the allocations that live, and to its alignment. Memory
that nobody wrote is all ones: NaN in every float.
"""

from __future__ import annotations

import threading
from bisect import bisect_right, insort
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.emulator.errors import EmulatorError, Fault
from tunefarm.compiler.gpu.emulator.kinds import Values

ALIGNMENT = 256  # of allocations, in bytes
_UNWRITTEN = 0xFF


class Allocation:
    """Bytes at ``base``. Views of them are of whole elements, up to the alignment's end."""

    __slots__ = ("_bytes", "_keep", "_views", "base", "size")

    def __init__(self, size: int) -> None:
        room = -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
        self._keep = np.full(room + ALIGNMENT, _UNWRITTEN, np.uint8)
        start = -self._keep.ctypes.data % ALIGNMENT
        self._bytes = self._keep[start : start + room]
        self.base, self.size = self._bytes.ctypes.data, size
        self._views: dict[tuple[np.dtype[Any], int], Values] = {}

    @property
    def end(self) -> int:
        return self.base + self.size

    @property
    def room(self) -> int:
        """The bytes and what they are rounded up to."""
        return len(self._bytes)

    @property
    def data(self) -> NDArray[np.uint8]:
        """The bytes themselves."""
        return self._bytes[: self.size]

    def view(self, dtype: np.dtype[Any], lanes: int) -> Values:
        """The bytes as rows of elements."""
        found = self._views.get((dtype, lanes))
        if found is None:
            found = self._bytes.view(dtype).reshape(-1, lanes)
            self._views[dtype, lanes] = found
        return found


Part = tuple[Allocation, NDArray[np.intp] | slice]


class DeviceMemory:
    """Allocations of one device. Its methods may be called from several threads."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._allocations: dict[int, Allocation] = {}
        self._lock = threading.Lock()

    @property
    def allocated_bytes(self) -> int:
        return sum(a.size for a in self._allocations.values())

    def allocate(self, size_bytes: int) -> int:
        """The address of fresh memory, a multiple of 256."""
        if size_bytes < 0:
            raise EmulatorError(f"memory of {size_bytes} bytes cannot be allocated")
        made = Allocation(size_bytes)
        with self._lock:
            insort(self._bases, made.base)
            self._allocations[made.base] = made
        return made.base

    def free(self, address: int) -> None:
        """Give memory back; EmulatorError if nothing was allocated at that address."""
        with self._lock:
            if self._allocations.pop(address, None) is None:
                raise EmulatorError(f"nothing is allocated at {address:#x}")
            self._bases.remove(address)

    def write(self, address: int, data: NDArray[Any]) -> None:
        """Copy an array to memory; EmulatorError beyond the end of its allocation."""
        given = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        self.view(address, given.size)[:] = given

    def read(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """A copy of bytes of memory; EmulatorError beyond the end of their allocation."""
        return self.view(address, size_bytes).copy()

    def view(self, address: int, size_bytes: int) -> NDArray[np.uint8]:
        """The bytes of memory themselves; EmulatorError beyond the end of their allocation."""
        found = self._at(address)
        if found is None or address + size_bytes > found.end:
            raise EmulatorError(f"{size_bytes} bytes at {address:#x} are not allocated")
        return found.data[address - found.base : address - found.base + size_bytes]

    def parts(self, addresses: Values, size: int, does: str) -> list[Part]:
        """The allocations that have ``size`` bytes at each address, and the positions of these
        (all, if it is one). Raises Fault for what is not allocated."""
        check_alignment(addresses, size, does)
        low, high = int(addresses.min()), int(addresses.max())
        found = self._at(low)
        if found is not None and high + size <= found.end:
            return [(found, slice(None))]
        return self._apart(addresses, size, does)

    def _at(self, address: int) -> Allocation | None:
        """The last allocation that begins at or before an address."""
        with self._lock:
            place = bisect_right(self._bases, address) - 1
            return self._allocations[self._bases[place]] if place >= 0 else None

    def _apart(self, addresses: Values, size: int, does: str) -> list[Part]:
        with self._lock:
            bases = np.array(self._bases, np.uint64)
            allocations = dict(self._allocations)
        place = np.searchsorted(bases, addresses, "right").astype(np.intp) - 1
        parts: list[Part] = []
        for number in np.unique(place):
            mine = np.flatnonzero(place == number)
            found = allocations[int(bases[number])] if number >= 0 else None
            high = addresses[mine] + np.uint64(size)
            wrong = np.ones(len(mine), bool) if found is None else high > np.uint64(found.end)
            if wrong.any():
                position = int(mine[wrong][0])
                raise Fault(position, _outside(int(addresses[position]), size, does, found))
            assert found is not None
            parts.append((found, mine))
        return parts


def check_alignment(addresses: Values, size: int, does: str) -> None:
    """Fault if an address is no multiple of the bytes that are read or written."""
    wrong = (addresses & addresses.dtype.type(size - 1)) != 0
    if wrong.any():
        position = int(np.flatnonzero(wrong)[0])
        raise Fault(
            position,
            f"{does} {size} bytes at {int(addresses[position]):#x}, which is no multiple of {size}",
        )


def _outside(address: int, size: int, does: str, before: Allocation | None) -> str:
    where = f"{does} {size} bytes at {address:#x}"
    if before is None:
        return f"{where}, before all that is allocated"
    if address >= before.end + (1 << 32):
        return f"{where}, which is not allocated"
    over = address + size - before.end
    return f"{where}, {over} beyond the end of the {before.size} bytes at {before.base:#x}"

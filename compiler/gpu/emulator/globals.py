"""Global memory as the kernels of one launch read and write it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.emulator.kinds import Values
from tunefarm.compiler.gpu.emulator.memory import Allocation, DeviceMemory
from tunefarm.compiler.gpu.emulator.races import LaunchRaces

Index = NDArray[np.intp]


class GlobalMemory:
    """A device's memory, for threads that are numbered from ``first`` on in the launch."""

    def __init__(self, memory: DeviceMemory, races: LaunchRaces, first: int) -> None:
        self._memory, self._races, self._first = memory, races, first

    def load(self, threads: Index, addresses: Values, dtype: np.dtype[Any], lanes: int) -> Values:
        """Elements at an address of each thread, a row of ``lanes``. Raises Fault for what is not
        allocated, or written by another thread."""
        size = dtype.itemsize * lanes
        result = np.empty((len(addresses), lanes), dtype)
        for allocation, mine in self._memory.parts(addresses, size, "reads"):
            rows = _rows(allocation, addresses[mine], size)
            numbers = threads[mine] + self._first
            self._races.read(allocation.base, allocation.room, numbers, rows, size)
            result[mine] = allocation.view(dtype, lanes)[rows]
        return result

    def store(self, threads: Index, addresses: Values, values: Values) -> None:
        """Set a row of elements at an address of each thread. Raises Fault as ``load``."""
        dtype, lanes = values.dtype, values.shape[1]
        size = dtype.itemsize * lanes
        for allocation, mine in self._memory.parts(addresses, size, "writes"):
            rows = _rows(allocation, addresses[mine], size)
            numbers = threads[mine] + self._first
            self._races.write(allocation.base, allocation.room, numbers, rows, size)
            allocation.view(dtype, lanes)[rows] = values[mine]


def _rows(allocation: Allocation, addresses: Values, size: int) -> Index:
    """The numbers of the pieces of ``size`` bytes at addresses."""
    shift = np.uint64(size.bit_length() - 1)
    return ((addresses - np.uint64(allocation.base)) >> shift).view(np.intp)

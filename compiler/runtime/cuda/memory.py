"""Memory of a device that comes and goes: blocks are kept for the next who asks.

memory = take(device, 1 << 20)        # an address; the block returns when ``memory`` is dropped
pool_of(device).trim()                # what nobody uses goes back to the driver
"""

from __future__ import annotations

import threading
import weakref
from collections import defaultdict, deque
from dataclasses import dataclass, field

from tunefarm.compiler.runtime.cuda.driver import MEMORY_ALIGNMENT, Device, DeviceMemoryError

_STEPS = 8  # sizes between two powers of two: at most an eighth of a block is not used


@dataclass(slots=True, eq=False, weakref_slot=True)
class DeviceMemory:
    """Bytes of a device, owned by whoever holds this.

    ``lent`` once another library may use them: its work is waited for before they are used again.
    """

    device: Device
    address: int
    size_bytes: int
    block_bytes: int
    lent: list[bool] = field(default_factory=list, repr=False)

    def lend(self) -> None:
        """Another library uses the bytes from now on."""
        self.lent.append(True)


class Pool:
    """The blocks of one device; safe in several threads.

    A dropped block may still be read by what a stream was asked before: give it up after
    ``synchronize``.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.held_bytes = 0
        self._free: defaultdict[int, list[int]] = defaultdict(list)
        self._dropped: deque[tuple[int, int, list[bool]]] = deque()  # appended to by finalizers
        self._lock = threading.Lock()

    @property
    def free_bytes(self) -> int:
        """Bytes that are kept and that nobody uses."""
        with self._lock:
            self._collect()
            return sum(size * len(blocks) for size, blocks in self._free.items())

    def take(self, size_bytes: int) -> DeviceMemory:
        """At least so many bytes; DeviceMemoryError if even without what is kept there are none."""
        block_bytes = block_size(size_bytes)
        with self._lock:
            self._collect()
            blocks = self._free[block_bytes]
            address = blocks.pop() if blocks else self._allocate(block_bytes)
        memory = DeviceMemory(self.device, address, size_bytes, block_bytes)
        entry = (address, block_bytes, memory.lent)
        weakref.finalize(memory, self._dropped.append, entry).atexit = False
        return memory

    def trim(self) -> None:
        """Give what nobody uses back to the driver."""
        with self._lock:
            self._collect()
            self._trim()

    def _allocate(self, block_bytes: int) -> int:
        try:
            address = self.device.allocate(block_bytes)
        except DeviceMemoryError:
            self._trim()
            address = self.device.allocate(block_bytes)
        self.held_bytes += block_bytes
        return address

    def _collect(self) -> None:
        while self._dropped:
            address, block_bytes, lent = self._dropped.popleft()
            if lent:
                self.device.synchronize()
            self._free[block_bytes].append(address)

    def _trim(self) -> None:
        for block_bytes, blocks in self._free.items():
            for address in blocks:
                self.device.free(address)
                self.held_bytes -= block_bytes
        self._free.clear()


def block_size(size_bytes: int) -> int:
    """The bytes of the block that serves a request: the next multiple of an eighth of its power
    of two."""
    step = max(MEMORY_ALIGNMENT, (1 << max(size_bytes - 1, 0).bit_length()) // (2 * _STEPS))
    return max(-(-size_bytes // step), 1) * step


_POOLS: dict[Device, Pool] = {}
_LOCK = threading.Lock()


def pool_of(device: Device) -> Pool:
    """The pool of a device, one a process."""
    with _LOCK:
        return _POOLS.setdefault(device, Pool(device))


def take(device: Device, size_bytes: int) -> DeviceMemory:
    """Bytes of the device's pool; DeviceMemoryError if there are none."""
    return pool_of(device).take(size_bytes)

"""The host's side of the thread pool: Python threads that sit in one native call each.

A pool lives as long as the process. Its threads are daemons without the interpreter's lock; they
are told to return when the interpreter exits. After a fork the child starts pools of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler import settings
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.runtime.arrays import address, aligned_bytes
from tunefarm.compiler.runtime.library import Library
from tunefarm.compiler.runtime.native import MAX_THREADS, POOL_ALIGNMENT, POOL_BYTES
from tunefarm.compiler.runtime.ticks import ticks_per_second

_FOREVER_TICKS = 1 << 62
_START_SECONDS = 2.0
_STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, eq=False)
class ThreadPool:
    """``threads - 1`` native workers beside the caller. ``address`` is what kernels take."""

    library: Library
    memory: NDArray[np.uint8] = field(repr=False)
    address: int
    spin_ticks: int
    workers: tuple[threading.Thread, ...]

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """Keep idle workers spinning, so that a timed call does not pay for waking them."""
        set_spin = self.library.function("tunefarm_pool_spin")
        set_spin(self.address, _FOREVER_TICKS)
        try:
            yield
        finally:
            set_spin(self.address, self.spin_ticks)

    def close(self) -> None:
        """Let the workers return, and wait for them."""
        self.library.function("tunefarm_pool_shutdown")(self.address)
        for worker in self.workers:
            worker.join(_STOP_SECONDS)


def start_pool(library: Library, threads: int) -> ThreadPool:
    """Start ``threads - 1`` workers that run ``library``'s code; return when they have joined."""
    memory = aligned_bytes(POOL_BYTES, POOL_ALIGNMENT)
    memory[:] = 0
    place = address(memory)
    seconds = settings.SPIN_MICROSECONDS.get() * 1e-6
    spin_ticks = int(seconds * ticks_per_second(library, 1_000_000))
    library.function("tunefarm_pool_spin")(place, spin_ticks)
    main = library.function("tunefarm_worker_main")
    workers = tuple(
        threading.Thread(target=main, args=(place,), name=f"tunefarm-{i}", daemon=True)
        for i in range(1, min(threads, MAX_THREADS))
    )
    for worker in workers:
        worker.start()
    _await_workers(library, place, len(workers))
    return ThreadPool(library, memory, place, spin_ticks, workers)


def _await_workers(library: Library, place: int, count: int) -> None:
    joined = library.function("tunefarm_pool_workers")
    deadline = time.monotonic() + _START_SECONDS
    while joined(place) < count and time.monotonic() < deadline:
        time.sleep(0.0001)


_POOLS: dict[int, ThreadPool] = {}
_LOCK = threading.Lock()


def shared_pool(library: Library, threads: int) -> ThreadPool | None:
    """This process's pool of that many threads, started on first use; None for one thread."""
    if threads <= 1:
        return None
    pool = _POOLS.get(threads)
    if pool is not None:
        return pool
    with _LOCK:
        if threads not in _POOLS:
            if not _POOLS:
                _register_exits()
            _POOLS[threads] = start_pool(library, threads)
        return _POOLS[threads]


def pool_address(library: Library, threads: int) -> int:
    """The address that kernels take for a pool of that many threads; 0 for one thread."""
    pool = shared_pool(library, threads)
    return 0 if pool is None else pool.address


def check_threads(count: int) -> int:
    """The count itself; TunefarmError if no pool can have so many threads."""
    if not isinstance(count, int) or not 1 <= count <= MAX_THREADS:
        raise TunefarmError(f"threads is {count!r}, expected a whole number, 1 to {MAX_THREADS}")
    return count


def default_threads() -> int:
    """TUNEFARM_NUM_THREADS, or the cores this process may use."""
    return settings.NUM_THREADS.get()


_REGISTERED: list[bool] = []


def _register_exits() -> None:
    if not _REGISTERED:
        _REGISTERED.append(True)
        atexit.register(_close_pools)
        os.register_at_fork(after_in_child=_forget_pools)


def _close_pools() -> None:
    for pool in _POOLS.values():
        pool.close()
    _POOLS.clear()


_ABANDONED: list[ThreadPool] = []


def _forget_pools() -> None:
    """In a forked child: the parent's workers are not here, and its locks may be held."""
    global _LOCK
    _LOCK = threading.Lock()
    _ABANDONED.extend(_POOLS.values())
    _POOLS.clear()

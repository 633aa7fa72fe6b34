"""Memory of the runner: aligned, in huge pages where there are any, and read-only on demand."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from functools import cache
from math import prod

import numpy as np
from tunefarm.worker.backend import Array, dtype_of
from tunefarm.worker.wire import Blob

_PROT_READ = 1


def empty_array(shape: Sequence[int], dtype: str) -> Array:
    """A zeroed array on pages of its own; MemoryError if there is no room."""
    kind = dtype_of(dtype)
    count = prod(shape)
    region = _region(max(1, count * kind.itemsize))
    return np.frombuffer(region, kind, count).reshape(tuple(shape))


def read_only_array(data: Blob, shape: Sequence[int], dtype: str) -> Array:
    """A copy of ``data`` on pages that the hardware protects from writes."""
    view = memoryview(data).cast("B")
    region = _region(max(1, view.nbytes))
    region[: view.nbytes] = view
    kind = dtype_of(dtype)
    array = np.frombuffer(region, kind, prod(shape)).reshape(tuple(shape))
    address = np.frombuffer(region, np.uint8).ctypes.data
    if _libc().mprotect(ctypes.c_void_p(address), ctypes.c_size_t(len(region)), _PROT_READ):
        raise OSError(ctypes.get_errno(), "mprotect failed")
    array.flags.writeable = False
    return array


def _region(size: int) -> mmap.mmap:
    rounded = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    try:
        region = mmap.mmap(-1, rounded, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"{rounded} bytes of memory are not to be had") from error
    if rounded >= 2 << 20:
        region.madvise(mmap.MADV_HUGEPAGE)
    return region


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)

"""Memory of the runner: aligned, in huge pages where there are any, and read-only on demand."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
from tunefarm.worker.backend import Array, dtype_of
from tunefarm.worker.wire import Blob

_PROT_READ = 1
_THIRD_CACHE = "/sys/devices/system/cpu/cpu0/cache/index3/size"


def empty_array(shape: Sequence[int], dtype: str) -> Array:
    """A zeroed array on pages of its own; MemoryError if there is no room."""
    kind = dtype_of(dtype)
    count = prod(shape)
    region = _region(max(1, count * kind.itemsize))
    return np.frombuffer(region, kind, count).reshape(tuple(shape))


def copies_of(arrays: Sequence[Array], count: int) -> list[list[Array]]:
    """So many copies of arrays, side by side in one region: a row of them for each."""
    sizes = [-(-array.nbytes // mmap.PAGESIZE) * mmap.PAGESIZE for array in arrays]
    region = _region(max(1, count * sum(sizes)))
    rows, offset = [], 0
    for _ in range(count):
        row = []
        for array, size in zip(arrays, sizes, strict=True):
            flat = np.frombuffer(region, array.dtype, array.size, offset)
            row.append(flat.reshape(array.shape))
            row[-1][...] = array
            offset += size
        rows.append(row)
    return rows


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
def third_cache_bytes() -> int:
    """Bytes of this machine's third cache; 0 where the system does not tell."""
    try:
        text = Path(_THIRD_CACHE).read_text().strip()
    except OSError:
        return 0
    digits = text.rstrip("KMG")
    return int(digits) << {"": 0, "K": 10, "M": 20, "G": 30}[text[len(digits) :]]


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)

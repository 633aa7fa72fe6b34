"""Arrays at the door of native code: aligned allocation, and what a caller may pass in."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.runtime import dlpack
from tunefarm.compiler.target import STAGGER_BYTES, STAGGER_PERIOD

Array: TypeAlias = NDArray[Any]

ALIGNMENT = 64  # bytes; kernels load whole vectors from the start of every parameter
_HUGE_PAGE = 2 << 20
_WORTH_HUGE = _HUGE_PAGE // 8


def aligned_bytes(count: int, alignment: int = ALIGNMENT) -> NDArray[np.uint8]:
    """``count`` uninitialised bytes whose address is a multiple of ``alignment``."""
    raw = np.empty(count + alignment, np.uint8)
    start = -address(raw) % alignment
    return raw[start : start + count]


def lasting_bytes(count: int) -> NDArray[np.uint8]:
    """``count`` bytes from the start of a page, for memory that lives as long as a module.

    They are on huge pages where the system has them: where small ones happen to lie decides which
    of them share a set of the second-level cache, and ResNet-18 takes up to 1.3 × the time in one
    process of what it takes in another (Zen 5). The mapping is private: shared ones are files in
    memory, which systems rarely put on huge pages. What is behind the last whole huge page has one
    too if it fills half of it.
    """
    if count < _WORTH_HUGE or not hasattr(mmap, "MADV_HUGEPAGE"):
        return aligned_bytes(count, mmap.PAGESIZE)
    size = -(-count // _HUGE_PAGE) * _HUGE_PAGE + _HUGE_PAGE
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    raw = np.frombuffer(pages, np.uint8)
    start = -address(raw) % _HUGE_PAGE
    huge = max((count + _HUGE_PAGE // 2) // _HUGE_PAGE, 1) * _HUGE_PAGE
    with contextlib.suppress(OSError):  # a system without them
        pages.madvise(mmap.MADV_HUGEPAGE, start, huge)
        pages.madvise(mmap.MADV_NOHUGEPAGE, start + huge)
    return raw[start : start + count]


def aligned_empty(tensor: TensorType) -> Array:
    """An uninitialised aligned array of a tensor type."""
    dtype = numpy_dtype(tensor.dtype)
    raw = np.empty(prod(tensor.shape) * dtype.itemsize + ALIGNMENT, np.uint8)
    return np.ndarray(tensor.shape, dtype, raw, -address(raw) % ALIGNMENT)


def empty_apart(tensor: TensorType, other: Array | None) -> Array:
    """An uninitialised aligned array that begins ``STAGGER_BYTES`` from another one, modulo their
    period, as large values that are neighbours in the memory of a model do (``plan_memory``)."""
    if other is None:
        return aligned_empty(tensor)
    dtype = numpy_dtype(tensor.dtype)
    raw = np.empty(prod(tensor.shape) * dtype.itemsize + STAGGER_PERIOD + ALIGNMENT, np.uint8)
    aligned = -address(raw) % ALIGNMENT
    before = (address(raw) + aligned - address(other)) // ALIGNMENT * ALIGNMENT
    return np.ndarray(tensor.shape, dtype, raw, aligned + (STAGGER_BYTES - before) % STAGGER_PERIOD)


def aligned_copy(array: Array) -> Array:
    """A C-contiguous aligned copy."""
    copy = aligned_empty(TensorType(array.shape, array.dtype.name))
    copy[...] = array
    return copy


def address(array: Array) -> int:
    """The address of an array's first element.

    Through the buffer protocol where it can be (writable, contiguous), in 0.4 µs instead of 2.5.
    """
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(array.data))
    except (AttributeError, BufferError, TypeError, ValueError):
        return int(array.__array_interface__["data"][0])


def as_input(value: object, tensor: TensorType, what: str, aligned: bool = True) -> Array:
    """``value`` (a NumPy array or a DLPack tensor) as a C-contiguous array, aligned to 64 bytes or,
    not ``aligned``, to its elements.

    It is copied only if it is not so already. Raises ShapeError, naming ``what``, if its dtype
    or shape is not that of ``tensor``, or it is no array.
    """
    array = _as_array(value, what)
    if array.dtype != numpy_dtype(tensor.dtype):
        raise ShapeError(
            f"{what} has dtype {array.dtype.name}, expected {tensor.dtype}; convert it first"
        )
    if array.shape != tensor.shape:
        raise ShapeError(f"{what} has shape {array.shape}, expected {tensor.shape}")
    fits = address(array) % ALIGNMENT == 0 if aligned else array.flags.aligned
    return array if array.flags.c_contiguous and fits else aligned_copy(array)


def check_output(array: Array, tensor: TensorType, what: str) -> Array:
    """``array`` if a kernel can write a ``tensor`` straight into it; else ShapeError."""
    if array.dtype != numpy_dtype(tensor.dtype) or array.shape != tensor.shape:
        raise ShapeError(f"{what} is {array.dtype.name}{list(array.shape)}, expected {tensor}")
    if not (array.flags.c_contiguous and array.flags.writeable) or address(array) % ALIGNMENT:
        raise ShapeError(f"{what} must be writable, C-contiguous and {ALIGNMENT}-byte aligned")
    return array


def _as_array(value: object, what: str) -> Array:
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    if not hasattr(value, "__dlpack__"):
        raise ShapeError(
            f"{what} is a {type(value).__name__}, expected a NumPy array or a DLPack tensor"
        )
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        array = _unknown_to_numpy(value, what)
        if array is None:
            raise ShapeError(f"{what} cannot be read through DLPack: {error}") from None
        return array


@dataclass(frozen=True, slots=True, eq=False)
class _Halves:
    """Borrowed elements of 16 bits, which the array that NumPy makes of this keeps."""

    lent: dlpack.Borrowed

    @property
    def __array_interface__(self) -> dict[str, Any]:
        place = (self.lent.address, False)
        return {"version": 3, "typestr": "<u2", "shape": self.lent.type.shape, "data": place}


def _unknown_to_numpy(value: Any, what: str) -> Array | None:
    """A tensor of bfloat16 in the host's memory, which ``np.from_dlpack`` refuses; None for others.

    ShapeError, naming ``what``, if it does not lie as in C.
    """
    try:
        kind, _ = value.__dlpack_device__()
        capsule = value.__dlpack__() if kind == dlpack.HOST else None
    except (BufferError, RuntimeError, TypeError, ValueError):
        return None
    lent = None if capsule is None else dlpack.borrow(capsule, what)
    if lent is None or lent.type.dtype != "bfloat16":
        return None
    if not lent.contiguous:
        raise ShapeError(f"{what} is a view that does not lie as in C; make it contiguous first")
    dtype = numpy_dtype("bfloat16")
    if not prod(lent.type.shape):
        return np.empty(lent.type.shape, dtype)
    return np.asarray(_Halves(lent)).view(dtype)

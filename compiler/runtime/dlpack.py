"""DLPack's capsules, read and made through ctypes: tensors of other libraries without a copy.

Source: "DLPack: Open In Memory Tensor Structure" (dlpack.h, unversioned capsules, which every
library takes) and its "Python Specification".
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tunefarm.compiler.errors import ShapeError
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.target import dtype_bytes

HOST = 1  # kinds of devices
CUDA = 2
CUDA_MANAGED = 13
_NAME = b"dltensor"  # kept here: a capsule has the pointer, not a copy
_CODES = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6}


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("ordinal", ctypes.c_int32))


class _DataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))
_Destructor = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)


@dataclass(frozen=True, slots=True, eq=False)
class Borrowed:
    """A tensor of another library, whose memory stays as long as this does."""

    address: int
    type: TensorType
    contiguous: bool
    ordinal: int
    keep: object


def borrow(capsule: object, what: str) -> Borrowed:
    """What a capsule holds; ShapeError, naming ``what``, for an element type we do not have."""
    python = ctypes.pythonapi
    get = python.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    tensor = _Managed.from_address(get(capsule, _NAME)).tensor
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
    start = (tensor.data or 0) + tensor.byte_offset
    kind = TensorType(shape, _name_of(tensor.dtype, what))
    return Borrowed(start, kind, is_contiguous(shape, strides), int(tensor.device.ordinal), capsule)


def _name_of(dtype: _DataType, what: str) -> str:
    kind = next((name for name, code in _CODES.items() if code == dtype.code), None)
    if kind is None or dtype.lanes != 1:
        raise ShapeError(
            f"{what} has elements of DLPack's type {dtype.code} with {dtype.lanes} lanes, which "
            "no kernel takes"
        )
    return "bool" if kind == "bool" else f"{kind}{dtype.bits}"


def is_contiguous(shape: Sequence[int], strides: Sequence[int] | None) -> bool:
    """Whether elements lie as in C, given strides in elements (None: they do)."""
    expected = 1
    if strides is None or not prod(shape):
        return True
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


@dataclass(frozen=True, slots=True, eq=False)
class _Lent:
    managed: _Managed
    shape: ctypes.Array[ctypes.c_int64]
    owner: object


_LENT: dict[int, _Lent] = {}  # by the address of the structure that another library has


def lend(address: int, tensor: TensorType, device: tuple[int, int], owner: object) -> object:
    """A capsule of a C-contiguous tensor; ``owner`` is kept until nobody has it any more."""
    shape = (ctypes.c_int64 * len(tensor.shape))(*tensor.shape)
    name = tensor.dtype.rstrip("0123456789")
    bits = 8 * dtype_bytes(tensor.dtype)
    managed = _Managed(
        _Tensor(
            address,
            _Device(*device),
            len(tensor.shape),
            _DataType(_CODES[name], bits, 1),
            ctypes.cast(shape, ctypes.POINTER(ctypes.c_int64)),
            None,
            0,
        ),
        None,
        _DELETER,
    )
    place = ctypes.addressof(managed)
    _LENT[place] = _Lent(managed, shape, owner)
    new = ctypes.pythonapi.PyCapsule_New
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, _Destructor)
    capsule: object = new(place, _NAME, _DESTRUCTOR)
    return capsule


def _give_back(managed: ctypes._Pointer[_Managed]) -> None:
    _LENT.pop(ctypes.addressof(managed.contents), None)


def _drop(capsule: int) -> None:
    """A capsule that nobody took ends: one that was taken has another name by then."""
    python = ctypes.PyDLL(None)
    named = python.PyCapsule_IsValid
    named.restype, named.argtypes = ctypes.c_int, (ctypes.c_void_p, ctypes.c_char_p)
    if named(capsule, _NAME):
        get = python.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_char_p)
        _LENT.pop(get(capsule, _NAME), None)


_DELETER = _Deleter(_give_back)
_DESTRUCTOR = _Destructor(_drop)

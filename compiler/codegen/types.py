"""How dtypes and constants are written in LLVM text."""

from __future__ import annotations

import struct
from functools import cache
from math import copysign, inf, isnan

import numpy as np
from tunefarm.compiler.errors import BuildError

_SCALARS = {
    "float64": "double",
    "float32": "float",
    "float16": "half",
    "bfloat16": "i16",  # LLVM fails on vectors of bfloat whose length is no power of two
    "int64": "i64",
    "int32": "i32",
    "int16": "i16",
    "int8": "i8",
    "uint64": "i64",
    "uint32": "i32",
    "uint16": "i16",
    "uint8": "i8",
    "bool": "i1",
}
_SINGLE, _DOUBLE, _BITS = struct.Struct("<f"), struct.Struct("<d"), struct.Struct("<Q")
_SUFFIX = {"float": "f32", "double": "f64", "half": "f16"}


def scalar_type(dtype: str) -> str:
    """The LLVM type of a value; BuildError for a dtype without code."""
    if dtype not in _SCALARS:
        raise BuildError(f"dtype {dtype} has no code; known: {', '.join(_SCALARS)}")
    return _SCALARS[dtype]


def memory_type(dtype: str) -> str:
    """The LLVM type of an element in memory; a bool takes a byte."""
    return "i8" if dtype == "bool" else scalar_type(dtype)


@cache
def vector_of(scalar: str, lanes: int) -> str:
    return scalar if lanes == 1 else f"<{lanes} x {scalar}>"


@cache
def suffix(dtype: str, lanes: int) -> str:
    """The overload suffix of an intrinsic: ``v16f32``."""
    scalar = scalar_type(dtype)
    return f"{'' if lanes == 1 else f'v{lanes}'}{_SUFFIX.get(scalar, scalar)}"


def is_float(dtype: str) -> bool:
    return "float" in dtype


def is_unsigned(dtype: str) -> bool:
    return dtype.startswith("uint") or dtype == "bool"


def is_narrow_float(dtype: str) -> bool:
    """Floats that are computed in float32 and rounded."""
    return dtype in ("float16", "bfloat16")


def constant(value: int | float | bool, dtype: str) -> str:
    """A scalar literal, exact."""
    if dtype == "bool":
        return "true" if value else "false"
    if not is_float(dtype):
        return str(int(value))
    number = float(value)
    if dtype == "float32":
        number = _rounded(number)
    if dtype in ("float64", "float32"):
        bits = _BITS.unpack(_DOUBLE.pack(number))[0]
        return f"0x{0x7FF8000000000000 if isnan(number) else bits:016X}"
    if dtype == "float16":
        return f"0xH{np.float16(number).view(np.uint16):04X}"
    import ml_dtypes

    return str(int(np.asarray(number, ml_dtypes.bfloat16).view(np.uint16)))


def _rounded(number: float) -> float:
    """The nearest float32; infinity beyond the largest."""
    try:
        rounded: float = _SINGLE.unpack(_SINGLE.pack(number))[0]
    except OverflowError:
        return copysign(inf, number)
    return rounded


def memory_suffix(dtype: str, lanes: int) -> str:
    """How an intrinsic that moves elements is called for vectors of them."""
    return f"v{lanes}i8" if dtype == "bool" else suffix(dtype, lanes)

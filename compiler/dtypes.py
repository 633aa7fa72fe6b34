"""Element types: their names, their NumPy dtypes, and the type that arithmetic is done in."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

FLOATS = ("float16", "bfloat16", "float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGERS = SIGNED + UNSIGNED
DTYPES = ("bool", *INTEGERS, *FLOATS)


@cache
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of an element type; bfloat16 is ml_dtypes'."""
    if name == "bfloat16":
        import ml_dtypes

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


def is_float(name: str) -> bool:
    return name in FLOATS


def smallest_of(name: str) -> float:
    """The smallest positive number of a floating-point type, which is how far apart the small ones
    are."""
    return float(_limits(name).smallest_subnormal)


def epsilon_of(name: str) -> float:
    """How far the next number of a floating-point type is from 1."""
    return float(_limits(name).eps)


def lowest_of(name: str) -> float:
    """The lowest number of a floating-point type that is not infinite."""
    return float(_limits(name).min)


def _limits(name: str) -> Any:
    if name == "bfloat16":
        import ml_dtypes

        return ml_dtypes.finfo(name)
    return np.finfo(name)


def wide(name: str) -> str:
    """The dtype that arithmetic on ``name`` is done in: float32 for the 16-bit floats."""
    return "float32" if name in ("float16", "bfloat16") else name

"""Types of PTX: how bits in registers become NumPy values, and values bits again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[Any]
UNSIGNED: Mapping[int, np.dtype[Any]] = {
    1: np.dtype(np.bool_), 8: np.dtype(np.uint8), 16: np.dtype(np.uint16),
    32: np.dtype(np.uint32), 64: np.dtype(np.uint64),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kind:
    """A type: ``decode`` makes values of an array of unsigned numbers of ``bits``, ``encode`` does
    the reverse, with one rounding. Two floats in one register are one more axis of the values.

    ``family`` is "bits", "signed", "unsigned", "float" or "pred".
    """

    name: str
    bits: int
    family: str
    decode: Callable[[Values], Values]
    encode: Callable[[Values], Values]

    @property
    def unsigned(self) -> np.dtype[Any]:
        return UNSIGNED[self.bits]


def _same(values: Values) -> Values:
    return values


def _native(name: str, bits: int, family: str, dtype: Any) -> Kind:
    kind, unsigned = np.dtype(dtype), UNSIGNED[bits]
    if kind == unsigned:
        return Kind(name, bits, family, _same, _same)
    return Kind(name, bits, family, lambda v: v.view(kind), lambda v: v.view(unsigned))


def half_to_single(bits: Values) -> Values:
    return bits.view(np.float16).astype(np.float32)


def single_to_half(values: Values) -> Values:
    return values.astype(np.float16).view(np.uint16)


def brain_to_single(bits: Values) -> Values:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def single_to_brain(values: Values) -> Values:
    """The upper half of the float's bits, rounded to the nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    high = (rounded >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FFF), high)


def _pairs(
    decode: Callable[[Values], Values], encode: Callable[[Values], Values]
) -> tuple[Callable[[Values], Values], Callable[[Values], Values]]:
    """The same for two floats in 32 bits, the first in the lower half."""

    def apart(bits: Values) -> Values:
        return decode(np.ascontiguousarray(bits).view(np.uint16)).reshape(-1, 2)

    def together(values: Values) -> Values:
        return np.ascontiguousarray(encode(values)).reshape(-1).view(np.uint32)

    return apart, together


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("pred", 1, "pred", _same, _same),
        *(_native(f"b{bits}", bits, "bits", f"uint{bits}") for bits in (8, 16, 32, 64)),
        *(_native(f"u{bits}", bits, "unsigned", f"uint{bits}") for bits in (8, 16, 32, 64)),
        *(_native(f"s{bits}", bits, "signed", f"int{bits}") for bits in (8, 16, 32, 64)),
        _native("f32", 32, "float", np.float32),
        _native("f64", 64, "float", np.float64),
        Kind("f16", 16, "float", half_to_single, single_to_half),
        Kind("bf16", 16, "float", brain_to_single, single_to_brain),
        Kind("f16x2", 32, "float", *_pairs(half_to_single, single_to_half)),
        Kind("bf16x2", 32, "float", *_pairs(brain_to_single, single_to_brain)),
    )
}
INTEGERS = tuple(k for k in KINDS.values() if k.family in ("bits", "signed", "unsigned"))
FLOATS = tuple(k for k in KINDS.values() if k.family == "float")


def contiguous(values: Values) -> Values:
    """The values side by side, as ``view`` needs them; scalars and broadcasts become arrays."""
    return np.ascontiguousarray(values)

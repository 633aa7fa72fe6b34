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


def single_to_bits(values: Values) -> Values:
    """Bits of float32, to which float64 is rounded."""
    return values.astype(np.float32, copy=False).view(np.uint32)


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


def _pair(name: str, of: Kind) -> Kind:
    """Two values in one register, the first in the lower half."""
    half, whole = of.unsigned, UNSIGNED[2 * of.bits]

    def decode(bits: Values) -> Values:
        return of.decode(np.ascontiguousarray(bits).view(half)).reshape(-1, 2)

    def encode(values: Values) -> Values:
        return np.ascontiguousarray(of.encode(values)).reshape(-1).view(whole)

    return Kind(name, 2 * of.bits, of.family, decode, encode)


_SINGLES = (
    Kind("pred", 1, "pred", _same, _same),
    *(_native(f"b{bits}", bits, "bits", f"uint{bits}") for bits in (8, 16, 32, 64)),
    *(_native(f"u{bits}", bits, "unsigned", f"uint{bits}") for bits in (8, 16, 32, 64)),
    *(_native(f"s{bits}", bits, "signed", f"int{bits}") for bits in (8, 16, 32, 64)),
    Kind("f16", 16, "float", half_to_single, single_to_half),
    Kind("bf16", 16, "float", brain_to_single, single_to_brain),
    Kind("f32", 32, "float", lambda v: v.view(np.float32), single_to_bits),
    _native("f64", 64, "float", np.float64),
)
KINDS: Mapping[str, Kind] = {k.name: k for k in _SINGLES} | {
    f"{k.name}x2": _pair(f"{k.name}x2", k)
    for k in _SINGLES
    if k.name in ("f16", "bf16", "f32", "s16", "u16")
}
_INTEGER_FAMILIES = ("bits", "signed", "unsigned")
INTEGERS = tuple(k for k in _SINGLES if k.family in _INTEGER_FAMILIES)
FLOATS = tuple(k for k in KINDS.values() if k.family == "float")

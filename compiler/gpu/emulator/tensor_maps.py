"""Tensor maps as the emulator's drivers make them, and the boxes of a tensor that they describe.

What NVIDIA's 128 bytes hold is its own affair; these hold the arguments of
``cuTensorMapEncodeTiled``, checked as it is documented to (NVIDIA, "CUDA Driver API"). Elements are
copied without interleaving, zeros where the tensor has none.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from tunefarm.compiler.gpu.boxes import MAX_BOX, MAX_EXTENT, MAX_RANK, STRIDE_BYTES
from tunefarm.compiler.gpu.emulator.errors import EmulatorError
from tunefarm.compiler.gpu.emulator.kinds import Values
from tunefarm.compiler.gpu.tensor_maps import MAP_BYTES

CHUNK = 16  # bytes that stay together
SWIZZLED = (0, 32, 64, 128)  # bytes of a row
_MAGIC = b"emulated"
_FORM = struct.Struct("<8sQBBB5I4Q5H")
_MAX_STRIDE = 1 << 40


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor at an address, and the box of it that an instruction copies: extents, strides in
    bytes and box from the axis on that lies side by side."""

    address: int
    item_bytes: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @property
    def box_bytes(self) -> int:
        return prod(self.box) * self.item_bytes

    def sources(self, corner: Sequence[int], unit: int) -> tuple[Values, Values]:
        """The address of each ``unit`` bytes of the box at a corner, and whether they exist."""
        each = unit // self.item_bytes
        counts = (self.box[0] // each, *self.box[1:])
        at = np.zeros(tuple(reversed(counts)), np.int64) + self.address
        exists = np.ones(at.shape, np.bool_)
        strides = (self.item_bytes, *self.strides)
        for axis, (count, begin) in enumerate(zip(counts, corner, strict=True)):
            step = each if axis == 0 else 1
            places = begin + step * np.arange(count)
            shape = [1] * at.ndim
            shape[at.ndim - 1 - axis] = count
            at += (places * strides[axis]).reshape(shape)
            exists &= ((places >= 0) & (places + step <= self.extents[axis])).reshape(shape)
        return at.reshape(-1), exists.reshape(-1)

    def unit(self, corner: Sequence[int]) -> int:
        """The most bytes of which all exist or none do: a chunk, or an element."""
        ends = (corner[0] * self.item_bytes, self.extents[0] * self.item_bytes)
        return self.item_bytes if any(end % CHUNK for end in ends) else CHUNK

    def targets(self, address: int) -> Values:
        """Where the chunks of a box go that begins at an address of shared memory."""
        chunks = address + CHUNK * np.arange(self.box_bytes // CHUNK, dtype=np.uint64)
        if not self.swizzle:
            return chunks
        line = (chunks >> np.uint64(7)) & np.uint64(self.swizzle // CHUNK - 1)
        swizzled: Values = chunks ^ (line << np.uint64(4))
        return swizzled


def encode(tensor: Tensor) -> bytes:
    """The 128 bytes of a map; EmulatorError for what the driver refuses or the emulator lacks."""
    _check(tensor)

    def filled(numbers: Sequence[int], count: int) -> list[int]:
        return [*numbers, *[0] * (count - len(numbers))]

    extents = [extent - 1 for extent in tensor.extents]
    packed = _FORM.pack(
        _MAGIC, tensor.address, len(tensor.extents), tensor.item_bytes, tensor.swizzle,
        *filled(extents, MAX_RANK), *filled(tensor.strides, MAX_RANK - 1),
        *filled(tensor.box, MAX_RANK),
    )  # fmt: skip
    return packed.ljust(MAP_BYTES, b"\0")


def decode(data: bytes) -> Tensor | None:
    """The tensor of a map; None if these bytes are none."""
    magic, address, rank, item, swizzle, *rest = _FORM.unpack_from(data)
    if magic != _MAGIC:
        return None
    extents, strides, box = rest[:MAX_RANK], rest[MAX_RANK : 2 * MAX_RANK - 1], rest[-MAX_RANK:]
    return Tensor(
        address, item, tuple(extent + 1 for extent in extents[:rank]), tuple(strides[: rank - 1]),
        tuple(box[:rank]), swizzle,
    )  # fmt: skip


def _check(t: Tensor) -> None:
    rank = len(t.extents)
    wrong = (
        ("rank", not 1 <= rank <= MAX_RANK or len(t.strides) != rank - 1 or len(t.box) != rank),
        ("address", t.address % CHUNK),
        ("extents", not all(0 < extent <= MAX_EXTENT for extent in t.extents)),
        ("strides", any(s % STRIDE_BYTES or not 0 < s < _MAX_STRIDE for s in t.strides)),
        ("box", not all(0 < extent <= MAX_BOX for extent in t.box)),
        ("row of a box", t.box[0] * t.item_bytes % CHUNK),
        ("swizzle", t.swizzle not in SWIZZLED),
        ("swizzled row", t.swizzle and t.box[0] * t.item_bytes > t.swizzle),
    )
    for what, is_wrong in wrong:
        if is_wrong:
            raise EmulatorError(f"a tensor map cannot be made of {t}: its {what} is not allowed")

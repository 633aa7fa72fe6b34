"""What a kernel's argument says of a tensor whose boxes it copies: a tensor map.

The host makes it of the address of a parameter when the kernel is launched; it is the documented
arguments of ``cuTensorMapEncodeTiled`` (NVIDIA, "CUDA Driver API"), and nothing of its 128 bytes,
which are the driver's own.
"""

from __future__ import annotations

from dataclasses import dataclass

MAP_BYTES, MAP_ALIGN = 128, 64


@dataclass(frozen=True, slots=True)
class TensorMap:
    """The tensor at argument number ``argument`` of a launch, its axis of stride 1 first.

    ``strides`` in bytes are those of the other axes; ``box`` is what an instruction copies. Rows of
    ``swizzle`` bytes (0: as they are) lie in shared memory with their 16 bytes exchanged.
    """

    argument: int
    dtype: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @property
    def rank(self) -> int:
        return len(self.extents)


def tensor_map_of(
    argument: int,
    dtype: str,
    extents: list[int],
    strides: list[int],
    box: list[int],
    swizzle: int,
) -> TensorMap:
    """The map of JSON's values."""
    return TensorMap(argument, dtype, tuple(extents), tuple(strides), tuple(box), swizzle)

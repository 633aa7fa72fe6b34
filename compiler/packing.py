"""Packing of constant operands: the tensor that a kernel's layout asks for, made once."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunefarm.compiler.tir.ir import PackedLayout


def pack(
    array: NDArray[Any], layout: PackedLayout | None, shape: tuple[int, ...]
) -> NDArray[Any]:
    """The array viewed as the program's own (unpacked) ``shape``, split, padded with zeros and
    permuted by ``layout``; only viewed if there is none."""
    if layout is None:
        return array.reshape(shape)
    viewed = array.reshape(unpacked_shape(array.shape, layout))
    split: list[int] = []
    padding: list[tuple[int, int]] = []
    for extent, factors in zip(viewed.shape, layout.factors, strict=True):
        inner = prod(factors)
        outer = -(-extent // inner)
        padding.append((0, outer * inner - extent))
        split += [outer, *factors]
    if any(after for _, after in padding):
        viewed = np.pad(viewed, padding)
    return np.ascontiguousarray(viewed.reshape(split).transpose(layout.order)).reshape(shape)


def unpacked_shape(shape: tuple[int, ...], layout: PackedLayout) -> tuple[int, ...]:
    """The shape that the layout splits: the tensor's own, or its view without leading units."""
    rank = len(layout.factors)
    extra = len(shape) - rank
    if extra > 0 and all(e == 1 for e in shape[:extra]):
        return shape[extra:]
    return shape

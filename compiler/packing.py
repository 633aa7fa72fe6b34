"""Packing of constant operands: the tensor that a kernel's layout asks for, made once."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.tir.ir import PackedLayout


def pack(array: NDArray[Any], layout: PackedLayout | None, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array as a kernel's parameter of ``shape`` reads it: split, padded with zeros and
    permuted as its layout says; only viewed if there is none."""
    if layout is None:
        return array.reshape(shape)
    packed = np.empty(shape, array.dtype)
    pack_into(packed, array, layout)
    return packed


def pack_into(out: NDArray[Any], array: NDArray[Any], layout: PackedLayout | None) -> None:
    """Write what ``pack`` returns into ``out``, C-contiguous and of the parameter's shape."""
    if layout is None:
        np.copyto(out, array.reshape(out.shape))
        return
    viewed = array.reshape(layout.shape)
    split: list[int] = []
    padding: list[tuple[int, int]] = []
    for extent, factors in zip(viewed.shape, layout.factors, strict=True):
        inner = prod(factors)
        outer = -(-extent // inner)
        padding.append((0, outer * inner - extent))
        split += [outer, *factors]
    if any(after for _, after in padding):
        viewed = np.pad(viewed, padding)
    permuted = viewed.reshape(split).transpose(layout.order)
    np.copyto(out.reshape(permuted.shape), permuted)

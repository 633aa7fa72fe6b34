"""Converters of operators on weights of a few bits, which are constants of numbers in the graph."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.frontend.onnx.microsoft.standard import refuse
from tunefarm.compiler.frontend.onnx.node import Converter, Node, Unsupported, axis_of
from tunefarm.compiler.frontend.onnx.shape import gather
from tunefarm.compiler.ir import Constant, Expr

Array = NDArray[Any]


def _bits(node: Node) -> int:
    bits = int(node.attr("bits", 4))
    if bits not in (2, 4, 8):
        raise Unsupported(f"weights of {bits} bits are not supported, those of 2, 4 and 8 are")
    return bits


def _unpacked(data: Array, bits: int) -> Array:
    """The numbers in the bytes of each row, the lowest bits first; what are no bytes as it is."""
    if data.dtype != np.uint8:
        return data
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (data[..., None] >> shifts) & np.uint8(2**bits - 1)
    return numbers.reshape(*data.shape[:-1], -1)


def _dequantized(data: Array, scales: Array, zeros: Array | None, bits: int, block: int) -> Array:
    """(number - zero) · scale in the scales' type; scales and zero points are one for each block of
    neighbours in a row. Without zero points it is the middle of what the bits can say."""
    numbers = _unpacked(data, bits).astype(np.float32)
    zeros = np.full_like(scales, 2 ** (bits - 1)) if zeros is None else _unpacked(zeros, bits)
    places = np.arange(numbers.shape[-1]) // block
    for name, given in (("scales", scales), ("zero_points", zeros)):
        if places[-1] >= given.shape[-1]:
            raise Unsupported(
                f"{name} of {given.shape[-1]} blocks for {len(places)} numbers in blocks of {block}"
            )
    numbers -= zeros[..., places]
    numbers *= scales[..., places]
    return numbers.astype(scales.dtype, copy=False)


def _rows(node: Node, index: int, name: str, count: int) -> Array:
    """A constant input as so many rows."""
    values = node.constant(index, name)
    if values.size % count:
        raise Unsupported(f"{name} of shape {values.shape} does not divide into N={count} rows")
    return values.reshape(count, -1)


def _matmul(node: Node) -> Expr:
    """A · Bᵀ + bias of B [N, K] in bytes with scales and zero points; in the graph B is a constant
    of the scales' type."""
    refuse(node, {"weight_prepacked": 0}, {4: "g_idx"})
    count, depth = int(node.required("N")), int(node.required("K"))
    data, scales = _rows(node, 1, "B", count), _rows(node, 2, "scales", count)
    zeros = _rows(node, 3, "zero_points", count) if node.has(3) else None
    numbers = _dequantized(data, scales, zeros, _bits(node), int(node.required("block_size")))
    y = node.emit("matmul", node.x, Constant(numbers[:, :depth], node.name), transpose_b=True)
    return node.emit("add", y, node.input(5)) if node.has(5) else y


def _gather(node: Node) -> Expr:
    """Rows, or others along ``gather_axis``, of a table in bytes; in the graph it is a constant of
    the scales' type."""
    data, scales = node.constant(0, "data"), node.constant(2, "scales")
    zeros = node.constant(3, "zero_points") if node.has(3) else None
    axis = axis_of(int(node.attr("quantize_axis", 1)), data.ndim)
    if data.dtype != np.uint8 or axis != data.ndim - 1:
        raise Unsupported(
            f"data of {data.dtype.name} with quantize_axis={axis}; only bytes along the last are "
            "supported"
        )
    table = _dequantized(data, scales, zeros, _bits(node), int(node.attr("block_size", 128)))
    along = axis_of(int(node.attr("gather_axis", 0)), data.ndim)
    return gather(Constant(table, node.name), node.input(1), along, node.name)


CONVERTERS: dict[str, Converter] = {"MatMulNBits": _matmul, "GatherBlockQuantized": _gather}

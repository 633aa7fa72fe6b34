"""Converters of operators on weights of a few bits, which stay so in the graph."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.dtypes import is_float
from tunefarm.compiler.frontend.onnx.microsoft.standard import refuse
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    axis_of,
    broadcast_to,
    cast,
    dtype_of,
    expand_dims,
    reshape,
    shape_of,
    take_range,
)
from tunefarm.compiler.frontend.onnx.shape import gather
from tunefarm.compiler.ir import Constant, Expr
from tunefarm.compiler.ops.packed import packed_product, regroup_quanta

Array = NDArray[Any]

_BYTES = {2: 2, 3: 2, 4: 1}  # for float16 and bfloat16, and bytes; level 1 is float32


def _bits(node: Node) -> int:
    bits = int(node.attr("bits", 4))
    if bits not in (2, 4, 8):
        raise Unsupported(f"weights of {bits} bits are not supported, those of 2, 4 and 8 are")
    return bits


def _unpacked(data: Array, bits: int) -> Array:
    """The numbers in the bytes of each row, the lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (data[..., None] >> shifts) & np.uint8(2**bits - 1)
    return numbers.reshape(*data.shape[:-1], prod(data.shape[-1:]) * len(shifts))


def _dequantized(numbers: Array, scales: Array, points: Array, block: int) -> Array:
    """(number - zero point) · scale in the scales' type; scales and zero points are one for each
    block of neighbours in a row."""
    places = np.arange(numbers.shape[-1]) // block
    values = numbers.astype(np.float32)
    values -= points[..., places]
    values *= scales[..., places]
    return values.astype(scales.dtype, copy=False)


def _zero_points(scales: Array, zeros: Array | None, bits: int) -> Array:
    """A zero point for each scale, in its type. They are numbers, or bytes as the weights are;
    without them it is the middle of what the bits can say."""
    if zeros is None:
        return np.full_like(scales, 2 ** (bits - 1))
    if zeros.dtype != np.uint8:
        return zeros
    return _unpacked(zeros, bits)[..., : scales.shape[-1]].astype(scales.dtype)


def _check_blocks(name: str, given: Array, shape: tuple[int, ...], block: int) -> None:
    """Unsupported unless there is a float for each block of numbers of this shape."""
    if not is_float(given.dtype.name):
        raise Unsupported(f"{name} of {given.dtype.name} are not supported")
    *rows, count = shape
    if list(given.shape[:-1]) != rows or given.ndim == 0 or given.shape[-1] * block < count:
        raise Unsupported(
            f"{name} of shape {given.shape} for numbers of shape {shape} in blocks of {block}"
        )


def _rows(node: Node, index: int, name: str, count: int) -> Array:
    """A constant input as so many rows."""
    values = node.constant(index, name)
    if values.size % count:
        raise Unsupported(f"{name} of shape {values.shape} does not divide into N={count} rows")
    return values.reshape(count, -1)


def _matmul(node: Node) -> Expr:
    """A · Bᵀ + bias of B [N, K] in bytes with scales and zero points. What ``accuracy_level`` says
    of A, a kernel may do: its numbers keep as many bits in one byte, two or three."""
    refuse(node, {"weight_prepacked": 0}, {4: "g_idx"})
    count, depth, block = (node.positive(name) for name in ("N", "K", "block_size"))
    data, scales = _rows(node, 1, "B", count), _rows(node, 2, "scales", count)
    zeros = _rows(node, 3, "zero_points", count) if node.has(3) else None
    if data.dtype != np.uint8:
        raise Unsupported(f"B of {data.dtype.name}, and must be bytes (uint8)")
    bits, columns = _bits(node), shape_of(node.x)[-1:]
    numbers = data.shape[1] * 8 // bits
    if numbers < depth or columns != (depth,):
        raise Unsupported(f"rows of {numbers} numbers, and of {columns} in the data, for K={depth}")
    points = _zero_points(scales, zeros, bits)
    for name, given in (("scales", scales), ("zero_points", points)):
        _check_blocks(name, given, (count, depth), block)
    blocks = -(-depth // block)
    shape = shape_of(node.x)
    y: Expr = packed_product(
        reshape(cast(node.x, "float32"), (prod(shape[:-1]), depth)),
        regroup_quanta(data[:, : -(-depth * bits // 8)], bits),
        *(np.ascontiguousarray(p[:, :blocks].T.astype(np.float32)) for p in (scales, points)),
        block=block,
        bits=bits,
        bytes=_BYTES.get(int(node.attr("accuracy_level", 0)), 3),
        name=node.name,
    )
    y = cast(reshape(y, (*shape[:-1], count)), dtype_of(node.x))
    return node.emit("add", y, node.input(5)) if node.has(5) else y


def _gather(node: Node) -> Expr:
    """Rows, or others along ``gather_axis``, of a table in bytes, which are numbers once they are
    read; along the axis of its blocks, of one that is a constant of numbers."""
    data, scales = node.constant(0, "data"), node.constant(2, "scales")
    zeros = node.constant(3, "zero_points") if node.has(3) else None
    axis = axis_of(int(node.attr("quantize_axis", 1)), data.ndim)
    if data.dtype != np.uint8 or axis != data.ndim - 1:
        raise Unsupported(
            f"data of {data.dtype.name} with quantize_axis={axis}; only bytes along the last are "
            "supported"
        )
    block, bits = node.positive("block_size", 128), _bits(node)
    along = axis_of(int(node.attr("gather_axis", 0)), data.ndim)
    points = _zero_points(scales, zeros, bits)
    count = data.shape[-1] * 8 // bits
    for name, given in (("scales", scales), ("zero_points", points)):
        _check_blocks(name, given, (*data.shape[:-1], count), block)

    def found(table: Array) -> Expr:
        return gather(Constant(table, node.name), node.input(1), along, node.name)

    if along == axis:
        return found(_dequantized(_unpacked(data, bits), scales, points, block))
    shifts, mask = np.arange(0, 8, bits, dtype=np.uint8), np.array(2**bits - 1, np.uint8)
    parts = node.emit("right_shift", expand_dims(found(data), [-1]), Constant(shifts))
    numbers = node.emit("bitwise_and", parts, Constant(mask))
    wide = cast(reshape(numbers, (*shape_of(numbers)[:-2], count)), "float32")
    scale, point = (_spread(found(p.astype(np.float32)), block, count) for p in (scales, points))
    y = node.emit("multiply", node.emit("subtract", wide, point), scale)
    return cast(y, scales.dtype.name)


def _spread(parameter: Expr, block: int, count: int) -> Expr:
    """A number for each block as one for each of so many numbers, the last axis."""
    *rows, blocks = shape_of(parameter)
    each = broadcast_to(expand_dims(parameter, [-1]), (*rows, blocks, block))
    return take_range(reshape(each, (*rows, blocks * block)), len(rows), 0, count)


CONVERTERS: dict[str, Converter] = {"MatMulNBits": _matmul, "GatherBlockQuantized": _gather}

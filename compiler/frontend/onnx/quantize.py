"""Converters of quantisation: integers are scaled, rounded and clipped in plain arithmetic."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.dtypes import INTEGERS
from tunefarm.compiler.frontend.onnx.contract import matmul
from tunefarm.compiler.frontend.onnx.nn import conv
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    axis_of,
    broadcast_to,
    cast,
    dtype_name,
    dtype_of,
    expand_dims,
    like,
    per_channel,
    rank_of,
    reshape,
    shape_of,
)
from tunefarm.compiler.ir import Expr, tensor_type


def _spread(node: Node, parameter: Expr, x: Expr) -> Expr:
    """A scale or zero point that broadcasts to ``x``: for all, along an axis, or in blocks."""
    rank, block = rank_of(x), int(node.attr("block_size", 0))
    if tensor_type(parameter).size == 1 and not block:
        return reshape(parameter, ())
    axis = axis_of(node.attr("axis", 1), rank)
    if not block:
        return per_channel(parameter, rank, axis)
    extents = list(shape_of(parameter))
    extents.insert(axis + 1, block)
    wide = broadcast_to(expand_dims(parameter, [axis + 1]), extents)
    extents[axis : axis + 2] = [extents[axis] * block]
    return reshape(wide, extents)


def _rounded(node: Node, y: Expr, zero: Expr | None, dtype: str) -> Expr:
    """Round to even, add the zero point, clip to the integer type."""
    if dtype not in INTEGERS:
        raise Unsupported(f"quantisation to {dtype} is not supported")
    y = node.emit("round", y)
    if zero is not None:
        y = node.emit("add", y, cast(zero, dtype_of(y)))
    info = np.iinfo(dtype)
    return cast(node.emit("clip", y, min=float(info.min), max=float(info.max)), dtype)


def _quantize(node: Node) -> Expr:
    x, scale = node.x, node.input(1)
    dtype = "uint8"
    if node.has(2):
        dtype = dtype_of(node.input(2))
    elif node.attr("output_dtype", 0):
        dtype = dtype_name(node.attr("output_dtype"))
    zero = _spread(node, node.input(2), x) if node.has(2) else None
    inner = "float32" if dtype_of(x) != "float64" else "float64"
    scaled = node.emit("divide", cast(x, inner), cast(_spread(node, scale, x), inner))
    return _rounded(node, scaled, zero, dtype)


def _dequantize(node: Node) -> Expr:
    x, scale = node.x, _spread(node, node.input(1), node.x)
    dtype = dtype_of(scale)
    if node.attrs.get("output_dtype"):
        dtype = dtype_name(node.attrs["output_dtype"])
    y = cast(x, "float32")
    if node.has(2):
        y = node.emit("subtract", y, cast(_spread(node, node.input(2), x), "float32"))
    return cast(node.emit("multiply", y, cast(scale, "float32")), dtype)


def _dynamic_quantize(node: Node) -> list[Expr | None]:
    """A scale and zero point with which [min(x, 0), max(x, 0)] covers the range of uint8."""
    x = node.x
    axes = tuple(range(rank_of(x)))
    low, high = (
        node.emit(op, node.emit(limit, x, axes=axes, keepdims=False), like(0, x))
        for op, limit in (("minimum", "min"), ("maximum", "max"))
    )
    scale = node.emit("divide", node.emit("subtract", high, low), like(255, x))
    start = node.emit("divide", node.emit("subtract", like(0, x), low), scale)
    clipped = node.emit("clip", node.emit("round", start), min=0.0, max=255.0)
    zero = cast(clipped, "uint8")
    y = node.emit("add", node.emit("round", node.emit("divide", x, scale)), clipped)
    return [cast(node.emit("clip", y, min=0.0, max=255.0), "uint8"), scale, zero]


def _centred(node: Node, x: Expr, zero: int, axis: int | None = None) -> Expr:
    """``x − zero point`` in int32; a vector of zero points lies along ``axis``."""
    wide = cast(x, "int32")
    if not node.has(zero):
        return wide
    point = cast(node.input(zero), "int32")
    if tensor_type(point).size == 1:
        point = reshape(point, ())
    elif axis is not None and rank_of(point) == 1:
        point = per_channel(point, rank_of(x), axis % rank_of(x))
    return node.emit("subtract", wide, point)


def _matmul_integer(node: Node) -> Expr:
    a, b = _centred(node, node.input(0), 2, -2), _centred(node, node.input(1), 3, -1)
    return matmul(node, a, b)


def _conv_integer(node: Node) -> Expr:
    return conv(node, _centred(node, node.input(0), 2), _centred(node, node.input(1), 3, 0))


def _requantize(node: Node, y: Expr, scales: tuple[Expr, Expr], result: int, axis: int) -> Expr:
    """y · (scale a · scale b / scale y), rounded into the result's type."""
    product = node.emit("multiply", *(cast(s, "float32") for s in scales))
    ratio = node.emit("divide", product, cast(node.input(result), "float32"))
    if tensor_type(ratio).size > 1 and rank_of(ratio) == 1:
        ratio = per_channel(ratio, rank_of(y), axis % rank_of(y))
    elif tensor_type(ratio).size == 1:
        ratio = reshape(ratio, ())
    zero = node.input(result + 1)
    scaled = node.emit("multiply", cast(y, "float32"), ratio)
    point = reshape(zero, ()) if tensor_type(zero).size == 1 else zero
    return _rounded(node, scaled, point, dtype_of(zero))


def _qlinear_matmul(node: Node) -> Expr:
    a, b = _centred(node, node.input(0), 2, -2), _centred(node, node.input(3), 5, -1)
    return _requantize(node, matmul(node, a, b), (node.input(1), node.input(4)), 6, -1)


def _qlinear_conv(node: Node) -> Expr:
    y = conv(node, _centred(node, node.input(0), 2), _centred(node, node.input(3), 5, 0))
    if node.has(8):
        y = node.emit("add", y, per_channel(node.input(8), rank_of(y)))
    return _requantize(node, y, (node.input(1), node.input(4)), 6, 1)


CONVERTERS: dict[str, Converter] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
}

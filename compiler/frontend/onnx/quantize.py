"""Converters of quantisation.

Where scales and zero points are constants the graph says ``quantize`` and ``dequantize``, and an
operator on quantised tensors is dequantize, the operator on numbers, quantize: the pass
``lower_quantized`` finds the integer form of all that. Other scales are plain arithmetic.
"""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.dtypes import INTEGERS, is_float
from tunefarm.compiler.frontend.onnx.contract import matmul
from tunefarm.compiler.frontend.onnx.nn import conv
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Malformed,
    Node,
    Unsupported,
    axis_of,
    broadcast_to,
    cast,
    constant,
    dtype_name,
    dtype_of,
    expand_dims,
    like,
    per_channel,
    rank_of,
    reshape,
    shape_of,
    take_range,
)
from tunefarm.compiler.ir import Constant, Expr, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.quantize import QUANTA


def _spread(node: Node, parameter: Expr, x: Expr) -> Expr:
    """A scale or zero point that broadcasts to ``x``: for all, along an axis, or in blocks."""
    rank, block = rank_of(x), int(node.attr("block_size", 0))
    if tensor_type(parameter).size == 1 and not block:
        return reshape(parameter, ())
    axis = axis_of(node.attr("axis", 1), rank)
    if not block:
        return per_channel(parameter, rank, axis)
    _check_blocks(node, parameter, x, axis, block)
    extents = list(shape_of(parameter))
    extents.insert(axis + 1, block)
    wide = broadcast_to(expand_dims(parameter, [axis + 1]), extents)
    extents[axis : axis + 2] = [extents[axis] * block]
    return take_range(reshape(wide, extents), axis, 0, shape_of(x)[axis])


def _check_blocks(node: Node, parameter: Expr, x: Expr, axis: int, block: int) -> None:
    """Malformed unless there is a number for each block along the axis of ``x``."""
    extents = list(shape_of(x))
    extents[axis] = -(-extents[axis] // max(block, 1))
    if block < 0 or shape_of(parameter) != tuple(extents):
        raise Malformed(
            f"scales or zero points of shape {shape_of(parameter)} for data of shape {shape_of(x)} "
            f"in blocks of {block} along axis {axis}"
        )


def _rounded(node: Node, y: Expr, zero: Expr | None, dtype: str) -> Expr:
    """Round to even, add the zero point, clip to the integer type."""
    if dtype not in INTEGERS:
        raise Unsupported(f"quantisation to {dtype} is not supported")
    y = node.emit("round", y)
    if zero is not None:
        y = node.emit("add", y, cast(zero, dtype_of(y)))
    info = np.iinfo(dtype)
    return cast(node.emit("clip", y, min=float(info.min), max=float(info.max)), dtype)


def _known(scale: Expr, zero: Expr | None) -> tuple[Constant, Constant] | None:
    """Scale and zero point in float32, if they are constants and the scales positive."""
    if not isinstance(scale, Constant) or dtype_of(scale) != "float32":
        return None
    if not np.all(np.isfinite(scale.data) & (scale.data > 0)):
        return None
    if zero is None:
        return scale, constant(0, "float32")
    return (scale, Constant(zero.data.astype(np.float32))) if isinstance(zero, Constant) else None


def quantized(node: Node, y: Expr, scale: Expr, zero: Expr | None, dtype: str) -> Expr:
    """``y / scale`` rounded into ``dtype``; the parameters broadcast to ``y``."""
    inner = "float32" if dtype_of(y) != "float64" else "float64"
    known = _known(scale, zero)
    if known is not None and dtype in QUANTA and dtype_of(y) == "float32":
        return node.emit("quantize", y, *known, dtype=dtype)
    return _rounded(node, node.emit("divide", cast(y, inner), cast(scale, inner)), zero, dtype)


def dequantized(node: Node, x: Expr, scale: Expr, zero: Expr | None) -> Expr:
    """``(x - zero) * scale`` in the scale's dtype; weights stay integers in the graph."""
    known = _known(scale, zero)
    if known is not None and dtype_of(x) in (*QUANTA, "int32"):
        return call("dequantize", x, *known, name=node.name)
    y = cast(x, "float32")
    if zero is not None:
        y = node.emit("subtract", y, cast(zero, "float32"))
    return cast(node.emit("multiply", y, cast(scale, "float32")), dtype_of(scale))


def _quantize(node: Node) -> Expr:
    x, scale = node.x, _spread(node, node.input(1), node.x)
    dtype = "uint8"
    if node.has(2):
        dtype = dtype_of(node.input(2))
    elif node.attr("output_dtype", 0):
        dtype = dtype_name(node.attr("output_dtype"))
    zero = _spread(node, node.input(2), x) if node.has(2) else None
    return quantized(node, x, scale, zero, dtype)


def _dequantize(node: Node) -> Expr:
    """Blocks that divide their axis are one more axis, along which parameters broadcast."""
    x, block, shape = node.x, int(node.attr("block_size", 0)), shape_of(node.x)
    axis = axis_of(node.attr("axis", 1), len(shape)) if block else 0
    in_blocks = block > 0 and shape[axis] % block == 0
    if in_blocks:
        for parameter in (node.input(i) for i in (1, 2) if node.has(i)):
            _check_blocks(node, parameter, node.x, axis, block)
        x = reshape(x, (*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :]))

    def placed(parameter: Expr) -> Expr:
        return expand_dims(parameter, [axis + 1]) if in_blocks else _spread(node, parameter, x)

    zero = placed(node.input(2)) if node.has(2) else None
    y = reshape(dequantized(node, x, placed(node.input(1)), zero), shape)
    wanted = node.attrs.get("output_dtype")
    return cast(y, dtype_name(wanted)) if wanted else y


def _dynamic_quantize(node: Node) -> list[Expr | None]:
    """A scale and zero point with which [min(x, 0), max(x, 0)] covers the range of uint8."""
    x = node.x
    if not is_float(dtype_of(x)):
        raise Unsupported(f"takes floating-point numbers, not {dtype_of(x)}")
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
    """``x − zero point`` in int32; a vector of zero points lies along ``axis``.

    Constants are left to ``lower_quantized``, for which they are weights in one byte.
    """
    wide = call("cast", x, dtype="int32", name=node.name)
    if not node.has(zero):
        return wide
    point = cast(node.input(zero), "int32")
    if tensor_type(point).size == 1:
        point = reshape(point, ())
    elif axis is not None:
        point = _along(point, x, axis)
    return call("subtract", wide, point, name=node.name)


def _matmul_integer(node: Node) -> Expr:
    a, b = _centred(node, node.input(0), 2, -2), _centred(node, node.input(1), 3, -1)
    return matmul(node, a, b)


def _conv_integer(node: Node) -> Expr:
    return conv(node, _centred(node, node.input(0), 2), _centred(node, node.input(1), 3, 0))


def parameter(node: Node, index: int, x: Expr, axis: int) -> Expr | None:
    """A scale or zero point among the inputs, for all of ``x`` or along an axis; None if absent."""
    return spread(node.input(index), x, axis) if node.has(index) else None


def spread(value: Expr, x: Expr, axis: int) -> Expr:
    """A scale or zero point that broadcasts to ``x``, for all of it or along an axis."""
    if tensor_type(value).size == 1:
        return reshape(value, ())
    return _along(value, x, axis)


def _along(value: Expr, x: Expr, axis: int) -> Expr:
    """A vector that broadcasts along an axis of ``x``; other tensors as they are."""
    rank = rank_of(x)
    return per_channel(value, rank, axis % rank) if rank_of(value) == 1 and rank else value


def operand(node: Node, index: int, axis: int = 0) -> Expr:
    """The dequantised tensor of the inputs (x, scale, zero point) from ``index`` on."""
    x = node.input(index)
    scale = spread(node.input(index + 1), x, axis)
    return dequantized(node, x, scale, parameter(node, index + 2, x, axis))


def result(node: Node, y: Expr, index: int, dtype: str, axis: int = 0) -> Expr:
    """``y`` quantised by the inputs (scale, zero point) at ``index``, which may lack the zero."""
    scale, zero = spread(node.input(index), y, axis), parameter(node, index + 1, y, axis)
    return quantized(node, y, scale, zero, dtype if zero is None else dtype_of(zero))


def bias_of(node: Node, index: int, scales: tuple[int, int], y: Expr, axis: int) -> Expr:
    """The int32 bias of a product as numbers: its step is the product of two inputs' scales."""
    step = node.emit("multiply", *(reshape(node.input(i), _flat(node.input(i))) for i in scales))
    bias = node.input(index)
    scale = reshape(step, ()) if tensor_type(step).size == 1 else _along(step, y, axis)
    return dequantized(node, _along(bias, y, axis), scale, None)


def _flat(expr: Expr) -> tuple[int, ...]:
    """() for one number, else one dimension."""
    size = tensor_type(expr).size
    return () if size == 1 else (size,)


def _qlinear_matmul(node: Node) -> Expr:
    a, b = operand(node, 0, -2), operand(node, 3, -1)
    return result(node, matmul(node, a, b), 6, dtype_of(node.input(0)), -1)


def _qlinear_conv(node: Node) -> Expr:
    y = conv(node, operand(node, 0), operand(node, 3, 0))
    if node.has(8):
        y = node.emit("add", y, bias_of(node, 8, (1, 4), y, 1))
    return result(node, y, 6, dtype_of(node.input(0)), 1)


CONVERTERS: dict[str, Converter] = {
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _dynamic_quantize,
    "MatMulInteger": _matmul_integer,
    "ConvInteger": _conv_integer,
    "QLinearMatMul": _qlinear_matmul,
    "QLinearConv": _qlinear_conv,
}

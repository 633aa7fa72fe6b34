"""Converters of the operators on bytes that onnxruntime's quantizer writes.

Each is dequantize, the standard operator on numbers, quantize.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunefarm.compiler.frontend.onnx import contract, quantize
from tunefarm.compiler.frontend.onnx.microsoft.standard import standard
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    axis_of,
    cast,
    concat,
    dtype_of,
    rank_of,
)
from tunefarm.compiler.frontend.onnx.quantize import bias_of, operand, parameter, result, spread
from tunefarm.compiler.ir import Expr


def _on_numbers(op: str, operands: int = 1) -> Converter:
    """(x, scale, zero point) for each operand, then the result's scale and zero point."""

    def convert(node: Node) -> Expr:
        if node.attr("channels_last", 0):
            raise Unsupported("channels_last=1 is not supported")
        y = standard(node, op, *(operand(node, 3 * i) for i in range(operands)))
        return result(node, y, 3 * operands, dtype_of(node.x))

    return convert


def _concat(node: Node) -> Expr:
    """The result's scale and zero point come first."""
    parts = [operand(node, i) for i in range(2, max(len(node.inputs), 3), 3)]
    axis = axis_of(node.required("axis", 1), rank_of(parts[0]))
    return result(node, concat(parts, axis, node.name), 0, "uint8")


def _softmax(node: Node) -> Expr:
    """``opset`` says which meaning of ``axis`` holds."""
    opset = int(node.attr("opset", node.opset))
    y = standard(replace(node, opset=opset), "Softmax", operand(node, 0))
    return result(node, y, 3, dtype_of(node.x))


def _gemm(node: Node) -> Expr:
    """alpha · A · B + C; without the result's scale it stays numbers."""
    columns = 0 if node.attr("transB", 0) else 1
    inputs = operand(node, 0), operand(node, 3, columns)
    y = standard(node, "Gemm", *inputs)
    if node.has(6):
        if node.attr("alpha", 1.0) != 1:
            raise Unsupported("alpha with a bias")
        y = node.emit("add", y, bias_of(node, 6, (1, 4), y, -1))
    return result(node, y, 7, dtype_of(node.x)) if node.has(7) else y


def _integer_product(node: Node) -> Expr:
    """MatMulIntegerToFloat: A, B, scales of A and B, zero points of A and B, bias."""
    a, b = node.input(0), node.input(1)
    numbers = [
        quantize.dequantized(
            node, x, spread(node.input(index), x, axis), parameter(node, zero, x, axis)
        )
        for x, axis, index, zero in ((a, -2, 2, 4), (b, -1, 3, 5))
    ]
    y = contract.matmul(node, *numbers)
    return node.emit("add", y, node.input(6)) if node.has(6) else y


def _dynamic_product(node: Node) -> Expr:
    """DynamicQuantizeMatMul: A in float32, B, its scale and zero point, bias."""
    made = quantize.CONVERTERS["DynamicQuantizeLinear"](replace(node, inputs=(node.x,)))
    assert isinstance(made, Sequence)
    q, scale, zero = made
    integers = replace(
        node, inputs=(q, node.input(1), zero, node.input(3) if node.has(3) else None)
    )
    total = quantize.CONVERTERS["MatMulInteger"](integers)
    assert scale is not None
    assert not isinstance(total, Sequence)
    step = spread(node.input(2), node.input(1), -1)
    y = node.emit("multiply", cast(total, "float32"), node.emit("multiply", step, scale))
    return node.emit("add", y, node.input(4)) if node.has(4) else y


CONVERTERS: dict[str, Converter] = {
    "QuantizeLinear": quantize.CONVERTERS["QuantizeLinear"],
    "DequantizeLinear": quantize.CONVERTERS["DequantizeLinear"],
    "QLinearAdd": _on_numbers("Add", 2),
    "QLinearMul": _on_numbers("Mul", 2),
    "QLinearSigmoid": _on_numbers("Sigmoid"),
    "QLinearLeakyRelu": _on_numbers("LeakyRelu"),
    "QLinearAveragePool": _on_numbers("AveragePool"),
    "QLinearGlobalAveragePool": _on_numbers("GlobalAveragePool"),
    "QLinearSoftmax": _softmax,
    "QLinearConcat": _concat,
    "QGemm": _gemm,
    "MatMulIntegerToFloat": _integer_product,
    "DynamicQuantizeMatMul": _dynamic_product,
}

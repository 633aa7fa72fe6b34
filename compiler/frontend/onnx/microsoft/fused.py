"""Converters of the products, convolutions and activations that onnxruntime fuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tunefarm.compiler.frontend.onnx import contract
from tunefarm.compiler.frontend.onnx.microsoft.standard import standard
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    like,
    rank_of,
    transpose,
)
from tunefarm.compiler.ir import Expr

_ACTIVATIONS: Mapping[str, tuple[str, ...]] = {
    "Relu": (), "Tanh": (), "Sigmoid": (), "Softplus": (), "Softsign": (), "HardSwish": (),
    "LeakyRelu": ("alpha",), "ThresholdedRelu": ("alpha",), "Elu": ("alpha",), "Celu": ("alpha",),
    "Selu": ("alpha", "gamma"), "HardSigmoid": ("alpha", "beta"), "Clip": ("min", "max"),
}  # fmt: skip
"""The parameters of each activation, in the order of ``activation_params``."""


def _activated(node: Node, y: Expr, parameters: Mapping[str, float]) -> Expr:
    """The activation of ``y`` that the node names; none if it names none."""
    name = node.attr("activation", "")
    if not name:
        return y
    if name not in _ACTIVATIONS:
        raise Unsupported(f"the activation {name} is not supported")
    # Of an opset in which bounds of Clip are attributes.
    return standard(replace(node, attrs=parameters, opset=7), name, y)


def _conv(node: Node) -> Expr:
    """The activation of X * W + B + Z, each of B and Z if it is there."""
    y = standard(node, "Conv", *node.inputs[:3])
    if node.has(3):
        y = node.emit("add", y, node.input(3))
    names = _ACTIVATIONS.get(node.attr("activation", ""), ())
    values = node.attr("activation_params", ())
    if names and len(values) != len(names):
        raise Unsupported(f"activation_params is {values}, and must be {' and '.join(names)}")
    return _activated(node, y, dict(zip(names, values, strict=False)))


def _gemm(node: Node) -> Expr:
    prefix = "activation_"
    parameters = {n.removeprefix(prefix): v for n, v in node.attrs.items() if n.startswith(prefix)}
    return _activated(node, standard(node, "Gemm", *node.inputs), parameters)


def _matmul(node: Node) -> Expr:
    a, b = (
        _transposed(node.input(i), node.attr(f"transBatch{side}", 0), node.attr(f"trans{side}", 0))
        for i, side in enumerate("AB")
    )
    y, alpha = contract.matmul(node, a, b), node.attr("alpha", 1.0)
    return y if alpha == 1 else node.emit("multiply", y, like(alpha, y))


def _transposed(x: Expr, batch: int, matrix: int) -> Expr:
    """``batch`` moves the first axis behind the others but the last, ``matrix`` swaps the last
    two."""
    axes = list(range(rank_of(x)))
    if batch and len(axes) > 2:
        axes.insert(len(axes) - 2, axes.pop(0))
    if matrix and len(axes) > 1:
        axes[-2:] = axes[:-3:-1]
    return transpose(x, axes)


def _gelu(approximate: bool) -> Converter:
    """GELU of the sum of the inputs: data, and a bias if it is there."""

    def convert(node: Node) -> Expr:
        x = node.emit("add", node.x, node.input(1)) if node.has(1) else node.x
        return node.emit("gelu", x, approximate=approximate)

    return convert


def _quick_gelu(node: Node) -> Expr:
    return node.emit("silu", node.x, alpha=node.attr("alpha", 1.702))


CONVERTERS: dict[str, Converter] = {
    "Gelu": _gelu(approximate=False),
    "BiasGelu": _gelu(approximate=False),
    "FastGelu": _gelu(approximate=True),
    "QuickGelu": _quick_gelu,
    "TransposeMatMul": _matmul,
    "FusedMatMul": _matmul,
    "FusedGemm": _gemm,
    "FusedConv": _conv,
}

"""The operators of ONNX that those of onnxruntime are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tunefarm.compiler.frontend.onnx import contract, math, nn
from tunefarm.compiler.frontend.onnx.node import Converter, Node, Unsupported
from tunefarm.compiler.ir import Expr

_STANDARD: Mapping[str, Converter] = {**math.CONVERTERS, **contract.CONVERTERS, **nn.CONVERTERS}


def standard(node: Node, op: str, *inputs: Expr | None) -> Expr:
    """The first result of the standard operator with this node's attributes, on other inputs."""
    made = _STANDARD[op](replace(node, op=op, inputs=inputs))
    first = made[0] if isinstance(made, Sequence) else made
    assert first is not None
    return first


def refuse(node: Node, attributes: Mapping[str, object], inputs: Mapping[int, str]) -> None:
    """Unsupported where the node has an attribute with another value than this one, the default,
    or one of these inputs."""
    for name, default in attributes.items():
        if (value := node.attr(name, default)) != default:
            raise Unsupported(f"{name}={value} is not supported")
    for index, name in inputs.items():
        if node.has(index):
            raise Unsupported(f"{name} (input {index}) is not supported")


def pair(node: Node, first: int, second: int, *ranks: int) -> tuple[Expr, Expr] | None:
    """Two inputs that are both there, with one of these numbers of dimensions, or both not."""
    if not (node.has(first) or node.has(second)):
        return None
    return node.ranked(first, *ranks), node.ranked(second, *ranks)

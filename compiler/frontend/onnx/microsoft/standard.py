"""The operators of ONNX that those of onnxruntime are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tunefarm.compiler.frontend.onnx import contract, math, nn
from tunefarm.compiler.frontend.onnx.node import Converter, Node, Unsupported, shape_of
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


def ranked(node: Node, index: int, *ranks: int) -> Expr:
    """An input that must have one of these numbers of dimensions."""
    expr = node.input(index)
    if len(shape_of(expr)) not in ranks:
        allowed = " or ".join(map(str, ranks))
        raise Unsupported(
            f"input {index} has shape {shape_of(expr)}, and must have {allowed} dimensions"
        )
    return expr


def positive(node: Node, attribute: str, default: int | None = None) -> int:
    """An attribute that must be positive; without default it must be there."""
    value = int(node.required(attribute) if default is None else node.attr(attribute, default))
    if value <= 0:
        raise Unsupported(f"{attribute}={value}, and must be positive")
    return value


def pair(node: Node, first: int, second: int, *ranks: int) -> tuple[Expr, Expr] | None:
    """Two inputs that are both there, with one of these numbers of dimensions, or both not."""
    if not (node.has(first) or node.has(second)):
        return None
    return ranked(node, first, *ranks), ranked(node, second, *ranks)

"""Converters of normalisations that onnxruntime fuses with what they normalise."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    cast,
    constant,
    dtype_of,
    like,
    shape_of,
    take_range,
)
from tunefarm.compiler.frontend.onnx.shape import gather
from tunefarm.compiler.ir import Expr

_EPSILON = 1e-12  # where onnxruntime's operators have no attribute


def _normalized(node: Node, x: Expr, scale: Expr, bias: Expr | None) -> Expr:
    """The layer norm of each row; without bias it is zero."""
    bias = constant(np.zeros(shape_of(scale)), dtype_of(x)) if bias is None else bias
    return node.emit("layer_norm", x, scale, bias, epsilon=node.attr("epsilon", _EPSILON))


def _sum(node: Node, *terms: Expr | None) -> Expr:
    """The sum of those terms that are there."""
    total, *others = (t for t in terms if t is not None)
    for term in others:
        total = node.emit("add", total, term)
    return total


def _skip_layer_norm(node: Node) -> list[Expr | None]:
    """Input, skip, scale, bias of the norm, bias of the sum; its third result is the sum."""
    x, skip, scale, beta, bias = (*node.inputs, None, None)[:5]
    assert scale is not None
    total = _sum(node, x, skip, bias)
    return [_normalized(node, total, scale, beta), None, None, total]


def _skip_rms_norm(node: Node) -> list[Expr | None]:
    """Input, skip, scale, bias of the sum; its third result is the sum."""
    x, skip, scale, bias = (*node.inputs, None)[:4]
    assert scale is not None
    total = _sum(node, x, skip, bias)
    y = node.emit("rms_norm", total, scale, epsilon=node.attr("epsilon", _EPSILON))
    return [y, None, None, total]


def _embed_layer_norm(node: Node) -> list[Expr | None]:
    """The layer norm of the sum of each word's, position's and segment's row; how many words a mask
    keeps; the sum."""
    words, segments = node.input(0), node.input(1) if node.has(1) else None
    length = shape_of(words)[1]
    places = node.input(3)
    if node.has(8):
        places = gather(places, node.input(8), 0, node.name)
    else:
        places = take_range(places, 0, 0, length, node.name)
    parts = [gather(node.input(2), words, 0, node.name), places]
    if segments is not None:
        parts.append(gather(node.input(4), segments, 0, node.name))
    total = _sum(node, *parts)
    return [_normalized(node, total, node.input(5), node.input(6)), _kept(node), total]


def _kept(node: Node) -> Expr:
    """The number of words of each row that the mask keeps; without mask it is 0."""
    if not node.has(7):
        return constant(np.zeros(shape_of(node.x)[:1]), "int32")
    mask = node.input(7)
    ones = cast(node.emit("equal", mask, like(1, mask)), "int32")
    return node.emit("sum", ones, axes=(1,), keepdims=False)


CONVERTERS: dict[str, Converter] = {
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "EmbedLayerNormalization": _embed_layer_norm,
}

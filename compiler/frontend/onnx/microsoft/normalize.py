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


def _layer_norm(node: Node, x: Expr, scale: Expr, bias: Expr | None) -> Expr:
    """The layer norm of each row; without bias it is zero."""
    bias = constant(np.zeros(shape_of(scale)), dtype_of(x)) if bias is None else bias
    return node.emit("layer_norm", x, scale, bias, epsilon=node.attr("epsilon", _EPSILON))


def _sum(node: Node, first: Expr, *others: Expr) -> Expr:
    for term in others:
        first = node.emit("add", first, term)
    return first


def _skipped(node: Node, bias: int) -> Expr:
    """The sum of input and skip, and of the input ``bias`` if it is there."""
    biases = [node.input(bias)] if node.has(bias) else []
    return _sum(node, node.ranked(0, 2, 3), node.input(1), *biases)


def _skip_layer_norm(node: Node) -> list[Expr | None]:
    """Input, skip, scale, bias of the norm, bias of the sum; its third result is the sum."""
    total, shift = _skipped(node, 4), node.input(3) if node.has(3) else None
    return [_layer_norm(node, total, node.input(2), shift), None, None, total]


def _skip_rms_norm(node: Node) -> list[Expr | None]:
    """Input, skip, scale, bias of the sum; its third result is the sum."""
    total = _skipped(node, 3)
    y = node.emit("rms_norm", total, node.input(2), epsilon=node.attr("epsilon", _EPSILON))
    return [y, None, None, total]


def _embed_layer_norm(node: Node) -> list[Expr | None]:
    """The layer norm of the sum of each word's, position's and segment's row; how many words a mask
    keeps; the sum."""
    words, places = node.ranked(0, 2), node.ranked(3, 2)
    if node.has(8):
        places = gather(places, node.ranked(8, 2), 0, node.name)
    else:
        places = take_range(places, 0, 0, shape_of(words)[1], node.name)
    total = _sum(node, gather(node.ranked(2, 2), words, 0, node.name), places)
    if node.has(1):
        segments = gather(node.ranked(4, 2), node.ranked(1, 2), 0, node.name)
        total = _sum(node, total, segments)
    return [_layer_norm(node, total, node.input(5), node.input(6)), _words_kept(node), total]


def _words_kept(node: Node) -> Expr:
    """The number of words of each row that the mask keeps; without mask it is 0."""
    if not node.has(7):
        return constant(np.zeros(shape_of(node.x)[:1]), "int32")
    mask = node.ranked(7, 2)
    ones = cast(node.emit("equal", mask, like(1, mask)), "int32")
    return node.emit("sum", ones, axes=(1,), keepdims=False)


CONVERTERS: dict[str, Converter] = {
    "SkipLayerNormalization": _skip_layer_norm,
    "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "EmbedLayerNormalization": _embed_layer_norm,
}

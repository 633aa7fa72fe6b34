"""Converters of Attention and MultiHeadAttention, softmax(q · kᵀ + masks) · v."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

import numpy as np
from tunefarm.compiler.dtypes import lowest_of
from tunefarm.compiler.frontend.onnx import contract
from tunefarm.compiler.frontend.onnx.microsoft.standard import refuse
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    concat,
    constant,
    dtype_of,
    expand_dims,
    like,
    rank_of,
    reshape,
    shape_of,
    take_range,
    transpose,
)
from tunefarm.compiler.ir import Expr


def attend(node: Node, q: Expr, k: Expr, v: Expr, masks: Iterable[Expr]) -> Expr:
    """softmax(q · kᵀ · scale + masks) · v, all [batch, heads, tokens, size]. A cap makes scores
    cap · tanh(scores / cap) before they are masked."""
    scale, softcap = node.attr("scale", 0.0) or shape_of(q)[-1] ** -0.5, node.attr("softcap", 0.0)
    scores = node.emit("matmul", q, transpose(k, (0, 1, 3, 2)))
    scores = node.emit("multiply", scores, like(scale, scores))
    if softcap:
        capped = node.emit("tanh", node.emit("multiply", scores, like(1 / softcap, scores)))
        scores = node.emit("multiply", capped, like(softcap, scores))
    for mask in masks:
        scores = node.emit("add", scores, mask)
    return node.emit("matmul", node.emit("softmax", scores, axis=-1), v)


def heads_of(x: Expr, heads: int) -> Expr:
    """[batch, tokens, heads · size]  ->  [batch, tokens, heads, size]"""
    batch, tokens, width = shape_of(x)
    if width % heads:
        raise Unsupported(f"{width} columns do not divide into {heads} heads")
    return reshape(x, (batch, tokens, heads, width // heads))


def turned(x: Expr) -> Expr:
    """[batch, tokens, heads, size]  ->  [batch, heads, tokens, size], and back"""
    return transpose(x, (0, 2, 1, 3))


def joined(x: Expr) -> Expr:
    """[batch, heads, tokens, size]  ->  [batch, tokens, heads · size]"""
    batch, heads, tokens, size = shape_of(x)
    return reshape(turned(x), (batch, tokens, heads * size))


def parts_of(x: Expr, widths: Sequence[int], axis: int) -> list[Expr]:
    """Neighbours along an axis, of these widths."""
    if sum(widths) != shape_of(x)[axis]:
        raise Unsupported(f"parts of {tuple(widths)} do not add up to {shape_of(x)[axis]}")
    return [take_range(x, axis, a, b) for a, b in pairwise(accumulate(widths, initial=0))]


def added(node: Node, kept: Expr, dtype: str, value: float | None = None) -> Expr:
    """What masks scores when it is added: 0 where they are kept, else the value, which is the
    lowest number if none is given."""
    value = lowest_of(dtype) if value is None else value
    return node.emit("where", kept, constant(0, dtype), constant(value, dtype))


def _attended(
    node: Node, q: Expr, k: Expr, v: Expr, past: tuple[Expr, Expr] | None, mask: int, bias: int
) -> list[Expr | None]:
    """The attention to keys and values behind those of the past, and all of these. The inputs
    ``mask`` and ``bias`` are added to scores."""
    masks, new = [], shape_of(k)[2]
    if past is not None:
        k, v = (concat(pair, 2, node.name) for pair in zip(past, (k, v), strict=True))
    (batch, _, tokens, _), keys, dtype = shape_of(q), shape_of(k)[2], dtype_of(q)
    if node.has(mask):
        kept = _kept(node, node.input(mask), batch, keys)
        masks.append(added(node, kept, dtype, node.attr("mask_filter_value", -10000.0)))
    if node.attr("unidirectional", 0) and tokens > 1:
        if tokens != new:
            raise Unsupported(f"unidirectional=1 with {tokens} queries for {new} keys")
        masks.append(added(node, constant(np.tri(tokens, keys, keys - new), "bool"), dtype))
    if node.has(bias):
        masks.append(node.input(bias))
    return [joined(attend(node, q, k, v, masks)), k, v]


def _kept(node: Node, mask: Expr, batch: int, keys: int) -> Expr:
    """Which keys a mask keeps, broadcasting to [batch, heads, tokens, keys]. Masks of one dimension
    are ends, or ends and then starts, of the keys that are kept."""
    match shape_of(mask):
        case (first, last) if (first, last) == (batch, keys):
            return node.emit("greater", expand_dims(mask, [1, 2]), like(0, mask))
        case (first, _, last) if (first, last) == (batch, keys):
            return node.emit("greater", expand_dims(mask, [1]), like(0, mask))
        case (count,) if count in (batch, 2 * batch):
            places = like(np.arange(keys), mask)
            ends, *starts = parts_of(mask, [batch] * (count // batch), 0)
            kept = node.emit("less", places, reshape(ends, (batch, 1, 1, 1)))
            for start in starts:
                behind = node.emit("greater_equal", places, reshape(start, (batch, 1, 1, 1)))
                kept = node.emit("logical_and", kept, behind)
            return kept
        case shape:
            raise Unsupported(f"a mask of shape {shape} for {batch} rows of {keys} keys")


def _attention(node: Node) -> list[Expr | None]:
    """Data, weights and bias of all three projections, mask, keys and values of the past, bias of
    the scores; the second result is the keys and values of past and present."""
    unsupported = {"do_rotary": 0, "past_present_share_buffer": 0}
    refuse(node, unsupported, {6: "past_sequence_length"})
    heads, projected = int(node.required("num_heads")), contract.matmul(node, node.x, node.input(1))
    if node.has(2):
        projected = node.emit("add", projected, node.input(2))
    widths = node.attr("qkv_hidden_sizes") or (shape_of(projected)[2] // 3,) * 3
    q, k, v = (turned(heads_of(p, heads)) for p in parts_of(projected, widths, 2))
    past = None
    if node.has(4):
        keys, values = (reshape(p, shape_of(p)[1:]) for p in parts_of(node.input(4), (1, 1), 0))
        past = keys, values
    y, *present = _attended(node, q, k, v, past, 3, 5)
    apart = [expand_dims(x, [0]) for x in present if x is not None and node.wants(1)]
    return [y, concat(apart, 0, node.name) if apart else None]


def _multi_head_attention(node: Node) -> list[Expr | None]:
    """Queries, keys, values, their bias, mask, bias of the scores, keys and values of the past; the
    second and third result are the keys and values of past and present.

    Keys and values that have their heads apart, [batch, heads, tokens, size], have no bias.
    """
    refuse(node, {}, {8: "past_sequence_length", 9: "cache_indirection"})
    if not node.has(1) or any(rank_of(node.input(i)) == 5 for i in (0, 1)):
        raise Unsupported("queries, keys and values packed into one tensor are not supported")
    heads, sides = int(node.required("num_heads")), [node.input(i) for i in range(3)]
    if node.has(3):
        width, total = shape_of(node.x)[2], shape_of(node.input(3))[0]
        biases = parts_of(node.input(3), (width, width, total - 2 * width), 0)
        sides = [
            node.emit("add", x, bias) if rank_of(x) == 3 else x
            for x, bias in zip(sides, biases, strict=True)
        ]
    q, k, v = (turned(heads_of(x, heads)) if rank_of(x) == 3 else x for x in sides)
    past = (node.input(6), node.input(7)) if node.has(6) else None
    return _attended(node, q, k, v, past, 4, 5)


CONVERTERS: dict[str, Converter] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
}

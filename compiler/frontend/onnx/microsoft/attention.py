"""Converters of Attention and MultiHeadAttention, softmax(q · kᵀ + masks) · v."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import inf

import numpy as np
from tunefarm.compiler.dtypes import is_float, lowest_of
from tunefarm.compiler.frontend.onnx import contract
from tunefarm.compiler.frontend.onnx.microsoft.standard import pair, refuse
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


def float_of(q: Expr) -> str:
    """The dtype of queries and scores."""
    if not is_float(dtype_of(q)):
        raise Unsupported(f"takes floating-point numbers, not {dtype_of(q)}")
    return dtype_of(q)


def heads_of(x: Expr, heads: int) -> Expr:
    """[batch, tokens, heads · size]  ->  [batch, tokens, heads, size]"""
    batch, tokens, width = shape_of(x)
    if width == 0 or width % heads:
        raise Unsupported(f"{width} columns do not divide into {heads} heads")
    return reshape(x, (batch, tokens, heads, width // heads))


def swapped(x: Expr) -> Expr:
    """[batch, tokens, heads, size]  ->  [batch, heads, tokens, size], and back"""
    return transpose(x, (0, 2, 1, 3))


def joined(x: Expr) -> Expr:
    """[batch, heads, tokens, size]  ->  [batch, tokens, heads · size]"""
    batch, heads, tokens, size = shape_of(x)
    return reshape(swapped(x), (batch, tokens, heads * size))


def parts_of(x: Expr, widths: Sequence[int], axis: int) -> list[Expr]:
    """Neighbours along an axis, of these widths."""
    if min(widths) <= 0 or sum(widths) != shape_of(x)[axis]:
        raise Unsupported(f"parts of {tuple(widths)} do not add up to {shape_of(x)[axis]}")
    return [take_range(x, axis, a, b) for a, b in pairwise(accumulate(widths, initial=0))]


def added(node: Node, kept: Expr, dtype: str, value: float = -inf) -> Expr:
    """What masks scores when it is added: 0 where they are kept, else the value, or half the lowest
    number where that is higher, whose sum with a score is finite."""
    value = max(value, lowest_of(dtype) / 2)
    return node.emit("where", kept, constant(0, dtype), constant(value, dtype))


def _attended(
    node: Node, q: Expr, k: Expr, v: Expr, past: tuple[Expr, Expr] | None, mask: int, bias: int
) -> list[Expr | None]:
    """The attention to keys and values behind those of the past, and all of these. The inputs
    ``mask`` and ``bias`` are added to scores."""
    new = shape_of(k)[2]
    if past is not None:
        k, v = (concat(sides, 2, node.name) for sides in zip(past, (k, v), strict=True))
    masks = _masks(node, mask, q, shape_of(k)[2], new)
    if node.has(bias):
        masks.append(node.ranked(bias, 4))
    return [joined(attend(node, q, k, v, masks)), k, v]


def _masks(node: Node, mask: int, q: Expr, keys: int, new: int) -> list[Expr]:
    """What is added to the scores of all keys, the last of them new, by the input ``mask`` and by
    ``unidirectional``: nothing, or one term. Later keys have the lowest number whatever the mask
    says of them, and are below those that it masks unless these have that of float32, in which
    onnxruntime masks."""
    (batch, _, tokens, _), dtype = shape_of(q), float_of(q)
    term: Expr = constant(0, dtype)
    later = lowest_of(dtype)
    if node.has(mask):
        value = node.attr("mask_filter_value", -10000.0)
        term = added(node, _keys_kept(node, node.input(mask), batch, keys), dtype, value)
        if value <= lowest_of("float32"):
            later /= 2
    if node.attr("unidirectional", 0) and tokens > 1:
        if tokens != new:
            raise Unsupported(f"unidirectional=1 with {tokens} queries for {new} keys")
        earlier = constant(np.tri(tokens, keys, keys - new), "bool")
        term = node.emit("where", earlier, term, constant(later, dtype))
    return [term] if rank_of(term) else []


def _keys_kept(node: Node, mask: Expr, batch: int, keys: int) -> Expr:
    """Which keys a mask keeps, broadcasting to [batch, heads, tokens, keys]. Masks of one dimension
    are ends, or ends and then starts, of the keys that are kept."""
    match shape_of(mask):
        case (first, last) if (first, last) == (batch, keys):
            return node.emit("greater", expand_dims(mask, [1, 2]), like(0, mask))
        case (first, _, last) if (first, last) == (batch, keys):
            return node.emit("greater", expand_dims(mask, [1]), like(0, mask))
        case (count,) if batch and count in (batch, 2 * batch):
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
    heads = node.positive("num_heads")
    projected = contract.matmul(node, node.ranked(0, 3), node.ranked(1, 2))
    if node.has(2):
        projected = node.emit("add", projected, node.ranked(2, 1))
    thirds = (shape_of(projected)[2] // 3,) * 3
    widths = node.attr("qkv_hidden_sizes", thirds) or thirds
    if len(widths) != 3:
        raise Unsupported(f"qkv_hidden_sizes is {widths}, and must be 3 integers")
    q, k, v = (swapped(heads_of(p, heads)) for p in parts_of(projected, widths, 2))
    past = None
    if node.has(4):
        sides = parts_of(node.ranked(4, 5), (1, 1), 0)
        keys, values = (reshape(p, shape_of(p)[1:]) for p in sides)
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
    heads = node.positive("num_heads")
    sides = [node.ranked(0, 3), node.ranked(1, 3, 4), node.ranked(2, 3, 4)]
    if node.has(3):
        width, total = shape_of(node.x)[2], shape_of(node.ranked(3, 1))[0]
        biases = parts_of(node.input(3), (width, width, total - 2 * width), 0)
        sides = [
            node.emit("add", x, bias) if rank_of(x) == 3 else x
            for x, bias in zip(sides, biases, strict=True)
        ]
    q, k, v = (swapped(heads_of(x, heads)) if rank_of(x) == 3 else x for x in sides)
    return _attended(node, q, k, v, pair(node, 6, 7, 4), 4, 5)


CONVERTERS: dict[str, Converter] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head_attention,
}

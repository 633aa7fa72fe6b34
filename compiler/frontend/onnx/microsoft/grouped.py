"""The converter of GroupQueryAttention: several heads of queries share one of keys and values,
which are kept from one run of a decoder to the next."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tunefarm.compiler.frontend.onnx.microsoft.attention import (
    added,
    attend,
    float_of,
    heads_of,
    joined,
    parts_of,
    swapped,
)
from tunefarm.compiler.frontend.onnx.microsoft.rotary import caches_of, places_from, rotated
from tunefarm.compiler.frontend.onnx.microsoft.standard import pair, refuse
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    broadcast_to,
    check_extents,
    concat,
    expand_dims,
    like,
    reshape,
    shape_of,
    take_range,
)
from tunefarm.compiler.frontend.onnx.shape import pad
from tunefarm.compiler.ir import Constant, Expr

_ATTRIBUTES = {
    "qk_output": 0, "sliding_window_cache": 0, "kv_cache_bit_width": 0,
    "k_quant_type": "NONE", "v_quant_type": "NONE",
}  # fmt: skip
_INPUTS = {11: "head_sink", 12: "k_scale", 13: "v_scale", 16: "query_seqlens"}


@dataclass(frozen=True, slots=True)
class _Span:
    """Where the tokens of this run stand: behind ``first`` others, one number for each row of the
    batch if it is known at run time alone, among ``keys`` that are attended to."""

    first: int | Expr
    tokens: int
    keys: int


def _span(node: Node, past: int, batch: int, tokens: int) -> _Span:
    """As ``seqlens_k``, the place of the last token, and ``total_sequence_length`` say; a run whose
    tokens are all that there are is a prompt, with nothing before it."""
    keys = _total(node) if past else tokens
    if keys < tokens:
        raise Unsupported(f"total_sequence_length={keys} is less than {tokens} tokens")
    if keys == tokens:
        return _Span(0, tokens, keys)
    last = reshape(node.input(5), (batch,))
    first = node.emit("subtract", last, like(tokens - 1, last))
    if not isinstance(first, Constant) or len(set(first.data.tolist())) > 1:
        return _Span(first, tokens, keys)
    known = int(first.data[0])
    if not 0 <= known <= min(past, keys - tokens):
        raise Unsupported(
            f"{known} tokens before {tokens} others do not fit a past of {past} and "
            f"total_sequence_length={keys}"
        )
    return _Span(known, tokens, keys)


def _total(node: Node) -> int:
    values = node.ints(6, "total_sequence_length")
    if len(values) != 1:
        raise Unsupported(f"total_sequence_length is {values}, and must be one integer")
    check_extents(values)
    return values[0]


def _cached(node: Node, past: Expr, new: Expr, span: _Span) -> Expr:
    """Keys or values of the past with new ones behind those that are there, which may be fewer than
    it has room for: [batch, heads, room, size]."""
    end = shape_of(past)[2]
    room = max(end, span.keys)
    grown = pad(past, [(0, 0), (0, 0), (0, room - end), (0, 0)], "constant", 0.0, node.name)
    if not isinstance(span.first, int):
        return _overwritten(node, grown, new, span)
    behind = span.first + span.tokens
    parts = [take_range(past, 2, 0, span.first), new, take_range(grown, 2, behind, room)]
    return concat([p for p in parts if shape_of(p)[2]], 2, node.name)


def _overwritten(node: Node, past: Expr, new: Expr, span: _Span) -> Expr:
    """The past with the new keys or values from a place on that is known at run time."""
    batch, room = shape_of(past)[0], shape_of(past)[2]
    assert not isinstance(span.first, int)
    first = reshape(span.first, (batch, 1, 1, 1))
    place = node.emit("subtract", like(np.arange(room).reshape(room, 1), first), first)
    before = node.emit("less", place, like(0, place))
    behind = node.emit("greater_equal", place, like(span.tokens, place))
    if span.tokens > 1:
        place = node.emit("clip", place, min=0, max=span.tokens - 1)
        new = node.emit("gather_elements", new, broadcast_to(place, shape_of(past)), axis=2)
    return node.emit("where", node.emit("logical_or", before, behind), past, new)


def _masks(node: Node, span: _Span, dtype: str) -> list[Expr]:
    """What is added to scores: a mask of keys that are later, or too early for the window, unless
    there are none; the bias."""
    places = expand_dims(places_from(node, span.first, span.tokens), [1, 3])
    keys = like(np.arange(span.keys), places)
    last = take_range(places, 2, span.tokens - 1, span.tokens)
    kept = node.emit("less_equal", keys, places if node.attr("causal", 1) else last)
    window = node.attr("local_window_size", -1)
    if window > 0:
        earliest = node.emit("subtract", places, like(window, places))
        kept = node.emit("logical_and", kept, node.emit("greater", keys, earliest))
    bias = [node.ranked(10, 4)] if node.has(10) else []
    if isinstance(kept, Constant) and kept.data.all():
        return bias
    return [added(node, kept, dtype), *bias]


def _mixed(node: Node, q: Expr, k: Expr, v: Expr, masks: list[Expr]) -> Expr:
    """The attention of queries [batch, tokens, heads, size] to fewer heads of keys and values. One
    token's queries of the heads that share keys are rows of one product."""
    batch, tokens, heads, size = shape_of(q)
    shared, keys = shape_of(k)[1:3]
    if tokens > 1:
        k, v = (_repeated(x, heads) for x in (k, v))
        return joined(attend(node, swapped(q), k, v, masks))
    rows = shared, heads // shared
    masks = [
        reshape(m, (shape_of(m)[0], *rows, keys)) if shape_of(m)[1] == heads else m for m in masks
    ]
    y = attend(node, reshape(q, (batch, *rows, size)), k, v, masks)
    return reshape(y, (batch, 1, heads * size))


def _repeated(x: Expr, heads: int) -> Expr:
    """Keys or values of each head of queries: [batch, heads, tokens, size]."""
    batch, shared, tokens, size = shape_of(x)
    wide = (batch, shared, heads // shared, tokens, size)
    return reshape(broadcast_to(expand_dims(x, [2]), wide), (batch, heads, tokens, size))


def _heads_normalized(node: Node, x: Expr, side: str, index: int) -> Expr:
    """The RMS norm of each head, if there are weights for it."""
    if not node.has(index):
        return x
    epsilon = node.attr(f"{side}_norm_epsilon", node.attr("qk_norm_epsilon", 1e-6))
    return node.emit("rms_norm", x, node.input(index), epsilon=epsilon)


def _refuse_others(node: Node) -> None:
    refuse(node, _ATTRIBUTES, _INPUTS)
    if (smooth := node.attr("smooth_softmax", -1)) not in (-1, 0):
        raise Unsupported(f"smooth_softmax={smooth} is not supported")
    if node.attr("local_window_size", -1) == 0:
        raise Unsupported("local_window_size=0 leaves no key to attend to; -1 is for all")


def _grouped_attention(node: Node) -> list[Expr | None]:
    """Queries, keys and values, or all in the first input; keys and values of the past; the last
    token's place; the number of tokens; cosines, sines and places of rotary embeddings; bias of the
    scores; weights of norms. The second and third result are keys and values of past and present.
    """
    _refuse_others(node)
    heads, shared = node.positive("num_heads"), node.positive("kv_num_heads")
    batch, tokens, width = shape_of(node.ranked(0, 3))
    if heads % shared:
        raise Unsupported(f"num_heads={heads} is no multiple of kv_num_heads={shared}")
    if node.has(1):
        sides = [node.ranked(i, 3) for i in range(3)]
    else:
        size = width // (heads + 2 * shared)
        sides = parts_of(node.x, [n * size for n in (heads, shared, shared)], 2)
    q, k, v = (heads_of(x, n) for x, n in zip(sides, (heads, shared, shared), strict=True))
    q, k = _heads_normalized(node, q, "q", 14), _heads_normalized(node, k, "k", 15)
    past = pair(node, 3, 4, 4)
    span = _span(node, shape_of(past[0])[2] if past else 0, batch, tokens)
    if node.attr("do_rotary", 0):
        places = node.ranked(9, 2) if node.has(9) else places_from(node, span.first, tokens)
        caches, pairs = caches_of(node, 7), bool(node.attr("rotary_interleaved", 0))
        q, k = (rotated(node, x, caches, places, 2, pairs) for x in (q, k))
    k, v = swapped(k), swapped(v)
    if past:
        k, v = _cached(node, past[0], k, span), _cached(node, past[1], v, span)
    keys, values = (take_range(x, 2, 0, span.keys) for x in (k, v))
    return [_mixed(node, q, keys, values, _masks(node, span, float_of(q))), k, v]


CONVERTERS: dict[str, Converter] = {"GroupQueryAttention": _grouped_attention}

"""Rotary embeddings: pairs of each head's numbers are turned by angles that grow with the place."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.frontend.onnx.microsoft.standard import refuse
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    concat,
    constant,
    dtype_of,
    expand_dims,
    rank_of,
    reshape,
    shape_of,
    take_range,
    take_slice,
)
from tunefarm.compiler.frontend.onnx.shape import gather
from tunefarm.compiler.ir import Expr, tensor_type


def places_from(node: Node, first: int | Expr, count: int) -> Expr:
    """The places of ``count`` tokens from the first of each row on: [1 or batch, count]."""
    steps = np.arange(count).reshape(1, count)
    if isinstance(first, int):
        return constant(first + steps, "int32")
    rows = reshape(first, (tensor_type(first).size, 1))
    return node.emit("add", rows, constant(steps, dtype_of(first)))


def caches_of(node: Node, first: int) -> tuple[Expr, Expr]:
    """Cosines and sines, [place, pair], the input ``first`` and the next."""
    caches = node.ranked(first, 2), node.ranked(first + 1, 2)
    shapes = shape_of(caches[0]), shape_of(caches[1])
    if shapes[0] != shapes[1] or 0 in shapes[0]:
        raise Unsupported(f"cosines and sines have shapes {shapes[0]} and {shapes[1]}")
    return caches


def rotated(
    node: Node, x: Expr, caches: tuple[Expr, Expr], places: Expr, heads: int, interleaved: bool
) -> Expr:
    """``x`` with the pairs of each token's heads turned by the angles of its place.

    ``x`` is [batch, tokens, heads, size], or [batch, heads, tokens, size] where ``heads`` is 1; the
    caches are cosines and sines [place, pairs]. What heads have beyond the pairs stays.

    (a, b)   ->   (a cos - b sin, a sin + b cos)
    """
    pairs, size, last = shape_of(caches[0])[1], shape_of(x)[-1], rank_of(x) - 1
    if 2 * pairs > size:
        raise Unsupported(f"angles of {pairs} pairs for heads of {size} numbers")
    cos, sin = (expand_dims(gather(c, places, 0, node.name), [heads]) for c in caches)
    a, b = (_part(x, i, pairs, 2) if interleaved else _part(x, i * pairs, pairs, 1) for i in (0, 1))

    def product(p: Expr, factor: Expr) -> Expr:
        return node.emit("multiply", p, factor)

    turned = [
        node.emit("subtract", product(a, cos), product(b, sin)),
        node.emit("add", product(a, sin), product(b, cos)),
    ]
    if interleaved:
        turned = [concat([expand_dims(t, [last + 1]) for t in turned], last + 1, node.name)]
        turned = [reshape(turned[0], (*shape_of(x)[:-1], 2 * pairs))]
    rest = [take_range(x, last, 2 * pairs, size, node.name)] if 2 * pairs < size else []
    return concat([*turned, *rest], last, node.name)


def _part(x: Expr, first: int, count: int, step: int) -> Expr:
    """``count`` numbers of the last axis, ``step`` apart."""
    rank = rank_of(x)
    size, strides = (*shape_of(x)[:-1], count), [1] * (rank - 1) + [step]
    return take_slice(x, [0] * (rank - 1) + [first], size, strides)


def _rotary_embedding(node: Node) -> Expr:
    """Data of heads apart, [batch, heads, tokens, size], or joined, [batch, tokens, heads · size];
    places, or the first token's; cosines; sines."""
    refuse(node, {"is_packed_batching": 0, "scale": 1.0}, {})
    x, places, caches = node.ranked(0, 3, 4), node.ranked(1, 0, 1, 2), caches_of(node, 2)
    shape, interleaved = shape_of(x), bool(node.attr("interleaved", 0))
    if rank_of(places) < 2:
        if shape_of(places) not in ((), (1,)):
            raise Unsupported(f"position_ids of one dimension is one place, not {shape_of(places)}")
        places = places_from(node, places, shape[-2])
    if len(shape) == 4:
        return rotated(node, x, caches, places, 1, interleaved)
    size = 2 * shape_of(caches[0])[1]
    if node.attr("rotary_embedding_dim", 0):
        size = shape[2] // node.positive("num_heads")
    if size == 0 or shape[2] % size:
        raise Unsupported(f"{shape[2]} columns do not divide into heads of {size}")
    apart = reshape(x, (*shape[:2], shape[2] // size, size))
    return reshape(rotated(node, apart, caches, places, 2, interleaved), shape)


CONVERTERS: dict[str, Converter] = {"RotaryEmbedding": _rotary_embedding}

"""Sequences of tensors, whose lengths are known at import: a sequence is a ``Tuple``."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Node,
    Unsupported,
    axis_of,
    concat,
    constant,
    dimension,
    expand_dims,
    rank_of,
    reshape,
    shape_of,
    take_range,
)
from tunefarm.compiler.ir import Expr, Tuple


def _fields(node: Node) -> tuple[Expr, ...]:
    sequence = node.input(0)
    if not isinstance(sequence, Tuple):
        raise Unsupported("takes a sequence, not a tensor")
    return sequence.fields


def _position(node: Node, index: int, length: int, default: int) -> int:
    """A place among ``length``, counted from the end where it is negative."""
    if not node.has(index):
        return default
    place = node.integer(index, "the position")
    if not -length <= place < length:
        raise Unsupported(f"position {place} is not in a sequence of {length}")
    return place % length


def _at(node: Node) -> Expr:
    fields = _fields(node)
    return fields[_position(node, 1, len(fields), -1)]


def _insert(node: Node) -> Expr:
    fields = _fields(node)
    place = len(fields)
    if node.has(2):
        given = node.integer(2, "the position")
        if not -len(fields) <= given <= len(fields):
            raise Unsupported(f"position {given} is not in a sequence of {len(fields)}")
        place = given + len(fields) if given < 0 else given
    return Tuple((*fields[:place], node.input(1), *fields[place:]))


def _erase(node: Node) -> Expr:
    fields = _fields(node)
    place = _position(node, 1, len(fields), len(fields) - 1)
    return Tuple((*fields[:place], *fields[place + 1 :]))


def _split(node: Node) -> Expr:
    """Parts of the sizes that are given, or of one size, or single elements."""
    axis, shape = dimension(node.attr("axis", 0), node.x), shape_of(node.x)
    extent = shape[axis]
    if not node.has(1):
        sizes = [1] * extent
    else:
        given = node.ints(1, "the split")
        size = 0 if rank_of(node.input(1)) else given[0]
        sizes = [min(size, extent - at) for at in range(0, extent, size)] if size else list(given)
    ends = np.cumsum([0, *sizes]).tolist()
    if ends[-1] != extent:
        raise Unsupported(f"the split {tuple(sizes)} does not add up to {extent}")
    parts = [take_range(node.x, axis, a, b, node.name) for a, b in pairwise(ends)]
    if not node.has(1) and not node.attr("keepdims", 1):
        parts = [reshape(p, (*shape[:axis], *shape[axis + 1 :])) for p in parts]
    return Tuple(tuple(parts))


def _concat(node: Node) -> Expr:
    fields = _fields(node)
    if not fields:
        raise Unsupported("the sequence is empty")
    new = bool(node.attr("new_axis", 0))
    axis = axis_of(node.required("axis"), rank_of(fields[0]) + new)
    parts = [expand_dims(f, [axis]) for f in fields] if new else fields
    return concat(parts, axis, node.name)


CONVERTERS: dict[str, Converter] = {
    "SequenceEmpty": lambda node: Tuple(()),
    "SequenceConstruct": lambda node: Tuple(node.all),
    "SequenceInsert": _insert,
    "SequenceErase": _erase,
    "SequenceAt": _at,
    "SequenceLength": lambda node: constant(len(_fields(node)), "int64"),
    "SplitToSequence": _split,
    "ConcatFromSequence": _concat,
}

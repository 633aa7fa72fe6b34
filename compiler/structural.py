"""Structural hash and equality of expressions and functions: memoised, iterative, linear time.

Two programs are equal if they compute the same thing in the same way: variables match by the place
where they are bound, constants by value, and names do not matter. Sharing does not matter either:
``f(x) + f(x)`` equals ``let y = f(x) in y + y``.
"""

from __future__ import annotations

import hashlib
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.ir import (
    Attrs,
    Call,
    Constant,
    Expr,
    Function,
    Tuple,
    TupleGetItem,
    Var,
    children,
    post_order,
)

Array: TypeAlias = NDArray[Any]

_WHOLE_CONSTANT_BYTES = 4096
_SAMPLES = 256


def structural_hash(root: Expr | Function) -> int:
    """A 64-bit hash that is equal for structurally equal programs, in every process.

    A constant above 4 KiB enters by its type and 256 of its elements. Free variables enter by name.
    """
    digest = _function_digest(root, {}) if isinstance(root, Function) else _digest_of(root, {}, {})
    return int.from_bytes(digest[:8], "little")


def _function_digest(function: Function, functions: dict[int, bytes]) -> bytes:
    known = functions.get(id(function))
    if known is None:
        bound = {p: f"param {i} {p.type}" for i, p in enumerate(function.params)}
        body = _digest_of(function.body, bound, functions)
        known = _digest("function", *bound.values(), attrs_text(function.attrs), body)
        functions[id(function)] = known
    return known


def _digest_of(root: Expr, bound: dict[Var, str], functions: dict[int, bytes]) -> bytes:
    digests: dict[int, bytes] = {}
    for node in post_order(root):
        below = [digests[id(c)] for c in children(node)]
        digests[id(node)] = _node_digest(node, below, bound, functions)
    return digests[id(root)]


def _node_digest(
    node: Expr, below: list[bytes], bound: dict[Var, str], functions: dict[int, bytes]
) -> bytes:
    match node:
        case Var():
            return _digest("var", bound.get(node, f"free {node.name} {node.type}"))
        case Constant():
            return _digest("constant", str(node.type), _sampled(node.data))
        case Call():
            op = node.op if isinstance(node.op, str) else _function_digest(node.op, functions)
            return _digest("call", op, attrs_text(node.attrs), str(node.type), *below)
        case Tuple():
            return _digest("tuple", *below)
        case TupleGetItem():
            return _digest("item", str(node.index), *below)


def _digest(*parts: str | bytes) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        state.update(len(data).to_bytes(4, "little"))
        state.update(data)
    return state.digest()


def _sampled(data: Array) -> bytes:
    if data.nbytes <= _WHOLE_CONSTANT_BYTES:
        return data.tobytes()
    picked = np.linspace(0, data.size - 1, _SAMPLES).astype(np.int64)
    return data.flat[picked].tobytes()


def attrs_text(attrs: Attrs) -> str:
    """Attributes in the order of their names, so that equal attributes give equal text."""
    return repr(sorted((name, repr(value)) for name, value in attrs.items()))


def structural_equal(left: Expr | Function, right: Expr | Function) -> bool:
    """True if both compute the same thing in the same way; constants are compared by value."""
    return _equal(left, right, {})


def _equal(
    left: Expr | Function, right: Expr | Function, functions: dict[tuple[int, int], bool]
) -> bool:
    bound: dict[Expr, Expr] = {}
    if isinstance(left, Function) and isinstance(right, Function):
        if [p.type for p in left.params] != [p.type for p in right.params]:
            return False
        if attrs_text(left.attrs) != attrs_text(right.attrs):
            return False
        bound = dict(zip(left.params, right.params, strict=True))
        left, right = left.body, right.body
    if isinstance(left, Function) or isinstance(right, Function):
        return False
    todo: list[tuple[Expr, Expr]] = [(left, right)]
    done: set[tuple[int, int]] = set()
    while todo:
        a, b = todo.pop()
        if (id(a), id(b)) in done:
            continue
        done.add((id(a), id(b)))
        below, others = children(a), children(b)
        if len(below) != len(others) or not _same_node(a, b, bound, functions):
            return False
        todo.extend(zip(below, others, strict=True))
    return True


def _same_node(
    a: Expr, b: Expr, bound: dict[Expr, Expr], functions: dict[tuple[int, int], bool]
) -> bool:
    match a, b:
        case Var(), Var():
            return bound.get(a, a) is b
        case Constant(), Constant():
            return a.type == b.type and (a.data is b.data or _same_bytes(a.data, b.data))
        case Call(), Call():
            if a.type != b.type or attrs_text(a.attrs) != attrs_text(b.attrs):
                return False
            if isinstance(a.op, Function) and isinstance(b.op, Function):
                pair = (id(a.op), id(b.op))
                if pair not in functions:
                    functions[pair] = _equal(a.op, b.op, functions)
                return functions[pair]
            return a.op == b.op
        case Tuple(), Tuple():
            return True
        case TupleGetItem(), TupleGetItem():
            return a.index == b.index
        case _:
            return False


def _same_bytes(a: Array, b: Array) -> bool:
    """Equal bit for bit, so that NaN equals itself."""
    x, y = (np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in (a, b))
    return bool(np.array_equal(x, y))

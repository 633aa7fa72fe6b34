"""Casts to 16-bit floats before what only moves or compares elements, instead of behind it.

cast(concat(x, y))   ->   concat(cast(x), cast(y))            so for reshape and max_pool

What makes the elements rounds them then, and writes half the bytes; parts of a concatenation are
written where they belong. Rounding changes no order, so maxima are those of what is rounded. An
operator is passed if nobody needs its result in float32: all who read it are casts, or operators
that are passed themselves.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.ir import Call, Constant, Expr, children, post_order
from tunefarm.compiler.ops import call
from tunefarm.compiler.transform.rewrite import is_call, is_float32, users_of, with_children

MOVED = ("reshape", "concat", "max_pool")


def casts_below(root: Expr, dtype: str) -> Expr:
    """The graph with casts of float32 to ``dtype`` as far up as they go, one for each value."""
    order = post_order(root)
    passed = _passed(order, users_of(root), dtype)
    if not passed:
        return root
    done: dict[Expr, Expr] = {}
    rounded: dict[Expr, Expr] = {}
    for node in order:
        if node in passed:
            assert isinstance(node, Call)
            parts = [_rounded(a, dtype, done, rounded) for a in node.args]
            rounded[node] = call(str(node.op), *parts, name=node.name, **node.attrs)
        elif is_rounding(node, dtype):
            (value,) = children(node)
            done[node] = _rounded(value, dtype, done, rounded)
        else:
            done[node] = with_children(node, [done[c] for c in children(node)])
    return done[root]


def _passed(order: Sequence[Expr], users: Mapping[Expr, Sequence[Expr]], dtype: str) -> set[Expr]:
    """The operators whose results nobody needs in float32."""
    found: set[Expr] = set()
    for node in reversed(order):
        readers = users[node]
        moved = is_call(node, *MOVED) and is_float32(node)
        if moved and all(is_rounding(r, dtype) or r in found for r in readers):
            found.add(node)
    return found


def is_rounding(node: Expr, dtype: str) -> bool:
    """Whether a node is a cast of float32 to ``dtype``."""
    if not isinstance(node, Call) or node.op != "cast" or node.attrs["dtype"] != dtype:
        return False
    return is_float32(node.args[0])


def _rounded(value: Expr, dtype: str, done: dict[Expr, Expr], rounded: dict[Expr, Expr]) -> Expr:
    """The cast of a value, made once; a constant's at once."""
    if value not in rounded:
        if isinstance(value, Constant):
            with np.errstate(over="ignore"):
                rounded[value] = Constant(value.data.astype(numpy_dtype(dtype)), value.name)
        else:
            rounded[value] = call("cast", done[value], dtype=dtype)
    return rounded[value]

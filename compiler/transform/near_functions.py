"""Activations with the digits that bfloat16 keeps, in models whose products may read it.

product(cast[bfloat16](gelu(x)))   ->   product(cast(near_gelu(x)))           so for silu

An epilogue of them takes as long as the products that it follows, or longer: the error function and
a quotient of an exponential, to 24 bits. What a product reads next has 8. The functions are 1e-4 of
one off, or 2^-12 of their results. They stay as they are where a result of the model has them in
it, whatever elementwise operators or sums lie between, and not only what is rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunefarm.compiler.ir import Call, Expr, children, post_order
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.casts_below import is_rounding
from tunefarm.compiler.transform.rewrite import is_float32, users_of, with_children
from tunefarm.compiler.transform.round_stored import DTYPE

NEAR = {"gelu": "near_gelu", "silu": "near_silu"}


def near_functions(root: Expr, target: Target) -> Expr:
    """The graph of a model that may compute in bfloat16; strict targets keep theirs."""
    if target.strict:
        return root
    order = post_order(root)
    rounded = _read_rounded_alone(order, users_of(root))
    done: dict[Expr, Expr] = {}
    for node in order:
        operands = [done[c] for c in children(node)]
        near = _near_of(node) if node in rounded else None
        if near is not None:
            assert isinstance(node, Call)
            done[node] = call(near, *operands, name=node.name, **node.attrs)
        else:
            done[node] = with_children(node, operands)
    return done[root]


def _read_rounded_alone(order: Sequence[Expr], users: Mapping[Expr, Sequence[Expr]]) -> set[Expr]:
    """The values that come to a result of the graph through casts to bfloat16 alone."""
    found: set[Expr] = set()
    for node in reversed(order):
        if all(r in found or is_rounding(r, DTYPE) for r in users[node]):
            found.add(node)
    return found


def _near_of(node: Expr) -> str | None:
    """The operator that stands for a node; None where there is none."""
    if not isinstance(node, Call) or not isinstance(node.op, str) or not is_float32(node):
        return None
    return NEAR.get(node.op)

"""Activations with the digits that bfloat16 keeps, in models whose products may read it.

product(cast[bfloat16](gelu(x)))   ->   product(cast(near_gelu(x)))           so for silu

An epilogue of them takes as long as the products that it follows, or longer: the error function and
a quotient of an exponential, to 24 bits. What a product reads next has 8. The functions are 1e-4 of
one off, or of their results; those that are results of the model stay as they are.
"""

from __future__ import annotations

from tunefarm.compiler.ir import Call, Expr, Tuple, children, post_order, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.rewrite import with_children

NEAR = {"gelu": "near_gelu", "silu": "near_silu"}


def near_functions(root: Expr, target: Target) -> Expr:
    """The graph of a model that may compute in bfloat16; strict targets keep theirs."""
    if target.strict:
        return root
    results = children(root) if isinstance(root, Tuple) else (root,)
    done: dict[Expr, Expr] = {}
    for node in post_order(root):
        operands = [done[c] for c in children(node)]
        near = _near_of(node)
        if near is not None and node not in results:
            assert isinstance(node, Call)
            done[node] = call(near, *operands, name=node.name, **node.attrs)
        else:
            done[node] = with_children(node, operands)
    return done[root]


def _near_of(node: Expr) -> str | None:
    """The operator that stands for a node; None where there is none."""
    if not isinstance(node, Call) or not isinstance(node.op, str):
        return None
    return NEAR.get(node.op) if tensor_type(node).dtype == "float32" else None

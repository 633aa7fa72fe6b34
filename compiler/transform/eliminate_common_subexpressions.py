"""Compute equal expressions once.

add(exp(x), exp(x))  ->  let y = exp(x) in add(y, y)
"""

from __future__ import annotations

from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    IRModule,
    Tuple,
    TupleGetItem,
    Var,
    children,
    post_order,
)
from tunefarm.compiler.structural import attrs_text
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.rewrite import with_children

_COMPARED_BYTES = 4096


def eliminate_common_subexpressions(module: IRModule, target: Target) -> IRModule:
    """Constants up to 4 KiB are compared by value, larger ones by identity of their data."""
    main = module.main
    done: dict[Expr, Expr] = {}
    first: dict[object, Expr] = {}
    for node in post_order(main.body):
        rebuilt = with_children(node, [done[c] for c in children(node)])
        done[node] = first.setdefault(_key(rebuilt), rebuilt)
    return module.with_body(done[main.body])


def _key(node: Expr) -> object:
    below = tuple(id(c) for c in children(node))
    match node:
        case Call():
            op = node.op if isinstance(node.op, str) else id(node.op)
            return ("call", op, attrs_text(node.attrs), below)
        case Constant() if node.data.nbytes <= _COMPARED_BYTES:
            return ("constant", str(node.type), node.data.tobytes())
        case Constant():
            return ("constant", id(node.data))
        case Tuple():
            return ("tuple", below)
        case TupleGetItem():
            return ("item", node.index, below)
        case Var():
            return ("var", id(node))

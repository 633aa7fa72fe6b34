"""Drop what no result depends on.

Within a function, what is not reachable from its body is gone by construction; what is left to drop
are functions that ``main`` does not call, and fields that are made only to be taken apart.

    (a, b).0  ->  a
"""

from __future__ import annotations

from tunefarm.compiler.ir import (
    Call,
    Expr,
    Function,
    IRModule,
    Tuple,
    TupleGetItem,
    children,
    post_order,
)
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.rewrite import with_children


def eliminate_dead_code(module: IRModule, target: Target) -> IRModule:
    main = module.main
    done: dict[Expr, Expr] = {}
    for node in post_order(main.body):
        made = with_children(node, [done[c] for c in children(node)])
        if isinstance(made, TupleGetItem) and isinstance(made.value, Tuple):
            made = made.value.fields[made.index]
        done[node] = made
    body = done[main.body]
    called = {id(n.op) for n in post_order(body) if isinstance(n, Call)}
    kept = {k: f for k, f in module.functions.items() if k == "main" or id(f) in called}
    if body is main.body and len(kept) == len(module.functions):
        return module
    new_main = main if body is main.body else Function(main.params, body, main.attrs)
    return IRModule({**kept, "main": new_main}, module.output_names)

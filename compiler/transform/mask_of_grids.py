"""What is added to scores that are seen as a grid becomes one mask of their own shape.

reshape(add(add(reshape(s, [h, q, 14, 14]), a[h, q, 14, 1]), b[h, q, 1, 14]), [h, q, 196])
    ->  add(s, reshape(add(a, b), [h, q, 196]))

Vision transformers with relative positions along rows and columns (MViTv2, SAM) add to each score
one number for the row of its key and one for the column. Between the two views nothing fuses, while
a mask of the scores' shape is an operand of an attention's kernel like any other. Sums are made in
another order: errors are those of one more addition.
"""

from __future__ import annotations

from functools import reduce

from tunefarm.compiler.ir import Call, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.space.attention.program import PRODUCTS
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import reshape
from tunefarm.compiler.transform.rewrite import Uses, is_call, rewrite_main


def mask_of_grids(module: IRModule, target: Target) -> IRModule:
    """Runs right before attention is fused."""
    return module if target.strict else rewrite_main(module, [_with_mask])


def _with_mask(node: Call, uses: Uses) -> Expr | None:
    """softmax(view of a grid of scores and what is added)  ->  softmax(view of scores and mask)"""
    view = node.args[0] if node.op == "softmax" else None
    if not isinstance(view, Call) or view.op != "reshape" or uses.get(view, 1) > 1:
        return None
    grid, terms = _added_to(view.args[0], uses)
    if not terms or not isinstance(grid, Call) or grid.op != "reshape" or uses.get(grid, 1) > 1:
        return None
    scores, rows, full = grid.args[0], tensor_type(view).shape, tensor_type(grid).shape
    shape = tensor_type(scores).shape
    if not is_call(scores, *PRODUCTS) or uses.get(scores, 1) > 1 or shape[-1] != rows[-1]:
        return None
    mask = reduce(lambda a, b: call("add", a, b), terms)
    if tensor_type(mask).shape != full:
        mask = call("broadcast_to", mask, shape=full)
    masked = call("add", scores, reshape(mask, shape))
    return call("softmax", reshape(masked, rows), name=node.name, **node.attrs)


def _added_to(grid: Expr, uses: Uses) -> tuple[Expr, list[Expr]]:
    """What a chain of sums that nobody else reads begins with, and what it adds to that, broadcast
    to its shape."""
    terms: list[Expr] = []
    while isinstance(grid, Call) and grid.op == "add" and uses.get(grid, 1) == 1:
        whole = [a for a in grid.args if a.type == grid.type]
        if len(whole) != 1:
            break
        terms += [a for a in grid.args if a is not whole[0]]
        grid = whole[0]
    return grid, terms

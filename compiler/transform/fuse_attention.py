"""Scores, softmax and the product with the values become one kernel.

matmul(softmax(matmul(q, k) * c + mask), v)   ->   f(q, k, mask, v)

Between the first product and the softmax may stand elementwise operators, whose other operands
become operands of the kernel, and reshapes that leave the rows alone. Nobody else may read what is
inside. It is fused where an attention sketch has a config: elsewhere the operators stay apart.
"""

from __future__ import annotations

from tunefarm.compiler.gpu.space import attention as gpu_attention
from tunefarm.compiler.ir import (
    AttrValue,
    Call,
    Expr,
    Function,
    IRModule,
    children,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops.base import OPS, Pattern, call
from tunefarm.compiler.space import attention
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.outline import call_of, function_of, interned
from tunefarm.compiler.transform.rewrite import Uses, count_uses, is_call, with_children

_PRODUCTS = ("matmul", "einsum")
_MAX_CALLS = 32  # from a product to its softmax


def fuse_attention(module: IRModule, target: Target) -> IRModule:
    """Runs when products read and write in place, right before ``fuse_ops``."""
    main = module.main
    order = post_order(main.body)
    uses = count_uses(main.body)
    functions: dict[str, Function] = {}
    done: dict[Expr, Expr] = {}
    for node in order:
        members = _members(node, uses) if is_call(node, *_PRODUCTS) else None
        done[node] = (
            None if members is None else _fused(members, done, target, functions)
        ) or with_children(node, [done[c] for c in children(node)])
    if done[main.body] is main.body:
        return module
    return module.with_main(Function(main.params, done[main.body], main.attrs))


def _members(node: Expr, uses: Uses) -> list[Call] | None:
    """The calls of an attention that ends at a product, without reshapes; None if it ends none."""
    assert isinstance(node, Call)
    for side, operand in enumerate(node.args):
        softmax = _below_reshapes(operand, uses)
        if not is_call(softmax, "softmax") or uses[softmax] > 1:
            continue
        assert isinstance(softmax, Call)
        shape = tensor_type(operand).shape
        source = _below_reshapes(softmax.args[0], uses)
        rank = len(tensor_type(softmax).shape)
        along_rows = softmax.attrs["axis"] in (-1, rank - 1)
        same_rows = tensor_type(softmax).shape[-1] == shape[-1]
        if not (along_rows and same_rows) or tensor_type(source).shape != shape:
            continue
        chain = _chain(source, uses)
        if chain is not None:
            rows = call("softmax", chain[-1], axis=-1, name=softmax.name)
            operands = list(node.args)
            operands[side] = rows
            mixed = Call(node.op, tuple(operands), node.attrs, node.type, node.name)
            return [*chain, rows, mixed]
    return None


def _below_reshapes(expr: Expr, uses: Uses) -> Expr:
    """What a chain of reshapes that nobody else reads shows in another shape."""
    while is_call(expr, "reshape") and uses[expr] == 1:
        assert isinstance(expr, Call)
        expr = expr.args[0]
    return expr


def _chain(expr: Expr, uses: Uses, most: int = _MAX_CALLS) -> list[Call] | None:
    """The calls, ``most`` of them, from a product to an elementwise result of its shape, each read
    once."""
    if not isinstance(expr, Call) or not isinstance(expr.op, str) or uses[expr] > 1 or most == 0:
        return None
    if expr.op in _PRODUCTS:
        return [expr] if len(expr.args) == 2 else None
    if OPS[expr.op].pattern > Pattern.BROADCAST:
        return None
    for operand in expr.args:
        if operand.type == expr.type:
            found = _chain(operand, uses, most - 1)
            if found is not None:
                return [*found, expr]
    return None


def _fused(
    members: list[Call], done: dict[Expr, Expr], target: Target, functions: dict[str, Function]
) -> Call | None:
    """The call of the members' function; None where the sketch has no config for it."""
    function, operands = function_of(members)
    attrs: dict[str, AttrValue] = {**function.attrs, "name": "attention"}
    function = interned(Function(function.params, function.body, attrs), functions)
    if not any(sketch.space(function, target) for sketch in (attention, gpu_attention)):
        return None
    return call_of(function, [done[o] for o in operands], members)

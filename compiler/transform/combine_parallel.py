"""Make one contraction of several that read the same operand.

    conv(x, w1), conv(x, w2)  ->  y = conv(x, concat(w1, w2)); slice(y), slice(y)

with constant weights, equal attributes and, if all have one, their biases. One large contraction
uses the machine better than small ones, but what follows can no longer fuse with it across the
slices: so the pass runs only where it is required by name. Where products of variables read the
slices in place, as attention does its queries, keys and values, nothing is lost. They are joined by
themselves for GPUs, which small products leave idle, and for matrix units that multiply float32 in
parts: the rows are split once (128 × 768 to three times 768 columns takes 0.97 × the time on one
core and 0.93 on two, 197 × 384 0.88 and 0.81, Granite Rapids).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from tunefarm.compiler.ir import (
    Call,
    Constant,
    Expr,
    IRModule,
    children,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops import call
from tunefarm.compiler.structural import attrs_text
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import constant, factor_of
from tunefarm.compiler.transform.fuse_attention import may_multiply_scores
from tunefarm.compiler.transform.rewrite import count_uses, is_call, with_children


def combine_parallel(module: IRModule, target: Target) -> IRModule:
    """Combine contractions of channels-last graphs that differ in their weights alone."""
    return _with_combined(module, lambda members, users: True)


def join_projections(module: IRModule, target: Target) -> IRModule:
    """Combine products by constants whose results other products read, the projections of an
    attention, for GPUs, and where a product makes parts of its rows."""
    if target.kind != "cuda" and not _splits_rows(target):
        return module
    of_cpu = target.kind == "llvm"

    def pays(members: Sequence[Call], users: Mapping[Expr, Expr]) -> bool:
        return all(
            is_call(m, "matmul")
            and (end := _product_behind(m, users, scaled=of_cpu)) is not None
            and (not of_cpu or _is_attention_of_float32(end, target))
            for m in members
        )

    return _with_combined(module, pays)


def _splits_rows(target: Target) -> bool:
    """Whether products split their rows (``float_parts``), once for all that read the same."""
    return target.has("amx-bf16") and not target.strict


def _with_combined(
    module: IRModule, pays: Callable[[Sequence[Call], Mapping[Expr, Expr]], bool]
) -> IRModule:
    """The module with the contractions combined for which that pays."""
    main = module.main
    users = _single_users(main.body)
    replaced: dict[Expr, Expr] = {}
    for members in _parallel(main.body):
        if pays(members, users):
            replaced.update(_combined(members, users))
    if not replaced:
        return module
    body = _substituted(main.body, replaced)
    return module.with_body(body)


def _product_behind(member: Call, users: Mapping[Expr, Expr], scaled: bool) -> Call | None:
    """The product of variables that reads a product by a constant, with nothing but its bias and
    views between them, and factors of queries and keys if it may be ``scaled``."""
    end: Expr = member if _bias(member, users) is None else users[member]
    user, factors = users.get(end), False
    while user is not None:
        factor = factor_of(user) if scaled else None
        if factor is not None and may_multiply_scores(factor):
            factors = True
        elif not is_call(user, "reshape", "transpose"):
            break
        user = users.get(user)
    if not isinstance(user, Call) or not is_call(user, "einsum"):
        return None
    return None if factors and _weights(user) is not None else user


def _weights(product: Call) -> Expr | None:
    """The softmax, or views of one, that an attention's last product reads; None of another."""
    for operand in product.args:
        source = operand
        while is_call(source, "reshape", "transpose") and isinstance(source, Call):
            source = source.args[0]
        if is_call(source, "softmax"):
            return operand
    return None


def _is_attention_of_float32(product: Call, target: Target) -> bool:
    """Whether a kernel of attention, whose lanes lie along queries, takes a product, as far as its
    scores tell."""
    scores = tensor_type(_weights(product) or product)
    if scores.dtype != "float32" or len(scores.shape) < 2:
        return False
    return scores.shape[-2] >= target.lanes(scores.dtype)


def _parallel(root: Expr) -> list[list[Call]]:
    """Contractions with one data operand, grouped by everything but their output channels."""
    groups: dict[object, list[Call]] = {}
    for node in post_order(root):
        if not isinstance(node, Call) or not _may_combine(node):
            continue
        x, w = node.args
        shape = list(tensor_type(w).shape)
        shape[_output_axis(node)] = 0
        key = (id(x), node.op, attrs_text(node.attrs), tuple(shape), tensor_type(w).dtype)
        groups.setdefault(key, []).append(node)
    return [members for members in groups.values() if len(members) > 1]


def _may_combine(node: Call) -> bool:
    if not is_call(node, "conv", "matmul") or not isinstance(node.args[1], Constant):
        return False
    if node.op == "matmul":
        return len(tensor_type(node.args[1]).shape) == 2
    attrs = node.attrs
    return (
        attrs["groups"] == 1 and attrs["kernel_layout"] == "SIO" and attrs["data_layout"] == "NSC"
    )


def _output_axis(node: Call) -> int:
    return -2 if node.op == "matmul" and node.attrs["transpose_b"] else -1


def _single_users(root: Expr) -> dict[Expr, Expr]:
    """The user of each expression that is used once."""
    uses = count_uses(root)
    return {c: n for n in post_order(root) for c in children(n) if uses[c] == 1}


def _combined(members: Sequence[Call], users: Mapping[Expr, Expr]) -> dict[Expr, Expr]:
    """What replaces each member, or the addition of its bias."""
    first = members[0]
    axis = _output_axis(first)
    weights = [m.args[1] for m in members if isinstance(m.args[1], Constant)]
    joined = constant(np.concatenate([w.data for w in weights], axis), weights[0])
    name = "+".join(m.name for m in members if m.name)
    value: Expr = call(str(first.op), first.args[0], joined, name=name, **first.attrs)
    ends: list[Expr] = list(members)
    biases = [_bias(m, users) for m in members]
    if all(b is not None for b in biases):
        rows = [b for b in biases if b is not None]
        value = call("add", value, constant(np.concatenate([b.data for b in rows]), rows[0]))
        ends = [users[m] for m in members]
    return _slices(value, ends)


def _bias(member: Call, users: Mapping[Expr, Expr]) -> Constant | None:
    user = users.get(member)
    if not isinstance(user, Call) or user.op != "add" or user.args[0] is not member:
        return None
    bias = user.args[1]
    channels = tensor_type(member).shape[-1:]
    return bias if isinstance(bias, Constant) and bias.data.shape == channels else None


def _slices(value: Expr, ends: Sequence[Expr]) -> dict[Expr, Expr]:
    made: dict[Expr, Expr] = {}
    first = 0
    for end in ends:
        shape = tensor_type(end).shape
        begin = (*[0] * (len(shape) - 1), first)
        made[end] = call("slice", value, begin=begin, size=shape, strides=(1,) * len(shape))
        first += shape[-1]
    return made


def _substituted(root: Expr, replaced: Mapping[Expr, Expr]) -> Expr:
    """The graph with expressions replaced, the operands of replacements too."""
    done: dict[Expr, Expr] = {}
    stack = [root]
    while stack:
        node = stack[-1]
        target = replaced.get(node)
        needed = children(node) if target is None else (target,)
        waiting = [c for c in needed if c not in done]
        if node not in done and waiting:
            stack.extend(waiting)
            continue
        stack.pop()
        if node not in done:
            done[node] = (
                with_children(node, [done[c] for c in needed]) if target is None else done[target]
            )
    return done[root]

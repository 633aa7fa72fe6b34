"""Scores, softmax and the product with the values become one kernel.

matmul(softmax(matmul(q, k) * c + mask), v)   ->   f(q, k, mask, v)

Between the first product and the softmax may stand elementwise operators, whose other operands
become operands of the kernel, and reshapes that leave the rows alone. Nobody else may read what is
inside. It is fused where an attention sketch has a config: elsewhere the operators stay apart.
Queries, keys and values that are parts of one array, as where one product makes all three, are read
where they lie in it (on CPUs), and factors of queries and keys multiply the scores instead. In a
module that may compute in bfloat16 the operands of both products are rounded to it, inside the
kernel, where a matrix unit or dot products in vectors gain by that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import prod

import numpy as np
from tunefarm.compiler.gpu.space import attention as gpu_attention
from tunefarm.compiler.ir import (
    AttrValue,
    Call,
    Constant,
    Expr,
    Function,
    IRModule,
    Var,
    children,
    post_order,
    tensor_type,
)
from tunefarm.compiler.ops.base import OPS, Pattern, call
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.space import attention, attention_dots, attention_parts
from tunefarm.compiler.space.attention.program import PRODUCTS
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import factor_of, reshape
from tunefarm.compiler.transform.outline import call_of, function_of, interned
from tunefarm.compiler.transform.rewrite import Uses, count_uses, is_call, with_children

_SKETCHES = attention, attention_parts, gpu_attention
_MAX_CALLS = 32  # from a product to its softmax
_NAMING = {"shape", "axis", "axes", "equation"}  # attributes that count a result's axes
LARGEST_FACTOR = 1024.0  # of queries or keys that multiplies the scores instead, or its inverse


def fuse_attention(module: IRModule, target: Target) -> IRModule:
    """Runs when products read and write in place, right before ``fuse_ops``."""
    main = module.main
    narrow = main.attrs.get("precision") == "bf16"
    order = post_order(main.body)
    uses = count_uses(main.body)
    functions: dict[str, Function] = {}
    done: dict[Expr, Expr] = {}
    for node in order:
        members = _members(node, uses) if is_call(node, *PRODUCTS) else None
        done[node] = (
            None if members is None else _fused(members, done, target, functions, uses, narrow)
        ) or with_children(node, [done[c] for c in children(node)])
    return module.with_body(done[main.body])


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
    if expr.op in PRODUCTS:
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
    members: list[Call],
    done: dict[Expr, Expr],
    target: Target,
    functions: dict[str, Function],
    uses: Uses,
    narrow: bool,
) -> Expr | None:
    """The call of the members' function; None where no sketch has a config for it."""
    function, operands = _without_batch_of_one(*function_of(members))
    attrs: dict[str, AttrValue] = {**function.attrs, "name": "attention"}
    apart = Function(function.params, function.body, attrs), operands
    in_place = _reading_in_place(*apart, target, uses) if target.kind == "llvm" else None
    for form, read in (in_place, apart) if in_place else (apart,):
        rounded = _in_bfloat16(form, target) if narrow else None
        shared = interned(rounded or form, functions)
        if rounded or any(sketch.space(shared, target) for sketch in _SKETCHES):
            result = call_of(shared, [_placed(o, done) for o in read], members)
            return reshape(result, tensor_type(members[-1]).shape)
    return None


def _in_bfloat16(function: Function, target: Target) -> Function | None:
    """The function with products of bfloat16, by a matrix unit or in vectors; None where neither
    saves time."""
    tiles = attention_parts.in_bfloat16(function, target)
    return tiles or attention_dots.in_bfloat16(function, target)


def _without_batch_of_one(
    function: Function, operands: Sequence[Expr]
) -> tuple[Function, Sequence[Expr]]:
    """The function without its first axes while these have one element and its products are of
    matrices in batches; neither what it reads nor its result has them."""
    while (rank := _rank_with_one(function)) > 2:
        shorter = partial(_without_first, rank=rank)
        operands = [shorter(o) for o in operands]
        params = tuple(Var(p.name, tensor_type(shorter(p))) for p in function.params)
        done: dict[Expr, Expr] = dict(zip(function.params, params, strict=True))
        for node in post_order(function.body):
            if isinstance(node, Call):
                args = [done.get(a) or shorter(a) for a in node.args]
                done[node] = call(str(node.op), *args, name=node.name, **node.attrs)
        function = Function(params, done[function.body], function.attrs)
    return function, operands


def _without_first(expr: Expr, rank: int) -> Expr:
    """An operand without the first of ``rank`` axes; one of fewer axes as it is."""
    shape = tensor_type(expr).shape
    return reshape(expr, shape[1:]) if len(shape) == rank else expr


def _rank_with_one(function: Function) -> int:
    """The number of axes of an attention's result if the first has one element, and of all that is
    computed on the way; 0 if not, or where operators name shapes or axes."""
    inside = [n for n in post_order(function.body) if isinstance(n, Call)]
    rank = len(tensor_type(function.body).shape)
    for node in inside:
        shape = tensor_type(node).shape
        named = not is_call(node, "softmax") and _NAMING & node.attrs.keys()
        if named or len(shape) != rank or shape[0] != 1:
            return 0
    return rank


def _placed(operand: Expr, done: dict[Expr, Expr]) -> Expr:
    """An operand of the new graph: one of the old, or a view of it."""
    if operand in done:
        return done[operand]
    return with_children(operand, [_placed(c, done) for c in children(operand)])


def _reading_in_place(
    function: Function, operands: Sequence[Expr], target: Target, uses: Uses
) -> tuple[Function, list[Expr]] | None:
    """The function with queries, keys and values that are part of a larger array read in it, and
    the arrays; None if none is one. The scores are multiplied by what queries and keys have as
    factors; values with factors, and under a strict precision all with them, are left."""
    inside = count_uses(function.body)
    scores, mixed = (n for n in post_order(function.body) if is_call(n, *PRODUCTS))
    may_scale = [] if target.strict else [c for c in children(scores) if inside[c] == 1]
    done: dict[Expr, Expr] = {}
    params, arrays, factor = list(function.params), list(operands), 1.0
    for number, (param, operand) in enumerate(zip(function.params, operands, strict=True)):
        part = _part_of(operand, uses)
        if part is None or param not in (*children(scores), *children(mixed)):
            continue
        if part.factor != 1 and param not in may_scale:
            continue
        whole = Var(param.name, tensor_type(part.array))
        params[number], arrays[number] = whole, part.array
        factor *= part.factor
        size = tensor_type(param).shape
        done[param] = call("slice", whole, begin=part.begin, size=size, strides=(1,) * len(size))
    if not done:
        return None
    for node in post_order(function.body):
        if node not in done:
            done[node] = with_children(node, [done[c] for c in children(node)])
        if node is scores and factor != 1:
            scale = Constant(np.array(factor, tensor_type(node).dtype))
            done[node] = call("multiply", done[node], scale)
    return Function(tuple(params), done[function.body], function.attrs), arrays


@dataclass(frozen=True, slots=True)
class _Part:
    """An operand: what begins at ``begin`` of an array of as many dimensions, times a factor."""

    array: Expr
    begin: tuple[int, ...]
    factor: float


def _part_of(operand: Expr, uses: Uses) -> _Part | None:
    """The part of a larger array that an operand is, cut along one axis; None if it is something
    else, or if little of an array that is made for it would be read.

    reshape(slice(x[1, 197, 3, 6, 64], begin=(0, 0, 1, 0, 0), size=(1, 197, 1, 6, 64)) * 0.5)
    ->  x as [1, 197, 18, 64] from (0, 0, 6, 0) on, times 0.5
    """
    shape, factor, source = tensor_type(operand).shape, 1.0, operand
    while isinstance(source, Call) and source.op in ("reshape", "multiply"):
        number = 1.0 if source.op == "reshape" else factor_of(source)
        if number is None:
            return None
        factor, source = factor * number, source.args[0]
    if not isinstance(source, Call) or source.op != "slice" or not may_multiply_scores(factor):
        return None
    array, begin = source.args[0], integers(source.attrs, "begin")
    whole, part = tensor_type(array).shape, tensor_type(source).shape
    cut = [d for d, (w, p) in enumerate(zip(whole, part, strict=True)) if w != p]
    if len(cut) != 1 or 0 in part or any(n != 1 for n in integers(source.attrs, "strides")):
        return None
    made = not isinstance(array, Var)
    if isinstance(array, Constant) or (made and 2 * uses[array] * prod(part) < prod(whole)):
        return None
    rows, run = prod(whole[: cut[0]]), prod(whole[cut[0] + 1 :])
    # What the slice has of each row is what the operand's dimensions from some axis on have.
    axis = next((d for d in range(len(shape)) if prod(shape[:d]) == rows and shape[d] > 1), None)
    if axis is None:
        return None
    inner = prod(shape[axis + 1 :])
    columns, first = whole[cut[0]] * run, begin[cut[0]] * run
    if columns % inner or first % inner:
        return None
    starts = tuple(first // inner if d == axis else 0 for d in range(len(shape)))
    wide = (*shape[:axis], columns // inner, *shape[axis + 1 :])
    return _Part(reshape(array, wide), starts, factor)


def may_multiply_scores(factor: float) -> bool:
    """Whether scores are about as far from overflow without a factor of queries or keys."""
    return 1 / LARGEST_FACTOR <= abs(factor) <= LARGEST_FACTOR

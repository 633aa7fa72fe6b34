"""Products of a single row with rows that lie in memory as they are summed: sums of products.

matmul[transpose_b](a[…, 1, k], b[…, n, k])   ->   sum(a[…, 1, 1, k] * b[…, 1, n, k], last axis)

So a query meets the keys of its cache, whatever the order of heads and keys (``einsum``). A tile of
a matrix product would gather its columns, or copy them; as a sum each row is read once, in vectors
(12 heads of 1024 keys of 64 numbers: 70 µs, 271 as a product; Zen 3). Constants are packed when a
model is built, and stay products.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tunefarm.compiler.ir import Call, Constant, Expr, IRModule, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.constants import reshape, transpose
from tunefarm.compiler.transform.lower_einsum import terms_of
from tunefarm.compiler.transform.rewrite import Uses, rewrite_main

DTYPE = "float32"


def sum_single_rows(module: IRModule, target: Target) -> IRModule:
    """Runs when attention is fused, and before other operators are."""
    if target.kind != "llvm":
        return module
    lanes = target.lanes(DTYPE)
    return rewrite_main(module, [lambda node, uses: _sum(node, uses, lanes)])


def _sum(node: Call, uses: Uses, lanes: int) -> Expr | None:
    if node.op not in ("matmul", "einsum") or len(node.args) != 2 or node.attrs.get("out_dtype"):
        return None
    a, b = node.args
    if isinstance(b, Constant) or {tensor_type(e).dtype for e in node.args} != {DTYPE}:
        return None
    if node.op == "einsum":
        return _sum_of_einsum(node, lanes)
    left, right = tensor_type(a).shape, tensor_type(b).shape
    if node.attrs["transpose_a"] or not node.attrs["transpose_b"]:
        return None
    if min(len(left), len(right)) < 2 or left[-2] != 1 or min(right[-2:]) < lanes:
        return None
    row = reshape(a, (*left[:-2], 1, 1, left[-1]))
    rows = reshape(b, (*right[:-2], 1, *right[-2:]))
    return call("sum", call("multiply", row, rows), axes=(-1,), keepdims=False, name=node.name)


def _sum_of_einsum(node: Call, lanes: int) -> Expr | None:
    """The same of batches and rows in any order, in that of the second operand; its terms last."""
    (first, second), result = terms_of(node)
    rows = [label for label in result if label not in second]
    outer = [label for label in second if label in result]
    terms = second[len(outer) :]
    if len(set(first)) < len(first) or {*first} - {*result, *terms} or {*terms} - {*first}:
        return None
    if not terms or second != "".join(outer) + terms:
        return None
    extents = {
        label: extent
        for labels, e in zip((first, second), node.args, strict=True)
        for label, extent in zip(labels, tensor_type(e).shape, strict=True)
    }
    columns = prod(extents[label] for label in outer if label not in first)
    if extents[terms[-1]] < lanes or columns < lanes or any(extents[r] > 1 for r in rows):
        return None
    order = [*outer, *rows, *terms]
    operands = (
        _in_order(e, labels, order, extents)
        for labels, e in zip((first, second), node.args, strict=True)
    )
    axes = tuple(range(len(result), len(order)))
    total = call("sum", call("multiply", *operands), axes=axes, keepdims=False, name=node.name)
    return transpose(total, [order.index(label) for label in result])


def _in_order(expr: Expr, labels: str, order: list[str], extents: Mapping[str, int]) -> Expr:
    """An operand with an axis for each label, of extent 1 where it has none."""
    own = [label for label in order if label in labels]
    moved = transpose(expr, [labels.index(label) for label in own])
    return reshape(moved, [extents[label] if label in labels else 1 for label in order])

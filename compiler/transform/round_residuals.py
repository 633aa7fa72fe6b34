"""Residuals rounded to bfloat16, in models that may: half the bytes go to memory and back.

add(y, x), product(cast[bfloat16](x))   ->  add(y, cast[float32](cast[bfloat16](x)))
add(product(a), product(b))             ->  add(product(a), cast(cast[bfloat16](product(b))))

The first is a value that is stored for a product anyway, and that sums alone read beside products.
In the second the sum joins the first product's kernel, and the result of the other one waits in
memory for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tunefarm.compiler.ir import Call, Expr, children, post_order, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.transform.outline import SIMPLE, pattern_of
from tunefarm.compiler.transform.rewrite import is_call, users_of, with_children

PRODUCTS = ("conv", "matmul", "einsum")
DTYPE = "bfloat16"  # whose range is that of float32


def round_residuals(root: Expr) -> Expr:
    """The graph, whose products read bfloat16, with sums that read it as well."""
    order, users = post_order(root), users_of(root)
    casts = _casts_for_products(order)
    made_for_sums = _of_products(order, users)
    done: dict[Expr, Expr] = {}
    for node in order:
        rounded = _read_rounded(node, casts, made_for_sums, users)
        operands = [
            _rounded(c, casts.get(c), done) if c in rounded else done[c] for c in children(node)
        ]
        done.setdefault(node, with_children(node, operands))
    return done[root]


def _casts_for_products(order: Sequence[Expr]) -> dict[Expr, Expr]:
    """The casts that products read, by what they round."""
    found: dict[Expr, Expr] = {}
    for node in order:
        if not isinstance(node, Call) or not _is_rounded_product(node):
            continue
        operand = node.args[0]
        while isinstance(operand, Call) and operand.op == "reshape":
            operand = operand.args[0]
        if isinstance(operand, Call) and operand.op == "cast":
            found[operand.args[0]] = operand
    return found


def _of_products(order: Sequence[Expr], users: Mapping[Expr, Sequence[Expr]]) -> set[Expr]:
    """Values that one operator reads: products of what is rounded, and elementwise operators that
    their kernels take."""
    found: set[Expr] = set()
    for node in order:
        if not isinstance(node, Call) or len(users[node]) > 1:
            continue
        follows = any(a in found and a.type == node.type for a in node.args)
        if _is_rounded_product(node) or (follows and pattern_of(node) in SIMPLE):
            found.add(node)
    return found


def _is_rounded_product(node: Call) -> bool:
    return node.op in PRODUCTS and tensor_type(node.args[0]).dtype == DTYPE


def _read_rounded(
    reader: Expr,
    casts: Mapping[Expr, Expr],
    of_products: Collection[Expr],
    users: Mapping[Expr, Sequence[Expr]],
) -> list[Expr]:
    """The operands of a sum that are stored rounded, or should be."""
    if not isinstance(reader, Call) or reader.op != "add":
        return []
    first, second = reader.args
    found = [v for v in (first, second) if v in casts and _has_sums_alone(v, casts[v], users)]
    both = first in of_products and second in of_products and second.type == reader.type
    return [*found, second] if both else found


def _has_sums_alone(value: Expr, cast: Expr, users: Mapping[Expr, Sequence[Expr]]) -> bool:
    """Whether a value that an operator makes in float32 is read by sums beside its ``cast``."""
    return (
        isinstance(value, Call)
        and tensor_type(value).dtype == "float32"
        and all(u is cast or (is_call(u, "add") and u.type == value.type) for u in users[value])
    )


def _rounded(value: Expr, cast: Expr | None, done: dict[Expr, Expr]) -> Expr:
    """A value of the graph rounded and in float32 again, by the ``cast`` for a product if there is
    one."""
    rounded = done.get(cast) if cast else None
    if rounded is None:
        rounded = call("cast", done[value], dtype=DTYPE)
        if cast:
            done[cast] = rounded
    return call("cast", rounded, dtype="float32")

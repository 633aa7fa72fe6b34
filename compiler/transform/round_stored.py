"""What waits in memory rounded to bfloat16, in models that may: half the bytes go there and back.

add(y, x), product(cast[bfloat16](x))   ->  add(y, cast[float32](cast[bfloat16](x)))
add(product(a), product(b))             ->  add(product(a), cast(cast[bfloat16](product(b))))
depthwise_conv(product(a))              ->  depthwise_conv(cast(cast[bfloat16](product(a))))
multiply(x, f(mean(x)))                 ->  multiply(cast(y), f(mean(cast(y))))  with y = cast(x)

The first is a value that is stored for a product anyway, and that sums alone read beside products;
averages are sums. In the second the sum joins the first product's kernel, and the result of the
other one waits in memory for it. The last two are for results that the second cache does not hold
beside what else passes through it: to widen each element costs a depthwise convolution as much as
it gains on smaller ones.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tunefarm.compiler.ir import Call, Expr, children, post_order, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.base import Pattern
from tunefarm.compiler.space.inverted_residual import is_depthwise
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.transform.casts_below import MOVED
from tunefarm.compiler.transform.outline import SIMPLE, pattern_of
from tunefarm.compiler.transform.rewrite import is_call, is_float32, users_of, with_children

PRODUCTS = ("conv", "matmul", "einsum")
DTYPE = "bfloat16"  # whose range is that of float32
# Of the second caches of all cores, from which on others read rounded values: depthwise layers of
# 28² × 192 take as long either way (0.3), of 56² × 144 0.9 × the time, of 112² × 96 0.8 ×.
LARGE_SHARE = 0.4
MEANS = ("mean", "sum", "avg_pool")
SCALED = ("add", "multiply")


def round_stored(root: Expr, target: Target) -> Expr:
    """The graph, whose products read bfloat16, with sums that read it as well."""
    order, users = post_order(root), users_of(root)
    casts = _casts_for_products(order)
    of_products = _of_products(order, users)
    least = LARGE_SHARE * target.num_cores * target.l2_bytes
    large = {v for v in order if _may_be_rounded(v, of_products, casts, users, least)}
    for_products = set(casts.values())
    done: dict[Expr, Expr] = {}
    stored: dict[Expr, Expr] = {}
    for node in order:
        rounded = _read_rounded(node, casts, of_products, users) if node not in for_products else []
        operands = [
            _rounded(c, casts.get(c), done, stored) if c in rounded or c in large else done[c]
            for c in children(node)
        ]
        done.setdefault(node, with_children(node, operands))
    return done[root]


def _casts_for_products(order: Sequence[Expr]) -> dict[Expr, Expr]:
    """The casts that products read, by what they round."""
    found: dict[Expr, Expr] = {}
    seen: set[Expr] = set()
    for node in order:
        operands = [node.args[0]] if isinstance(node, Call) and _is_rounded_product(node) else []
        while operands:
            operand = operands.pop()
            if operand in seen:
                continue
            seen.add(operand)
            if is_call(operand, *MOVED):
                operands.extend(children(operand))
            elif is_call(operand, "cast"):
                (value,) = children(operand)
                found[value] = operand
    return found


def _of_products(order: Sequence[Expr], users: Mapping[Expr, Sequence[Expr]]) -> set[Expr]:
    """Values that one operator reads: products of what is rounded, and elementwise operators that
    their kernels take."""
    found: set[Expr] = set()
    for node in order:
        if not isinstance(node, Call) or len(users[node]) > 1 or not is_float32(node):
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
    """The operands of a reader that are stored rounded, or should be."""
    found = [v for v in children(reader) if v in casts and _is_summed(v, casts[v], users)]
    if not isinstance(reader, Call) or reader.op != "add":
        return found
    first, second = reader.args
    both = first in of_products and second in of_products and second.type == reader.type
    return [*found, second] if both else found


def _is_summed(value: Expr, cast: Expr, users: Mapping[Expr, Sequence[Expr]]) -> bool:
    """Whether a value that an operator makes in float32 is summed or scaled by all who read it
    beside its ``cast``."""
    return (
        isinstance(value, Call)
        and is_float32(value)
        and all(u is cast or _sums(u, value) for u in users[value])
    )


def _sums(reader: Expr, value: Expr) -> bool:
    """Whether a reader sums or scales a value's elements, each into one of the result or several
    into a mean."""
    if not isinstance(reader, Call):
        return False
    each = reader.op in SCALED and reader.type == value.type
    return each or reader.op in MEANS or _convolves_each(reader, value)


def _convolves_each(reader: Call, value: Expr) -> bool:
    """Whether a depthwise convolution reads a value as its image."""
    return is_depthwise(reader) and reader.args[0] is value


def _may_be_rounded(
    value: Expr,
    of_products: Collection[Expr],
    casts: Mapping[Expr, Expr],
    users: Mapping[Expr, Sequence[Expr]],
    least: float,
) -> bool:
    """Whether a value of so many bytes that a kernel makes in float32 is a product's that a
    depthwise convolution alone reads, or one of which means are taken, and that is scaled for a
    product, which rounds what is scaled."""
    if not isinstance(value, Call) or not is_float32(value):
        return False
    if tensor_type(value).size * dtype_bytes("float32") < least:
        return False
    readers = users[value]
    if value in of_products:
        (reader,) = readers
        return isinstance(reader, Call) and _convolves_each(reader, value)
    scaled = [r for r in readers if not is_call(r, *MEANS)]
    for_products = all(r in casts and is_call(r, "multiply") and _sums(r, value) for r in scaled)
    made = pattern_of(value) in (*SIMPLE, Pattern.OUT_FUSABLE)
    return made and for_products and 0 < len(scaled) < len(readers)


def _rounded(
    value: Expr, cast: Expr | None, done: dict[Expr, Expr], stored: dict[Expr, Expr]
) -> Expr:
    """A value of the graph rounded and in float32 again, by the ``cast`` for a product if there is
    one."""
    if value not in stored:
        made = done.get(cast) if cast else None
        stored[value] = made or call("cast", done[value], dtype=DTYPE)
    if cast:
        done[cast] = stored[value]
    return call("cast", stored[value], dtype="float32")

"""What sums read rounded, in models that may compute in 16-bit floats: half the bytes go to memory
and back.

add(y, x), product(cast[bfloat16](x))   ->  add(y, cast[float32](cast[bfloat16](x)))
add(product(a), product(b))             ->  add(product(a), cast(cast[bfloat16](product(b))))

The first is a residual that is stored for a product anyway, where all others who read it can take
it from its bytes. In the second the sum joins the first product's kernel, and the result of the
other one waits in memory for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunefarm.compiler.ir import Call, Expr, children, post_order, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.transform.outline import SIMPLE, pattern_of, reads_in_place
from tunefarm.compiler.transform.rewrite import is_call, users_of, with_children

PRODUCTS = ("conv", "matmul", "einsum")

_Users = Mapping[Expr, Sequence[Expr]]


def round_residuals(root: Expr, dtype: str) -> Expr:
    """The graph whose products read ``dtype`` with what sums read in ``dtype`` as well."""
    users = users_of(root)
    casts = {
        n.args[0]: n
        for n in post_order(root)
        if isinstance(n, Call) and n.op == "cast" and n.attrs["dtype"] == dtype
    }
    done: dict[Expr, Expr] = {}
    for node in post_order(root):
        operands = [
            _rounded(c, casts.get(c), done, dtype)
            if _reads_rounded(node, c, casts, users)
            else done[c]
            for c in children(node)
        ]
        done.setdefault(node, with_children(node, operands))
    return done[root]


def _rounded(value: Expr, cast: Expr | None, done: dict[Expr, Expr], dtype: str) -> Expr:
    """A value of the graph rounded and in float32 again, by the ``cast`` for a product if there is
    one."""
    rounded = done.get(cast) if cast else None
    if rounded is None:
        rounded = call("cast", done[value], dtype=dtype)
        if cast:
            done[cast] = rounded
    return call("cast", rounded, dtype="float32")


def _reads_rounded(reader: Expr, value: Expr, casts: Mapping[Expr, Expr], users: _Users) -> bool:
    """Whether a reader takes a value that is stored rounded, or should be."""
    if not isinstance(value, Call) or tensor_type(value).dtype != "float32":
        return False
    if value in casts:
        cast = casts[value]
        return reader is not cast and all(
            u is cast or reads_in_place(u, value) for u in users[value]
        )
    if not is_call(reader, "add"):
        return False
    first, second = children(reader)
    return value is second and all(_is_of_product(v, users) for v in (first, second))


def _is_of_product(value: Expr, users: _Users) -> bool:
    """Whether a value that one operator reads is a product of 16-bit floats, or elementwise
    operators that its kernel takes."""
    if not isinstance(value, Call) or len(users[value]) > 1:
        return False
    if value.op in PRODUCTS:
        return tensor_type(value.args[0]).dtype != "float32"
    return pattern_of(value) in SIMPLE and any(
        a.type == value.type and _is_of_product(a, users) for a in value.args
    )

"""Which scores of an attention a mask hides, whatever the queries and keys are.

    where(mask, total · scale, −∞)    →    mask
    total · scale + mask              →    mask > −∞

A score that is −∞ gives a key no weight, so a step of keys all of whose scores are hidden changes
nothing. Masks of large finite numbers hide nothing.
"""

from __future__ import annotations

from math import inf

from tunefarm.compiler.gpu.space.attention.problem import Attention
from tunefarm.compiler.tir.ir import Binary, Cast, Const, Expr, Load, Select, binary

_YES, _NO = Const(True, "bool"), Const(False, "bool")


def visible_of(a: Attention) -> Expr | None:
    """Whether a score may be more than −∞, of ``HEAD``, ``QUERY`` and ``KEY``; None if each may."""
    found = _visible(a.score, a.total)
    return None if found is _YES else found


def _visible(expr: Expr, total: Load) -> Expr:
    match expr:
        case Const(value):
            return _NO if value == -inf else _YES
        case Cast(value) if not isinstance(value, Const):
            return _visible(value, total)
        case Load() if expr is not total and expr.dtype != "bool":
            return binary("gt", Cast(expr, "float32"), Const(-inf, "float32"))
        case Binary("add", x, y):
            return _both(_visible(x, total), _visible(y, total))
        case Binary("mul" | "div", x, Const(value)) if value > 0:
            return _visible(x, total)
        case Select(condition, x, y):
            yes, no = _visible(x, total), _visible(y, total)
            if yes is _YES and no is _YES:
                return _YES
            return Select(condition, yes, no, "bool")
        case _:
            return _YES


def _both(x: Expr, y: Expr) -> Expr:
    if x is _YES or y is _YES:
        return y if x is _YES else x
    return binary("and", x, y)

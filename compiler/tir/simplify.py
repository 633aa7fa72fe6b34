"""Local simplification of expressions: constant folding and identities, at construction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunefarm.compiler.tir.ir import COMPARISONS, Binary, BinaryOp, Const, Expr

_BOOLEAN = COMPARISONS | {"and", "or"}
_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "floormod": lambda a, b: a % b,
    "min": min,
    "max": max,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "and": lambda a, b: bool(a and b),
    "or": lambda a, b: bool(a or b),
}


def fold_binary(op: BinaryOp, a: Expr, b: Expr) -> Expr:
    """``a op b``, folded when both are integer or boolean constants, or when an identity applies.

    Floating-point arithmetic is never folded here: its rounding is the dtype's, not Python's.
    """
    dtype = a.dtype
    if dtype in ("int64", "bool"):
        folded = _folded(op, a, b)
        if folded is not None:
            return folded
    return Binary(op, a, b, "bool" if op in _BOOLEAN else dtype)


def _folded(op: BinaryOp, a: Expr, b: Expr) -> Expr | None:
    """What an exact operation is without computing it; None where no rule applies."""
    x = a.value if isinstance(a, Const) else None
    y = b.value if isinstance(b, Const) else None
    if x is None and y is None:
        return Const(0, a.dtype) if op == "sub" and a is b else None
    if x is not None and y is not None and op in _FOLD and (y != 0 or not op.startswith("floor")):
        return Const(_FOLD[op](x, y), "bool" if op in _BOOLEAN else a.dtype)
    match op:
        case "add" if x == 0:
            return b
        case "add" if y == 0:
            return a
        case "add" if y is not None:
            # (i + 1) + 2 -> i + 3
            if isinstance(a, Binary) and a.op == "add" and isinstance(a.b, Const):
                return fold_binary("add", a.a, Const(a.b.value + y))
        case "sub" if y is not None:
            return a if y == 0 else fold_binary("add", a, Const(-y))
        case "mul" if x == 0 or y == 0:
            return Const(0, a.dtype)
        case "mul" if x == 1:
            return b
        case "mul" | "floordiv" if y == 1:
            return a
        case "floormod" if y == 1:
            return Const(0, a.dtype)
        case "and" if x is not None:
            return b if x else a
        case "and":
            return a if y else b
        case "or" if x is not None:
            return a if x else b
        case "or":
            return b if y else a
        case _:
            pass
    return None

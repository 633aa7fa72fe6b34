"""Local simplification of expressions: constant folding and identities, at construction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunefarm.compiler.tir.ir import COMPARISONS, Binary, BinaryOp, Const, Expr

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
    dtype = "bool" if op in COMPARISONS or op in ("and", "or") else a.dtype
    exact = a.dtype == "int64" or a.dtype == "bool"
    if not exact:
        return Binary(op, a, b, dtype)
    ca = a.value if isinstance(a, Const) else None
    cb = b.value if isinstance(b, Const) else None
    if (
        ca is not None
        and cb is not None
        and op in _FOLD
        and not (op.startswith("floor") and cb == 0)
    ):
        return Const(_FOLD[op](ca, cb), dtype)
    match op:
        case "add":
            if ca == 0:
                return b
            if cb == 0:
                return a
            if (
                cb is not None
                and isinstance(a, Binary)
                and a.op == "add"
                and isinstance(a.b, Const)
            ):
                return fold_binary("add", a.a, Const(a.b.value + cb))
        case "sub" if cb == 0:
            return a
        case "sub" if cb is not None:
            return fold_binary("add", a, Const(-cb))
        case "sub" if a is b:
            return Const(0, dtype)
        case "mul":
            if ca == 0 or cb == 0:
                return Const(0, dtype)
            if ca == 1:
                return b
            if cb == 1:
                return a
        case "floordiv" if cb == 1:
            return a
        case "floormod" if cb == 1:
            return Const(0, dtype)
        case "and":
            if ca is not None:
                return b if ca else a
            if cb is not None:
                return a if cb else b
        case "or":
            if ca is not None:
                return a if ca else b
            if cb is not None:
                return b if cb else a
        case _:
            pass
    return Binary(op, a, b, dtype)

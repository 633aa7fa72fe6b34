"""Narrowing of index types: loop variables and index arithmetic in 32 bits where they fit.

For readers of C, and for processors whose 64-bit integers are slow. Code for x86-64 stays with 64
bits: an address needs them, so narrow variables save nothing and cost a sign extension a loop
(GEMM 197×384×1000: 889 instructions instead of 882; a 3×3 convolution: 1019 instead of 1014).
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.tir.affine import interval
from tunefarm.compiler.tir.ir import (
    COMPARISONS,
    Binary,
    Cast,
    Const,
    Expr,
    For,
    Load,
    PrimFunc,
    Select,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.visit import map_children, map_exprs, map_operands

_LEAST, _MOST = -(1 << 31), (1 << 31) - 1


def narrow_indices(program: PrimFunc) -> PrimFunc:
    """A lowered program in which int64 stays where the values may not fit, or are data.

    Every step of a narrow expression provably fits, not its result alone. A wide one casts:

    for i in range(70000): A[i * 40000 + 1]   ->   for i: int32: A[int64(i) * 40000 + 1]
    """
    return replace(program, body=_Narrowing().stmt(program.body))


class _Narrowing:
    """Walks a program with the bounds of the variables in scope."""

    def __init__(self) -> None:
        self.ranges: dict[Var, tuple[int, int]] = {}  # of the variables as they were
        self.narrow: dict[Var, Var] = {}

    def stmt(self, stmt: Stmt) -> Stmt:
        match stmt:
            case For():
                return self.loop(stmt)
            case Store(buffer, indices, value):
                return Store(buffer, tuple(map(self.narrowed, indices)), self.same(value))
            case _:
                return map_exprs(map_children(stmt, self.stmt), self.same)

    def loop(self, loop: For) -> For:
        """The loop in int32 if its first value and its end fit, and the steps to compute them."""
        low, _ = interval(loop.start, self.ranges)
        _, end = interval(loop.start + loop.extent, self.ranges)
        start, extent = self.narrowed(loop.start), self.narrowed(loop.extent)
        var = loop.var
        if start.dtype == extent.dtype == "int32" and _fits(low, end):
            var = Var(var.name, "int32")
        else:
            start, extent = _wide(start), _wide(extent)
        outer = self.ranges, self.narrow
        self.ranges = {**self.ranges, loop.var: (low, end - 1)}
        self.narrow = {**self.narrow, loop.var: var}
        hints = tuple(replace(p, offset=self.narrowed(p.offset)) for p in loop.prefetch)
        body = self.stmt(loop.body)
        self.ranges, self.narrow = outer
        return replace(loop, var=var, start=start, extent=extent, prefetch=hints, body=body)

    def same(self, expr: Expr) -> Expr:
        """The expression with the dtype that it had, its parts narrowed."""
        new = self.narrowed(expr)
        return _wide(new) if expr.dtype == "int64" else new

    def narrowed(self, expr: Expr) -> Expr:
        """An int64 expression in int32 if each of its steps fits; others keep their dtype."""
        match expr:
            case Var():
                return self.narrow.get(expr, expr)
            case Const(value, "int64"):
                return Const(value, "int32") if _fits(int(value), int(value)) else expr
            case Load(buffer, indices):
                return Load(buffer, tuple(map(self.narrowed, indices)))
            case Cast(value, dtype):
                return Cast(self.narrowed(value), dtype)
            case Select(condition, a, b, "int64"):
                x, y = self.pair(a, b)
                return Select(self.same(condition), x, y, x.dtype)
            case Binary(op, a, b, _) if a.dtype == "int64":
                x, y = self.pair(a, b)
                if op in COMPARISONS:
                    return Binary(op, x, y, "bool")
                if not _fits(*interval(expr, self.ranges)):
                    x, y = _wide(x), _wide(y)
                return Binary(op, x, y, x.dtype)
            case _:
                return map_operands(expr, self.same)

    def pair(self, a: Expr, b: Expr) -> tuple[Expr, Expr]:
        """Both in int32, or both in int64."""
        x, y = self.narrowed(a), self.narrowed(b)
        return (x, y) if x.dtype == y.dtype else (_wide(x), _wide(y))


def _fits(low: int, high: int) -> bool:
    return low >= _LEAST and high <= _MOST


def _wide(expr: Expr) -> Expr:
    """The expression in int64."""
    match expr:
        case Const(value, "int32"):
            return Const(value)
        case _:
            return Cast(expr, "int64") if expr.dtype == "int32" else expr

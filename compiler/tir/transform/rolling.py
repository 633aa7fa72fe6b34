"""Sums that are unrolled run in loops again, where speed is not worth their code."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.facts import loops_below, variables
from tunefarm.compiler.tir.ir import (
    Buffer,
    Const,
    Expr,
    For,
    Load,
    LoopKind,
    Prefetch,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.visit import (
    map_children,
    operands,
    own_expressions,
    substitute,
    substitute_stmt,
    walk_stmt,
)


def roll(stmt: Stmt) -> Stmt:
    """Join each loop with the unrolled steps of its sum.

    for k_0 in 32: for k_1 in unrolled(8): for u: T[u] = T[u] + a[k_0*8 + k_1, u]
    ->  for k in 256: for u: T[u] = T[u] + a[k, u]
    """
    if not any(loop.kind is LoopKind.UNROLLED for loop in loops_below(stmt)):
        return stmt
    stmt = map_children(stmt, roll)
    if not isinstance(stmt, For) or stmt.kind is not LoopKind.SERIAL:
        return stmt
    inner = stmt.body
    if not isinstance(inner, For) or inner.kind is not LoopKind.UNROLLED or inner.prefetch:
        return stmt
    return _joined(stmt, inner)


def _joined(outer: For, inner: For) -> For:
    """Both loops as one, if all indices take them as two digits of a number."""
    start, extent = _constant(outer.start), _constant(outer.extent)
    count = _constant(inner.extent)
    if start is None or extent is None or count is None or _constant(inner.start) != 0:
        return outer
    digits = _Digits(outer.var, inner.var, count)
    if not all(map(digits.join, walk_stmt(inner.body))):
        return outer
    var = Var(outer.var.name)
    hints = (digits.shared_out(hint, var) for hint in outer.prefetch)
    return replace(
        outer,
        var=var,
        start=Const(start * count),
        extent=Const(extent * count),
        body=substitute_stmt(inner.body, {outer.var: Const(0), inner.var: var}),
        prefetch=tuple(hint for hint in hints if hint is not None),
    )


def _constant(bound: Expr) -> int | None:
    return int(bound.value) if isinstance(bound, Const) else None


@dataclass(frozen=True, slots=True, eq=False)
class _Digits:
    """Two variables as digits of ``count · high + low``."""

    high: Var
    low: Var
    count: int

    def join(self, stmt: Stmt) -> bool:
        """True if a statement mentions the digits as their number alone, times a constant, and in
        indices of memory alone."""
        if not isinstance(stmt, Store):
            return not any(map(self.among, own_expressions(stmt)))
        own = all(self._join_in_index(stmt.buffer, i) for i in stmt.indices)
        return own and self._join_in_value(stmt.value)

    def among(self, expr: Expr) -> bool:
        return not variables(expr).isdisjoint((self.high, self.low))

    def _join_in_value(self, value: Expr) -> bool:
        if not self.among(value):
            return True
        if isinstance(value, Load):
            return all(self._join_in_index(value.buffer, i) for i in value.indices)
        parts = operands(value)
        return bool(parts) and all(map(self._join_in_value, parts))

    def _join_in_index(self, buffer: Buffer, index: Expr) -> bool:
        if not self.among(index):
            return True
        form = affine(index)
        opaque = (atom for _, atom in form.terms.values() if not isinstance(atom, Var))
        if buffer.scope == "register" or any(map(self.among, opaque)):
            return False
        return form.coefficient(self.high) == self.count * form.coefficient(self.low)

    def shared_out(self, hint: Prefetch, number: Var) -> Prefetch | None:
        """A part of a hint for each value of the number; None where they do not divide it."""
        factor = affine(hint.offset).coefficient(self.high)
        if factor % self.count or hint.apart > 1:
            return None
        first = substitute(hint.offset, {self.high: Const(0)})
        offset = first + number * (factor // self.count)
        return replace(hint, offset=offset, lines=-(-hint.lines // self.count))

"""Conditions on a serial loop's variable become the loop's bounds."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.tir.affine import Affine, at_least_zero, conjunction, conjuncts
from tunefarm.compiler.tir.facts import kinds_below, variables
from tunefarm.compiler.tir.ir import Expr, For, If, LoopKind, PrimFunc, Stmt, Var, binary
from tunefarm.compiler.tir.visit import map_children


def tighten_loops(program: PrimFunc) -> PrimFunc:
    """Turn a condition on a serial loop's variable into the loop's bounds.

    for k in [0, 3): if i + k - 1 >= 0: f   ->   for k in [max(0, 1 - i), 3): f
    """
    return replace(program, body=_tighten(program.body, frozenset()))


def _tighten(stmt: Stmt, lanes: frozenset[Var]) -> Stmt:
    """``lanes`` are the vectorized variables, on which no bound may depend."""
    inside = lanes
    if isinstance(stmt, For) and stmt.kind is LoopKind.VECTORIZED:
        inside = lanes | {stmt.var}
    if If not in kinds_below(stmt):
        return stmt
    stmt = map_children(stmt, lambda s: _tighten(s, inside))
    if not isinstance(stmt, For) or not stmt.is_serial:
        return stmt
    if not isinstance(stmt.body, If) or stmt.body.orelse is not None:
        return stmt
    start, end = stmt.start, stmt.start + stmt.extent
    stay: list[Expr] = []
    for part in conjuncts(stmt.body.condition):
        bound = bound_of(part, stmt.var)
        if bound is None or not variables(bound[1]).isdisjoint(lanes):
            stay.append(part)
        elif bound[0] == "lower":
            start = binary("max", start, bound[1])
        else:
            end = binary("min", end, bound[1])
    if len(stay) == len(conjuncts(stmt.body.condition)):
        return stmt
    body = If(conjunction(stay), stmt.body.then) if stay else stmt.body.then
    return replace(stmt, start=start, extent=end - start, body=body)


def bound_of(part: Expr, var: Var) -> tuple[str, Expr] | None:
    """("lower", first value) or ("upper", one past the last) that a condition allows."""
    form = at_least_zero(part)
    if form is None:
        return None
    factor = form.coefficient(var)
    rest = Affine(form.const, {k: t for k, t in form.terms.items() if k is not var})
    if factor == 0 or var in rest.variables():
        return None
    if factor > 0:
        return "lower", (Affine(factor - 1, {}) - rest).expr() // factor
    return "upper", rest.expr() // -factor + 1

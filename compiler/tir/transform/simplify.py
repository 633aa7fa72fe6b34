"""Simplify index arithmetic and conditions with what is known of the loop variables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import gcd

from tunefarm.compiler.tir.affine import (
    Affine,
    Ranges,
    affine,
    at_least_zero,
    conjunction,
    conjuncts,
    decide,
    interval_of,
    range_of,
)
from tunefarm.compiler.tir.facts import KEPT
from tunefarm.compiler.tir.ir import (
    Allocate,
    Binary,
    Const,
    Expr,
    For,
    If,
    PrimFunc,
    Select,
    Seq,
    Stmt,
    Var,
    binary,
)
from tunefarm.compiler.tir.visit import (
    children,
    map_exprs,
    map_operands,
    operands,
    own_expressions,
    seq,
    substitute_stmt,
    with_body,
)

_FOLDING = frozenset(("floordiv", "floormod", "min", "max"))


def simplify(program: PrimFunc) -> PrimFunc:
    """Fold divisions of tile indices, decide conditions, and drop loops that never run."""
    body = simplify_stmt(program.body, {})
    return replace(program, body=body if body is not None else Seq(()))


@lru_cache(KEPT)
def _is_simple(stmt: Stmt) -> bool:
    """True if no rule applies to a statement or below it, whatever is known of the variables."""
    match stmt:
        case If():
            return False
        case For() if not isinstance(stmt.extent, Const) or stmt.extent.value <= 1:
            return False
        case Seq(stmts) if any(isinstance(s, Seq) for s in stmts) or len(stmts) < 2:
            return False
        case _:
            here = not any(map(_may_fold, own_expressions(stmt)))
            return here and all(map(_is_simple, children(stmt)))


def simplify_stmt(stmt: Stmt, ranges: dict[Var, tuple[int, int]]) -> Stmt | None:
    """The simplified statement; None if it does nothing."""
    if _is_simple(stmt):
        return stmt
    stmt = map_exprs(stmt, _Simplify(ranges))
    match stmt:
        case Seq(stmts):
            parts = [simplify_stmt(s, ranges) for s in stmts]
            kept = [p for p in parts if p is not None]
            return seq(*kept) if kept else None
        case For():
            return _simplify_loop(stmt, ranges)
        case If():
            return _simplify_if(stmt, ranges)
        case Allocate():
            body = simplify_stmt(stmt.body, ranges)
            return None if body is None else with_body(stmt, body)
        case _:
            return stmt


def _simplify_loop(loop: For, ranges: dict[Var, tuple[int, int]]) -> Stmt | None:
    if isinstance(loop.extent, Const) and loop.extent.value <= 0:
        return None
    if isinstance(loop.extent, Const) and isinstance(loop.start, Const):
        start = int(loop.start.value)
        if loop.extent.value == 1:
            body = simplify_stmt(substitute_stmt(loop.body, {loop.var: Const(start)}), ranges)
            return with_body(loop, body) if body is not None and loop.prefetch else body
    body = simplify_stmt(loop.body, {**ranges, loop.var: range_of(loop, ranges)})
    return None if body is None else with_body(loop, body)


def _simplify_if(node: If, ranges: dict[Var, tuple[int, int]]) -> Stmt | None:
    open_parts = []
    for part in conjuncts(node.condition):
        known = decide(part, ranges)
        if known is False:
            return None if node.orelse is None else simplify_stmt(node.orelse, ranges)
        if known is None:
            open_parts.append(part)
    if len(open_parts) > 1:
        open_parts = _without_implied(open_parts, ranges)
    then = simplify_stmt(node.then, ranges)
    if not open_parts:
        return then
    orelse = None if node.orelse is None else simplify_stmt(node.orelse, ranges)
    if then is None:
        return None if orelse is None else If(binary_not(conjunction(open_parts)), orelse)
    if isinstance(then, If) and then.orelse is None and orelse is None:
        return If(conjunction(open_parts + conjuncts(then.condition)), then.then)
    return If(conjunction(open_parts), then, orelse)


def _without_implied(parts: list[Expr], ranges: Ranges) -> list[Expr]:
    """The conditions that do not follow from one of the others: not i < 5 where i + 1 < 5."""
    forms = [at_least_zero(part) for part in parts]
    kept = list(range(len(parts)))
    for number, form in enumerate(forms):
        others = (forms[n] for n in kept if n != number)
        if form is not None and any(o is not None and _follows(form, o, ranges) for o in others):
            kept.remove(number)
    return [parts[n] for n in kept]


def _follows(form: Affine, known: Affine, ranges: Ranges) -> bool:
    """True if ``form ≥ 0`` wherever ``known ≥ 0``, as their difference shows."""
    if form.terms.keys().isdisjoint(known.terms):
        return False
    return interval_of(form - known, ranges)[0] >= 0


def binary_not(condition: Expr) -> Expr:
    return binary("eq", condition, Const(False, "bool"))


@lru_cache(KEPT)
def _may_fold(expr: Expr) -> bool:
    """True if an expression holds a node that ``simplify_expr`` has a rule for."""
    if type(expr) is Select:
        return True
    if type(expr) is Binary and expr.op in _FOLDING and expr.dtype == "int64":
        return True
    for part in operands(expr):
        kind = type(part)
        if kind is not Const and kind is not Var and _may_fold(part):
            return True
    return False


def simplify_expr(expr: Expr, ranges: Ranges) -> Expr:
    """Rewrite one expression bottom-up."""
    return _Simplify(ranges)(expr)


@dataclass(frozen=True, slots=True)
class _Simplify:
    ranges: Ranges
    done: dict[Expr, Expr] = field(default_factory=dict)

    def __call__(self, expr: Expr) -> Expr:
        kind = type(expr)
        if kind is Const or kind is Var or not _may_fold(expr):
            return expr
        new = self.done.get(expr)
        if new is None:
            new = self.done[expr] = _folded(map_operands(expr, self), self.ranges)
        return new


def _folded(expr: Expr, ranges: Ranges) -> Expr:
    """What an expression is whose operands are simple."""
    if isinstance(expr, Select):
        known = decide(expr.condition, ranges)
        return expr if known is None else expr.a if known else expr.b
    if not isinstance(expr, Binary) or expr.op not in _FOLDING or expr.dtype != "int64":
        return expr
    if expr.op in ("min", "max"):
        low, high = interval_of(affine(expr.a) - affine(expr.b), ranges)
        if low < 0 < high:
            return expr
        return expr.a if (high <= 0) == (expr.op == "min") else expr.b
    if isinstance(expr.b, Const) and expr.b.value > 0:
        return _divide(expr, affine(expr.a), int(expr.b.value), ranges)
    return expr


def _divide(expr: Binary, form: Affine, divisor: int, ranges: Ranges) -> Expr:
    """(8·i + j) // 8 -> i and (8·i + j) % 8 -> j, where 0 ≤ j < 8."""
    whole = {k: t for k, t in form.terms.items() if t[0] % divisor == 0}
    rest = Affine(form.const % divisor, {k: t for k, t in form.terms.items() if k not in whole})
    low, high = interval_of(rest, ranges)
    if low // divisor != high // divisor:
        return _divide_in_steps(expr, form, divisor, ranges)
    carry = low // divisor
    if expr.op == "floormod":
        return (rest + Affine(-carry * divisor, {})).expr()
    quotient = {k: (c // divisor, a) for k, (c, a) in whole.items()}
    return Affine(form.const // divisor + carry, quotient).expr()


def _divide_in_steps(expr: Binary, form: Affine, divisor: int, ranges: Ranges) -> Expr:
    """(8·i + j) // 32 -> i // 4 and (8·i + j) % 32 -> 8·(i % 4) + j, where 0 ≤ j < 8."""
    for step in sorted({gcd(c, divisor) for c, _ in form.terms.values()} - {1}, reverse=True):
        whole = {k: (c // step, a) for k, (c, a) in form.terms.items() if c % step == 0}
        within = {k: t for k, t in form.terms.items() if k not in whole}
        rest = Affine(form.const % step, within)
        low, high = interval_of(rest, ranges)
        if low < 0 or high >= step or not (within or rest.const):
            continue
        steps = Affine(form.const // step, whole)
        quotient = _folded(Binary(expr.op, steps.expr(), Const(divisor // step), "int64"), ranges)
        return quotient if expr.op == "floordiv" else (affine(quotient).scaled(step) + rest).expr()
    return expr

"""Rewriting programs: what every primitive and pass is made of.

A rewrite keeps the nodes in which nothing changes, by identity. Those that look for variables or
for buffers do not even enter an expression or a statement without them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from operator import is_ as _is

from tunefarm.compiler.tir.facts import (
    buffers_read,
    buffers_read_below,
    buffers_stored,
    loads_of,
    variables,
    variables_below,
)
from tunefarm.compiler.tir.ir import (
    Allocate,
    Barrier,
    Binary,
    Block,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    Prefetch,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
    changed,
)
from tunefarm.compiler.tir.simplify import fold_binary
from tunefarm.compiler.tir.walk import (
    children,
    expressions,
    operands,
    own_expressions,
    walk_expr,
    walk_stmt,
)

__all__ = [
    "children",
    "expressions",
    "loads_of",
    "map_children",
    "map_exprs",
    "map_operands",
    "operands",
    "own_expressions",
    "seq",
    "substitute",
    "substitute_stmt",
    "transform_accesses",
    "transform_expr",
    "transform_loads",
    "transform_stmt",
    "walk_expr",
    "walk_stmt",
    "with_body",
]


def map_operands(expr: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """The expression with ``f`` applied to its operands; itself if none changes."""
    match expr:
        case Binary():
            x, y = f(expr.a), f(expr.b)
            return expr if x is expr.a and y is expr.b else fold_binary(expr.op, x, y)
        case Load():
            indices = _mapped(expr.indices, f)
            return expr if indices is expr.indices else Load(expr.buffer, indices)
        case Select():
            c, x, y = f(expr.condition), f(expr.a), f(expr.b)
            same = c is expr.condition and x is expr.a and y is expr.b
            return expr if same else Select(c, x, y, expr.dtype)
        case Cast():
            value = f(expr.value)
            return expr if value is expr.value else Cast(value, expr.dtype)
        case Intrinsic():
            args = _mapped(expr.args, f)
            return expr if args is expr.args else Intrinsic(expr.name, args, expr.dtype)
        case _:
            return expr


def _mapped(parts: tuple[Expr, ...], f: Callable[[Expr], Expr]) -> tuple[Expr, ...]:
    """The parts with ``f`` applied; the same tuple if none changes."""
    new = tuple(map(f, parts))
    return parts if all(map(_is, new, parts)) else new


def transform_expr(expr: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rewrite bottom-up; ``rule`` gets each node after its operands, None leaves it."""
    return _Transform(rule)(expr)


def transform_loads(expr: Expr, buffers: Collection[Buffer], rule: Callable[[Load], Expr]) -> Expr:
    """Rewrite the loads of some buffers, the innermost first."""
    return _TransformLoads(buffers, rule)(expr)


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Replace variables by expressions."""
    return _Substitute(values)(expr)


# Recursive functions as values: a closure that calls itself is garbage that only the collector of
# cycles finds, and a candidate would leave thousands of them. They remember what became of a node,
# so that one which stands in several places is rewritten once and is one node again.


@dataclass(frozen=True, slots=True)
class _Transform:
    rule: Callable[[Expr], Expr | None]
    done: dict[Expr, Expr] = field(default_factory=dict)

    def __call__(self, expr: Expr) -> Expr:
        new = self.done.get(expr)
        if new is None:
            same = map_operands(expr, self)
            made = self.rule(same)
            new = self.done[expr] = same if made is None else made
        return new


@dataclass(frozen=True, slots=True)
class _TransformLoads:
    buffers: Collection[Buffer]
    rule: Callable[[Load], Expr]
    done: dict[Expr, Expr] = field(default_factory=dict)

    def __call__(self, expr: Expr) -> Expr:
        kind = type(expr)
        if kind is Const or kind is Var or buffers_read(expr).isdisjoint(self.buffers):
            return expr
        new = self.done.get(expr)
        if new is None:
            new = map_operands(expr, self)
            if isinstance(new, Load) and new.buffer in self.buffers:
                new = self.rule(new)
            self.done[expr] = new
        return new


@dataclass(frozen=True, slots=True)
class _Substitute:
    values: Mapping[Var, Expr]
    done: dict[Expr, Expr] = field(default_factory=dict)

    def __call__(self, expr: Expr) -> Expr:
        if isinstance(expr, Var):
            return self.values.get(expr, expr)
        if type(expr) is Const or variables(expr).isdisjoint(self.values):
            return expr
        new = self.done.get(expr)
        if new is None:
            new = self.done[expr] = map_operands(expr, self)
        return new


def map_children(stmt: Stmt, f: Callable[[Stmt], Stmt]) -> Stmt:
    """The statement with ``f`` applied to its sub-statements; itself if none changes."""
    match stmt:
        case For() | Allocate():
            return with_body(stmt, f(stmt.body))
        case Seq(stmts):
            new = tuple(map(f, stmts))
            return stmt if all(map(_is, new, stmts)) else seq(*new)
        case If():
            then = f(stmt.then)
            orelse = None if stmt.orelse is None else f(stmt.orelse)
            same = then is stmt.then and orelse is stmt.orelse
            return stmt if same else If(stmt.condition, then, orelse)
        case Block():
            body = f(stmt.body)
            init = None if stmt.init is None else f(stmt.init)
            same = body is stmt.body and init is stmt.init
            return stmt if same else changed(stmt, body=body, init=init)
        case Store() | Barrier():
            return stmt


def with_body(stmt: For | Allocate, body: Stmt) -> Stmt:
    """A loop or an allocation around another body."""
    if body is stmt.body:
        return stmt
    if isinstance(stmt, Allocate):
        return Allocate(stmt.buffer, body)
    return For(stmt.var, stmt.extent, body, stmt.kind, stmt.start, stmt.prefetch, stmt.axis)


def map_exprs(stmt: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """The one statement with ``f`` applied to its own expressions (not those below it)."""
    match stmt:
        case Store():
            indices, value = _mapped(stmt.indices, f), f(stmt.value)
            same = value is stmt.value and indices is stmt.indices
            return stmt if same else Store(stmt.buffer, indices, value)
        case For():
            start, extent = f(stmt.start), f(stmt.extent)
            same = start is stmt.start and extent is stmt.extent
            if same and not stmt.prefetch:
                return stmt
            hints = tuple(_mapped_hint(p, f) for p in stmt.prefetch)
            if same and all(map(_is, hints, stmt.prefetch)):
                return stmt
            return changed(stmt, start=start, extent=extent, prefetch=hints)
        case If():
            c = f(stmt.condition)
            return stmt if c is stmt.condition else If(c, stmt.then, stmt.orelse)
        case Block():
            bindings = _mapped(stmt.bindings, f)
            predicate = None if stmt.predicate is None else f(stmt.predicate)
            same = predicate is stmt.predicate and bindings is stmt.bindings
            return stmt if same else changed(stmt, bindings=bindings, predicate=predicate)
        case _:
            return stmt


def _mapped_hint(hint: Prefetch, f: Callable[[Expr], Expr]) -> Prefetch:
    offset, first = f(hint.offset), _mapped(hint.first, f)
    same = offset is hint.offset and first is hint.first
    return hint if same else replace(hint, offset=offset, first=first)


def transform_stmt(
    stmt: Stmt,
    rule: Callable[[Stmt], Stmt | None] = lambda _: None,
    expr_rule: Callable[[Expr], Expr] | None = None,
) -> Stmt:
    """Rewrite bottom-up: expressions by ``expr_rule``, then each statement by ``rule``."""
    return _TransformStmt(rule, expr_rule)(stmt)


def transform_accesses(
    stmt: Stmt,
    buffers: Collection[Buffer],
    load: Callable[[Load], Expr],
    store: Callable[[Store], Stmt],
) -> Stmt:
    """Rewrite the loads and the stores of some buffers, loads first."""
    return _TransformAccesses(buffers, _TransformLoads(buffers, load), store)(stmt)


def substitute_stmt(stmt: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """Replace variables by expressions in a statement."""
    return _SubstituteStmt(_Substitute(values))(stmt)


@dataclass(frozen=True, slots=True)
class _TransformStmt:
    rule: Callable[[Stmt], Stmt | None]
    expr_rule: Callable[[Expr], Expr] | None

    def __call__(self, stmt: Stmt) -> Stmt:
        stmt = map_children(stmt, self)
        if self.expr_rule is not None:
            stmt = map_exprs(stmt, self.expr_rule)
        new = self.rule(stmt)
        return stmt if new is None else new


@dataclass(frozen=True, slots=True)
class _TransformAccesses:
    buffers: Collection[Buffer]
    loads: _TransformLoads
    store: Callable[[Store], Stmt]

    def __call__(self, stmt: Stmt) -> Stmt:
        read = not buffers_read_below(stmt).isdisjoint(self.buffers)
        if not read and buffers_stored(stmt).isdisjoint(self.buffers):
            return stmt
        stmt = map_children(stmt, self)
        if read:
            stmt = map_exprs(stmt, self.loads)
        return self.store(stmt) if isinstance(stmt, Store) and stmt.buffer in self.buffers else stmt


@dataclass(frozen=True, slots=True)
class _SubstituteStmt:
    substitute: _Substitute

    def __call__(self, stmt: Stmt) -> Stmt:
        if variables_below(stmt).isdisjoint(self.substitute.values):
            return stmt
        return map_exprs(map_children(stmt, self), self.substitute)


def seq(*stmts: Stmt) -> Stmt:
    """Statements in order; nested sequences are flattened, a single one stands alone."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.stmts if isinstance(stmt, Seq) else (stmt,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))

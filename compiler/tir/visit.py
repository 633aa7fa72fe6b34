"""Walking and rewriting programs: the traversals that every pass is made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tunefarm.compiler.tir.ir import (
    Allocate,
    Barrier,
    Binary,
    Block,
    Cast,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
    binary,
)


def operands(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case Binary(_, a, b):
            return (a, b)
        case Cast(value):
            return (value,)
        case Select(condition, a, b):
            return (condition, a, b)
        case Load(_, indices):
            return indices
        case Intrinsic(_, args):
            return args
        case _:
            return ()


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """Every node of the expression, parents first."""
    stack = [expr]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(operands(node)))


def walk_stmt(stmt: Stmt) -> Iterator[Stmt]:
    """Every statement below ``stmt``, parents first, in program order."""
    stack = [stmt]
    while stack:
        node = stack.pop()
        yield node
        match node:
            case For() | Allocate():
                stack.append(node.body)
            case Block():
                stack.append(node.body)
                if node.init is not None:
                    stack.append(node.init)
            case If():
                if node.orelse is not None:
                    stack.append(node.orelse)
                stack.append(node.then)
            case Seq():
                stack.extend(reversed(node.stmts))
            case Store() | Barrier():
                pass


def expressions(stmt: Stmt) -> Iterator[Expr]:
    """The root expressions that stand directly in the statements below ``stmt``."""
    for node in walk_stmt(stmt):
        match node:
            case Store():
                yield from node.indices
                yield node.value
            case For():
                yield node.start
                yield node.extent
                yield from (p.offset for p in node.prefetch)
            case If():
                yield node.condition
            case Block():
                yield from node.bindings
                if node.predicate is not None:
                    yield node.predicate
            case _:
                pass


def loads_of(node: Expr | Stmt) -> Iterator[Load]:
    """Every load in an expression or a statement."""
    roots = expressions(node) if isinstance(node, Stmt) else (node,)
    for root in roots:
        for expr in walk_expr(root):
            if isinstance(expr, Load):
                yield expr


def map_operands(expr: Expr, f: Callable[[Expr], Expr]) -> Expr:
    """The expression with ``f`` applied to its operands; itself if none changes."""
    match expr:
        case Binary(op, a, b, _):
            x, y = f(a), f(b)
            return expr if x is a and y is b else binary(op, x, y)
        case Cast(value, dtype):
            v = f(value)
            return expr if v is value else Cast(v, dtype)
        case Select(condition, a, b, dtype):
            c, x, y = f(condition), f(a), f(b)
            return expr if c is condition and x is a and y is b else Select(c, x, y, dtype)
        case Load(buffer, indices):
            new = tuple(map(f, indices))
            return (
                expr
                if all(p is q for p, q in zip(new, indices, strict=True))
                else Load(buffer, new)
            )
        case Intrinsic(name, args, dtype):
            new = tuple(map(f, args))
            same = all(p is q for p, q in zip(new, args, strict=True))
            return expr if same else Intrinsic(name, new, dtype)
        case _:
            return expr


def transform_expr(expr: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rewrite bottom-up; ``rule`` gets each node after its operands, None leaves it."""

    def visit(node: Expr) -> Expr:
        node = map_operands(node, visit)
        new = rule(node)
        return node if new is None else new

    return visit(expr)


def substitute(expr: Expr, values: Mapping[Var, Expr]) -> Expr:
    """Replace variables by expressions."""
    if not values:
        return expr
    return transform_expr(expr, lambda e: values.get(e) if isinstance(e, Var) else None)


def map_children(stmt: Stmt, f: Callable[[Stmt], Stmt]) -> Stmt:
    """The statement with ``f`` applied to its sub-statements; itself if none changes."""
    match stmt:
        case For() | Allocate():
            body = f(stmt.body)
            return stmt if body is stmt.body else replace(stmt, body=body)
        case Block():
            body = f(stmt.body)
            init = None if stmt.init is None else f(stmt.init)
            same = body is stmt.body and init is stmt.init
            return stmt if same else replace(stmt, body=body, init=init)
        case If():
            then = f(stmt.then)
            orelse = None if stmt.orelse is None else f(stmt.orelse)
            same = then is stmt.then and orelse is stmt.orelse
            return stmt if same else replace(stmt, then=then, orelse=orelse)
        case Seq(stmts):
            new = tuple(map(f, stmts))
            return stmt if all(p is q for p, q in zip(new, stmts, strict=True)) else seq(*new)
        case Store() | Barrier():
            return stmt


def map_exprs(stmt: Stmt, f: Callable[[Expr], Expr]) -> Stmt:
    """The one statement with ``f`` applied to its own expressions (not those below it)."""
    match stmt:
        case Store(buffer, indices, value):
            new, v = tuple(map(f, indices)), f(value)
            same = v is value and all(p is q for p, q in zip(new, indices, strict=True))
            return stmt if same else Store(buffer, new, v)
        case For():
            start, extent = f(stmt.start), f(stmt.extent)
            same = start is stmt.start and extent is stmt.extent and not stmt.prefetch
            hints = tuple(replace(p, offset=f(p.offset)) for p in stmt.prefetch)
            return stmt if same else replace(stmt, start=start, extent=extent, prefetch=hints)
        case If():
            c = f(stmt.condition)
            return stmt if c is stmt.condition else replace(stmt, condition=c)
        case Block():
            bindings = tuple(map(f, stmt.bindings))
            predicate = None if stmt.predicate is None else f(stmt.predicate)
            same = predicate is stmt.predicate and all(
                p is q for p, q in zip(bindings, stmt.bindings, strict=True)
            )
            return stmt if same else replace(stmt, bindings=bindings, predicate=predicate)
        case _:
            return stmt


def transform_stmt(
    stmt: Stmt,
    rule: Callable[[Stmt], Stmt | None] = lambda _: None,
    expr_rule: Callable[[Expr], Expr] | None = None,
) -> Stmt:
    """Rewrite bottom-up: expressions by ``expr_rule``, then each statement by ``rule``."""

    def visit(node: Stmt) -> Stmt:
        node = map_children(node, visit)
        if expr_rule is not None:
            node = map_exprs(node, expr_rule)
        new = rule(node)
        return node if new is None else new

    return visit(stmt)


def substitute_stmt(stmt: Stmt, values: Mapping[Var, Expr]) -> Stmt:
    """Replace variables by expressions in a statement."""
    if not values:
        return stmt
    return transform_stmt(stmt, expr_rule=lambda e: substitute(e, values))


def seq(*stmts: Stmt) -> Stmt:
    """Statements in order; nested sequences are flattened, a single one stands alone."""
    flat: list[Stmt] = []
    for stmt in stmts:
        flat.extend(stmt.stmts if isinstance(stmt, Seq) else (stmt,))
    return flat[0] if len(flat) == 1 else Seq(tuple(flat))

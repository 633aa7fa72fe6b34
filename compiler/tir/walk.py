"""Walking programs: the parts of a node, and all nodes below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

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
)

_Node = TypeVar("_Node", Expr, Stmt)


def operands(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that a node is made of."""
    match expr:
        case Binary():
            return expr.a, expr.b
        case Load():
            return expr.indices
        case Intrinsic():
            return expr.args
        case Cast():
            return (expr.value,)
        case Select():
            return expr.condition, expr.a, expr.b
        case _:
            return ()


def children(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements that stand directly in a statement, in program order."""
    match stmt:
        case For() | Allocate():
            return (stmt.body,)
        case Seq(stmts):
            return stmts
        case Block():
            return (stmt.body,) if stmt.init is None else (stmt.init, stmt.body)
        case If():
            return (stmt.then,) if stmt.orelse is None else (stmt.then, stmt.orelse)
        case Store() | Barrier():
            return ()


def own_expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand directly in a statement."""
    match stmt:
        case Store():
            return (*stmt.indices, stmt.value)
        case For():
            return (stmt.start, stmt.extent, *(p.offset for p in stmt.prefetch))
        case If():
            return (stmt.condition,)
        case Block():
            return stmt.bindings if stmt.predicate is None else (*stmt.bindings, stmt.predicate)
        case _:
            return ()


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """Every node of the expression, parents first."""
    return _walk(expr, operands)


def walk_stmt(stmt: Stmt) -> Iterator[Stmt]:
    """Every statement below ``stmt``, parents first, in program order."""
    return _walk(stmt, children)


def _walk(root: _Node, parts: Callable[[_Node], tuple[_Node, ...]]) -> Iterator[_Node]:
    stack = [root]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(parts(node)))


def expressions(stmt: Stmt) -> Iterator[Expr]:
    """The root expressions that stand directly in the statements below ``stmt``."""
    for node in walk_stmt(stmt):
        yield from own_expressions(node)


def loads_of(node: Expr | Stmt) -> Iterator[Load]:
    """Every load in an expression or a statement."""
    roots = expressions(node) if isinstance(node, Stmt) else (node,)
    for root in roots:
        stack = [root]
        while stack:
            expr = stack.pop()
            if isinstance(expr, Load):
                yield expr
            stack.extend(reversed(operands(expr)))

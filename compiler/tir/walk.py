"""Walking programs: the parts of a node, and all nodes below it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, TypeVar

from tunefarm.compiler.tir.ir import (
    Allocate,
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

# By class, since both are asked for every node again and again.
_OPERANDS: Mapping[type, Callable[[Any], tuple[Expr, ...]]] = {
    Binary: attrgetter("a", "b"),
    Load: attrgetter("indices"),
    Intrinsic: attrgetter("args"),
    Cast: lambda cast: (cast.value,),
    Select: attrgetter("condition", "a", "b"),
}
_CHILDREN: Mapping[type, Callable[[Any], tuple[Stmt, ...]]] = {
    For: lambda loop: (loop.body,),
    Allocate: lambda node: (node.body,),
    Seq: attrgetter("stmts"),
    Block: lambda block: (block.body,) if block.init is None else (block.init, block.body),
    If: lambda node: (node.then,) if node.orelse is None else (node.then, node.orelse),
}


def operands(expr: Expr) -> tuple[Expr, ...]:
    """The expressions that a node is made of."""
    parts = _OPERANDS.get(type(expr))
    return () if parts is None else parts(expr)


def children(stmt: Stmt) -> tuple[Stmt, ...]:
    """The statements that stand directly in a statement, in program order."""
    parts = _CHILDREN.get(type(stmt))
    return () if parts is None else parts(stmt)


def own_expressions(stmt: Stmt) -> tuple[Expr, ...]:
    """The expressions that stand directly in a statement."""
    match stmt:
        case Store():
            return (*stmt.indices, stmt.value)
        case For():
            own = stmt.start, stmt.extent
            if not stmt.prefetch:
                return own
            return (*own, *(place for p in stmt.prefetch for place in (p.offset, *p.first)))
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

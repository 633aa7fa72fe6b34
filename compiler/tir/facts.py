"""What is known of a node, found once: nodes never change, so an answer stays true.

A primitive or a pass makes new nodes along the path to what it changes and keeps all others, so
the facts of a whole program cost no more than those of the new nodes. Each cache forgets what was
not asked for longest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar, get_args

from tunefarm.compiler.gpu.intrinsics import EXCHANGES
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    Intrinsic,
    Load,
    Select,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.walk import children, operands, own_expressions

KEPT = 1 << 13  # facts of a kind; programs have some thousand nodes, and kept ones cost collections

_T = TypeVar("_T", Var, Buffer, type, str, Binary)
_NO_VARIABLES: frozenset[Var] = frozenset()
_NO_BUFFERS: frozenset[Buffer] = frozenset()
_NO_NAMES: frozenset[str] = frozenset()
_NO_TESTS: frozenset[Binary] = frozenset()
_ALONE = {kind: frozenset((kind,)) for kind in get_args(Stmt)}


@lru_cache(KEPT)
def variables(expr: Expr) -> frozenset[Var]:
    """The variables in an expression."""
    if type(expr) is Binary:
        first = variables(expr.a)
        return first if type(expr.b) is Const else _joined(first, variables(expr.b))
    if isinstance(expr, Var):
        return frozenset((expr,))
    found = _NO_VARIABLES
    for part in operands(expr):
        if type(part) is not Const:
            found = _joined(found, variables(part))
    return found


@lru_cache(KEPT)
def buffers_read(expr: Expr) -> frozenset[Buffer]:
    """The buffers that an expression loads from."""
    found = frozenset((expr.buffer,)) if isinstance(expr, Load) else _NO_BUFFERS
    for part in operands(expr):
        kind = type(part)
        if kind is not Const and kind is not Var:
            found = _joined(found, buffers_read(part))
    return found


@lru_cache(KEPT)
def loads_of(node: Expr | Stmt) -> tuple[Load, ...]:
    """Every load in an expression or a statement, outer ones first, in program order."""
    if isinstance(node, Stmt):
        own = own_expressions(node)
        parts: tuple[Expr | Stmt, ...] = (*own, *children(node))
        found: tuple[Load, ...] = ()
    else:
        if not buffers_read(node):
            return ()
        parts = operands(node)
        found = (node,) if isinstance(node, Load) else ()
    for part in parts:
        kind = type(part)
        if kind is not Const and kind is not Var:
            found += loads_of(part)
    return found


@lru_cache(KEPT)
def exchanges(expr: Expr) -> frozenset[str]:
    """The intrinsics of an expression that threads of a warp come to together."""
    found = _NO_NAMES
    if isinstance(expr, Intrinsic) and expr.name in EXCHANGES:
        found = frozenset((expr.name,))
    for part in operands(expr):
        kind = type(part)
        if kind is not Const and kind is not Var:
            found = _joined(found, exchanges(part))
    return found


@lru_cache(KEPT)
def array_choices(expr: Expr) -> frozenset[Binary]:
    """The comparisons by which an expression chooses between arrays that it reads, or by which all
    of it is one place of an array or another."""
    found = _NO_TESTS
    if len(buffers_read(expr)) < 2 and not isinstance(expr, Select):
        return found
    if isinstance(expr, Select) and isinstance(expr.condition, Binary):
        first, second = buffers_read(expr.a), buffers_read(expr.b)
        places = isinstance(expr.a, (Load, Select)) and isinstance(expr.b, (Load, Select))
        if first and second and (first != second or places):
            found = frozenset((expr.condition,))
    for part in operands(expr):
        found = _joined(found, array_choices(part))
    return found


def _below(fact: Callable[[Expr], frozenset[_T]]) -> Callable[[Stmt], frozenset[_T]]:
    """The fact of the expressions of a statement and of all below it."""

    def found(stmt: Stmt) -> frozenset[_T]:
        facts: frozenset[_T] = below(stmt.body) if type(stmt) is For else frozenset()
        for expr in own_expressions(stmt):
            if type(expr) is not Const:
                facts = _joined(facts, fact(expr))
        if type(stmt) is not For:
            for child in children(stmt):
                facts = _joined(facts, below(child))
        return facts

    below: Callable[[Stmt], frozenset[_T]] = lru_cache(KEPT)(found)
    return below


variables_below = _below(variables)
buffers_read_below = _below(buffers_read)
exchanges_below = _below(exchanges)
array_choices_below = _below(array_choices)


@lru_cache(KEPT)
def buffers_stored(stmt: Stmt) -> frozenset[Buffer]:
    """The buffers that a statement and all below it store to."""
    found = frozenset((stmt.buffer,)) if isinstance(stmt, Store) else _NO_BUFFERS
    for child in children(stmt):
        found = _joined(found, buffers_stored(child))
    return found


def uses(stmt: Stmt, buffer: Buffer) -> bool:
    """Whether a statement, or one below it, stores to a buffer or reads it."""
    return buffer in buffers_stored(stmt) or buffer in buffers_read_below(stmt)


@lru_cache(KEPT)
def loops_below(stmt: Stmt) -> tuple[For, ...]:
    """The loops of a statement, itself included, in program order."""
    found: list[For] = []
    parts: tuple[Stmt, ...] = (stmt,)
    while len(parts) == 1:  # a nest: nobody asks for the loops below each of its loops
        if type(parts[0]) is For:
            found.append(parts[0])
        parts = children(parts[0])
    for part in parts:
        found += loops_below(part)
    return tuple(found)


@lru_cache(KEPT)
def blocks_below(stmt: Stmt) -> tuple[Block, ...]:
    """The blocks of a statement, itself included, in program order."""
    parts: tuple[Stmt, ...] = (stmt,)
    while len(parts) == 1:
        if type(parts[0]) is Block:
            return (parts[0],)
        parts = children(parts[0])
    found: tuple[Block, ...] = ()
    for part in parts:
        found += blocks_below(part)
    return found


@lru_cache(KEPT)
def kinds_below(stmt: Stmt) -> frozenset[type]:
    """The kinds of a statement and of all below it: ``If in kinds_below(stmt)``."""
    found = _ALONE[type(stmt)]
    for child in children(stmt):
        found = _joined(found, kinds_below(child))
    return found


def _joined(a: frozenset[_T], b: frozenset[_T]) -> frozenset[_T]:
    """The union; the set of one of them where that holds the other."""
    if not a:
        return b
    if b is a or b <= a:
        return a
    return b if a <= b else a | b

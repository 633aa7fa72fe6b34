"""What is known of a node, found once: nodes never change, so an answer stays true.

A primitive or a pass makes new nodes along the path to what it changes and keeps all others, so
the facts of a whole program cost no more than those of the new nodes. Each cache forgets what was
not asked for longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TypeVar, get_args

from tunefarm.compiler.tir.ir import Block, Buffer, Const, Expr, For, Load, Stmt, Store, Var
from tunefarm.compiler.tir.walk import children, operands, own_expressions

KEPT = 1 << 13  # facts of a kind; programs have some thousand nodes, and kept ones cost collections

_T = TypeVar("_T", Var, Buffer, type)
_NO_VARIABLES: frozenset[Var] = frozenset()
_NO_BUFFERS: frozenset[Buffer] = frozenset()
_ALONE = {kind: frozenset((kind,)) for kind in get_args(Stmt)}


@lru_cache(KEPT)
def variables(expr: Expr) -> frozenset[Var]:
    """The variables in an expression."""
    if isinstance(expr, Var):
        return frozenset((expr,))
    return _union(_NO_VARIABLES, variables, (e for e in operands(expr) if type(e) is not Const))


@lru_cache(KEPT)
def buffers_read(expr: Expr) -> frozenset[Buffer]:
    """The buffers that an expression loads from."""
    own = frozenset((expr.buffer,)) if isinstance(expr, Load) else _NO_BUFFERS
    return _union(own, buffers_read, (e for e in operands(expr) if type(e) not in (Const, Var)))


def _below(fact: Callable[[Expr], frozenset[_T]]) -> Callable[[Stmt], frozenset[_T]]:
    """The fact of the expressions of a statement and of all below it."""

    def found(stmt: Stmt) -> frozenset[_T]:
        own = _union(frozenset(), fact, own_expressions(stmt))
        return _union(own, below, children(stmt))

    below: Callable[[Stmt], frozenset[_T]] = lru_cache(KEPT)(found)
    return below


variables_below = _below(variables)
buffers_read_below = _below(buffers_read)


@lru_cache(KEPT)
def buffers_stored(stmt: Stmt) -> frozenset[Buffer]:
    """The buffers that a statement and all below it store to."""
    own = frozenset((stmt.buffer,)) if isinstance(stmt, Store) else _NO_BUFFERS
    return _union(own, buffers_stored, children(stmt))


@lru_cache(KEPT)
def loops_below(stmt: Stmt) -> tuple[For, ...]:
    """The loops of a statement, itself included, in program order."""
    inner = tuple(loop for child in children(stmt) for loop in loops_below(child))
    return (stmt, *inner) if isinstance(stmt, For) else inner


@lru_cache(KEPT)
def blocks_below(stmt: Stmt) -> tuple[Block, ...]:
    """The blocks of a statement, itself included, in program order."""
    if isinstance(stmt, Block):
        return (stmt,)
    return tuple(block for child in children(stmt) for block in blocks_below(child))


@lru_cache(KEPT)
def kinds_below(stmt: Stmt) -> frozenset[type]:
    """The kinds of a statement and of all below it: ``If in kinds_below(stmt)``."""
    return _union(_ALONE[type(stmt)], kinds_below, children(stmt))


def _union(
    own: frozenset[_T], fact: Callable[..., frozenset[_T]], parts: Iterable[Expr | Stmt]
) -> frozenset[_T]:
    """``own`` and the facts of all parts; the set of one of them where that holds the others."""
    for part in parts:
        found = fact(part)
        if found is not own and not found <= own:
            own = found if own <= found else own | found
    return own

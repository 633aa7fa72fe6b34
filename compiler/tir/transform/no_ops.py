"""Removal of what does nothing: self-stores, tiles that nobody reads, empty branches and loops."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.tir.affine import key_of
from tunefarm.compiler.tir.facts import buffers_read_below, buffers_stored
from tunefarm.compiler.tir.ir import (
    Allocate,
    Buffer,
    Const,
    For,
    If,
    Load,
    PrimFunc,
    Seq,
    Stmt,
    Store,
)
from tunefarm.compiler.tir.transform.simplify import binary_not
from tunefarm.compiler.tir.visit import map_children, seq, walk_stmt

_NOTHING = Seq(())


def remove_no_ops(program: PrimFunc) -> PrimFunc:
    """Leave out what changes no output.

    allocate T: T[i] = x; out[i] = out[i]; for j in 0: f; if c: (nothing)   ->   (nothing)
    """
    body = program.body
    while True:
        local = {s.buffer for s in walk_stmt(body) if isinstance(s, Allocate)}
        after = _cleaned(body, local - buffers_read_below(body))
        if after is body:
            return program if body is program.body else replace(program, body=body)
        body = after


def _cleaned(stmt: Stmt, unread: set[Buffer]) -> Stmt:
    stmt = map_children(stmt, lambda s: _cleaned(s, unread))
    match stmt:
        case Store() if stmt.buffer in unread or _stores_itself(stmt):
            return _NOTHING
        case For() if _empty(stmt.body) and not stmt.prefetch:
            return _NOTHING
        case For(extent=Const(value)) if value <= 0:
            return _NOTHING
        case Allocate() if _empty(stmt.body):
            return _NOTHING
        case Allocate() if stmt.buffer in unread and stmt.buffer not in buffers_stored(stmt):
            return stmt.body
        case If() if stmt.orelse is not None and _empty(stmt.orelse):
            return _cleaned(replace(stmt, orelse=None), unread)
        case If() if _empty(stmt.then):
            return _NOTHING if stmt.orelse is None else If(binary_not(stmt.condition), stmt.orelse)
        case Seq(stmts) if any(_empty(s) for s in stmts) and stmts:
            return seq(*(s for s in stmts if not _empty(s)))
        case _:
            return stmt


def _empty(stmt: Stmt) -> bool:
    return isinstance(stmt, Seq) and not stmt.stmts


def _stores_itself(store: Store) -> bool:
    """``A[i] = A[i]``"""
    value = store.value
    return (
        isinstance(value, Load)
        and value.buffer is store.buffer
        and [key_of(i) for i in value.indices] == [key_of(i) for i in store.indices]
    )

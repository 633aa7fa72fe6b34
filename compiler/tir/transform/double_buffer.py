"""Double buffering: the next iteration's tile is filled while this one's is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.ir import (
    Allocate,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Load,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    binary,
)
from tunefarm.compiler.tir.visit import (
    loads_of,
    seq,
    substitute_stmt,
    transform_expr,
    transform_stmt,
    walk_stmt,
)


def double_buffer(program: PrimFunc) -> PrimFunc:
    """Move the fills of buffers with two copies one iteration of their loop ahead.

    for k in 8: allocate T: T[…] = f(k); use(T)
    ->  allocate T[2]: T[0] = f(0); for k in 7: T[(k + 1) % 2] = f(k + 1); use(T[k % 2]);
        use(T[7 % 2])

    Raises ScheduleError if a fill cannot move.
    """

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For):
            return None
        around, body = allocations_around(stmt.body)
        ahead = [a.buffer for a in around if a.buffer.copies > 1]
        return _pipelined(stmt, around, body, ahead) if ahead else None

    if not any(isinstance(s, Allocate) and s.buffer.copies > 1 for s in walk_stmt(program.body)):
        return program
    # Where the loop had one iteration, there is no next fill: one copy will do.
    body = transform_stmt(transform_stmt(program.body, rule), _single)
    return replace(program, body=body)


def _single(stmt: Stmt) -> Stmt | None:
    if not isinstance(stmt, Allocate) or stmt.buffer.copies == 1:
        return None
    old, new = stmt.buffer, replace(stmt.buffer, copies=1)
    return Allocate(new, with_buffers(stmt.body, {old: new}))


def allocations_around(stmt: Stmt) -> tuple[list[Allocate], Stmt]:
    """The allocations around the rest of a body, outermost first."""
    found: list[Allocate] = []
    while isinstance(stmt, Allocate):
        found.append(stmt)
        stmt = stmt.body
    return found, stmt


def _pipelined(loop: For, around: list[Allocate], body: Stmt, ahead: list[Buffer]) -> Stmt:
    parts = list(body.stmts) if isinstance(body, Seq) else [body]
    fills = [s for s in parts if stored_buffers(s) & set(ahead)]
    rest = seq(*(s for s in parts if s not in fills))
    check_fills(loop, fills, rest, ahead)
    twice = {b: replace(b, shape=(2, *b.shape), copies=1) for b in ahead}
    last = loop.start + loop.extent - 1
    parity = binary("floormod", loop.var, Const(2))
    fill = in_copy(seq(*fills), twice, parity)
    use = in_copy(rest, twice, parity)
    for allocation in reversed(around):
        if allocation.buffer not in twice:
            use = replace(allocation, body=use)
    # The fill of the next iteration stands first: what it reads is on its way during the use.
    steady = replace(
        loop,
        body=seq(substitute_stmt(fill, {loop.var: loop.var + 1}), use),
        extent=loop.extent - 1,
    )
    stmt: Stmt = seq(
        substitute_stmt(fill, {loop.var: loop.start}),
        steady,
        substitute_stmt(use, {loop.var: last}),
    )
    if not isinstance(loop.extent, Const):
        stmt = If(loop.extent > 0, stmt)
    for buffer in reversed(twice.values()):
        stmt = Allocate(buffer, stmt)
    return stmt


def check_fills(loop: For, fills: list[Stmt], rest: Stmt, ahead: list[Buffer]) -> None:
    """ScheduleError if the fills are not statements that may come before the use."""
    names = ", ".join(b.name for b in ahead)
    if loop.kind is not LoopKind.SERIAL:
        raise ScheduleError(
            f"{names} is filled in {loop.kind} loop {loop.var.name}; only in a serial loop can "
            "the next fill come ahead"
        )
    filled = {b for s in fills for b in stored_buffers(s)}
    inside = {s.buffer for f in fills for s in walk_stmt(f) if isinstance(s, Allocate)}
    if not fills or not filled - inside <= set(ahead) or stored_buffers(rest) & set(ahead):
        raise ScheduleError(
            f"{names} is not filled by statements of its own in loop {loop.var.name}; "
            "move the fill to the start of the loop's body"
        )
    if any(b.scope == "register" for b in ahead):
        raise ScheduleError(f"{names} is in registers; only a buffer in memory has two copies")
    changed = {ld.buffer for f in fills for ld in loads_of(f)} & stored_buffers(rest)
    if changed:
        raise ScheduleError(
            f"loop {loop.var.name} writes {min(b.name for b in changed)}, which the fill of "
            f"{names} reads; it cannot move ahead"
        )


def stored_buffers(stmt: Stmt) -> set[Buffer]:
    return {s.buffer for s in walk_stmt(stmt) if isinstance(s, Store)}


def in_copy(stmt: Stmt, twice: dict[Buffer, Buffer], copy: Expr) -> Stmt:
    """The statement on the copies of a number."""
    return with_buffers(stmt, twice, (copy,))


def with_buffers(stmt: Stmt, new: Mapping[Buffer, Buffer], place: tuple[Expr, ...] = ()) -> Stmt:
    """The statement on other buffers, at ``place`` in their first dimensions."""

    def load(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.buffer in new:
            return Load(new[expr.buffer], (*place, *expr.indices))
        return None

    def store(s: Stmt) -> Stmt | None:
        if isinstance(s, Store) and s.buffer in new:
            return Store(new[s.buffer], (*place, *s.indices), s.value)
        return None

    return transform_stmt(stmt, store, lambda e: transform_expr(e, load))

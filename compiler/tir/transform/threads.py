"""Threads of a block: one name a thread, and barriers where they share what others write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import (
    THREAD_AXES,
    Allocate,
    Barrier,
    Binary,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Load,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.visit import (
    loads_of,
    map_children,
    seq,
    substitute,
    substitute_stmt,
    transform_stmt,
    walk_expr,
    walk_stmt,
)


def unify_threads(program: PrimFunc) -> PrimFunc:
    """Use one variable an axis, and allocate outside of the threads what they share.

    for t in threadIdx.x(8): allocate S in shared: for u in threadIdx.x(8): f(u)
    ->  allocate S in shared: for t in threadIdx.x(8): f(t)
    """
    if not any(isinstance(s, For) and s.axis for s in walk_stmt(program.body)):
        return program
    return replace(program, body=_outside(_unify(program.body, {})))


def _outside(stmt: Stmt) -> Stmt:
    """Move allocations of shared buffers out of the outermost loops over threads."""
    if not isinstance(stmt, For) or stmt.axis not in THREAD_AXES:
        return map_children(stmt, _outside)
    shared: list[Buffer] = []

    def rule(inner: Stmt) -> Stmt | None:
        if isinstance(inner, Allocate) and inner.buffer.scope == "shared":
            if inner.buffer not in shared:
                shared.append(inner.buffer)
            return inner.body
        return None

    stmt = transform_stmt(stmt, rule)
    for buffer in shared:
        stmt = Allocate(buffer, stmt)
    return stmt


def _unify(stmt: Stmt, names: dict[str, Var]) -> Stmt:
    if isinstance(stmt, For) and stmt.axis in names:
        return _unify(substitute_stmt(stmt.body, {stmt.var: names[stmt.axis]}), names)
    if isinstance(stmt, For) and stmt.axis:
        names = {**names, stmt.axis: stmt.var}
    return map_children(stmt, lambda s: _unify(s, names))


# --- barriers -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Access:
    """An access of a shared buffer; an index is None where it is not known. ``store`` writes."""

    buffer: Buffer
    indices: tuple[Expr | None, ...]
    store: Store | None


@dataclass(frozen=True, slots=True, eq=False)
class _Synced:
    """A statement with its barriers: what it touches before its first and after its last.

    ``certain``: it passes a barrier whenever it runs.
    """

    stmt: Stmt
    head: tuple[_Access, ...] = ()
    tail: tuple[_Access, ...] = ()
    certain: bool = False


def insert_barriers(program: PrimFunc) -> PrimFunc:
    """Let threads wait where one reads a shared buffer that others wrote, or the reverse.

    for k: shared[t] = f(k, t); use(shared)
    ->  for k: shared[t] = f(k, t); barrier; use(shared); barrier

    Raises ScheduleError if threads would have to wait under a condition that not all meet.
    """

    def visit(stmt: Stmt) -> Stmt:
        if isinstance(stmt, For) and stmt.axis in THREAD_AXES:
            return _synced(stmt, frozenset()).stmt
        return map_children(stmt, visit)

    return replace(program, body=visit(program.body))


def _synced(stmt: Stmt, varying: frozenset[Var], apart: str = "") -> _Synced:
    """``varying``: the variables that differ between threads; ``apart``: the condition or loop
    around that not all threads enter together."""
    match stmt:
        case Store():
            found = tuple(_accesses(stmt))
            return _Synced(stmt, found, found)
        case Barrier():
            return _Synced(stmt, (), (), True)
        case Seq(stmts):
            return _synced_seq(stmts, varying, apart)
        case Allocate():
            inner = _synced(stmt.body, varying, apart)
            return replace(inner, stmt=replace(stmt, body=inner.stmt))
        case If():
            return _synced_if(stmt, varying, apart)
        case For():
            return _synced_loop(stmt, varying, apart)
        case Block():
            raise AssertionError(f"block {stmt.name} is left")


def _accesses(stmt: Store | Expr) -> list[_Access]:
    found = [_Access(ld.buffer, ld.indices, None) for ld in loads_of(stmt)]
    if isinstance(stmt, Store):
        found.append(_Access(stmt.buffer, stmt.indices, stmt))
    return [a for a in found if a.buffer.scope == "shared"]


def _synced_seq(stmts: Sequence[Stmt], varying: frozenset[Var], apart: str) -> _Synced:
    done: list[Stmt] = []
    head: tuple[_Access, ...] = ()
    tail: tuple[_Access, ...] = ()
    certain = False
    for stmt in stmts:
        part = _synced(stmt, varying, apart)
        if _conflict(tail, part.head):
            done.append(_barrier(part.head, apart))
            tail, certain = (), True
        if not certain:
            head += part.head
        done.append(part.stmt)
        tail = part.tail if part.certain else tail + part.tail
        certain = certain or part.certain
    return _Synced(seq(*done), head, tail, certain)


def _synced_if(stmt: If, varying: frozenset[Var], apart: str) -> _Synced:
    if _varies(stmt.condition, varying):
        apart = apart or "a condition that not all threads meet"
    own = tuple(_accesses(stmt.condition))
    then = _synced(stmt.then, varying, apart)
    orelse = _synced(stmt.orelse, varying, apart) if stmt.orelse is not None else _Synced(Seq(()))
    return _Synced(
        replace(stmt, then=then.stmt, orelse=orelse.stmt if stmt.orelse is not None else None),
        own + then.head + orelse.head,
        own + then.tail + orelse.tail,
        then.certain and orelse.certain,
    )


def _synced_loop(loop: For, varying: frozenset[Var], apart: str) -> _Synced:
    if loop.axis in THREAD_AXES:
        inner = _synced(loop.body, varying | {loop.var}, apart)
        return replace(inner, stmt=replace(loop, body=inner.stmt))
    if _varies(loop.start, varying) or _varies(loop.extent, varying):
        apart = apart or f"loop {loop.var.name}, which not all threads leave together"
    inner = _synced(loop.body, varying, apart)
    body, tail, certain = inner.stmt, inner.tail, inner.certain
    following = tuple(
        replace(a, indices=tuple(i and substitute(i, {loop.var: loop.var + 1}) for i in a.indices))
        for a in inner.head
    )
    runs = isinstance(loop.extent, Const) and loop.extent.value > 0
    if _conflict(tail, following):
        body, tail, certain = seq(body, _barrier(following, apart)), (), True
    hidden = {loop.var} | {s.var for s in walk_stmt(loop.body) if isinstance(s, For)}
    return _Synced(
        replace(loop, body=body),
        tuple(_leaving(a, hidden) for a in inner.head),
        tuple(_leaving(a, hidden) for a in tail),
        certain and runs,
    )


def _leaving(access: _Access, hidden: set[Var]) -> _Access:
    """The access seen from outside of the loops of ``hidden`` variables."""
    seen = (i if i is not None and not _mentions(i, hidden) else None for i in access.indices)
    return replace(access, indices=tuple(seen))


def _mentions(expr: Expr, variables: set[Var]) -> bool:
    return any(e in variables for e in walk_expr(expr) if isinstance(e, Var))


def _varies(expr: Expr, varying: frozenset[Var]) -> bool:
    """True if an expression may have another value in another thread."""
    return any(e in varying or isinstance(e, Load) for e in walk_expr(expr))


def _conflict(before: Sequence[_Access], after: Sequence[_Access]) -> bool:
    """True if threads have to wait. One store is taken to write each element once, so its
    iterations (the parts of a fill) do not wait for each other."""
    return any(
        a.buffer is b.buffer
        and (a.store or b.store)
        and a.store is not b.store
        and not any(map(_apart, a.indices, b.indices))
        for a in before
        for b in after
    )


def _apart(a: Expr | None, b: Expr | None) -> bool:
    """True if two indices differ in every thread: the copies of a double buffer do."""
    match a, b:
        case Const(x), Const(y):
            return x != y
        case Binary("floormod", x, Const(size)), Binary("floormod", y, Const(other)):
            distance = affine(x - y)
            return size == other and not distance.terms and distance.const % int(size) != 0
        case _:
            return False


def _barrier(accesses: Sequence[_Access], apart: str) -> Barrier:
    if apart:
        raise ScheduleError(
            f"threads have to wait for each other at {accesses[0].buffer.name} under {apart}"
        )
    return Barrier()

"""Give each intermediate buffer its place and the smallest shape that holds what is live."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from tunefarm.compiler.tir.affine import Affine, affine, interval
from tunefarm.compiler.tir.ir import (
    THREAD_AXES,
    Allocate,
    Buffer,
    Expr,
    For,
    If,
    Load,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.schedule.blocks import relax
from tunefarm.compiler.tir.schedule.tree import child_stmts, loop_ranges
from tunefarm.compiler.tir.visit import (
    loads_of,
    map_children,
    map_exprs,
    transform_expr,
    walk_stmt,
)

Threads: TypeAlias = Mapping[Var, tuple[int, int]]
"""The threads around that share a buffer, and their ranges."""

UNKNOWN = 1 << 40  # a region longer than this comes from an index of which nothing is known


def compact_buffers(program: PrimFunc) -> PrimFunc:
    """Allocate every intermediate buffer inside the innermost loop that holds all its uses.

    for i: for j: T[i, j] = …; for j: C[i, j] = T[i, j]
    ->  for i: allocate T[1, n]: for j: T[0, j] = …
    """
    body, used = program.body, _Used(_sizes(program))
    for buffer in program.buffers:
        body = _place(body, buffer, used)
    return replace(program, body=body, buffers=())


def _sizes(program: PrimFunc) -> dict[Buffer, tuple[int, ...]]:
    """Each intermediate buffer's shape, or more: stores of padding lanes reach behind it."""
    ranges = loop_ranges(program.body)
    sizes = {b: b.shape for b in program.buffers}
    for stmt in walk_stmt(program.body):
        if isinstance(stmt, Store) and stmt.buffer in sizes:
            ends = [interval(i, ranges)[1] + 1 for i in stmt.indices]
            sizes[stmt.buffer] = tuple(
                end if size < end < UNKNOWN else size
                for size, end in zip(sizes[stmt.buffer], ends, strict=True)
            )
    return sizes


class _Used:
    """The buffers that each statement below a body uses, found once a statement."""

    def __init__(self, sizes: dict[Buffer, tuple[int, ...]]) -> None:
        self.sizes = sizes
        self.found: dict[int, tuple[Stmt, frozenset[Buffer]]] = {}

    def by(self, stmt: Stmt) -> frozenset[Buffer]:
        if id(stmt) not in self.found:
            own = [ld.buffer for ld in loads_of(stmt.condition)] if isinstance(stmt, If) else []
            if isinstance(stmt, Store):
                own = [stmt.buffer, *(ld.buffer for ld in loads_of(stmt))]
            below = (self.by(s) for s in child_stmts(stmt))
            # The statement is kept so that its identity is not given to another.
            self.found[id(stmt)] = (stmt, frozenset(own).union(*below))
        return self.found[id(stmt)][1]


def _place(
    root: Stmt, buffer: Buffer, used: _Used, threads: Threads = MappingProxyType({})
) -> Stmt:
    """Wrap the smallest statement that holds all uses of ``buffer`` in its allocation."""
    if isinstance(root, For) and root.axis in THREAD_AXES and buffer.scope == "shared":
        threads = {**threads, **loop_ranges(replace(root, body=Seq(())))}  # they use it together
    users = [s for s in child_stmts(root) if buffer in used.by(s)]
    if isinstance(root, For) and root.kind is LoopKind.VECTORIZED:
        return _allocate(root, buffer, used, threads)  # an element a lane
    crosses = isinstance(root, For) and root.kind is LoopKind.UNROLLED
    if len(users) == 1 and not crosses and not _own_use(root, buffer):
        return _with_child(root, users[0], _place(users[0], buffer, used, threads))
    if isinstance(root, For):
        return replace(root, body=_allocate(root.body, buffer, used, threads))
    return _allocate(root, buffer, used, threads)


def _with_child(stmt: Stmt, old: Stmt, new: Stmt) -> Stmt:
    match stmt:
        case For() | Allocate():
            return replace(stmt, body=new)
        case If():
            return (
                If(stmt.condition, new, stmt.orelse)
                if stmt.then is old
                else replace(stmt, orelse=new)
            )
        case Seq(stmts):
            return Seq(tuple(new if s is old else s for s in stmts))
        case _:
            raise AssertionError(stmt)


def _own_use(stmt: Stmt, buffer: Buffer) -> bool:
    match stmt:
        case If():
            return any(ld.buffer is buffer for ld in loads_of(stmt.condition))
        case Store():
            return True
        case _:
            return False


def _accesses(stmt: Stmt, buffer: Buffer, used: _Used) -> Iterator[tuple[Expr, ...]]:
    if buffer not in used.by(stmt):
        return
    if isinstance(stmt, Store):
        if stmt.buffer is buffer:
            yield stmt.indices
        yield from (ld.indices for ld in loads_of(stmt) if ld.buffer is buffer)
        return
    if isinstance(stmt, If):
        yield from (ld.indices for ld in loads_of(stmt.condition) if ld.buffer is buffer)
    for child in child_stmts(stmt):
        yield from _accesses(child, buffer, used)


def _allocate(body: Stmt, buffer: Buffer, used: _Used, threads: Threads) -> Stmt:
    ranges = loop_ranges(body) | dict(threads)
    accesses = list(_accesses(body, buffer, used))
    bases: list[Affine] = []
    shape: list[int] = []
    for dim, size in enumerate(used.sizes[buffer]):
        spans = [relax(indices[dim], ranges) for indices in accesses]
        base, extent = affine(spans[0][0]), spans[0][1]
        offsets = [affine(b) - base for b, _ in spans]
        if any(o.terms for o in offsets):
            base, extent = Affine(0, {}), size
        else:
            low = min(o.const for o in offsets)
            extent = max(o.const + e for o, (_, e) in zip(offsets, spans, strict=True)) - low
            base = base + Affine(low, {})
            whole = not base.terms and base.const >= 0 and buffer.scope == "global"
            if extent > UNKNOWN or (extent >= size and whole):
                base, extent = Affine(0, {}), size
        bases.append(base)
        shape.append(extent)
    if shape:
        shape[-1] += buffer.padding
    new = replace(buffer, shape=tuple(shape), padding=0)

    def shifted(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple((affine(i) - b).expr() for i, b in zip(indices, bases, strict=True))

    def load(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.buffer is buffer:
            return Load(new, shifted(expr.indices))
        return None

    def rewrite(stmt: Stmt) -> Stmt:
        if buffer not in used.by(stmt):
            return stmt
        stmt = map_exprs(map_children(stmt, rewrite), lambda e: transform_expr(e, load))
        if isinstance(stmt, Store) and stmt.buffer is buffer:
            return Store(new, shifted(stmt.indices), stmt.value)
        return stmt

    return Allocate(new, rewrite(body))

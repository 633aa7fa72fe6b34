"""Give each intermediate buffer its place and the smallest shape that holds what is live."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tunefarm.compiler.tir.affine import Affine, affine
from tunefarm.compiler.tir.ir import (
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
)
from tunefarm.compiler.tir.schedule.blocks import relax
from tunefarm.compiler.tir.schedule.tree import child_stmts, loop_ranges
from tunefarm.compiler.tir.visit import loads_of, transform_expr, transform_stmt

UNKNOWN = 1 << 40  # a region longer than this comes from an index of which nothing is known


def compact_buffers(program: PrimFunc) -> PrimFunc:
    """Allocate every intermediate buffer inside the innermost loop that holds all its uses.

    for i: for j: T[i, j] = …; for j: C[i, j] = T[i, j]
    ->  for i: allocate T[1, n]: for j: T[0, j] = …
    """
    body = program.body
    for buffer in program.buffers:
        body = _place(body, buffer)
    return replace(program, body=body, buffers=())


def _place(root: Stmt, buffer: Buffer) -> Stmt:
    """Wrap the smallest statement that holds all uses of ``buffer`` in its allocation."""
    users = [s for s in child_stmts(root) if _uses(s, buffer)]
    crosses = isinstance(root, For) and root.kind in (LoopKind.UNROLLED, LoopKind.VECTORIZED)
    if len(users) == 1 and not crosses and not _own_use(root, buffer):
        return _with_child(root, users[0], _place(users[0], buffer))
    if isinstance(root, For):
        return replace(root, body=_allocate(root.body, buffer))
    return _allocate(root, buffer)


def _with_child(stmt: Stmt, old: Stmt, new: Stmt) -> Stmt:
    match stmt:
        case For() | Allocate():
            return replace(stmt, body=new)
        case If():
            return If(stmt.condition, new, stmt.orelse) if stmt.then is old else replace(
                stmt, orelse=new
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


def _uses(stmt: Stmt, buffer: Buffer) -> bool:
    return next(_accesses(stmt, buffer), None) is not None


def _accesses(stmt: Stmt, buffer: Buffer) -> Iterator[tuple[Expr, ...]]:
    if isinstance(stmt, Store):
        if stmt.buffer is buffer:
            yield stmt.indices
        yield from (ld.indices for ld in loads_of(stmt) if ld.buffer is buffer)
        return
    if isinstance(stmt, If):
        yield from (ld.indices for ld in loads_of(stmt.condition) if ld.buffer is buffer)
    for child in child_stmts(stmt):
        yield from _accesses(child, buffer)


def _allocate(body: Stmt, buffer: Buffer) -> Stmt:
    ranges = loop_ranges(body)
    accesses = list(_accesses(body, buffer))
    bases: list[Affine] = []
    shape: list[int] = []
    for dim, size in enumerate(buffer.shape):
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
    new = Buffer(buffer.name, tuple(shape), buffer.dtype, buffer.scope)

    def shifted(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return tuple((affine(i) - b).expr() for i, b in zip(indices, bases, strict=True))

    def load(expr: Expr) -> Expr | None:
        if isinstance(expr, Load) and expr.buffer is buffer:
            return Load(new, shifted(expr.indices))
        return None

    def store(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Store) and stmt.buffer is buffer:
            return Store(new, shifted(stmt.indices), stmt.value)
        return None

    return Allocate(new, transform_stmt(body, store, lambda e: transform_expr(e, load)))

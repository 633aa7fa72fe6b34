"""Copies of buffers: blocks that write into or read from a buffer of another scope."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.ir import (
    Block,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    IterVar,
    Load,
    PrimFunc,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    find_block,
    fresh_name,
    path_to,
    producers_and_consumers,
    reads,
    replace_stmt,
    shared_writers,
    store_of,
    written_buffer,
)
from tunefarm.compiler.tir.visit import seq, transform_accesses, transform_expr, transform_stmt


def cache_write(program: PrimFunc, block: str, scope: str) -> tuple[PrimFunc, str]:
    """Let a block write into a new buffer of ``scope``, copied to the old one by a new block."""
    node = find_block(program, block)
    old = store_of(node).buffer
    top = _top(program, block)
    writers, readers = producers_and_consumers(program, old)
    if len(writers) > 1:
        raise ScheduleError(shared_writers(old, writers, block))
    early = [b.name for b in blocks(top) if b in readers]
    if early:
        raise ScheduleError(f"block {early[0]} reads {old.name} inside the loops of {block}")
    new = Buffer(f"{old.name}_{scope}", old.shape, old.dtype, scope)
    retargeted = transform_accesses(
        node,
        (old,),
        lambda load: Load(new, load.indices),
        lambda store: Store(new, store.indices, store.value),
    )
    changed = replace_stmt(program, node, retargeted)
    top = _top(changed, block)
    name = fresh_name(program, f"{block}_write")
    changed = replace_stmt(changed, top, seq(top, _copy_loops(name, new, old)))
    return replace(changed, buffers=(*changed.buffers, new)), name


def _top(program: PrimFunc, block: str) -> Stmt:
    """The outermost loop around a block, or the block itself."""
    path = path_to(program.body, find_block(program, block))
    return next((s for s in path if isinstance(s, (For, Block))), path[0])


def cache_read(
    program: PrimFunc,
    block: str,
    buffer: Buffer,
    scope: str,
    padding: int = 0,
    dtype: str | None = None,
) -> tuple[PrimFunc, str]:
    """Let a block read a copy of ``buffer`` in a new buffer of ``scope``, made by a new block.

    ``padding`` elements are added to each row of the copy, whose elements are of another ``dtype``
    if one is given, which must hold all values of the buffer's.
    """
    node = find_block(program, block)
    if not reads(node, buffer):
        raise ScheduleError(f"block {block} does not read {buffer.name}")
    for other in blocks(_top(program, block)):
        if written_buffer(other) is buffer:
            raise ScheduleError(
                f"{buffer.name} is written inside the loops of {block}, by {other.name}"
            )
    new = Buffer(f"{buffer.name}_{scope}", buffer.shape, dtype or buffer.dtype, scope, padding)
    name = fresh_name(program, f"{buffer.name}_read")
    body = transform_accesses(
        node.body, (buffer,), lambda load: _as(Load(new, load.indices), buffer.dtype), lambda s: s
    )
    if new.dtype != buffer.dtype:
        body = transform_stmt(body, expr_rule=lambda e: transform_expr(e, _cast_once(new)))
    changed = replace_stmt(program, node, replace(node, body=body))
    top = _top(changed, block)
    changed = replace_stmt(changed, top, seq(_copy_loops(name, buffer, new), top))
    return replace(changed, buffers=(*changed.buffers, new)), name


def _as(load: Load, dtype: str) -> Expr:
    return load if load.dtype == dtype else Cast(load, dtype)


def _cast_once(buffer: Buffer) -> Callable[[Expr], Expr | None]:
    """An element of a wider copy as what it is cast to in the end."""

    def rule(expr: Expr) -> Expr | None:
        match expr:
            case Cast(Cast(Load() as load, _), dtype) if load.buffer is buffer:
                return _as(load, dtype)
            case _:
                return None

    return rule


def _copy_loops(name: str, source: Buffer, target: Buffer) -> Stmt:
    iters = tuple(IterVar(Var(f"i{d}"), e) for d, e in enumerate(source.shape))
    loops = tuple(Var(f"i{d}") for d in range(len(source.shape)))
    indices = tuple(i.var for i in iters)
    copied = _as(Load(source, indices), target.dtype)
    stmt: Stmt = Block(name, iters, loops, Store(target, indices, copied))
    for loop, axis in reversed(list(zip(loops, iters, strict=True))):
        stmt = For(loop, Const(axis.extent), stmt)
    return stmt

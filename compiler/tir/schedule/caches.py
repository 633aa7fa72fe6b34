"""Copies of buffers: blocks that write into or read from a buffer of another scope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.facts import variables
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
    checked_scope,
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
from tunefarm.compiler.tir.visit import (
    seq,
    substitute,
    transform_accesses,
    transform_expr,
    transform_stmt,
)


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
    new = Buffer(f"{old.name}_{scope}", old.shape, old.dtype, checked_scope(scope))
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
    new = Buffer(
        f"{buffer.name}_{scope}", buffer.shape, dtype or buffer.dtype, checked_scope(scope), padding
    )
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


def cache_value(
    program: PrimFunc, block: str, value: Expr, axes: Sequence[int], scope: str
) -> tuple[PrimFunc, str]:
    """Let a block read one of its values from a new buffer of ``scope``, made by a new block whose
    iterations are the block's own ``axes``, in this order.

    The value is made for all of them: it must not be one that a choice alone may read.
    """
    node = find_block(program, block)
    iters = [node.iters[axis] for axis in axes]
    if variables(value) & {i.var for n, i in enumerate(node.iters) if n not in axes}:
        raise ScheduleError(f"a value of block {block} differs along axes that are left out")
    name = fresh_name(program, f"{block}_value")
    new = Buffer(name, tuple(i.extent for i in iters), value.dtype, checked_scope(scope))
    held = Load(new, tuple(i.var for i in iters))
    body = transform_stmt(
        node.body, expr_rule=lambda e: transform_expr(e, lambda x: held if x == value else None)
    )
    if body == node.body:
        raise ScheduleError(f"block {block} has no such value")
    changed = replace_stmt(program, node, replace(node, body=body))
    own = tuple(IterVar(Var(i.var.name), i.extent) for i in iters)
    places = {old.var: mine.var for old, mine in zip(iters, own, strict=True)}
    store = Store(new, tuple(i.var for i in own), substitute(value, places))
    top = _top(changed, block)
    changed = replace_stmt(changed, top, seq(_loops_over(name, own, store), top))
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
    indices = tuple(i.var for i in iters)
    copied = _as(Load(source, indices), target.dtype)
    return _loops_over(name, iters, Store(target, indices, copied))


def _loops_over(name: str, iters: tuple[IterVar, ...], body: Stmt) -> Stmt:
    """A block in a loop of its own over each of its axes."""
    loops = tuple(Var(i.var.name) for i in iters)
    stmt: Stmt = Block(name, iters, loops, body)
    for loop, axis in reversed(list(zip(loops, iters, strict=True))):
        stmt = For(loop, Const(axis.extent), stmt)
    return stmt

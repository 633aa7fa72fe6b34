"""Where buffers live, and in which layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.ir import (
    Buffer,
    Expr,
    For,
    Load,
    PackedLayout,
    Prefetch,
    PrimFunc,
    Stmt,
    Store,
)
from tunefarm.compiler.tir.schedule.tree import checked_scope, find_block, written_buffer
from tunefarm.compiler.tir.visit import transform_accesses, transform_stmt, walk_stmt


def set_scope(
    program: PrimFunc,
    block: str,
    scope: str,
    padding: int = 0,
    *,
    planes_apart: bool = False,
    by_lines: bool = False,
) -> PrimFunc:
    """Change where the (intermediate) buffer that a block writes lives.

    ``padding`` elements are left between the rows of what is allocated, against cache conflicts,
    and with ``planes_apart`` a row between its planes where these would meet in few cache sets.
    ``by_lines``: vectors of it that meet two lines of the cache are put together from both.
    """
    old = written_buffer(find_block(program, block))
    if old not in program.buffers:
        raise ScheduleError(f"{old.name} is not an intermediate buffer; its scope is fixed")
    if planes_apart and len(old.shape) < 3:
        raise ScheduleError(f"{old.name} has no planes: its shape is {old.shape}")
    new = replace(
        old, scope=checked_scope(scope), padding=padding, planes_apart=planes_apart,
        by_lines=by_lines,
    )  # fmt: skip
    return replace_buffer(program, old, new)


def replace_buffer(
    program: PrimFunc,
    old: Buffer,
    new: Buffer,
    place: Callable[[tuple[Expr, ...]], tuple[Expr, ...]] = lambda indices: indices,
) -> PrimFunc:
    """Let everybody use ``new`` for ``old``, at ``place(indices)``. Hints for ``old`` go there too,
    but for those that count elements from its start: they are dropped."""

    def swap(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(new if b is old else b for b in buffers)

    body = transform_accesses(
        program.body,
        (old,),
        lambda load: Load(new, place(load.indices)),
        lambda store: Store(new, place(store.indices), store.value),
    )

    def moved(hint: Prefetch) -> Prefetch:
        if hint.buffer is not old:
            return hint
        return replace(hint, buffer=new, first=place(hint.first))

    def hints(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or not _asks_for(stmt, old):
            return None
        kept = (h for h in stmt.prefetch if h.buffer is not old or h.first)
        return replace(stmt, prefetch=tuple(map(moved, kept)))

    if any(isinstance(stmt, For) and _asks_for(stmt, old) for stmt in walk_stmt(body)):
        body = transform_stmt(body, hints)
    return replace(program, body=body, buffers=swap(program.buffers), params=swap(program.params))


def _asks_for(loop: For, buffer: Buffer) -> bool:
    return any(hint.buffer is buffer for hint in loop.prefetch)


def permute_buffer(program: PrimFunc, block: str, order: Sequence[int]) -> PrimFunc:
    """Store the (intermediate) buffer that a block writes with its dimensions in another order.

    T[i, j]   ->   permute_buffer(…, (1, 0))   ->   T[j, i]
    """
    old = written_buffer(find_block(program, block))
    if old not in program.buffers:
        raise ScheduleError(f"{old.name} is not an intermediate buffer; its layout is fixed")
    if sorted(order) != list(range(len(old.shape))):
        raise ScheduleError(f"{tuple(order)} is not an order of {old.name}'s dimensions")
    shape = tuple(old.shape[d] for d in order)
    new = replace(old, shape=shape)
    return replace_buffer(program, old, new, lambda i: tuple(i[d] for d in order))


def pack_buffer(program: PrimFunc, block: str, layout: PackedLayout) -> PrimFunc:
    """Store the (intermediate) buffer that a block writes in a packed layout.

    T[k, n]   ->   T[n // 32, k, n % 32]      for factors ((), (32,)), order (1, 0, 2)
    """
    old = written_buffer(find_block(program, block))
    if old not in program.buffers:
        raise ScheduleError(f"{old.name} is not an intermediate buffer; its layout is fixed")
    new = replace(old, shape=packed_shape(old.shape, layout))
    return replace_buffer(program, old, new, lambda i: packed_indices(i, layout))


def transform_layout(program: PrimFunc, param: int, layout: PackedLayout) -> PrimFunc:
    """Read a constant parameter in a packed layout, which its owner prepares once.

    W[k, n]   ->   W[n // 32, k, n % 32]      for factors ((), (32,)), order (1, 0, 2)
    """
    old = program.params[param]
    if param >= len(program.params) - program.outputs:
        raise ScheduleError(f"{old.name} is an output; only inputs can be packed")
    new = Buffer(old.name, packed_shape(old.shape, layout), old.dtype, old.scope)

    changed = replace_buffer(program, old, new, lambda i: packed_indices(i, layout))
    layouts = {**program.layouts, param: replace(layout, shape=old.shape)}
    return replace(changed, layouts=layouts)


def packed_shape(shape: Sequence[int], layout: PackedLayout) -> tuple[int, ...]:
    """The shape of a tensor once packed."""
    split: list[int] = []
    for extent, factors in zip(shape, layout.factors, strict=True):
        inner = 1
        for factor in factors:
            inner *= factor
        split.extend((-(-extent // inner), *factors))
    return tuple(split[d] for d in layout.order)


def packed_indices(indices: Sequence[Expr], layout: PackedLayout) -> tuple[Expr, ...]:
    """Where a packed tensor holds the element that stood at ``indices``."""
    split: list[Expr] = []
    for index, factors in zip(indices, layout.factors, strict=True):
        rest = index
        parts: list[Expr] = []
        for factor in reversed(factors):
            parts.append(rest % factor)
            rest = rest // factor
        split.extend((rest, *reversed(parts)))
    return tuple(split[d] for d in layout.order)

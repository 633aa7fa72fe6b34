"""Inlining: a block's value computed where it is read."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.ir import Expr, Load, PrimFunc
from tunefarm.compiler.tir.schedule.tree import (
    find_block,
    is_reduction,
    plain_indices,
    producers_and_consumers,
    replace_stmt,
    shared_writers,
    store_of,
)
from tunefarm.compiler.tir.visit import substitute, transform_accesses


def compute_inline(program: PrimFunc, block: str) -> PrimFunc:
    """Compute a spatial block's value where it is read, and drop its buffer.

    B[i] = A[i] + 1; C[i] = B[i] * 2   ->   C[i] = (A[i] + 1) * 2
    """
    node = find_block(program, block)
    store = store_of(node)
    if is_reduction(node):
        raise ScheduleError(f"block {block} is a reduction; only spatial blocks can be inlined")
    if store.buffer in program.params:
        raise ScheduleError(f"block {block} writes an output; it cannot be inlined")
    writers, _ = producers_and_consumers(program, store.buffer)
    if len(writers) > 1:
        raise ScheduleError(shared_writers(store.buffer, writers, block))
    if node.predicate is not None:
        raise ScheduleError(f"block {block} has a predicate; inline it before splitting its loops")
    formals = plain_indices(store, block)
    removed = replace_stmt(program, node, None)

    def value(load: Load) -> Expr:
        return substitute(store.value, dict(zip(formals, load.indices, strict=True)))

    body = transform_accesses(removed.body, (store.buffer,), value, lambda write: write)
    left = tuple(b for b in removed.buffers if b is not store.buffer)
    return replace(removed, body=body, buffers=left)

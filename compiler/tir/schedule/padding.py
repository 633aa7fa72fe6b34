"""The primitive that rounds the extents of a sum of products up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.affine import interval
from tunefarm.compiler.tir.facts import loops_below
from tunefarm.compiler.tir.ir import (
    Block,
    Buffer,
    Const,
    Expr,
    Load,
    PrimFunc,
    Select,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule.buffers import replace_buffer
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    find_block,
    is_reduction,
    replace_stmt,
    store_of,
    written_buffer,
)
from tunefarm.compiler.tir.visit import loads_of


def pad_einsum(program: PrimFunc, block: str, extents: Mapping[int, int]) -> PrimFunc:
    """Let iterators of a sum of products run on over zeros, to larger extents.

    for i in 7: for k in 9: A1[i, k] = A[i, k]
    for i in 7: for k in 9: C[i] = C[i] + A1[i, k] * B[k]
    ->  for i in 7: for k in 12: A1[i, k] = A[i, k] if k < 9 else 0
        for i in 7: for k in 12: C[i] = C[i] + A1[i, k] * B[k]

    ``extents`` gives an iterator's number its new extent. An operand that would be read beyond its
    end must be a copy (``cache_read``), which becomes larger; a packed parameter already holds
    zeros. The result must be an intermediate buffer; it becomes larger, and its readers read what
    they read before. To be done before loops are split.
    """
    node = find_block(program, block)
    if node.predicate is not None:
        raise ScheduleError(f"block {block} has a predicate; pad it before splitting its loops")
    result = written_buffer(node)
    if result in program.params:
        raise ScheduleError(f"block {block} writes an output; give it a cache_write first")
    iters = tuple(
        replace(axis, extent=max(axis.extent, extents.get(n, 0)))
        for n, axis in enumerate(node.iters)
    )
    ranges = {i.var: (0, i.extent - 1) for i in iters}
    program = replace_stmt(program, node, replace(node, iters=iters))
    for position in extents:
        program = _widened(program, node.bindings[position], iters[position].extent)
    accesses: list[Store | Load] = [store_of(node), *loads_of(store_of(node).value)]
    for access in accesses:
        shape = tuple(
            max(size, interval(index, ranges)[1] + 1)
            for index, size in zip(access.indices, access.buffer.shape, strict=True)
        )
        if shape == access.buffer.shape or access.buffer not in _buffers_of(program):
            continue  # large enough, or made so for an earlier access
        larger = replace(access.buffer, shape=shape)
        if access.buffer is not result:
            program = _filled(program, access.buffer, shape)
        program = replace_buffer(program, access.buffer, larger)
    return program


def _buffers_of(program: PrimFunc) -> set[Buffer]:
    return {*program.params, *program.buffers}


def _widened(program: PrimFunc, binding: Expr, extent: int) -> PrimFunc:
    """The loop that is an iterator's binding, with a new extent."""
    loop = next((loop for loop in loops_below(program.body) if loop.var is binding), None)
    if loop is None:
        raise ScheduleError("only an iterator that is a loop's variable can be padded")
    return replace_stmt(program, loop, replace(loop, extent=Const(extent)))


def _filled(program: PrimFunc, buffer: Buffer, shape: tuple[int, ...]) -> PrimFunc:
    """The block that writes a buffer, writing zeros up to ``shape``."""
    writers = [b for b in blocks(program.body) if written_buffer(b) is buffer]
    if buffer not in program.buffers or len(writers) != 1 or is_reduction(writers[0]):
        raise ScheduleError(
            f"{buffer.name} would be read beyond its end; pack it (transform_layout) or let the "
            "block read a copy (cache_read)"
        )
    copy = writers[0]
    store = store_of(copy)
    inside: Expr = Const(True, "bool")
    iters = {i.var: i for i in copy.iters}
    for index, size, old in zip(store.indices, shape, buffer.shape, strict=True):
        if size == old:
            continue
        assert isinstance(index, Var)
        inside = binary("and", inside, index < old)
        iters[index] = replace(iters[index], extent=size)
    zero = Const(0.0 if "float" in buffer.dtype else 0, buffer.dtype)
    value = Select(inside, store.value, zero, buffer.dtype)
    made: Block = replace(
        copy, iters=tuple(iters.values()), body=Store(buffer, store.indices, value)
    )
    program = replace_stmt(program, copy, made)
    for binding, axis in zip(made.bindings, made.iters, strict=True):
        program = _widened(program, binding, axis.extent)
    return program

"""Schedule primitives for threads, beside ``bind`` and those that CPUs use too."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.ir import (
    THREAD_AXES,
    Const,
    Expr,
    For,
    LoopKind,
    PrimFunc,
    Var,
)
from tunefarm.compiler.tir.schedule import reverse_compute_at, unroll
from tunefarm.compiler.tir.schedule.buffers import replace_buffer
from tunefarm.compiler.tir.schedule.tree import (
    constant_extent,
    find_block,
    find_loop,
    replace_stmt,
    written_buffer,
)


def enclose_threads(program: PrimFunc, loop: Var, axis: str, extent: int) -> tuple[PrimFunc, Var]:
    """Let threads run the body of a loop, in which they share the work by loops of the same axis.

    for i: {fill; use}   ->   for i: for t in threadIdx.x(32): {fill; use}

    Until the loops inside are bound to the axis, each thread does all of it.
    """
    if axis not in THREAD_AXES:
        raise ScheduleError(f"{axis!r} is no axis of threads; axes: {', '.join(THREAD_AXES)}")
    node = find_loop(program, loop)
    var = Var(f"{axis[-1]}_thread")
    body = For(var, Const(extent), node.body, LoopKind.THREAD, axis=axis)
    return replace_stmt(program, node, replace(node, body=body)), var


def with_predicate(program: PrimFunc, block: str, predicate: Expr | None) -> PrimFunc:
    """Compute a block where a condition on the loops around it holds; None: wherever they run, as
    for tiles that lie inside of what is computed."""
    node = find_block(program, block)
    return replace_stmt(program, node, replace(node, predicate=predicate))


def unroll_short(program: PrimFunc, loop: Var, most: int = 16) -> PrimFunc:
    """Unroll a loop of few iterations, so that all its loads can be under way at once."""
    return unroll(program, loop) if constant_extent(find_loop(program, loop)) <= most else program


def keep_tile(program: PrimFunc, block: str, tile: Sequence[int]) -> PrimFunc:
    """Store no more of the buffer that a block writes than the tile that is live.

    T[i, j]   ->   keep_tile(…, (32, 8))   ->   T[i % 32, j % 8]

    To be done when all uses of a tile stand in one iteration of the loops around, where tiles begin
    at multiples of their extents.
    """
    old = written_buffer(find_block(program, block))
    new = replace(old, shape=tuple(tile))
    return replace_buffer(
        program, old, new, lambda at: tuple(i % size for i, size in zip(at, tile, strict=True))
    )


def swizzle_rows(program: PrimFunc, block: str) -> PrimFunc:
    """Swizzle the rows of the shared buffer that a block writes (``gpu/swizzle.py``), in place of
    padding: vectors of them must not be longer than 16 bytes."""
    buffer = written_buffer(find_block(program, block))
    if buffer.scope != "shared":
        raise ScheduleError(f"{buffer.name} is in {buffer.scope} memory; only shared is swizzled")
    return replace_buffer(program, buffer, replace(buffer, swizzled=True))


def store_after(program: PrimFunc, writer: str, block: str, loop: Var) -> PrimFunc:
    """Let ``writer`` store what ``block`` has computed in a loop of threads.

    ``reverse_compute_at``, for loops with a remainder: a thread has its own elements or none, as
    the predicate of ``block`` says, which must speak of loops around ``loop`` and of it alone.
    """
    predicate = find_block(program, block).predicate
    program = reverse_compute_at(with_predicate(program, block, None), writer, loop)
    return with_predicate(with_predicate(program, block, predicate), writer, predicate)

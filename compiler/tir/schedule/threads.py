"""Primitives for threads and copies: ``bind`` and ``double_buffer``."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.facts import loops_below, variables, variables_below
from tunefarm.compiler.tir.ir import (
    BLOCK_AXES,
    THREAD_AXES,
    Block,
    For,
    LoopKind,
    PrimFunc,
    Var,
)
from tunefarm.compiler.tir.schedule.buffers import replace_buffer
from tunefarm.compiler.tir.schedule.tree import (
    blocks,
    constant_extent,
    find_block,
    find_loop,
    path_to,
    producers_and_consumers,
    reads_of,
    replace_stmt,
    written_buffer,
)

AXES = (*BLOCK_AXES, *THREAD_AXES, "vthread")
MAX_VIRTUAL = 64  # copies of the code that virtual threads may make


def bind(program: PrimFunc, loop: Var, axis: str) -> PrimFunc:
    """Run a loop's iterations on the blocks or threads along ``axis``, or on virtual threads.

    Where a loop of the same axis is around, each thread runs the iteration of its own number: so
    threads share the filling of a shared buffer. Virtual threads ("vthread") are interleaved by
    lowering, each with its own local buffers, and run on a CPU too.

    for i in 16: f(i)   ->   bind(i, "threadIdx.x")   ->   for i in threadIdx.x(16): f(i)
    """
    node = find_loop(program, loop)
    extent = constant_extent(node)
    if axis not in AXES:
        raise ScheduleError(f"loop {loop.name} is bound to {axis!r}; axes: {', '.join(AXES)}")
    if node.kind is not LoopKind.SERIAL or node.prefetch:
        what = node.axis or (
            node.kind if node.kind is not LoopKind.SERIAL else "a prefetching loop"
        )
        raise ScheduleError(f"loop {loop.name} is {what}; only a plain serial loop can be bound")
    _check_spatial(node, axis)
    if axis == "vthread":
        if extent > MAX_VIRTUAL:
            raise ScheduleError(
                f"loop {loop.name} has {extent} iterations; at most {MAX_VIRTUAL} virtual threads"
            )
        return replace_stmt(program, node, replace(node, kind=LoopKind.VIRTUAL))
    _check_axis(program, node, axis)
    return replace_stmt(program, node, replace(node, kind=LoopKind.THREAD, axis=axis))


def _check_spatial(node: For, axis: str) -> None:
    for block in blocks(node):
        for iterator, binding in zip(block.iters, block.bindings, strict=True):
            if iterator.kind == "reduce" and node.var in variables(binding):
                raise ScheduleError(
                    f"loop {node.var.name} carries the reduction of {block.name}; "
                    f"a loop bound to {axis} must be spatial"
                )


def _check_axis(program: PrimFunc, node: For, axis: str) -> None:
    """ScheduleError if the loops around or inside do not go with the axis."""
    path = path_to(program.body, node)
    around = [s for s in path[:-1] if isinstance(s, For)]
    inside = loops_below(node.body)
    pairs = [(outer, node) for outer in around] + [(node, inner) for inner in inside]
    for outer, inner in pairs:
        outer_axis, inner_axis = (axis if n is node else n.axis for n in (outer, inner))
        if outer_axis in THREAD_AXES and inner_axis in BLOCK_AXES:
            raise ScheduleError(
                f"loop {inner.var.name} of {inner_axis} is inside loop {outer.var.name} of "
                f"{outer_axis}; blocks are made of threads"
            )
        if not outer_axis or outer_axis != inner_axis:
            continue
        if constant_extent(outer) != constant_extent(inner):
            raise ScheduleError(
                f"{axis} has {constant_extent(outer)} threads in loop {outer.var.name} and "
                f"{constant_extent(inner)} in loop {inner.var.name} inside it; split to the same"
            )
        if outer.var in variables_below(inner.body):
            raise ScheduleError(
                f"what loop {inner.var.name} does depends on loop {outer.var.name} of the same "
                f"axis {axis}"
            )


def double_buffer(program: PrimFunc, block: str) -> PrimFunc:
    """Fill the buffer that a block writes an iteration ahead of its use, in two copies.

    The block stands with its readers in a serial loop; lowering moves the fill.

    for k in 8: T[…] = f(k); use(T)
    ->  T[0, …] = f(0); for k in 7: T[(k + 1) % 2, …] = f(k + 1); use(T[k % 2]);  use(T[7 % 2])
    """
    node = find_block(program, block)
    buffer = written_buffer(node)
    if buffer not in program.buffers or buffer.scope == "register":
        raise ScheduleError(
            f"{buffer.name} is {'in registers' if buffer.scope == 'register' else 'a parameter'}; "
            "only an intermediate buffer in memory can be filled ahead"
        )
    writers, readers = producers_and_consumers(program, buffer)
    loop = _loop_of_all(program, [*writers, *readers])
    if loop is None or loop.kind is not LoopKind.SERIAL:
        raise ScheduleError(
            f"{buffer.name} is not filled inside a serial loop of its readers; "
            f"move {block} there with compute_at first"
        )
    used = {v for b in writers for v in reads_of(program, b.name)}
    for other in blocks(loop):
        if other not in writers and written_buffer(other) in used:
            raise ScheduleError(
                f"{other.name} writes {written_buffer(other).name} in loop {loop.var.name}, "
                f"which the fill of {buffer.name} reads; it cannot move ahead"
            )
    return replace_buffer(program, buffer, replace(buffer, copies=2))


def _loop_of_all(program: PrimFunc, members: list[Block]) -> For | None:
    """The innermost loop around all the blocks."""
    paths = [path_to(program.body, m) for m in members]
    found = [
        s for s in paths[0] if isinstance(s, For) and all(any(s is t for t in p) for p in paths)
    ]
    return found[-1] if found else None

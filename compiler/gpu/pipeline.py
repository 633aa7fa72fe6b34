"""Tiles that are filled several steps ahead, by copies that run on beside the threads.

Barriers stand by rule: one at the start of each step, which lets the newest copies be under way.
"""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.wgmma import wgmmas_of
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import (
    Allocate,
    Barrier,
    Buffer,
    Const,
    Expr,
    For,
    If,
    PrimFunc,
    Seq,
    Stmt,
    binary,
)
from tunefarm.compiler.tir.schedule import find_block
from tunefarm.compiler.tir.schedule.buffers import replace_buffer
from tunefarm.compiler.tir.schedule.tree import written_buffer
from tunefarm.compiler.tir.transform.double_buffer import (
    allocations_around,
    check_fills,
    in_copy,
    stored_buffers,
)
from tunefarm.compiler.tir.visit import seq, substitute_stmt, transform_stmt, walk_stmt


def fill_ahead(program: PrimFunc, block: str, stages: int) -> PrimFunc:
    """Fill the buffer that a block writes ``stages`` - 1 iterations ahead of its use.

    With two stages as ``double_buffer`` does. With more, for 3 stages:

    for k in 8: T[…] = f(k); use(T)
    ->  T[0, …] = f(0); T[1, …] = f(1); barrier
        for k in 8: barrier(1 pending); if k < 6: T[(k + 2) % 3, …] = f(k + 2); use(T[k % 3])
    """
    program = s.double_buffer(program, block)
    buffer = written_buffer(find_block(program, block))
    if stages > 2 and buffer.scope != "shared":
        raise ScheduleError(
            f"{buffer.name} is in {buffer.scope} memory; only a shared tile has {stages} stages"
        )
    return replace_buffer(program, buffer, replace(buffer, copies=stages))


def pipeline_copies(program: PrimFunc) -> PrimFunc:
    """Move the fills of buffers with more than two copies ahead (see ``fill_ahead``); one step less
    where products overlap, which read a tile for a step longer.

    Raises ScheduleError if a fill cannot move, or the buffers of a loop have other numbers of them.
    """

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For):
            return None
        around, body = allocations_around(stmt.body)
        ahead = [a.buffer for a in around if a.buffer.copies > 2]
        return _pipelined(stmt, around, body, ahead) if ahead else None

    if not any(isinstance(n, Allocate) and n.buffer.copies > 2 for n in walk_stmt(program.body)):
        return program
    return replace(program, body=transform_stmt(program.body, rule))


def _pipelined(loop: For, around: list[Allocate], body: Stmt, ahead: list[Buffer]) -> Stmt:
    parts = list(body.stmts) if isinstance(body, Seq) else [body]
    fills = [p for p in parts if stored_buffers(p) & set(ahead)]
    rest = seq(*(p for p in parts if p not in fills))
    check_fills(loop, fills, rest, ahead)
    stages = ahead[0].copies
    if any(b.copies != stages for b in ahead) or not isinstance(loop.extent, Const):
        raise ScheduleError(
            f"the tiles of loop {loop.var.name} have other numbers of stages, or it runs an "
            "unknown number of times; give all of them the same"
        )
    made = {b: replace(b, shape=(stages, *b.shape), copies=1) for b in ahead}
    early = stages - 1 - any(w.overlaps for w in wgmmas_of(rest))
    copy = binary("floormod", loop.var, Const(stages))
    fill = in_copy(seq(*fills), made, copy)
    use = in_copy(rest, made, copy)

    def filled(number: Expr) -> Stmt:
        return substitute_stmt(fill, {loop.var: number})

    for allocation in reversed(around):
        if allocation.buffer not in made:
            use = replace(allocation, body=use)
    following = If(loop.var + early < loop.start + loop.extent, filled(loop.var + early))
    first = [filled(loop.start + n) for n in range(min(early, int(loop.extent.value)))]
    steps = replace(loop, body=seq(Barrier(early - 1), following, use))
    stmt: Stmt = seq(*first, Barrier(), steps)
    for buffer in reversed(made.values()):
        stmt = Allocate(buffer, stmt)
    return stmt

"""What a tile's sum reads is made beside the sum of the tile before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunefarm.compiler.tir.facts import (
    buffers_read_below,
    buffers_stored,
    loops_below,
)
from tunefarm.compiler.tir.ir import (
    Allocate,
    Buffer,
    Const,
    Expr,
    For,
    If,
    LoopKind,
    Stmt,
    Var,
)
from tunefarm.compiler.tir.transform.double_buffer import with_buffers
from tunefarm.compiler.tir.transform.shares import Beside, has_sum
from tunefarm.compiler.tir.visit import (
    seq,
    substitute_stmt,
    walk_stmt,
)


def filled_ahead(
    loop: For, around: Sequence[Allocate], fill: Stmt, rest: Sequence[Stmt]
) -> Stmt | None:
    """A loop, each iteration of which runs ``fill`` and the ``rest`` in the allocations ``around``,
    with the fills beside the sums of the iterations before; None where they cannot run there.

    Its buffers are there twice, and the rest is written for each of both: registers hold tiles of
    one while the other is stored to.
    """
    filled = [a.buffer for a in around if a.buffer in buffers_stored(fill)]
    if not _may_run_ahead(loop, fill, rest, filled):
        return None
    sums = next(n for n, part in enumerate(rest) if has_sum(part))
    others = {b: replace(b, name=f"{b.name}_next") for b in filled}
    end = loop.start + loop.extent
    pair = Var(f"{loop.var.name}_pair")
    first = loop.start + pair * 2

    def at(number: Expr, stmt: Stmt, swapped: bool) -> Stmt:
        made = substitute_stmt(stmt, {loop.var: number})
        return with_buffers(made, others) if swapped else made

    def iteration(number: Expr, swapped: bool, has_next: Expr) -> Stmt:
        following = Beside(has_next, at(number + 1, fill, not swapped), fine=True)
        parts = [at(number, part, swapped) for part in rest]
        parts[sums] = following.share_out(parts[sums])
        return seq(*parts)

    has_second = first + 1 < end
    second = iteration(first + 1, True, first + 2 < end)
    body = seq(iteration(first, False, has_second), If(has_second, second))
    stmt: Stmt = seq(at(loop.start, fill, False), For(pair, (loop.extent + 1) // 2, body))
    if not isinstance(loop.extent, Const):
        stmt = If(loop.extent > 0, stmt)
    for allocation in reversed(around):
        stmt = replace(allocation, body=stmt)
    for buffer in others.values():
        stmt = Allocate(buffer, stmt)
    return stmt


def _may_run_ahead(loop: For, fill: Stmt, rest: Sequence[Stmt], filled: Sequence[Buffer]) -> bool:
    """Whether a fill is one nest of loops, which can pause between its iterations, that reads
    nothing which the rest changes and stores only to buffers in memory that end with it."""
    stored, read = buffers_stored(fill), buffers_read_below(fill)
    later = seq(*rest)
    hinted = {
        hint.buffer for part in (fill, later) for n in loops_below(part) for hint in n.prefetch
    }
    return (
        isinstance(fill, For)
        and fill.kind is LoopKind.SERIAL
        and not any(isinstance(s, Allocate) for s in walk_stmt(fill))
        and any(map(has_sum, rest))
        and stored == set(filled)
        and not buffers_stored(later) & (stored | read)
        and not stored & hinted
        and not loop.prefetch
        and all(b.scope not in ("register", "tile") for b in filled)
        and not (isinstance(loop.extent, Const) and int(loop.extent.value) < 1)
    )

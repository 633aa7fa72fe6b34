"""What follows a tile's sum, or what the next one needs, runs beside a sum: a matrix unit works
meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunefarm.compiler.tir.affine import Key, key_of
from tunefarm.compiler.tir.facts import (
    buffers_read_below,
    buffers_stored,
    loads_of,
    loops_below,
    uses,
)
from tunefarm.compiler.tir.ir import (
    Allocate,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Load,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    binary,
)
from tunefarm.compiler.tir.transform.double_buffer import allocations_around, in_copy
from tunefarm.compiler.tir.transform.fills_ahead import filled_ahead
from tunefarm.compiler.tir.transform.shares import Beside, is_sum, uses_tiles
from tunefarm.compiler.tir.visit import (
    seq,
    substitute_stmt,
    transform_stmt,
    walk_stmt,
)


def overlap_sums(program: PrimFunc) -> PrimFunc:
    """Share the epilogue of each iteration of an overlapped loop out to the next one's sum.

    An epilogue in vectors and the products of a matrix unit use different parts of a core, which
    looks no further ahead than a fraction of either. A product of 196 × 1024 × 256 takes 0.66 × the
    time so, as if it had no epilogue (Granite Rapids, float32 in parts).

    for t in 8: tile = 0; for k in 16: tile += f(t, k);  P = tile; for i in 32: y[t, i] = g(P[i])
    ->  for t in 9: if t < 8: tile = 0
                    for k in 16: if t < 8: tile += f(t, k)
                                 if t > 0: for i in [2k, 2k + 2): y[t - 1, i] = g(P[i])
                    if t < 8: P = tile

    What the sums hand on before their end is kept twice. The epilogue must compute each element by
    itself, from what the loop's body alone holds, so that it can run later, and in shares.

    Where the body begins with a nest that fills what the sums read, from what is there before the
    loop, the fill runs beside the sums of the iteration before instead, in shares behind each
    register tile of a step; there are two of its buffers, in turn.

    for t in 8: P = f(t); tile = 0; for k in 16: tile += P[k];  y[t] = tile
    ->  P = f(0)
        for t in 4: tile = 0; for k in 16: { tile += P[k]; a share of Q = f(2t + 1) };  y[2t] = tile
                    tile = 0; for k in 16: { tile += Q[k]; if t < 3: a share of P = f(2t + 2) }; …

    A loop without tiles, or in which neither is possible, is a serial one.
    """

    def rule(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, For) and stmt.kind is LoopKind.OVERLAPPED:
            return _overlapped(replace(stmt, kind=LoopKind.SERIAL))
        return None

    if not any(loop.kind is LoopKind.OVERLAPPED for loop in loops_below(program.body)):
        return program
    return replace(program, body=transform_stmt(program.body, rule))


def _overlapped(loop: For) -> Stmt:
    around, body = allocations_around(loop.body)
    parts = list(body.stmts) if isinstance(body, Seq) else [body]
    with_tiles = [n for n, part in enumerate(parts) if uses_tiles(part)]
    if with_tiles and with_tiles[0]:
        first = with_tiles[0]
        ahead = filled_ahead(loop, around, seq(*parts[:first]), parts[first:])
        if ahead is not None:
            return ahead
    cut = 1 + max(with_tiles, default=-1)
    sums, epilogue = parts[:cut], seq(*parts[cut:])
    if not sums or not parts[cut:]:
        return loop
    handed = [a.buffer for a in around if uses(seq(*sums), a.buffer) and uses(epilogue, a.buffer)]
    if not _may_run_later(seq(*sums), epilogue, handed):
        return loop
    late = substitute_stmt(epilogue, {loop.var: loop.var - 1})
    stores = [n for n, part in enumerate(sums) if buffers_stored(part) & set(handed)]
    sum_loop = next((n for n, part in enumerate(sums) if is_sum(part)), None)
    # A sum that stores some of its results before its end finds those of the last one in use.
    early = sum_loop is not None and any(n <= sum_loop for n in stores)
    kept = {b: replace(b, shape=(2, *b.shape)) for b in handed} if early else {}
    sums = [in_copy(part, kept, _parity(loop.var)) for part in sums]
    late = in_copy(late, kept, _parity(loop.var - 1))
    here = loop.var < loop.start + loop.extent
    after = Beside(loop.var > loop.start, late)
    made = [after.share_out(p, here) if n == sum_loop else If(here, p) for n, p in enumerate(sums)]
    if sum_loop is None:
        made.insert(min(stores, default=0), If(after.exists, late))
    stmt: Stmt = seq(*made)
    for allocation in reversed(around):
        if allocation.buffer not in handed:
            stmt = replace(allocation, body=stmt)
    stmt = replace(loop, extent=loop.extent + 1, body=stmt)
    for buffer in handed:
        stmt = Allocate(kept.get(buffer, buffer), stmt)
    return stmt


def _may_run_later(sums: Stmt, epilogue: Stmt, handed: Sequence[Buffer]) -> bool:
    """Whether the next sums may be made before an epilogue ends, and its parts in any order."""
    written, stored = buffers_stored(epilogue), buffers_stored(sums)
    hinted = {hint.buffer for loop in loops_below(sums) for hint in loop.prefetch}
    return (
        not written & (buffers_read_below(sums) | stored)
        and (stored & buffers_read_below(epilogue)) <= set(handed)
        and not hinted & set(handed)
        and all(b.scope != "register" for b in handed)
        and _is_elementwise(epilogue)
    )


def _is_elementwise(epilogue: Stmt) -> bool:
    """Whether what an epilogue reads of its own results is the element that it then writes."""
    stores = [s for s in walk_stmt(epilogue) if isinstance(s, Store)]
    places: dict[Buffer, set[tuple[Key, ...]]] = {}
    accesses: list[Store | Load] = [*stores, *loads_of(epilogue)]
    for access in accesses:
        places.setdefault(access.buffer, set()).add(tuple(map(key_of, access.indices)))
    once = {s.buffer for s in stores}
    kept = any(isinstance(s, Allocate) for s in walk_stmt(epilogue))
    return not kept and all(len(places[b]) == 1 for b in once & buffers_read_below(epilogue))


def _parity(number: Expr) -> Expr:
    return binary("floormod", number, Const(2))

"""What follows a tile's sum runs beside the next tile's: a matrix unit works meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

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
    Var,
    binary,
)
from tunefarm.compiler.tir.transform.double_buffer import allocations_around, in_copy
from tunefarm.compiler.tir.visit import (
    seq,
    substitute,
    substitute_stmt,
    transform_stmt,
    walk_stmt,
)


def overlap_epilogues(program: PrimFunc) -> PrimFunc:
    """Share the epilogue of each iteration of an overlapped loop out to the next one's sum.

    An epilogue in vectors and the products of a matrix unit use different parts of a core, which
    looks no further ahead than a fraction of either. A product of 196 × 1024 × 256 takes 0.66 × the
    time so, as if it had no epilogue (Granite Rapids, float32 in parts).

    for t in 8: tile = 0; for k in 16: tile += f(t, k);  P = tile; for i in 32: y[t, i] = g(P[i])
    ->  for t in 9: if t < 8: tile = 0
                    for k in 16: if t < 8: tile += f(t, k)
                                 if t > 0: for i in [2k, 2k + 2): y[t - 1, i] = g(P[i])
                    if t < 8: P = tile

    What the sums hand on before their end is kept twice. A loop without tiles, or with nothing
    behind them, is a serial one, and so is one whose epilogue cannot run later, or in shares: it
    must compute each element by itself, from what the loop's body alone holds.
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
    cut = 1 + max((n for n, part in enumerate(parts) if _uses_tiles(part)), default=-1)
    sums, epilogue = parts[:cut], seq(*parts[cut:])
    if not sums or not parts[cut:]:
        return loop
    handed = [a.buffer for a in around if uses(seq(*sums), a.buffer) and uses(epilogue, a.buffer)]
    if not _may_run_later(seq(*sums), epilogue, handed):
        return loop
    late = substitute_stmt(epilogue, {loop.var: loop.var - 1})
    stores = [n for n, part in enumerate(sums) if buffers_stored(part) & set(handed)]
    sum_loop = next((n for n, part in enumerate(sums) if _is_sum(part)), None)
    # A sum that stores some of its results before its end finds those of the last one in use.
    early = sum_loop is not None and any(n <= sum_loop for n in stores)
    kept = {b: replace(b, shape=(2, *b.shape)) for b in handed} if early else {}
    sums = [in_copy(part, kept, _parity(loop.var)) for part in sums]
    late = in_copy(late, kept, _parity(loop.var - 1))
    here = loop.var < loop.start + loop.extent
    after = _Epilogue(loop.var > loop.start, late)
    made = [after.beside(p, here) if n == sum_loop else If(here, p) for n, p in enumerate(sums)]
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


def _uses_tiles(stmt: Stmt) -> bool:
    return any(b.scope == "tile" for b in buffers_read_below(stmt) | buffers_stored(stmt))


def _is_sum(stmt: Stmt) -> bool:
    """Whether a loop runs over the products of tiles."""
    return isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL and _uses_tiles(stmt)


@dataclass(frozen=True, slots=True)
class _Epilogue:
    """What is left of the iteration before, if there was one: ``exists``."""

    exists: Expr
    body: Stmt

    def beside(self, sum_loop: Stmt, here: Expr) -> Stmt:
        """The loops of a sum, run only ``here``, with a share of the epilogue in each step."""
        return self._beside(sum_loop, here, Const(0), 1)

    def _beside(self, stmt: Stmt, here: Expr, visit: Expr, visits: int) -> Stmt:
        """``visit`` counts the steps of the loops around a statement: there are ``visits``."""
        match stmt:
            case Allocate():
                return replace(stmt, body=self._beside(stmt.body, here, visit, visits))
            case For(extent=Const(value=int() as extent)) if _is_sum(stmt) and extent > 0:
                number = visit * extent + (stmt.var - stmt.start)
                return replace(stmt, body=self._beside(stmt.body, here, number, visits * extent))
            case Seq(stmts) if any(_is_sum(s) for s in stmts):
                first = next(s for s in stmts if _is_sum(s))
                inner = (
                    self._beside(s, here, visit, visits) if s is first else If(here, s)
                    for s in stmts
                )  # fmt: skip
                return seq(*inner)
            case _:
                return seq(If(here, stmt), If(self.exists, _share(self.body, visit, visits)))


def _share(stmt: Stmt, visit: Expr, visits: int) -> Stmt:
    """The iterations of a statement's outermost loops that one of ``visits`` runs."""
    match stmt:
        case Seq(stmts):
            return seq(*(_share(s, visit, visits) for s in stmts))
        case If(condition, then, orelse):
            other = None if orelse is None else _share(orelse, visit, visits)
            return If(condition, _share(then, visit, visits), other)
        case For(kind=LoopKind.SERIAL):
            loop = _joined(stmt)
            begin = loop.extent * visit // visits
            end = loop.extent * (visit + 1) // visits
            return replace(loop, start=loop.start + begin, extent=end - begin)
        case _:
            return If(visit.equal(0), stmt) if visits > 1 else stmt


def _joined(loop: For) -> For:
    """Two loops, one in the other, as one."""
    match loop.body:
        case For(kind=LoopKind.SERIAL, extent=Const(value=int() as extent)) as inner if extent > 0:
            if loop.prefetch or inner.prefetch:
                return loop
            both = Var(f"{loop.var.name}_{inner.var.name}")
            outer = loop.start + both // extent
            start = substitute(inner.start, {loop.var: outer})
            body = substitute_stmt(inner.body, {loop.var: outer, inner.var: start + both % extent})
            return _joined(For(both, loop.extent * extent, body))
        case _:
            return loop

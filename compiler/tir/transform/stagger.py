"""Stages of a row kernel a tile apart: one waits for its sums while others have work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tunefarm.compiler.tir.affine import conjunction, conjuncts
from tunefarm.compiler.tir.facts import (
    buffers_read_below,
    buffers_stored,
    loops_below,
    uses,
    variables,
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
from tunefarm.compiler.tir.transform.bounds import bound_of
from tunefarm.compiler.tir.transform.double_buffer import allocations_around
from tunefarm.compiler.tir.visit import (
    loads_of,
    seq,
    substitute_stmt,
    transform_accesses,
    transform_stmt,
    walk_stmt,
    with_body,
)


def stagger_stages(program: PrimFunc) -> PrimFunc:
    """Cut the bodies of staggered loops behind each sum over lanes, and run the parts a tile apart.

    A sum over lanes, and what is divided by it, take some 100 cycles one after the other, and a
    core looks no further ahead than the stage that waits for them. The stage before it, on the
    next tile, waits for nothing.

    for i in 8: M = max(x[i]); S = Σ exp(x[i] - M); y[i] = exp(x[i] - M) / S
    ->  for i in 10: if i >= 2:            y[i-2] = exp(x[i-2] - M2) / S
                     if i >= 1 and i < 9:  S = Σ exp(x[i-1] - M)
                     M2 = M
                     if i < 8:             M = max(x[i])

    A loop whose stages hand on more than registers can follow is a serial one.
    """

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or stmt.kind is not LoopKind.STAGGERED:
            return None
        tiles, border = _parted(replace(stmt, kind=LoopKind.SERIAL))
        staggered = _staggered(tiles)
        return staggered if border is None else seq(staggered, border)

    if not any(loop.kind is LoopKind.STAGGERED for loop in loops_below(program.body)):
        return program
    return replace(program, body=transform_stmt(program.body, rule))


def _parted(loop: For) -> tuple[For, For | None]:
    """The iterations of whole tiles, and behind them those of the border, if they have other code.

    for i in 11: if i < n: f else: g   ->   for i in min(11, n): f;  for i in [n, 11): g
    """
    around, body = allocations_around(loop.body)
    parts = conjuncts(body.condition) if isinstance(body, If) else ()
    if not isinstance(body, If) or body.orelse is None or len(parts) != 1:
        return loop, None
    bound = bound_of(parts[0], loop.var)
    if bound is None or bound[0] != "upper":
        return loop, None
    end = loop.start + loop.extent
    border = binary("max", loop.start, binary("min", end, bound[1]))

    def part(start: Expr, end: Expr, body: Stmt) -> For:
        for allocation in reversed(around):
            body = Allocate(allocation.buffer, body)
        return replace(loop, start=start, extent=end - start, body=body)

    return part(loop.start, border, body.then), part(border, end, body.orelse)


def _staggered(loop: For) -> Stmt:
    around, body = allocations_around(loop.body)
    stages = _stages(body)
    own = {s.buffer for s in walk_stmt(loop.body) if isinstance(s, Allocate)}
    last = len(stages) - 1
    few = isinstance(loop.extent, Const) and loop.extent.value <= last
    if last == 0 or few or _write_early(stages, own):
        return loop
    handed: list[_Handed] = []
    for allocation in reversed(around):
        users = [n for n, stage in enumerate(stages) if uses(stage, allocation.buffer)]
        found = _handed_on(allocation.buffer, stages, users)
        if found is None:
            return loop
        if users[1:]:
            handed.append(found)
        else:
            stages[users[0]] = Allocate(allocation.buffer, stages[users[0]])
    parts: list[Stmt] = []
    for number in range(last, -1, -1):
        stage = stages[number]
        for buffer in handed:
            stage = buffer.seen_by(number, stage)
        parts += [copy for b in handed if b.writer == number for copy in b.moves()]
        parts.append(_in_turn(loop, stage, number, last))
    stmt: Stmt = replace(loop, extent=loop.extent + last, body=seq(*parts))
    stmt = seq(*(first for b in handed for first in b.beginnings(stages[b.writer])), stmt)
    for generation in (g for b in handed for g in b.generations):
        stmt = Allocate(generation, stmt)
    return stmt


def _write_early(stages: Sequence[Stmt], own: set[Buffer]) -> bool:
    """True if another stage than the last one writes memory that outlives an iteration, or one
    reads what is written there."""
    written = {b for stage in stages for b in buffers_stored(stage)} - own
    early = any(written & buffers_stored(stage) for stage in stages[:-1])
    return early or any(written & buffers_read_below(stage) for stage in stages)


def _stages(body: Stmt) -> list[Stmt]:
    """The body's statements, cut behind those that end in a sum over lanes, or what goes on with
    such sums in lanes of their own."""
    stages: list[list[Stmt]] = [[]]
    for part in body.stmts if isinstance(body, Seq) else (body,):
        if stages[1:] and not stages[-1] and _goes_on(stages[-2][-1], part):
            stages[-2].append(part)
            continue
        stages[-1].append(part)
        if _combines_lanes(part):
            stages.append([])
    return [seq(*parts) for parts in stages if parts]


def _combines_lanes(stmt: Stmt) -> bool:
    """True if a vectorized loop in a statement stores one element for all of its lanes."""
    return any(
        isinstance(store, Store) and all(loop.var not in variables(i) for i in store.indices)
        for loop in loops_below(stmt)
        if loop.kind is LoopKind.VECTORIZED
        for store in walk_stmt(loop.body)
    )


def _goes_on(sums: Stmt, stmt: Stmt) -> bool:
    """True for a vectorized loop over registers whose lanes are what another statement combined."""
    if not isinstance(stmt, For) or stmt.kind is not LoopKind.VECTORIZED:
        return False
    every = buffers_read_below(stmt) | buffers_stored(stmt)
    lanes = {load.buffer for load in loads_of(stmt) if stmt.var in load.indices}
    return buffers_stored(sums) <= lanes and all(buffer.scope == "register" for buffer in every)


def _in_turn(loop: For, stage: Stmt, number: int, last: int) -> Stmt:
    """A stage of the iteration ``number`` before the present one, if there is one."""
    first = loop.start + number
    conditions: list[Expr] = []
    if number:
        conditions.append(loop.var >= first)
    if number < last:
        conditions.append(loop.var < first + loop.extent)
    return If(conjunction(conditions), substitute_stmt(stage, {loop.var: loop.var - number}))


@dataclass(frozen=True, slots=True)
class _Handed:
    """A buffer that stage ``writer`` hands on. ``generations`` hold what it wrote in the latest
    iteration, the one before, and so on, as long as a later stage reads it. Elements are copied
    by loops of kind ``copies``."""

    writer: int
    generations: tuple[Buffer, ...]
    copies: LoopKind = LoopKind.UNROLLED

    def seen_by(self, number: int, stage: Stmt) -> Stmt:
        """The stage with the generation in the buffer's place that it is to read."""
        buffer, age = self.generations[0], number - self.writer - 1
        if not 1 <= age < len(self.generations):
            return stage
        old = self.generations[age]
        return transform_accesses(
            stage, (buffer,), lambda load: Load(old, load.indices), lambda store: store
        )

    def beginnings(self, stage: Stmt) -> list[Stmt]:
        """Stores of zeros to the registers, which the first iterations read and do not use."""
        buffer = self.generations[0]
        if buffer.scope != "register":
            return []
        zeros = _zeroed(stage, buffer)
        return [zeros, *(self._copied(buffer, old) for old in self.generations[1:])]

    def moves(self) -> list[Stmt]:
        """Each generation becomes the one before it, the oldest first."""
        pairs = zip(self.generations, self.generations[1:], strict=False)
        return [self._copied(young, old) for young, old in reversed(list(pairs))]

    def _copied(self, source: Buffer, target: Buffer) -> Stmt:
        """``target[…] = source[…]``, element by element."""
        loops = [Var(f"e{d}") for d in range(len(source.shape))]
        stmt: Stmt = Store(target, tuple(loops), Load(source, tuple(loops)))
        for var, extent in zip(reversed(loops), reversed(source.shape), strict=True):
            stmt = For(var, Const(extent), stmt, self.copies)
        return stmt


def _handed_on(buffer: Buffer, stages: Sequence[Stmt], users: Sequence[int]) -> _Handed | None:
    """How a buffer goes from the first of its ``users`` to the last; None if it cannot."""
    if not users or any(buffer in buffers_stored(stages[n]) for n in users[1:]):
        return None
    ages = max(1, users[-1] - users[0])
    copies = _kind_of_copies(buffer, stages[users[0]])
    if ages > 1 and copies is None:
        return None
    older = (replace(buffer, name=f"{buffer.name}_{age}") for age in range(2, ages + 1))
    return _Handed(users[0], (buffer, *older), copies or LoopKind.UNROLLED)


def _kind_of_copies(buffer: Buffer, stage: Stmt) -> LoopKind | None:
    """How a register buffer is copied that is stored element by element, or is one vector; None
    for another buffer."""
    if buffer.scope != "register":
        return None
    wide = [
        store
        for loop in loops_below(stage)
        if loop.kind is LoopKind.VECTORIZED
        for store in walk_stmt(loop.body)
        if isinstance(store, Store) and store.buffer is buffer
        if any(loop.var in variables(index) for index in store.indices)
    ]
    if not wide:
        return LoopKind.UNROLLED
    return LoopKind.VECTORIZED if len(buffer.shape) == 1 else None


def _zeroed(stmt: Stmt, buffer: Buffer) -> Stmt:
    """The stores to a register buffer in a statement, of zeros, in vectors as they are there."""
    match stmt:
        case Store() if stmt.buffer is buffer:
            return replace(stmt, value=Const(0, buffer.dtype))
        case For(kind=LoopKind.UNROLLED) if buffer in buffers_stored(stmt):
            return with_body(stmt, _zeroed(stmt.body, buffer))
        case For(kind=LoopKind.VECTORIZED) if not _combines_lanes(stmt):
            return with_body(stmt, _zeroed(stmt.body, buffer))
        case For(kind=LoopKind.SERIAL) | Allocate():
            return _zeroed(stmt.body, buffer)
        case If():
            return _zeroed(stmt.then, buffer)
        case Seq(stmts):
            return seq(*(_zeroed(s, buffer) for s in stmts))
        case _:
            return Seq(())

"""Conditions move outwards: to the whole tile, and out of the loops that they do not mention."""

from __future__ import annotations

from dataclasses import replace

from tunefarm.compiler.tir.affine import (
    Key,
    Ranges,
    at_least_zero,
    conjunction,
    conjuncts,
    decide,
    gcd_of,
    interval_of,
    key_of,
    range_of,
)
from tunefarm.compiler.tir.facts import (
    buffers_read,
    buffers_stored,
    exchanges_below,
    kinds_below,
    variables,
)
from tunefarm.compiler.tir.ir import (
    Allocate,
    Barrier,
    Buffer,
    Expr,
    For,
    If,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.visit import map_children, seq, walk_stmt, with_body

MAX_TWICE = 4  # stores of a loop whose code is written for both outcomes of a condition


# --- whole tiles --------------------------------------------------------------------------------


def guard_tiles(program: PrimFunc) -> PrimFunc:
    """Say of a whole tile what a condition says of its elements, where nothing is lost.

    A tile of which no element exists is left out as a whole; if all of its elements exist or
    none (the extent is a multiple of the tile), that alone remains to be asked.

    for u in unroll(14): if t*14 + u < n: f
    ->  for u in unroll(14): if t*14 < n and t*14 + u < n: f
    """
    return replace(program, body=_guard(program.body, {}, frozenset()))


def _guard(stmt: Stmt, ranges: Ranges, inner: frozenset[Var]) -> Stmt:
    if If not in kinds_below(stmt):
        return stmt
    if isinstance(stmt, For):
        ranges = {**ranges, stmt.var: range_of(stmt, ranges)}
        if stmt.is_expanded:
            inner = inner | {stmt.var}
    elif isinstance(stmt, If):
        parts = [p for part in conjuncts(stmt.condition) for p in _guarded(part, ranges, inner)]
        stmt = replace(stmt, condition=conjunction(parts))
    return map_children(stmt, lambda s: _guard(s, ranges, inner))


def _guarded(part: Expr, ranges: Ranges, inner: frozenset[Var]) -> list[Expr]:
    """The condition of the tile, and that of its elements if it says more."""
    form = at_least_zero(part) if variables(part) & inner else None
    if form is None or decide(part, ranges) is not None:
        return [part]
    inside = form.only(set(inner))
    outside = form - inside
    if not inside.terms or not outside.terms or outside.variables() & inner:
        return [part]
    low, high = interval_of(inside, ranges)
    some = outside.expr() >= -high
    if decide(some, ranges) is True:
        return [part]
    step = gcd_of(outside)
    # Values of ``outside`` are congruent: the first that lets the best element in may let all in.
    first = -high + (outside.const + high) % step
    return [some] if first >= -low else [some, part]


# --- out of loops and tiles ---------------------------------------------------------------------


def hoist_conditions(program: PrimFunc) -> PrimFunc:
    """Move a condition out of the loops whose variable it does not mention.

    for k: if c(i): f(i, k)                            ->   if c(i): for k: f(i, k)
    tile = 0; if c(i): tile += …; if c(i): out = tile  ->   if c(i): tile = 0; tile += …; out = tile
    """
    return replace(program, body=_hoist(program.body))


def _hoist(stmt: Stmt) -> Stmt:
    if If not in kinds_below(stmt):
        return stmt
    stmt = map_children(stmt, _hoist)
    match stmt:
        case For():
            parts = _parts(stmt.body)
            out = [p for p in parts if stmt.var not in variables(p) and _movable(p, stmt)]
            return _around(out, with_body(stmt, _without(stmt.body, out)))
        case Allocate():
            private = {stmt.buffer} if stmt.buffer.scope != "shared" else set()
            parts = _common(_statements(stmt.body), private)
            return _around(parts, with_body(stmt, _without(stmt.body, parts)))
        case Seq(stmts):
            parts = _common(stmts, set())
            return _around(parts, _without(stmt, parts))
        case _:
            return stmt


def _statements(stmt: Stmt) -> tuple[Stmt, ...]:
    return stmt.stmts if isinstance(stmt, Seq) else (stmt,)


def _parts(stmt: Stmt) -> list[Expr]:
    """The conditions without which a statement does nothing."""
    return conjuncts(stmt.condition) if isinstance(stmt, If) and stmt.orelse is None else []


def _common(stmts: tuple[Stmt, ...], private: set[Buffer]) -> list[Expr]:
    """What every statement asks that writes more than ``private`` buffers."""
    visible = [s for s in stmts if _writes(s) - private]
    if not visible:
        return []
    keys = [{_key(p) for p in _parts(s)} for s in visible]
    shared = set.intersection(*keys)
    if not shared or any(_waits(s) for s in stmts):
        return []
    first = visible[0]
    return [p for p in _parts(first) if _key(p) in shared and all(_movable(p, s) for s in stmts)]


def _movable(part: Expr, stmt: Stmt) -> bool:
    """True if a condition says the same before the statement as in it."""
    if at_least_zero(part) is None:
        return False
    loaded = buffers_read(part)
    return not loaded or loaded.isdisjoint(_writes(stmt))


def _writes(stmt: Stmt) -> frozenset[Buffer]:
    """The buffers that a statement writes and does not keep to itself."""
    stored = buffers_stored(stmt)
    if Allocate not in kinds_below(stmt):
        return stored
    allocated = (s.buffer for s in walk_stmt(stmt) if isinstance(s, Allocate))
    return stored.difference(b for b in allocated if b.scope != "shared")


def _waits(stmt: Stmt) -> bool:
    """True if threads wait for each other in a statement, so that all must enter it."""
    return Barrier in kinds_below(stmt) or bool(exchanges_below(stmt))


def _key(part: Expr) -> Key:
    form = at_least_zero(part)
    if form is None:
        return key_of(part)
    return form.const, frozenset((k, c) for k, (c, _) in form.terms.items())


def _without(stmt: Stmt, parts: list[Expr]) -> Stmt:
    """The statement where ``parts`` are known to hold."""
    if not parts:
        return stmt
    if isinstance(stmt, Seq):
        return Seq(tuple(_without(s, parts) for s in stmt.stmts))
    known = {_key(p) for p in parts}
    mine = _parts(stmt)
    stay = [p for p in mine if _key(p) not in known]
    if len(stay) == len(mine):
        return stmt
    assert isinstance(stmt, If)
    return If(conjunction(stay), stmt.then) if stay else stmt.then


def _around(parts: list[Expr], stmt: Stmt) -> Stmt:
    return If(conjunction(parts), stmt) if parts else stmt


# --- both outcomes ------------------------------------------------------------------------------


def unswitch_loops(program: PrimFunc) -> PrimFunc:
    """Ask once what a serial loop would ask each time, with a loop for either answer.

    for k: if c(i): f(k) else: g(k)   ->   if c(i): for k: f(k)   else: for k: g(k)
    for k: f(k); if c(i): g(k)        ->   if c(i): for k: f(k); g(k)   else: for k: f(k)

    What stands beside the condition is written twice, so there may not be much of it.
    """
    return replace(program, body=_unswitch(program.body, frozenset()))


def _unswitch(stmt: Stmt, inner: frozenset[Var]) -> Stmt:
    """``inner`` are the unrolled and vectorized variables, on which no branch may depend."""
    if If not in kinds_below(stmt):
        return stmt
    if isinstance(stmt, For) and stmt.is_expanded:
        inner = inner | {stmt.var}
    stmt = map_children(stmt, lambda s: _unswitch(s, inner))
    if not isinstance(stmt, For) or not stmt.is_serial or stmt.prefetch:
        return stmt
    for number, part in enumerate(_statements(stmt.body)):
        if isinstance(part, If) and _invariant(part, stmt, inner):
            return _switched(stmt, part, number)
    return stmt


def _invariant(branch: If, loop: For, inner: frozenset[Var]) -> bool:
    """True if a branch is the same in all iterations, and the loop's code may be doubled."""
    used = variables(branch.condition)
    if loop.var in used or used & inner or _waits(loop):
        return False
    if not all(_movable(p, loop) for p in conjuncts(branch.condition)):
        return False
    beside = [s for s in _statements(loop.body) if s is not branch]
    return sum(isinstance(n, Store) for s in beside for n in walk_stmt(s)) <= MAX_TWICE


def _switched(loop: For, branch: If, number: int) -> Stmt:
    parts = list(_statements(loop.body))

    def with_arm(arm: Stmt | None) -> Stmt:
        chosen = [*parts[:number], *([] if arm is None else [arm]), *parts[number + 1 :]]
        return with_body(loop, seq(*chosen))

    beside = len(parts) > 1 or branch.orelse is not None
    return If(branch.condition, with_arm(branch.then), with_arm(branch.orelse) if beside else None)

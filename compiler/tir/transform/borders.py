"""Borders of a window: terms of a tile's sums that tiles at the border do not have.

Versions of a short sum for the first and the last tiles are much code, where half of all tiles are
such, and no faster: all tiles ask in front of the others for the few terms that some lack.

for ky: for u in unroll(7): if 0 <= i*7 + u + ky - 1 < 28: f
->  if i > 0: for the u and ky with u + ky < 1: f
    if i < 3: for the u and ky with u + ky >= 8: f
    for the u and ky with 1 <= u + ky < 8: f
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

from tunefarm.compiler.tir.affine import Affine, interval_of, key_of, range_of
from tunefarm.compiler.tir.facts import buffers_read, buffers_stored, kinds_below, loops_below
from tunefarm.compiler.tir.ir import (
    Allocate,
    Binary,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Load,
    LoopKind,
    Stmt,
    Store,
)
from tunefarm.compiler.tir.transform.open_conditions import Ranges
from tunefarm.compiler.tir.transform.versions import (
    MAX_PLACES,
    Group,
    only_child_with,
    with_parts,
)
from tunefarm.compiler.tir.visit import map_children, seq, walk_stmt

MANY = 1 / 2  # of all tiles: where fewer are at the border, those inside do not ask
FEW = 1 / 8  # of a tile's terms: those that it asks for


@dataclass(frozen=True, slots=True)
class _Border:
    """A condition that tiles at one place, the first or the last one, ask of some iterations
    (``has ≥ 0``), and that all ``others`` have."""

    part: Expr
    has: Affine
    others: Expr

    @property
    def lacks(self) -> Affine:
        """Not negative for the iterations that a border tile lacks."""
        return Affine(-1, {}) - self.has


def ask_for_terms(body: Stmt, group: Group) -> Stmt | None:
    """A loop's body that asks for the terms of its tiles' sums that some tiles lack; None where
    that takes versions of it."""
    borders = _borders(group)
    if borders is None:
        return None
    return _rewritten(body, borders, group)


def _borders(group: Group) -> Sequence[_Border] | None:
    """One or two borders; None if few tiles are there, if there are tiles of more kinds, or if
    threads of a GPU share them."""
    if group.count() > MAX_PLACES or any(loop.kind is LoopKind.THREAD for loop in group.loops):
        return None
    places = group.places()
    signs = [bound.sign for bound in group.bounds]
    if len(places) < 2 or len(signs) != len(set(signs)) or len(signs) < MANY * len(places):
        return None
    borders: list[_Border] = []
    for bound in group.bounds:
        place, beside = places[:2] if bound.sign > 0 else (places[-1], places[-2])
        if bound.sign * beside + bound.const + bound.low < 0:
            return None
        where = group.place.expr()
        others = where >= beside if bound.sign > 0 else where <= beside
        has = bound.inside + Affine(bound.sign * place + bound.const, {})
        borders.append(_Border(bound.part, has, others))
    return borders


def _rewritten(
    stmt: Stmt, borders: Sequence[_Border], group: Group, tile: frozenset[Buffer] = frozenset()
) -> Stmt | None:
    """``tile`` are the registers that one iteration of the loops around has: a loop over terms
    would ask again and again."""
    if isinstance(stmt, For) and stmt.is_expanded:
        if not buffers_stored(stmt) <= tile or not _is_sum(stmt):
            return None
        return _asking(stmt, borders, group.opens[0].ranges)
    if isinstance(stmt, For):
        tile = frozenset()
    elif isinstance(stmt, Allocate) and stmt.buffer.scope == "register":
        tile = tile | {stmt.buffer}
    below = only_child_with(stmt, group.parts)
    new = None if below is None else _rewritten(below, borders, group, tile)
    return None if new is None else map_children(stmt, lambda s: new if s is below else s)


def _is_sum(nest: For) -> bool:
    """True for unrolled loops that add terms to registers, in whatever order."""
    stores = [s for s in walk_stmt(nest) if isinstance(s, Store)]
    if len(stores) != 1 or not {For, If, Store} >= kinds_below(nest):
        return False
    (store,) = stores
    match store.value:
        case Binary("add", Load() as old, term):
            pass
        case _:
            return False
    same = old.buffer is store.buffer and list(map(key_of, old.indices)) == list(
        map(key_of, store.indices)
    )
    return (
        same
        and store.buffer not in buffers_read(term)
        and nest.kind is LoopKind.UNROLLED
        and all(loop.is_expanded and _is_constant(loop) for loop in loops_below(nest))
    )


def _is_constant(loop: For) -> bool:
    return isinstance(loop.start, Const) and isinstance(loop.extent, Const)


def _asking(nest: For, borders: Sequence[_Border], ranges: Ranges) -> Stmt | None:
    """The terms that some tiles lack, each border's under its question, and then all others.

    Questions behind the others cost 7% of the time, beside nothing in front of them: results wait.
    """
    if not _are_few(nest, borders):
        return None
    asked: list[Stmt] = []
    for border in borders:
        parts: dict[Expr, Expr] = {b.part: Const(True, "bool") for b in borders}
        parts |= {border.part: border.lacks.expr() >= Const(0)}
        terms = _within(with_parts(nest, parts), border.lacks, ranges)
        asked.append(If(border.others, terms))
    shared: dict[Expr, Expr] = {b.part: b.has.expr() >= Const(0) for b in borders}
    return seq(*asked, with_parts(nest, shared))


def _are_few(nest: For, borders: Sequence[_Border]) -> bool:
    """True if tiles lack some terms at every border, few altogether, and none at both."""
    own = borders[0].has.variables()
    loops = [loop for loop in loops_below(nest) if loop.var in own]
    if len(loops) < len(own) or any(b.has.variables() != own for b in borders):
        return False
    lacking = [0] * len(borders)
    count = 0
    for places in product(*(range(low, high + 1) for low, high in map(_range, loops))):
        point = {loop.var: (v, v) for loop, v in zip(loops, places, strict=True)}
        missing = [interval_of(border.has, point)[0] < 0 for border in borders]
        if sum(missing) > 1:
            return False
        lacking = [n + m for n, m in zip(lacking, missing, strict=True)]
        count += 1
    return all(lacking) and sum(lacking) <= FEW * count


def _range(loop: For) -> tuple[int, int]:
    return range_of(loop, {})


def _within(stmt: Stmt, form: Affine, ranges: Ranges) -> Stmt:
    """The unrolled loops without iterations in which a form is negative whatever the others do;
    vectors keep their lanes, as a register has them in all its stores."""
    stmt = map_children(stmt, lambda s: _within(s, form, ranges))
    if (
        not isinstance(stmt, For)
        or stmt.kind is not LoopKind.UNROLLED
        or stmt.var not in form.terms
    ):
        return stmt
    factor, (low, high) = form.coefficient(stmt.var), range_of(stmt, {})
    _, most = interval_of(form - Affine(0, {stmt.var: (factor, stmt.var)}), ranges)
    if factor > 0:
        low = max(low, -(most // factor))
    else:
        high = min(high, most // -factor)
    return replace(stmt, start=Const(low), extent=Const(high - low + 1))

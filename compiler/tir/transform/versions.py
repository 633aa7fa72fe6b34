"""Versions of a statement for what is known of a tile, chosen by one question for all of it.

for u in unroll(14): if i*14 + u < n: f
->  if i*14 <= n - 14: for u: f   else if i*14 == n - 8: for u: if u < 8: f
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from tunefarm.compiler.tir.affine import (
    Affine,
    Key,
    affine,
    conjunction,
    conjuncts,
    gcd_of,
    interval,
    interval_of,
)
from tunefarm.compiler.tir.facts import kinds_below, loops_below
from tunefarm.compiler.tir.ir import Allocate, Barrier, Binary, BinaryOp, Const, Expr, For, If, Stmt
from tunefarm.compiler.tir.transform.open_conditions import (
    Open,
    Ranges,
    ask_little,
    open_conditions,
)
from tunefarm.compiler.tir.transform.rolling import roll
from tunefarm.compiler.tir.visit import children, map_children

MAX_PARTIAL = 8  # partial tiles of a kind that get code of their own
MAX_PLACES = 1 << 10  # of tiles, that are enumerated
MIN_STEPS = 8  # iterations of a loop, longer than a question
RARE = 1 / 8  # of all tiles: code for fewer is short rather than fast


def groups_below(stmt: Stmt, ranges: Ranges) -> list[Group]:
    """The undecided conditions below ``stmt`` that ask something of a tile's iterations, but those
    that a tile may as well ask while it runs."""
    return [g for g in _grouped(open_conditions(stmt, ranges)) if not ask_little(g.opens)]


@dataclass(frozen=True, slots=True, eq=False)
class _Bound:
    """A condition as ``sign · place + const + inside ≥ 0``, where ``inside``, of the tile's own
    iterations, goes from ``low`` to ``high``."""

    part: Expr
    sign: int
    const: int
    inside: Affine
    low: int
    high: int

    def at(self, place: int) -> Expr:
        """What is left of the condition for a tile at ``place``."""
        known = self.sign * place + self.const
        if known + self.low >= 0:
            return Const(True, "bool")
        if known + self.high < 0:
            return Const(False, "bool")
        return (self.inside + Affine(known, {})).expr() >= Const(0)

    @property
    def cuts(self) -> tuple[int, int]:
        """The places from which on the condition asks something of a tile, and no more does."""
        if self.sign > 0:
            return -(self.const + self.high), -(self.const + self.low)
        return self.const + self.low + 1, self.const + self.high + 1


@dataclass(frozen=True, slots=True, eq=False)
class Group:
    """Conditions on tiles at the same ``place``, a form of variables around them.

    ``innermost`` is the last loop of ``loops``, those around, that the place mentions.
    """

    place: Affine
    ranges: Ranges
    loops: tuple[For, ...]
    innermost: For | None
    opens: list[Open]
    bounds: list[_Bound]

    @property
    def parts(self) -> frozenset[Expr]:
        return frozenset([o.part for o in self.opens])

    def places(self) -> Sequence[int]:
        """All places that there may be, in order; of very many, those around the cuts."""
        spans = [interval(atom, self.ranges) for _, atom in self.place.terms.values()]
        if prod(high - low + 1 for low, high in spans) <= MAX_PLACES:
            sums = {0}
            for (factor, _), (low, high) in zip(self.place.terms.values(), spans, strict=True):
                sums = {s + factor * v for s in sums for v in range(low, high + 1)}
            low, high = self.reach()
            return sorted(s for s in sums if low <= s <= high)
        low, high = self.reach()
        step = gcd_of(self.place)
        cuts = [cut for bound in self.bounds for cut in bound.cuts]
        low, high = max(low, min(cuts) - step), min(high, max(cuts) + step)
        return range(-(-low // step) * step, high + 1, step)

    def reach(self) -> tuple[int, int]:
        """The least and the greatest place: loops whose ends depend on others leave some out.

        for i in 3: for j in min(16, 33 - 16*i): f      i*16 + j is at most 32, not 47
        """
        low, high = interval_of(self.place, self.ranges)
        for loop in self.loops:
            factor = self.place.coefficient(loop.var)
            for end in _operands("min", loop.extent) if factor else ():
                left = affine(loop.start + end - 1 - loop.var)  # at least 0
                least, most = interval_of(self.place.plus(left, factor), self.ranges)
                low, high = (low, min(high, most)) if factor > 0 else (max(low, least), high)
        return low, high

    def segments(self) -> list[tuple[int, int]]:
        """Runs of places, (first, last), in which every condition stays what it is."""
        places = self.places()
        cuts = {bisect_left(places, cut) for bound in self.bounds for cut in bound.cuts}
        for bound in self.bounds:
            cuts.update(range(*(bisect_left(places, cut) for cut in bound.cuts)))
        starts = sorted({0, *cuts} - {len(places)})
        ends = [*starts[1:], len(places)]
        return [(places[a], places[b - 1]) for a, b in zip(starts, ends, strict=True)]

    def count(self) -> int:
        """How many tiles there are, of which each place has about as many as the others."""
        spans = (interval(atom, self.ranges) for _, atom in self.place.terms.values())
        return prod(high - low + 1 for low, high in spans)


def _operands(op: BinaryOp, expr: Expr) -> list[Expr]:
    """What nested minima or maxima are of."""
    if isinstance(expr, Binary) and expr.op == op:
        return _operands(op, expr.a) + _operands(op, expr.b)
    return [expr]


def _grouped(opens: Sequence[Open]) -> list[Group]:
    """The conditions by the tiles that they are about."""
    groups: dict[tuple[For | None, frozenset[tuple[Key, int]]], Group] = {}
    for condition in opens:
        inside = condition.form.only(condition.inner)
        outside = condition.form - inside
        if not outside.terms:
            continue
        loop = condition.innermost
        key = loop, frozenset((k, c) for k, (c, _) in outside.terms.items())
        opposite = loop, frozenset((k, -c) for k, c in key[1])
        sign = -1 if opposite in groups else 1
        if key not in groups and sign > 0:
            place = Affine(0, outside.terms)
            groups[key] = Group(place, condition.ranges, condition.loops, loop, [], [])
        group = groups[key if sign > 0 else opposite]
        span = interval_of(inside, condition.ranges)
        group.opens.append(condition)
        group.bounds.append(_Bound(condition.part, sign, outside.const, inside, *span))
    return list(groups.values())


def place_of_question(group: Group, body: Stmt) -> Stmt | None:
    """The smallest statement of a loop's body of which versions are chosen at no cost: beside all
    that runs between two such choices. None if every one costs something."""
    if Barrier in kinds_below(body):
        return None  # threads of all versions would have to meet
    found, around = None, body
    stmt: Stmt | None = body
    while stmt is not None:
        if is_long(around) and not (isinstance(found, Allocate) and found.body is stmt):
            found = stmt  # a tile that is all in one version ends with it
        if isinstance(stmt, For):
            around = stmt.body
        stmt = only_child_with(stmt, group.parts)
    return found


def is_long(stmt: Stmt) -> bool:
    """True if a statement runs long enough for a question before it to cost nothing."""
    return any(
        isinstance(loop.extent, Const) and loop.extent.value >= MIN_STEPS
        for loop in loops_below(stmt)
        if loop.is_serial
    )


def version(body: Stmt, groups: Sequence[Group], share: float) -> Stmt:
    """One branch a tile instead of one an element; ``share`` of all tiles come here, at most."""
    for group in groups:
        if Barrier not in kinds_below(body):
            wanted = place_of_question(group, body)
            body = _version(body, group, wanted, share / group.count() <= RARE)
    return body


def _version(stmt: Stmt, group: Group, wanted: Stmt | None, rare: bool) -> Stmt:
    """Version ``wanted``, or the smallest statement that holds all of the group's conditions."""
    below = None if stmt is wanted else only_child_with(stmt, group.parts)
    if below is None:
        return _chosen(stmt, group, rare)
    return map_children(stmt, lambda s: _version(s, group, wanted, rare) if s is below else s)


def _chosen(body: Stmt, group: Group, rare: bool) -> Stmt:
    """A statement in versions: for whole tiles, for each kind of partial ones, for others."""
    place = group.place.expr()
    segments = group.segments()
    whole = next((s for s in segments if all(_is_true(b.at(s[0])) for b in group.bounds)), None)
    others = [s for s in segments if s is not whole]
    if len(others) > MAX_PARTIAL:
        chosen = body
    elif others:
        *before, last = others
        chosen = _at(body, group, last[0], rare)
        for segment in reversed(before):
            chosen = If(place <= segment[1], _at(body, group, segment[0], rare), chosen)
    if whole is None:
        return chosen
    full = _at(body, group, whole[0], False)
    asked = [place >= whole[0]] if whole is not segments[0] else []
    asked += [place <= whole[1]] if whole is not segments[-1] else []
    return If(conjunction(asked), full, chosen) if asked else full


def _at(body: Stmt, group: Group, place: int, rare: bool) -> Stmt:
    """The version for one place."""
    stmt = with_parts(body, {b.part: b.at(place) for b in group.bounds})
    return roll(stmt) if rare else stmt


def _is_true(condition: Expr) -> bool:
    return isinstance(condition, Const) and bool(condition.value)


def only_child_with(stmt: Stmt, parts: frozenset[Expr]) -> Stmt | None:
    """The one child that holds all the conditions, if ``stmt`` itself need not be versioned."""
    if isinstance(stmt, For) and stmt.is_expanded:
        return None
    if isinstance(stmt, If) and not parts.isdisjoint(conjuncts(stmt.condition)):
        return None
    holding = [c for c in children(stmt) if _holds(c, parts)]
    return holding[0] if len(holding) == 1 else None


def _holds(stmt: Stmt, parts: frozenset[Expr]) -> bool:
    if If not in kinds_below(stmt):
        return False
    here = isinstance(stmt, If) and not parts.isdisjoint(conjuncts(stmt.condition))
    return here or any(_holds(s, parts) for s in children(stmt))


def with_parts(stmt: Stmt, parts: Mapping[Expr, Expr]) -> Stmt:
    """Replace single conditions, by identity, wherever they stand."""
    if If not in kinds_below(stmt):
        return stmt
    stmt = map_children(stmt, lambda s: with_parts(s, parts))
    if not isinstance(stmt, If):
        return stmt
    found = conjuncts(stmt.condition)
    if not any(p in parts for p in found):
        return stmt
    return If(conjunction([parts.get(p, p) for p in found]), stmt.then, stmt.orelse)

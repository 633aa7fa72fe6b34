"""Conditions on the iterations of a tile that are not decided when code is made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

from tunefarm.compiler.tir.affine import (
    Affine,
    at_least_zero,
    conjuncts,
    decide,
    interval_of,
    range_of,
)
from tunefarm.compiler.tir.facts import buffers_stored, kinds_below, variables
from tunefarm.compiler.tir.ir import Const, Expr, For, If, LoopKind, Stmt, Store, Var
from tunefarm.compiler.tir.visit import children

Ranges = dict[Var, tuple[int, int]]
FEW = 1 / 8  # questions for a tile's statements: they cost less time than others' code


@dataclass(frozen=True, slots=True, eq=False)
class Open:
    """A condition ``form ≥ 0`` that mentions an unrolled or vectorized variable and is undecided.

    ``ranges`` are the bounds of all variables at its place, ``inner`` its unrolled and vectorized
    variables. Forms ``beside`` it are ≥ 0 wherever it matters.
    ``loops`` are the other loops around it, ``innermost`` the last of them that it mentions.
    ``path`` leads from the tile, the body of the last of ``loops``, to the statement that asks.
    """

    part: Expr
    form: Affine
    beside: tuple[Affine, ...]
    ranges: Ranges
    inner: frozenset[Var]
    loops: tuple[For, ...]
    innermost: For | None
    path: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Around:
    """What stands around a statement, in the terms of ``Open``."""

    ranges: Ranges
    inner: frozenset[Var] = frozenset()
    loops: tuple[For, ...] = ()
    path: tuple[Stmt, ...] = ()

    def below(self, stmt: Stmt) -> _Around:
        """What stands around the children of a statement."""
        path = (*self.path, stmt)
        if not isinstance(stmt, For):
            return replace(self, path=path)
        ranges = {**self.ranges, stmt.var: range_of(stmt, self.ranges)}
        if stmt.is_expanded:
            return replace(self, ranges=ranges, inner=self.inner | {stmt.var}, path=path)
        return replace(self, ranges=ranges, loops=(*self.loops, stmt), path=())


def open_conditions(stmt: Stmt, ranges: Ranges) -> list[Open]:
    """The undecided conditions below ``stmt`` that ask something of a tile's iterations."""
    return list(_found(stmt, _Around(ranges)))


def _found(stmt: Stmt, around: _Around) -> Iterator[Open]:
    below = around.below(stmt)
    if isinstance(stmt, If):
        yield from _asked(stmt.condition, below)
    for child in children(stmt):
        if If in kinds_below(child):
            yield from _found(child, below)


def _asked(condition: Expr, around: _Around) -> Iterator[Open]:
    ranges, loops = around.ranges, around.loops
    forms = [(part, at_least_zero(part)) for part in conjuncts(condition)]
    for part, form in forms:
        if form is None or not variables(part) & around.inner or decide(part, ranges) is not None:
            continue
        mine = form.variables()
        inside = around.inner & mine
        if inside and _plain_in(form, inside):
            innermost = next((loop for loop in reversed(loops) if loop.var in mine), None)
            beside = tuple([f for p, f in forms if p is not part and f is not None])
            yield Open(part, form, beside, ranges, inside, loops, innermost, around.path)


def _plain_in(form: Affine, inside: frozenset[Var]) -> bool:
    """True if the variables stand in terms of their own, not inside divisions."""
    opaque = (atom for _, atom in form.terms.values() if not isinstance(atom, Var))
    plain = all(v in form.terms for v in inside)
    return plain and all(variables(atom).isdisjoint(inside) for atom in opaque)


# --- questions that cost little -----------------------------------------------------------------


def ask_little(opens: Sequence[Open]) -> bool:
    """True if code that asks while it runs is as fast as versions of it: only stores of results
    ask, all lanes alike, and few of a tile's statements.

    for u in unrolled(4): if i*4 + u < 14: for v in unrolled(4): y[i*4 + u, v] = f(u, v)
    """
    questions: dict[Stmt, int] = {}
    for condition in opens:
        tile, asking = condition.path[0], condition.path[-1]
        if any(loop.kind is LoopKind.THREAD for loop in condition.loops) or any(
            buffer.scope == "register" for buffer in buffers_stored(asking)
        ):
            return False
        count = _questions(condition)
        if count is None:
            return False
        questions[tile] = questions.get(tile, 0) + count
    return all(count <= FEW * _stores(tile) for tile, count in questions.items())


def _questions(condition: Open) -> int | None:
    """How often a tile asks, where its iterations do not decide that; None if lanes differ, or
    the loops of the tile alone do not say."""
    loops = [s for s in condition.path if isinstance(s, For)]
    own = [loop for loop in loops if loop.var in condition.inner]
    if len(own) < len(condition.inner) or any(loop.kind is LoopKind.VECTORIZED for loop in own):
        return None
    low, high = interval_of(condition.form - condition.form.only(condition.inner), condition.ranges)
    values = {0: 1}  # of the tile's own part of the form: how many iterations have each
    for loop in own:
        factor, (first, last) = condition.form.coefficient(loop.var), condition.ranges[loop.var]
        values = _sums(values, [factor * v for v in range(first, last + 1)])
    undecided = sum(times for v, times in values.items() if v + low < 0 <= v + high)
    return undecided * prod(_times(loop) for loop in loops if loop not in own)


def _sums(values: dict[int, int], added: Sequence[int]) -> dict[int, int]:
    sums: dict[int, int] = {}
    for value, times in values.items():
        for more in added:
            sums[value + more] = sums.get(value + more, 0) + times
    return sums


def _stores(stmt: Stmt) -> int:
    """How many stores a statement makes, vectors as one."""
    if isinstance(stmt, Store):
        return 1
    below = sum(_stores(child) for child in children(stmt))
    return below * _times(stmt) if isinstance(stmt, For) else below


def _times(loop: For) -> int:
    """The iterations of a loop as instructions: vectors, and extents unknown here, count once."""
    if loop.kind is LoopKind.VECTORIZED or not isinstance(loop.extent, Const):
        return 1
    return int(loop.extent.value)

"""Remainders and borders get code of their own, in which conditions are constants.

A condition on the unrolled and vectorized iterations of a tile holds for all of them in most
tiles, and for some in a few. Two ways lead to code that does not ask: a loop that alone decides it
is cut into pieces, and where several loops decide it together, the innermost of them asks once an
iteration which version of its body to run (``versions.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tunefarm.compiler.tir.affine import Affine, interval_of, range_of
from tunefarm.compiler.tir.facts import kinds_below, loops_below
from tunefarm.compiler.tir.ir import Const, For, If, PrimFunc, Seq, Stmt, Var
from tunefarm.compiler.tir.transform.borders import ask_for_terms
from tunefarm.compiler.tir.transform.open_conditions import Open
from tunefarm.compiler.tir.transform.rolling import roll
from tunefarm.compiler.tir.transform.simplify import simplify_stmt
from tunefarm.compiler.tir.transform.versions import (
    RARE,
    Group,
    groups_below,
    is_long,
    place_of_question,
    version,
)
from tunefarm.compiler.tir.visit import map_children, seq, substitute_stmt, with_body

Ranges = dict[Var, tuple[int, int]]
MAX_EDGES = 4  # edge iterations of a partitioned loop that get code of their own
MAX_EXPANDED = 8  # iterations of a loop whose every iteration gets code of its own


def specialise(program: PrimFunc) -> PrimFunc:
    """Give the border iterations of a loop code of their own, where conditions are constants.

    for i in 4: for u in unroll(14): if i*14 + u < 50: f
    ->  for i in 3: for u in unroll(14): f;  for u in unroll(14): if u < 8: f
    """
    return replace(program, body=_specialise(program.body, {}, 1.0, None))


def _specialise(stmt: Stmt, ranges: Ranges, share: float, found: Sequence[Group] | None) -> Stmt:
    """``share`` of all tiles come here, at most. ``found`` are the groups of open conditions below,
    if they are known already."""
    if If not in kinds_below(stmt):
        return stmt
    groups = groups_below(stmt, ranges) if found is None else found
    if not groups:
        return stmt
    if not isinstance(stmt, For):
        return map_children(stmt, lambda s: _specialise(s, ranges, share, groups))
    if stmt.is_expanded:
        return stmt
    ranges = {**ranges, stmt.var: range_of(stmt, ranges)}
    for group in groups:
        asking = ask_for_terms(stmt.body, group) if group.innermost is stmt else None
        if asking is not None:
            return with_body(stmt, _specialise(asking, ranges, share, None))
    pieces = _pieces(stmt, [g for g in groups if _cuts(g, stmt)], ranges)
    if pieces is not None:
        return seq(*(_piece(stmt, piece, ranges, share) for piece in pieces))
    return _inside(stmt, ranges, share, groups)


def _inside(loop: For, ranges: Ranges, share: float, groups: Sequence[Group]) -> Stmt:
    """The loop with versions of its body for the conditions that it is to ask."""
    body = version(loop.body, [g for g in groups if g.innermost is loop], share)
    known = groups if body is loop.body else None
    return with_body(loop, _specialise(body, ranges, share, known))


def _cuts(group: Group, loop: For) -> bool:
    """True if a loop is to be cut into pieces for a group of conditions, if it can.

    Not if one of the loops inside may ask instead, as all that it runs is longer than a question,
    nor for statements beside those that take long.

    for y: for ky: for k in 256: for u in unroll(2): if y*2 + u + ky >= 1: f   asks in ky, not in y
    """
    if loop not in group.loops or loop.var not in group.place.variables():
        return False
    assert group.innermost is not None
    asked = place_of_question(group, group.innermost.body)
    return asked is None or (group.innermost is loop and is_long(asked))


def _pieces(loop: For, groups: Sequence[Group], ranges: Ranges) -> list[tuple[int, int]] | None:
    """The parts of a loop that get code of their own: (first, last); None if it stays whole."""
    var, opens = loop.var, [o for g in groups for o in g.opens]
    if not opens or not loop.is_serial or not _has_constant_bounds(loop):
        return None
    if not all(var in o.form.terms for o in opens):
        return None
    # What also depends on the loops around is not decided by this loop's variable.
    loops = {inner.var for inner in loops_below(loop)}
    if not all(o.form.variables() <= loops for o in opens):
        return None
    low, high = ranges[var]
    first, last = _middle(var, opens, (low, high))
    edges = (first - low) + (high - last)
    if first <= last and edges <= MAX_EDGES:
        before = [(v, v) for v in range(low, first)]
        return [*before, (first, last), *((v, v) for v in range(last + 1, high + 1))]
    alone = all(set(o.form.terms) <= o.inner | {var} or o.innermost is not loop for o in opens)
    if alone and high - low < MAX_EXPANDED:
        return [(v, v) for v in range(low, high + 1)]
    return None


def _has_constant_bounds(loop: For) -> bool:
    return isinstance(loop.extent, Const) and isinstance(loop.start, Const)


def _middle(var: Var, opens: Sequence[Open], bounds: tuple[int, int]) -> tuple[int, int]:
    """The first and the last value of a variable for which all conditions hold, or follow from
    those beside them."""
    first, last = bounds
    for condition in opens:
        upwards = condition.form.coefficient(var) > 0
        ends = [
            end
            for form in (condition.form, *(condition.form - other for other in condition.beside))
            if (end := _end(var, form, condition.ranges, upwards)) is not None
        ]
        if upwards:
            first = max(first, min(ends))
        else:
            last = min(last, max(ends))
    return first, last


def _end(var: Var, form: Affine, ranges: Ranges, upwards: bool) -> int | None:
    """The value from which on (or up to which) ``form ≥ 0`` whatever the other variables are."""
    factor = form.coefficient(var)
    if factor == 0 or (factor > 0) != upwards:
        return None
    worst, _ = interval_of(form - Affine(0, {var: (factor, var)}), ranges)
    return -(worst // factor) if upwards else worst // -factor


def _piece(loop: For, piece: tuple[int, int], ranges: Ranges, share: float) -> Stmt:
    first, last = piece
    if first == last:
        return _iteration(loop, first, ranges, share)
    inside = {**ranges, loop.var: (first, last)}
    body = simplify_stmt(loop.body, inside)
    if body is None:
        return Seq(())
    part = replace(loop, start=Const(first), extent=Const(last - first + 1), body=body)
    return _inside(part, inside, share, groups_below(part, ranges))


def _iteration(loop: For, value: int, ranges: Ranges, share: float) -> Stmt:
    """One iteration of a loop, by itself."""
    body = simplify_stmt(substitute_stmt(loop.body, {loop.var: Const(value)}), ranges)
    if body is None:
        return Seq(())
    low, high = ranges[loop.var]
    share /= high - low + 1
    if share <= RARE:
        body = roll(body)
    groups = groups_below(body, ranges)
    chosen = version(body, [g for g in groups if g.innermost is None], share)
    return _specialise(chosen, ranges, share, groups if chosen is body else None)

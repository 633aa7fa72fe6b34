"""Loops along joined or padded arrays are cut where another array, or another part, begins.

    for v in 12: y[v*8 …] = select(v*8 … < 64, a[…], b[…])
    ->  for v in 8: y[…] = a[…];  for v in 8 … 11: y[…] = b[…]

What a concatenation copies is chosen element by element otherwise: of 25 arrays that takes 54
times as long (AVX2), as every vector asks for each of them. An iteration in which two arrays meet
is a piece of its own, and chooses between these. So are loops along an array whose ends padding
repeats, or reflects.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tunefarm.compiler.tir.affine import (
    Affine,
    Ranges,
    at_least_zero,
    conjuncts,
    interval_of,
    range_of,
)
from tunefarm.compiler.tir.facts import array_choices_below, loops_below
from tunefarm.compiler.tir.ir import Const, For, PrimFunc, Seq, Stmt, Var
from tunefarm.compiler.tir.transform.simplify import simplify_stmt
from tunefarm.compiler.tir.visit import map_children, seq, with_body

MAX_PIECES = 96  # of a loop: each has code of its own


def cut_at_arrays(program: PrimFunc) -> PrimFunc:
    """Give each array that a loop reads in turn a loop of its own."""
    return replace(program, body=_cut(program.body, {}))


def _cut(stmt: Stmt, ranges: Ranges) -> Stmt:
    if not array_choices_below(stmt):
        return stmt
    if not isinstance(stmt, For):
        return map_children(stmt, lambda child: _cut(child, ranges))
    if stmt.is_expanded:
        return stmt
    pieces = _pieces(stmt, ranges)
    if len(pieces) == 1:
        return with_body(stmt, _cut(stmt.body, {**ranges, stmt.var: range_of(stmt, ranges)}))
    return seq(*(_piece(stmt, first, last, ranges) for first, last in pieces))


def _piece(loop: For, first: int, last: int, ranges: Ranges) -> Stmt:
    part = replace(loop, start=Const(first), extent=Const(last - first + 1))
    simple = simplify_stmt(part, dict(ranges))
    return Seq(()) if simple is None else _cut(simple, ranges)


def _pieces(loop: For, ranges: Ranges) -> list[tuple[int, int]]:
    """The first and the last iteration of each part that is to be a loop, the whole one if none."""
    low, high = range_of(loop, ranges)
    constant = isinstance(loop.start, Const) and isinstance(loop.extent, Const)
    if not constant or not loop.is_serial:
        return [(low, high)]
    inner = {below.var: range_of(below, ranges) for below in loops_below(loop.body)}
    starts = {
        point
        for condition in array_choices_below(loop)
        for form in map(at_least_zero, conjuncts(condition))
        if form is not None
        for point in _turns(form, loop.var, inner)
        if low < point <= high
    }
    if not starts or len(starts) >= MAX_PIECES:
        return [(low, high)]
    firsts = [low, *sorted(starts)]
    return list(zip(firsts, [*(f - 1 for f in firsts[1:]), high], strict=True))


def _turns(form: Affine, var: Var, inner: Ranges) -> Iterator[int]:
    """The values of a loop's variable at which ``form ≥ 0`` begins, or ceases, to hold for some or
    for all iterations of the loops inside; none where others decide it too."""
    factor = form.coefficient(var)
    rest = form - Affine(0, {var: (factor, var)})
    if factor == 0 or not rest.variables() <= inner.keys():
        return
    for least in interval_of(rest, inner):  # factor · var ≥ -least
        yield -(least // factor) if factor > 0 else least // -factor + 1

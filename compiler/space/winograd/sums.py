"""A row of a matrix times the values of a tile, as an expression."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeAlias

from tunefarm.compiler import te
from tunefarm.compiler.space.winograd.transforms import Matrix, Parts, continuation
from tunefarm.compiler.tir.ir import Expr

Values: TypeAlias = Callable[[int], Expr]
Terms: TypeAlias = tuple[tuple[int, float], ...]
"""Elements of a vector and their factors."""


def transformed(matrix: Matrix, parts: Parts, row: Expr, value: Values) -> Expr:
    """Row ``row`` of ``matrix`` times a vector: a sum of its own for each row, without zeros. What
    rows have in common is one node."""
    value = cache(value)
    part = cache(lambda terms: _added([_scaled(value(k), factor) for k, factor in terms]))
    sums = [_sum_of(coefficients, parts, part) for coefficients in matrix]
    return te.one_of(row, sums)


def _sum_of(coefficients: Sequence[float], parts: Parts, part_of: Callable[[Terms], Expr]) -> Expr:
    """Σ c · v, part by part. What two rows for ±p have in common is then the same expression:

    (d4 - B·d2) + (d3 - B·d1)·p   and   (d4 - B·d2) + (d3 - B·d1)·(-p)
    """
    sums: list[Expr] = []
    for part in parts:
        places = [k for k in reversed(part) if coefficients[k] != 0]
        if places:
            scale = coefficients[places[0]]
            terms = tuple((k, coefficients[k] / scale) for k in places)
            sums.append(_scaled(part_of(terms), scale))
    return _added(sums)


def _scaled(value: Expr, factor: float) -> Expr:
    return value if factor == 1 else value * factor


def _added(terms: Sequence[Expr]) -> Expr:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def continued(value: Values, extent: int, size: int, place: Expr, taps: int = 3) -> Values:
    """The inputs ``value(y)`` of the tile at ``place`` of a row or a column of tiles. Of the last
    tile those that no result needs are such that products may be left out."""
    results = extent % size
    if results == 0:
        return value
    factors = continuation(size, results, taps)

    def last(y: int) -> Expr:
        first = y - len(factors)
        if first < 0:
            return value(y)
        return _added([_scaled(last(first + k), f) for k, f in enumerate(factors) if f != 0])

    def chosen(y: int) -> Expr:
        if not len(factors) <= y < size + taps - 2:  # the last input is infinity's alone
            return value(y)
        return te.if_then_else(place.equal(extent // size), last(y), value(y))

    return chosen

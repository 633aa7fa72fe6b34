"""Affine forms and intervals of index expressions: the arithmetic behind regions and bounds."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence, Set
from functools import lru_cache
from typing import TypeAlias

from tunefarm.compiler.tir.facts import KEPT, variables
from tunefarm.compiler.tir.ir import (
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    Load,
    Select,
    Var,
    binary,
)
from tunefarm.compiler.tir.node import node
from tunefarm.compiler.tir.walk import operands

Key: TypeAlias = Hashable
Ranges: TypeAlias = Mapping[Var, tuple[int, int]]
"""Variable → inclusive bounds of its values."""

UNBOUNDED = (-(1 << 62), 1 << 62)


@node(frozen=True, slots=True)
class Affine:
    """``const + Σ coefficient · atom``; an atom is a variable or an opaque expression."""

    const: int
    terms: Mapping[Key, tuple[int, Expr]]

    def coefficient(self, var: Var) -> int:
        return self.terms[var][0] if var in self.terms else 0

    def variables(self) -> frozenset[Var]:
        return frozenset().union(*(variables(atom) for _, atom in self.terms.values()))

    def __add__(self, other: Affine) -> Affine:
        return self.plus(other, 1)

    def __sub__(self, other: Affine) -> Affine:
        return self.plus(other, -1)

    def plus(self, other: Affine, factor: int) -> Affine:
        const = self.const + factor * other.const
        if not other.terms:
            return Affine(const, self.terms)
        if not self.terms and factor == 1:
            return Affine(const, other.terms)
        terms = dict(self.terms)
        for key, (coefficient, atom) in other.terms.items():
            total = (terms[key][0] if key in terms else 0) + factor * coefficient
            if total:
                terms[key] = (total, atom)
            else:
                terms.pop(key, None)
        return Affine(const, terms)

    def scaled(self, factor: int) -> Affine:
        if factor == 0:
            return Affine(0, {})
        terms = {k: (c * factor, a) for k, (c, a) in self.terms.items()}
        return Affine(self.const * factor, terms)

    def only(self, keep: Set[Var]) -> Affine:
        """The terms whose variables all lie in ``keep``, without the constant."""
        terms = {k: t for k, t in self.terms.items() if variables(t[1]) <= keep}
        return Affine(0, terms)

    def expr(self) -> Expr:
        """The sum as an expression, in the order of the terms."""
        total: Expr | None = None
        for coefficient, atom in self.terms.values():
            term = atom
            if coefficient != 1:
                term = Binary("mul", atom, Const(coefficient), "int64")
            total = term if total is None else Binary("add", total, term, "int64")
        if total is None:
            return Const(self.const)
        return total if self.const == 0 else Binary("add", total, Const(self.const), "int64")


@lru_cache(KEPT)
def key_of(expr: Expr) -> Key:
    """Equal keys mean equal values (a variable is its own key)."""
    match expr:
        case Var():
            return expr
        case Const():
            return ("const", expr.value, expr.dtype)
        case Binary():
            return (expr.op, key_of(expr.a), key_of(expr.b))
        case Load():
            return ("load", expr.buffer, tuple(map(key_of, expr.indices)))
        case Cast():
            return ("cast", key_of(expr.value), expr.dtype)
        case _:
            return (type(expr).__name__, getattr(expr, "name", ""), *map(key_of, operands(expr)))


@lru_cache(KEPT)
def affine(expr: Expr) -> Affine:
    """The affine form of an int64 expression; what is not affine becomes an opaque atom."""
    found = _affine_of_binary(expr) if isinstance(expr, Binary) else None
    if isinstance(expr, Const):
        return Affine(int(expr.value), {})
    return Affine(0, {key_of(expr): (1, expr)}) if found is None else found


def _affine_of_binary(expr: Binary) -> Affine | None:
    match expr.op:
        case "add" | "sub":
            x, sign = affine(expr.a), 1 if expr.op == "add" else -1
            if type(expr.b) is Const:
                return Affine(x.const + sign * int(expr.b.value), x.terms)
            return x.plus(affine(expr.b), sign)
        case "mul":
            x = affine(expr.a)
            if type(expr.b) is Const:
                return x.scaled(int(expr.b.value))
            y = affine(expr.b)
            if not x.terms:
                return y.scaled(x.const)
            return None if y.terms else x.scaled(y.const)
        case "floordiv" if isinstance(expr.b, Const) and expr.b.value > 0:
            x, divisor = affine(expr.a), int(expr.b.value)
            if any(c % divisor for c, _ in x.terms.values()):
                return None
            terms = {k: (c // divisor, e) for k, (c, e) in x.terms.items()}
            return Affine(x.const // divisor, terms)
        case _:
            return None


def interval(expr: Expr, ranges: Ranges) -> tuple[int, int]:
    """Inclusive bounds of an int64 expression; UNBOUNDED where nothing is known."""
    match expr:
        case Var():
            return ranges.get(expr, UNBOUNDED)
        case Const():
            return int(expr.value), int(expr.value)
        case Binary():
            return _interval_of_binary(expr, ranges)
        case Select():
            (al, ah), (bl, bh) = interval(expr.a, ranges), interval(expr.b, ranges)
            return min(al, bl), max(ah, bh)
        case _:
            return UNBOUNDED


def _interval_of_binary(expr: Binary, ranges: Ranges) -> tuple[int, int]:
    match expr.op:
        case "add" | "sub" | "mul":
            form = affine(expr)
            if len(form.terms) == 1 and form.const == 0 and key_of(expr) in form.terms:
                return UNBOUNDED
            return interval_of(form, ranges)
        case "floordiv" | "floormod" if isinstance(expr.b, Const) and expr.b.value > 0:
            low, high = interval(expr.a, ranges)
            divisor = int(expr.b.value)
            if expr.op == "floordiv":
                return low // divisor, high // divisor
            return (low, high) if low >= 0 and high < divisor else (0, divisor - 1)
        case "min" | "max":
            (al, ah), (bl, bh) = interval(expr.a, ranges), interval(expr.b, ranges)
            chosen = min if expr.op == "min" else max
            return chosen(al, bl), chosen(ah, bh)
        case _:
            return UNBOUNDED


def range_of(loop: For, ranges: Ranges) -> tuple[int, int]:
    """Inclusive bounds of a loop's variable."""
    low, _ = interval(loop.start, ranges)
    _, end = interval(loop.start + loop.extent, ranges)
    return low, end - 1


def interval_of(form: Affine, ranges: Ranges) -> tuple[int, int]:
    """Inclusive bounds of an affine form."""
    low = high = form.const
    for coefficient, atom in form.terms.values():
        a, b = ranges.get(atom, UNBOUNDED) if type(atom) is Var else interval(atom, ranges)
        if (a, b) == UNBOUNDED:
            return UNBOUNDED
        low += coefficient * (a if coefficient > 0 else b)
        high += coefficient * (b if coefficient > 0 else a)
    return low, high


def conjuncts(condition: Expr) -> list[Expr]:
    """The parts of an ``and``."""
    if isinstance(condition, Binary) and condition.op == "and":
        return conjuncts(condition.a) + conjuncts(condition.b)
    return [condition]


def conjunction(parts: list[Expr]) -> Expr:
    result: Expr = Const(True, "bool")
    for part in parts:
        result = binary("and", result, part)
    return result


@lru_cache(KEPT)
def at_least_zero(condition: Expr) -> Affine | None:
    """The affine form that is ≥ 0 exactly where an int64 comparison holds; None for others."""
    if not isinstance(condition, Binary) or condition.a.dtype != "int64":
        return None
    match condition.op:
        case "ge":
            return affine(condition.a) - affine(condition.b)
        case "gt":
            return affine(condition.a) - affine(condition.b) + Affine(-1, {})
        case "le":
            return affine(condition.b) - affine(condition.a)
        case "lt":
            return affine(condition.b) - affine(condition.a) + Affine(-1, {})
        case _:
            return None


def decide(condition: Expr, ranges: Ranges) -> bool | None:
    """True or False if the condition is the same for all values in ``ranges``, else None."""
    if isinstance(condition, Const):
        return bool(condition.value)
    if not isinstance(condition, Binary):
        return None
    match condition.op:
        case "and":
            x, y = decide(condition.a, ranges), decide(condition.b, ranges)
            if x is False or y is False:
                return False
            return True if x and y else None
        case "or":
            x, y = decide(condition.a, ranges), decide(condition.b, ranges)
            if x or y:
                return True
            return False if x is False and y is False else None
        case "eq" | "ne" if condition.a.dtype == "int64":
            low, high = interval_of(affine(condition.a) - affine(condition.b), ranges)
            if low == high == 0:
                return condition.op == "eq"
            return condition.op == "ne" if low > 0 or high < 0 else None
        case _:
            form = at_least_zero(condition)
            if form is None:
                return None
            low, high = interval_of(form, ranges)
            return True if low >= 0 else False if high < 0 else None


def element_offset(buffer: Buffer, indices: Sequence[Expr]) -> Expr:
    """Elements from the buffer's first to the one at ``indices``."""
    total: Expr = Const(0)
    for index, extent in zip(indices, buffer.shape, strict=True):
        total = total * extent + index
    return affine(total).expr()


def gcd_of(form: Affine) -> int:
    """Greatest common divisor of the coefficients (0 without terms)."""
    return math.gcd(*(c for c, _ in form.terms.values())) if form.terms else 0

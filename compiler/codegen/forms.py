"""Indices and comparisons as sums of atoms: what is known of them before there is code."""

from __future__ import annotations

from functools import lru_cache
from typing import TypeAlias

from tunefarm.compiler.tir.affine import Affine, affine
from tunefarm.compiler.tir.facts import KEPT
from tunefarm.compiler.tir.ir import (
    COMPARISONS,
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    Intrinsic,
    Load,
    Select,
    Var,
)
from tunefarm.compiler.tir.visit import operands

Atoms: TypeAlias = tuple[tuple[Expr, int, bool], ...]
"""The terms of an affine form: (atom, coefficient, is it a variable); others are not linear."""
Form: TypeAlias = tuple[int, Atoms]
"""``const + Σ coefficient · atom``."""


@lru_cache(KEPT)
def flat_form(buffer: Buffer, indices: tuple[Expr, ...]) -> Form:
    """The number of an element in its buffer, row by row."""
    stride, total = 1, Affine(0, {})
    for expr, extent in zip(reversed(indices), reversed(buffer.shape), strict=True):
        total = total.plus(affine(expr), stride)
        stride *= extent
    return _atoms_of(_joined(total))


@lru_cache(KEPT)
def form_of(expr: Expr) -> Form:
    return _atoms_of(affine(expr))


@lru_cache(KEPT)
def difference_of(comparison: Binary) -> Form | None:
    """``a - b`` of what is compared; None if something is loaded for it, or it is no index."""
    if comparison.op not in COMPARISONS or comparison.a.dtype != "int64":
        return None
    if not (is_index(comparison.a) and is_index(comparison.b)):
        return None
    return _atoms_of(affine(comparison.a) - affine(comparison.b))


def _atoms_of(form: Affine) -> Form:
    atoms = ((atom, c, isinstance(atom, Var)) for c, atom in form.terms.values())
    return form.const, tuple(atoms)


def _joined(form: Affine) -> Affine:
    """d·(x // d) + x % d  ->  x, as fused loops index what stands side by side."""
    for key, (factor, atom) in form.terms.items():
        if not isinstance(atom, Binary) or atom.op != "floormod":
            continue
        quotient = affine(Binary("floordiv", atom.a, atom.b, "int64"))
        (other, (one, _)), *more = quotient.terms.items() or [(None, (0, atom))]
        divisor = atom.b.value if isinstance(atom.b, Const) else 0
        if more or one != 1 or quotient.const or form.terms.get(other, (0,))[0] != factor * divisor:
            continue
        rest = {k: t for k, t in form.terms.items() if k not in (key, other)}
        return Affine(form.const, rest).plus(affine(atom.a), factor)
    return form


@lru_cache(KEPT)
def is_index(expr: Expr) -> bool:
    """True for int64 arithmetic that loads nothing: it can stay a linear form."""
    return not isinstance(expr, (Load, Cast, Select, Intrinsic)) and all(
        map(is_index, operands(expr))
    )


@lru_cache(KEPT)
def is_repeatable(expr: Expr) -> bool:
    """True if an expression has the same value wherever its variables have."""
    return not isinstance(expr, (Load, Intrinsic)) and all(map(is_repeatable, operands(expr)))


def compare_with_zero(op: str, low: int, high: int) -> bool | None:
    """``d op 0`` for every d in [low, high]; None if that differs among them."""
    match op:
        case "lt":
            yes, no = high < 0, low >= 0
        case "le":
            yes, no = high <= 0, low > 0
        case "gt":
            yes, no = low > 0, high <= 0
        case "ge":
            yes, no = low >= 0, high < 0
        case "eq":
            yes, no = low == high == 0, low > 0 or high < 0
        case _:
            yes, no = low > 0 or high < 0, low == high == 0
    return True if yes else False if no else None

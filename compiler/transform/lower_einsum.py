"""Rules that turn ``einsum`` into sums, products and matmul.

einsum("ij,jk,kl->il", a, b, c)   ->  two operands at a time, the cheapest product first
einsum("ijk->ki", x)              ->  transpose(sum(x, j))
einsum("i,j->ij", a, b)           ->  multiply(a[i, 1], b[1, j])
einsum("bk,bk->b", a, b)          ->  sum(multiply(a, b), k)
einsum("bthd,hdo->bto", x, w)     ->  matmul(x[b, t, hd], w[hd, o])
einsum("bqhd,bkhd->bhqk", q, k)   ->  stays: one contraction that reads both operands in place

Labels that stand side by side in the same order wherever they stand are one label; constants are
transposed to the order that the product reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from math import prod

from tunefarm.compiler.ir import Call, Constant, Expr, tensor_type
from tunefarm.compiler.ops import call
from tunefarm.compiler.transform.constants import reshape, transpose
from tunefarm.compiler.transform.rewrite import Rule, Uses

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def lower_einsum(node: Call, uses: Uses) -> Expr | None:
    """The einsum in simpler operators; None if it is one contraction (or diagonal) already."""
    if node.op != "einsum" or node.attrs["out_dtype"] or 0 in _extents(node).values():
        return None
    terms, result = terms_of(node)
    operands = list(node.args)
    for i, term in enumerate(terms):
        if len(set(term)) < len(term):
            return _diagonal_first(node, i)
    if len(operands) == 1:
        return _in_order(operands[0], terms[0], result)
    if len(operands) > 2:
        return _cheapest_pair_first(operands, terms, result, _extents(node))
    return _of_two(node)


def terms_of(node: Call) -> tuple[list[str], str]:
    """The operands' labels and the result's."""
    left, _, right = str(node.attrs["equation"]).partition("->")
    return left.split(","), right


def einsum(operands: Sequence[Expr], terms: Sequence[str], result: str) -> Call:
    """The call with labels a, b, … in the order of their first appearance."""
    names = dict(zip(dict.fromkeys("".join(terms)), _LETTERS, strict=False))
    renamed = ["".join(names[c] for c in term) for term in (*terms, result)]
    return call("einsum", *operands, equation=",".join(renamed[:-1]) + "->" + renamed[-1])


def _extents(node: Call) -> dict[str, int]:
    terms, _ = terms_of(node)
    return {
        label: extent
        for term, operand in zip(terms, node.args, strict=True)
        for label, extent in zip(term, tensor_type(operand).shape, strict=True)
    }


def _diagonal_first(node: Call, place: int) -> Expr | None:
    """einsum("ii,ij->j", x, y)  ->  einsum("i,ij->j", einsum("ii->i", x), y)"""
    terms, result = terms_of(node)
    distinct = "".join(dict.fromkeys(terms[place]))
    if len(terms) == 1 and result == distinct:
        return None
    operands = list(node.args)
    operands[place] = einsum([operands[place]], [terms[place]], distinct)
    terms[place] = distinct
    return einsum(operands, terms, result)


def _in_order(operand: Expr, term: str, result: str) -> Expr:
    """transpose(sum(x)), without the labels that the result does not have."""
    gone = tuple(i for i, label in enumerate(term) if label not in result)
    kept = [label for label in term if label in result]
    if gone:
        operand = call("sum", operand, axes=gone, keepdims=False)
    return transpose(operand, [kept.index(label) for label in result])


def _cheapest_pair_first(
    operands: list[Expr], terms: list[str], result: str, extents: Mapping[str, int]
) -> Expr:
    def cost(pair: tuple[int, int]) -> int:
        return prod(extents[c] for c in set(terms[pair[0]] + terms[pair[1]]))

    i, j = min(combinations(range(len(terms)), 2), key=cost)
    rest = [k for k in range(len(terms)) if k not in (i, j)]
    wanted = {c for k in rest for c in terms[k]} | set(result)
    kept = "".join(c for c in dict.fromkeys(terms[i] + terms[j]) if c in wanted)
    made = einsum([operands[i], operands[j]], [terms[i], terms[j]], kept)
    return einsum([made, *(operands[k] for k in rest)], [kept, *(terms[k] for k in rest)], result)


def _of_two(node: Call) -> Expr | None:
    """Two operands, each without repeated labels."""
    (a, b), (first, second), result = node.args, *terms_of(node)
    for operand, term, other in ((a, first, second), (b, second, first)):
        kept = "".join(c for c in term if c in other or c in result)
        if kept != term:
            short = _in_order(operand, term, kept)
            pair = ((short, b), (kept, second)) if operand is a else ((a, short), (first, kept))
            return einsum(*pair, result)
    summed = [c for c in first if c not in result]
    if not summed or not set(result) - (set(first) & set(second)):
        return _product(a, b, first, second, result)
    if result[-1] in first and result[-1] in second:
        order = [c for c in result if c in first and c in second]
        inner = "".join([*order, *(c for c in result if c not in order)])
        return _in_order(einsum([a, b], [first, second], inner), inner, result)
    if result[-1] in first:
        a, b, first, second = b, a, second, first
    a, first = _reordered(a, first, second, result, is_left=True)
    b, second = _reordered(b, second, first, result, is_left=False)
    return _merged(node, a, b, first, second, result)


def _product(a: Expr, b: Expr, first: str, second: str, result: str) -> Expr:
    """sum(multiply(a, b)), the operands broadcast against each other."""
    order = result + "".join(c for c in first if c not in result)
    factors = []
    for operand, term in ((a, first), (b, second)):
        kept = [c for c in order if c in term]
        extents = dict(zip(term, tensor_type(operand).shape, strict=True))
        turned = transpose(operand, [term.index(c) for c in kept])
        factors.append(reshape(turned, [extents.get(c, 1) for c in order]))
    made = call("multiply", *factors)
    axes = tuple(range(len(result), len(order)))
    return call("sum", made, axes=axes, keepdims=False) if axes else made


def _reordered(
    operand: Expr, term: str, other: str, result: str, is_left: bool
) -> tuple[Expr, str]:
    """A constant with shared labels first, then rows and summed labels, or summed and columns."""
    if not isinstance(operand, Constant):
        return operand, term
    shared = [c for c in result if c in term and c in other]
    own = [c for c in result if c in term and c not in other]
    summed = [c for c in other if c in term and c not in result]
    order = [*shared, *own, *summed] if is_left else [*shared, *summed, *own]
    return transpose(operand, [term.index(c) for c in order]), "".join(order)


def _merged(node: Call, a: Expr, b: Expr, first: str, second: str, result: str) -> Expr | None:
    """The contraction with neighbouring labels merged: a matmul, or an einsum."""
    shape = tensor_type(node).shape
    while (pair := _neighbours([first, second, result])) is not None:
        a, first = _join(a, first, pair)
        b, second = _join(b, second, pair)
        result = result.replace(pair, pair[0])
    made = _as_matmul(a, b, first, second, result)
    if made is not None:
        return reshape(made, shape)
    contraction = einsum([a, b], [first, second], result)
    if contraction.args == node.args and contraction.attrs == node.attrs:
        return None
    return reshape(contraction, shape)


def _neighbours(terms: Sequence[str]) -> str | None:
    """Two labels that follow each other in every term that has one of them."""
    for term in terms:
        for pair in (term[i : i + 2] for i in range(len(term) - 1)):
            if all((pair in t) or not set(pair) & set(t) for t in terms):
                return pair
    return None


def _join(operand: Expr, term: str, pair: str) -> tuple[Expr, str]:
    place = term.find(pair)
    if place < 0:
        return operand, term
    shape = tensor_type(operand).shape
    joined = (*shape[:place], shape[place] * shape[place + 1], *shape[place + 2 :])
    return reshape(operand, joined), term.replace(pair, pair[0])


def _as_matmul(a: Expr, b: Expr, first: str, second: str, result: str) -> Expr | None:
    """matmul(a[…, m, k], b[…, k, n]), either matrix transposed, where the labels stand so."""
    n = result[-1]
    row = result[-2:-1] if result[-2:-1] in first and result[-2:-1] not in second else ""
    batch = result[: len(result) - len(row) - 1]
    k = "".join(c for c in first if c not in result)
    if len(k) != 1:
        return None
    left, right = (_matrix(a, first, batch, row, k), _matrix(b, second, batch, k, n))
    if left is None or right is None:
        return None
    made = call("matmul", left[0], right[0], transpose_a=left[1], transpose_b=right[1])
    extents = dict(zip(first + second, tensor_type(a).shape + tensor_type(b).shape, strict=True))
    return reshape(made, [extents[c] for c in result])


def _matrix(
    operand: Expr, term: str, batch: str, rows: str, columns: str
) -> tuple[Expr, bool] | None:
    """The operand as matrices, and whether they are transposed; None if its labels mix."""
    shape = tensor_type(operand).shape
    own = "".join(c for c in batch if c in term)
    if term not in (own + rows + columns, own + columns + rows):
        return None
    extents = dict(zip(term, shape, strict=True))
    leading = [extents.get(c, 1) for c in batch] if own else []
    matrix = shape[len(own) :] if rows else (1, extents[columns])
    return reshape(operand, [*leading, *matrix]), bool(rows) and term == own + columns + rows


EINSUM_RULES: tuple[Rule, ...] = (lower_einsum,)

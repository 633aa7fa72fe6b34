"""Converters of matrix products, einsum and determinants."""

from __future__ import annotations

import re
from math import prod

from tunefarm.compiler.frontend.onnx.node import (
    Converter,
    Malformed,
    Node,
    Unsupported,
    like,
    rank_of,
    reshape,
    shape_of,
    take_slice,
    transpose,
    weight,
)
from tunefarm.compiler.ir import Expr

_TERM = r"[A-Za-z]*(\.\.\.[A-Za-z]*)?"
_EQUATION = re.compile(rf"{_TERM}(,{_TERM})*(->{_TERM})?")


def matmul(node: Node, a: Expr, b: Expr) -> Expr:
    """NumPy's matmul, in which a vector is a row on the left and a column on the right."""
    left, right = rank_of(a) == 1, rank_of(b) == 1
    if left:
        a = reshape(a, (1, *shape_of(a)))
    if right:
        b = reshape(b, (*shape_of(b), 1))
    y = node.emit("matmul", a, b)
    shape = list(shape_of(y))
    if right:
        del shape[-1]
    if left:
        del shape[-1 if right else -2]
    return reshape(y, shape)


def _gemm(node: Node) -> Expr:
    y = node.emit(
        "matmul",
        node.x,
        weight(node, 1),
        transpose_a=bool(node.attr("transA", 0)),
        transpose_b=bool(node.attr("transB", 0)),
    )
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    y = y if alpha == 1 else node.emit("multiply", y, like(alpha, y))
    if not node.has(2) or beta == 0:
        return y
    bias = weight(node, 2)
    bias = bias if beta == 1 else node.emit("multiply", bias, like(beta, bias))
    return node.emit("add", y, bias)


def _einsum(node: Node) -> Expr:
    terms, result = einsum_terms(str(node.required("equation")), [rank_of(x) for x in node.all])
    operands = list(node.all)
    for i, term in enumerate(terms):
        operands[i], terms[i] = _diagonal(operands[i], term)
    if len(terms) == 2:
        product = _as_matmul(node, terms[0], operands[0], terms[1], operands[1], result)
        if product is not None:
            return product
    return node.emit("einsum", *operands, equation=",".join(terms) + "->" + result)


def einsum_terms(equation: str, ranks: list[int]) -> tuple[list[str], str]:
    """The labels of each operand and of the result, an ellipsis written out in free letters."""
    if not _EQUATION.fullmatch(equation.replace(" ", "")):
        raise Malformed(f"the equation {equation!r} is not of letters for each operand")
    left, arrow, result = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(ranks):
        raise Unsupported(f"the equation {equation!r} does not name {len(ranks)} operands")
    free = [c for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
    counts = [r - len(t.replace("...", "")) for t, r in zip(terms, ranks, strict=True)]
    widest = max((c for t, c in zip(terms, counts, strict=True) if "..." in t), default=0)
    dots = "".join(free[:widest])
    if any(c < 0 or (c and "..." not in t) for t, c in zip(terms, counts, strict=True)):
        raise Unsupported(f"the equation {equation!r} does not fit operands of ranks {ranks}")
    terms = [
        t.replace("...", dots[widest - c :] if c else "")
        for t, c in zip(terms, counts, strict=True)
    ]
    if not arrow:
        letters = "".join(t for t in left.replace("...", "").split(","))
        result = ("..." if "..." in left else "") + "".join(
            sorted(c for c in set(letters) if letters.count(c) == 1)
        )
    return terms, result.replace("...", dots)


def _diagonal(x: Expr, term: str) -> tuple[Expr, str]:
    """Take the diagonal of the dimensions that share a label: "iij" → "ij"."""
    for label in set(term):
        while term.count(label) > 1:
            first = term.index(label)
            second = term.index(label, first + 1)
            n = shape_of(x)[first]
            order = [d for d in range(len(term)) if d not in (first, second)] + [first, second]
            x = transpose(x, order)
            rest = shape_of(x)[:-2]
            x = reshape(x, (*rest, n * n))
            x = take_slice(x, [0] * len(rest) + [0], [*rest, n], [1] * len(rest) + [n + 1])
            term = "".join(term[d] for d in order[:-1])
    return x, term


def _as_matmul(node: Node, left: str, a: Expr, right: str, b: Expr, result: str) -> Expr | None:
    """Two operands as one batched product of matrices; None where an index is summed alone."""
    extents = {**dict(zip(left, shape_of(a), strict=True)), **dict(zip(right, shape_of(b)))}  # noqa: B905
    if any(extents[c] != e for c, e in zip(left, shape_of(a), strict=True)):
        return None
    batch = [c for c in result if c in left and c in right]
    rows = [c for c in result if c in left and c not in right]
    columns = [c for c in result if c in right and c not in left]
    summed = [c for c in left if c in right and c not in result]
    if not summed or len(batch + rows + summed) != len(left):
        return None
    if len(batch + columns + summed) != len(right):
        return None

    def matrix(x: Expr, term: str, *groups: list[str]) -> Expr:
        order = [term.index(c) for c in batch + groups[0] + groups[1]]
        sizes = [prod(extents[c] for c in g) for g in groups]
        return reshape(transpose(x, order), [*(extents[c] for c in batch), *sizes])

    y = node.emit("matmul", matrix(a, left, rows, summed), matrix(b, right, summed, columns))
    labels = batch + rows + columns
    y = reshape(y, [extents[c] for c in labels])
    return transpose(y, [labels.index(c) for c in result])


def _det(node: Node) -> Expr:
    """The determinant of small matrices, by expansion along the first row."""
    x = node.x
    if rank_of(x) < 2:
        raise Unsupported(f"a determinant of shape {shape_of(x)}, which is no matrix")
    *outer, n, m = shape_of(x)
    if n != m or not 1 <= n <= 4:
        raise Unsupported(f"a determinant of {n}×{m} matrices; only 1×1 to 4×4 are supported")

    def element(i: int, j: int) -> Expr:
        begin = [0] * len(outer) + [i, j]
        return reshape(take_slice(x, begin, [*outer, 1, 1]), outer)

    def minor(row: int, columns: tuple[int, ...]) -> Expr:
        if len(columns) == 1:
            return element(row, columns[0])
        total: Expr | None = None
        for p, j in enumerate(columns):
            rest = minor(row + 1, columns[:p] + columns[p + 1 :])
            term = node.emit("multiply", element(row, j), rest)
            if total is None:
                total = term
            else:
                total = node.emit("subtract" if p % 2 else "add", total, term)
        assert total is not None
        return total

    return minor(0, tuple(range(n)))


CONVERTERS: dict[str, Converter] = {
    "MatMul": lambda node: matmul(node, node.input(0), node.input(1)),
    "Gemm": _gemm,
    "Einsum": _einsum,
    "Det": _det,
}

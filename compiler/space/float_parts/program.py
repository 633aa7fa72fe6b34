"""A product of float32 as stages: the rows in parts, the products of parts, and what is fused.

    parts[q, i, k]    = part q of x[i, k], 0 beyond the last row and term
    matrix[q, k, j]   = part q of w[k, j]
    product[n, i, j]  = Σ_p,k parts[a(p), i, n·S + k] · matrix[b(p), n·S + k, j]
    total[i, j]       = Σ_n product[n, i, j]

A sum is cut into stretches of S terms; of a single one there is no total. A constant matrix is in
parts when the model is built, and has no stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tunefarm.compiler import te
from tunefarm.compiler.space.float_parts.forms import DEPTH, PART, Parts
from tunefarm.compiler.space.matrix_tiles.shape import LANES
from tunefarm.compiler.space.program import create_program, fold_epilogue
from tunefarm.compiler.space.strassen.program import Product, zero_beyond
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Expr


def padded_depth(p: Product) -> int:
    """Terms with those of zeros behind them."""
    return -(-p.depth // DEPTH) * DEPTH


def has_whole_parts(p: Product) -> bool:
    """Whether the matrix can be split: a constant one is padded when a model is built, a variable
    one has whole vectors and steps."""
    return not p.variable or not (p.depth % DEPTH or p.columns % LANES)


@lru_cache(maxsize=64)
def create_parts(p: Product, parts: Parts, rows: int, stretch: int) -> PrimFunc:
    """The plain loops of the stages, with so many rows and stretches of so many terms, and of what
    is fused as one last block."""
    weights = () if p.variable else (p.function.params[p.weights],)
    program = create_program(
        p.function,
        computes={p.anchor: lambda args: _stages(p, parts, rows, stretch, args)},
        shapes={w: (parts.number, padded_depth(p), p.columns) for w in weights},
        dtypes=dict.fromkeys(weights, PART),
    )
    return fold_epilogue(program, ("parts", "matrix", "product", "total"))


def part_of(parts: Parts, q: Expr, value: Expr) -> Expr:
    """Part ``q`` of a value of float32."""
    found = [te.cast(value, PART)]
    while len(found) < parts.number:
        value = value - te.cast(found[-1], "float32")
        found.append(te.cast(value, PART))
    return te.one_of(q, found)


def parts_of_pair(parts: Parts, pair: Expr) -> tuple[Expr, Expr]:
    """The numbers of the left and of the right part of a pair."""
    sides = zip(*parts.pairs, strict=True)
    a, b = (te.one_of(pair, [te.const(m, "int64") for m in side]) for side in sides)
    return a, b


def _stages(
    p: Product, parts: Parts, rows: int, stretch: int, args: Sequence[te.Tensor]
) -> te.Tensor:
    x, w = args
    depth = padded_depth(p)

    def part(q: Expr, i: Expr, k: Expr) -> Expr:
        value = zero_beyond(zero_beyond(x[i, k], i, p.rows, rows), k, p.depth, depth)
        return part_of(parts, q, value)

    split = te.compute((parts.number, rows, depth), part, "parts")
    if p.variable:
        shape = (parts.number, depth, p.columns)
        w = te.compute(shape, lambda q, k, j: part_of(parts, q, args[1][k, j]), "matrix")
    pair, k = te.reduce_axis(len(parts.pairs), "pair"), te.reduce_axis(stretch, "k")

    def summed(n: Expr, i: Expr, j: Expr) -> te.Reduce:
        a, b = parts_of_pair(parts, pair)
        left, right = split[a, i, n * stretch + k], w[b, n * stretch + k, j]
        return te.sum(te.cast(left, "float32") * te.cast(right, "float32"), [pair, k])

    if stretch == depth:
        first = te.const(0, "int64")
        total = te.compute((rows, p.columns), lambda i, j: summed(first, i, j), "product")
    else:
        product = te.compute((depth // stretch, rows, p.columns), summed, "product")
        n = te.reduce_axis(depth // stretch, "n")
        total = te.compute((rows, p.columns), lambda i, j: te.sum(product[n, i, j], [n]), "total")
    return te.compute((p.rows, p.columns), lambda i, j: total[i, j], "rows")

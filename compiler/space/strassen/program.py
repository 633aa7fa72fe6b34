"""A matrix product as Strassen's stages: seven products of half the extents instead of eight.

    lefts[p, r, k]     = Σ L[p, q, g] · x[2r + q, g·K/2 + k], 0 beyond the last row and term
    rights[p, k, j]    = Σ R[p, q, g] · w[q·K/2 + k, g·N/2 + j], 0 beyond the last term and column
    product[p, r, j]   = Σ lefts[p, r, k] · rights[p, k, j]
    y[i, o]            = Σ O[i % 2, o // (N/2), p] · product[p, i // 2, o % (N/2)]

Rows pair with their neighbours, terms and columns with those half the extent away. The right
operands of a constant matrix are made when the model is built, and have no stage.

Of two levels each product is made by the method again: 49 of quarters of the extents, of groups of
four rows, with p = 7 p₁ + p₂.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, reduce
from math import prod
from typing import TypeAlias

from tunefarm.compiler import te
from tunefarm.compiler.ir import Call, Function, Tuple, Var, post_order, tensor_type
from tunefarm.compiler.ir import Expr as Value
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.space.program import (
    Views,
    create_program,
    find_anchor,
    flat_shape,
    fold_epilogue,
    has_channels_last,
    is_elementwise,
    is_pointwise,
    view_contraction,
    viewed,
)
from tunefarm.compiler.space.strassen.forms import (
    LEFT,
    LEVELS,
    PRODUCTS,
    RESULT,
    RIGHT,
    part_extents,
)
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Expr

Signs: TypeAlias = tuple[tuple[int, ...], ...]
_STAGES = ("rights", "lefts", "product")  # before the one that adds up the results


@dataclass(frozen=True, slots=True)
class Product:
    """A fused product of float32, ``[rows, depth] · [depth, columns]``.

    The matrix, parameter ``weights``, is constant unless ``variable``.
    ``function`` has pointwise convolutions as such products too. Columns are halved by whole
    vectors of ``lanes``, ``levels`` times.
    """

    function: Function
    anchor: Call
    weights: int
    rows: int
    depth: int
    columns: int
    lanes: int
    variable: bool
    levels: int

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.rows, self.depth, self.columns

    @property
    def sketch(self) -> str:
        """The sketch of so many levels."""
        return next(name for name, levels in LEVELS.items() if levels == self.levels)

    @property
    def side(self) -> int:
        """Into how many parts each extent is divided."""
        return 1 << self.levels

    @property
    def products(self) -> int:
        return int(PRODUCTS**self.levels)

    @property
    def extents(self) -> tuple[int, int, int]:
        """Of one of the products: rows, terms and columns."""
        return -(-self.rows // self.side), *part_extents(
            self.depth, self.columns, self.lanes, self.levels
        )


@lru_cache(maxsize=128)
def product_of(function: Function, lanes: int, levels: int) -> Product | None:
    """The product that a fused function is; None if the method does not apply."""
    function = _view_strided(view_contraction(function))
    anchor = find_anchor(function)
    if anchor is None or isinstance(function.body, Tuple) or not _fits(anchor):
        return None
    matrix = anchor.args[1]
    before = set(post_order(anchor.args[0]))
    calls = [
        e
        for e in post_order(function.body)
        if isinstance(e, Call) and e is not anchor and e not in before
    ]
    if not all(is_elementwise(c) for c in calls) or any(matrix in c.args for c in calls):
        return None
    position = next(i for i, p in enumerate(function.params) if p is matrix)
    variable = position not in function.constants
    rows, depth = tensor_type(anchor.args[0]).shape
    columns = tensor_type(matrix).shape[1]
    return Product(function, anchor, position, rows, depth, columns, lanes, variable, levels)


def _view_strided(function: Function) -> Function:
    """A pointwise convolution of a stride as a product of the pixels that it reads."""
    anchor = find_anchor(function)
    if anchor is None or not has_channels_last(anchor) or not is_pointwise(anchor, strided=True):
        return function
    shape, (data, kernel) = tensor_type(anchor).shape, (tensor_type(a).shape for a in anchor.args)
    steps = (1, *integers(anchor.attrs, "strides"), 1)

    def product(x: Value, w: Value) -> Call:
        pixels = call(
            "slice", x, begin=(0,) * len(data), size=(*shape[:-1], data[-1]), strides=steps
        )
        rows = call("reshape", pixels, shape=(prod(shape[:-1]), data[-1]))
        return call("matmul", rows, w, out_dtype=anchor.attrs["out_dtype"])

    views = Views(data, kernel[-2:], lambda s: flat_shape(s, shape), product)
    return viewed(function, anchor, views) or function


def _is_view(value: Value) -> bool:
    """True for what ``_view_strided`` makes of the pixels."""
    return isinstance(value, Call) and value.op == "reshape"


def _fits(anchor: Call) -> bool:
    types = [tensor_type(a) for a in anchor.args]
    return (
        anchor.op == "matmul"
        and isinstance(anchor.args[1], Var)
        and (isinstance(anchor.args[0], Var) or _is_view(anchor.args[0]))
        and anchor.args[0] is not anchor.args[1]
        and all(t.dtype == "float32" and len(t.shape) == 2 for t in types)
        and not anchor.attrs["transpose_a"]
        and not anchor.attrs["transpose_b"]
    )


@lru_cache(maxsize=64)
def create_strassen(p: Product) -> PrimFunc:
    """The plain loops of the stages and of what is fused behind them, as one last block."""
    _, terms, columns = p.extents
    program = create_program(
        p.function,
        computes={p.anchor: lambda args: _stages(p, args)},
        shapes={} if p.variable else {p.function.params[p.weights]: (p.products, terms, columns)},
    )
    return fold_epilogue(program, _STAGES)


def _stages(p: Product, args: Sequence[te.Tensor]) -> te.Tensor:
    """The results of the rows and the matrix ``args``; a constant one is its right operands."""
    x, w = args
    (groups, terms, columns), side = p.extents, p.side
    rights = _rights(p, w) if p.variable else w
    lefts = _lefts(p, x)
    k = te.reduce_axis(terms, "k")
    product = te.compute(
        (p.products, groups, columns),
        lambda n, t, o: te.sum(lefts[n, t, k] * rights[n, k, o], [k]),
        "product",
    )

    def result(i: Expr, o: Expr) -> Expr:
        row_of_product, column_of_product = i // side, o % columns

        @cache  # as of ``block`` below: passes rewrite once what is one node
        def term(numbers: tuple[int, ...]) -> Expr:
            return product[_number(numbers, PRODUCTS), row_of_product, column_of_product]

        def total(row: int, column: int) -> Expr:
            bits = zip(_digits(row, 2, p.levels), _digits(column, 2, p.levels), strict=True)
            return _added([RESULT[2 * r + c] for r, c in bits], term)

        totals = [total(row, column) for row in range(side) for column in range(side)]
        return _chosen(totals, i % side * side + o // columns)

    return te.compute((p.rows, p.columns), result, "strassen")


def _lefts(p: Product, x: te.Tensor) -> te.Tensor:
    groups, terms, _ = p.extents

    def operand(n: Expr, t: Expr, k: Expr) -> Expr:
        def block(down: int, across: int) -> Expr:
            row, term = t * p.side + down, k + across * terms
            value = zero_beyond(x[row, term], row, p.rows, groups * p.side)
            return zero_beyond(value, term, p.depth, terms * p.side)

        return _operand(p, LEFT, n, block)

    return te.compute((p.products, groups, terms), operand, "lefts")


def _rights(p: Product, w: te.Tensor) -> te.Tensor:
    _, terms, columns = p.extents

    def operand(n: Expr, k: Expr, o: Expr) -> Expr:
        def block(down: int, across: int) -> Expr:
            term, column = k + down * terms, o + across * columns
            value = zero_beyond(w[term, column], column, p.columns, columns * p.side)
            return zero_beyond(value, term, p.depth, terms * p.side)

        return _operand(p, RIGHT, n, block)

    return te.compute((p.products, terms, columns), operand, "rights")


def _operand(p: Product, signs: Signs, product: Expr, block: Callable[[int, int], Expr]) -> Expr:
    """A product's operand, the sum of the blocks in some rows and columns that have signs."""

    @cache
    def value(blocks: tuple[int, ...]) -> Expr:
        return block(*_place(blocks))

    def total(number: int) -> Expr:
        rows = [signs[n] for n in _digits(number, PRODUCTS, p.levels)]
        return _added(rows, value)

    return _chosen([total(number) for number in range(p.products)], product)


def zero_beyond(value: Expr, index: Expr, extent: int, reach: int) -> Expr:
    """``value`` where ``index``, of all below ``reach``, is within ``extent``, else 0."""
    if reach <= extent:
        return value
    return te.if_then_else(index < extent, value, te.const(0, "float32"))


def _chosen(values: Sequence[Expr], index: Expr) -> Expr:
    """The value at ``index``."""
    *others, chosen = values
    for number, value in reversed(list(enumerate(others))):
        chosen = te.if_then_else(index.equal(number), value, chosen)
    return chosen


def _digits(number: int, base: int, count: int) -> tuple[int, ...]:
    """The last ``count`` digits of a number, the first of which is the first level's."""
    return tuple(number // base**n % base for n in reversed(range(count)))


def _number(digits: Sequence[int], base: int) -> int:
    return reduce(lambda total, digit: total * base + digit, digits, 0)


def _place(blocks: Sequence[int]) -> tuple[int, int]:
    """Row and column of a block of blocks, each of which is the n-th of four."""
    return _number([b // 2 for b in blocks], 2), _number([b % 2 for b in blocks], 2)


def _added(signs: Sequence[Sequence[int]], value: Callable[[tuple[int, ...]], Expr]) -> Expr:
    """The sum of the values of the blocks whose sign is not 0, each with its sign.

    ``signs`` has those of each level; a block of the first level is such a sum over the levels
    behind it. Blocks that are added come before those that are subtracted.
    """
    if not signs:
        return value(())

    def block(n: int) -> Expr:
        return _added(signs[1:], lambda behind: value((n, *behind)))

    parts = [(sign, block(n)) for n, sign in enumerate(signs[0]) if sign]
    (_, total), *others = sorted(parts, key=lambda part: -part[0])
    for sign, part in others:
        total = total + part if sign > 0 else total - part
    return total

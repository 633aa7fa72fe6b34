"""A matrix product as Strassen's stages: seven products of half the extents instead of eight.

    lefts[p, r, k]     = Σ L[p, q, g] · x[2r + q, g·K/2 + k], 0 beyond the last row and term
    rights[p, k, j]    = Σ R[p, q, g] · w[q·K/2 + k, g·N/2 + j], 0 beyond the last term and column
    product[p, r, j]   = Σ lefts[p, r, k] · rights[p, k, j]
    y[i, o]            = Σ O[i % 2, o // (N/2), p] · product[p, i // 2, o % (N/2)]

Rows pair with their neighbours, terms and columns with those half the extent away. The right
operands of a constant matrix are made when the model is built, and have no stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from tunefarm.compiler import te
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Call, Function, Tuple, Var, post_order, tensor_type
from tunefarm.compiler.ir import Expr as Value
from tunefarm.compiler.ops import call
from tunefarm.compiler.ops.common import integers
from tunefarm.compiler.space.program import (
    Views,
    create_program,
    find_anchor,
    flat_shape,
    has_channels_last,
    is_elementwise,
    is_pointwise,
    view_contraction,
    viewed,
)
from tunefarm.compiler.space.strassen.forms import LEFT, PRODUCTS, RESULT, RIGHT
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Expr

_STAGES = ("rights", "lefts", "product")  # before the one that adds up the results


@dataclass(frozen=True, slots=True)
class Product:
    """A fused product of float32, ``[rows, depth] · [depth, columns]``.

    The matrix, parameter ``weights``, is constant unless ``variable``.
    ``function`` has pointwise convolutions as such products too. Columns are halved by whole
    vectors of ``lanes``.
    """

    function: Function
    anchor: Call
    weights: int
    rows: int
    depth: int
    columns: int
    lanes: int
    variable: bool

    @property
    def halves(self) -> tuple[int, int, int]:
        """Extents of one of the seven products: rows, terms and columns."""
        vectors = -(-self.columns // (2 * self.lanes))
        return -(-self.rows // 2), -(-self.depth // 2), vectors * self.lanes


@lru_cache(maxsize=64)
def product_of(function: Function, lanes: int) -> Product | None:
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
    variable = position not in function.attrs.get("constants", ())  # type: ignore[operator]
    rows, depth = tensor_type(anchor.args[0]).shape
    columns = tensor_type(matrix).shape[1]
    return Product(function, anchor, position, rows, depth, columns, lanes, variable)


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
    _, terms, columns = p.halves
    program = create_program(
        p.function,
        computes={p.anchor: lambda args: _stages(p, args)},
        shapes={} if p.variable else {p.function.params[p.weights]: (PRODUCTS, terms, columns)},
    )
    stages = _STAGES if p.variable else _STAGES[1:]
    for block in s.remaining_blocks(program)[:-1]:
        if block not in stages:
            program = s.compute_inline(program, block)
    if len(s.remaining_blocks(program)) != len(stages) + 1:
        raise ScheduleError("what follows the product does not fold into one block")
    return program


def _stages(p: Product, args: Sequence[te.Tensor]) -> te.Tensor:
    x, w = args
    pairs, terms, columns = p.halves

    def data(pair: Expr, term: Expr, block: int) -> Expr:
        row, column = pair * 2 + block // 2, term + block % 2 * terms
        value: Expr = x[row, column]
        if p.rows % 2:
            value = te.if_then_else(row < p.rows, value, te.const(0, x.dtype))
        if p.depth % 2:
            value = te.if_then_else(column < p.depth, value, te.const(0, x.dtype))
        return value

    def matrix(term: Expr, column: Expr, block: int) -> Expr:
        row, column = term + block // 2 * terms, column + block % 2 * columns
        value: Expr = w[row, column]
        if p.columns < 2 * columns:
            value = te.if_then_else(column < p.columns, value, te.const(0, w.dtype))
        if p.depth % 2:
            value = te.if_then_else(row < p.depth, value, te.const(0, w.dtype))
        return value

    if p.variable:
        w = te.compute(
            (PRODUCTS, terms, columns),
            lambda n, k, o: _chosen([_added(row, lambda b: matrix(k, o, b)) for row in RIGHT], n),
            "rights",
        )
    lefts = te.compute(
        (PRODUCTS, pairs, terms),
        lambda n, t, k: _chosen([_added(row, lambda b: data(t, k, b)) for row in LEFT], n),
        "lefts",
    )
    k = te.reduce_axis(terms, "k")
    product = te.compute(
        (PRODUCTS, pairs, columns),
        lambda n, t, o: te.sum(lefts[n, t, k] * w[n, k, o], [k]),
        "product",
    )

    def result(i: Expr, o: Expr) -> Expr:
        blocks = [_added(row, lambda n: product[n, i // 2, o % columns]) for row in RESULT]
        return _chosen(blocks, i % 2 * 2 + o // columns)

    return te.compute((p.rows, p.columns), result, "strassen")


def _chosen(values: Sequence[Expr], index: Expr) -> Expr:
    """The value at ``index``."""
    *others, chosen = values
    for number, value in reversed(list(enumerate(others))):
        chosen = te.if_then_else(index.equal(number), value, chosen)
    return chosen


def _added(signs: Sequence[int], value: Callable[[int], Expr]) -> Expr:
    """The sum of the values whose sign is 1, less those whose sign is -1."""
    first, *others = sorted((n for n, sign in enumerate(signs) if sign), key=lambda n: -signs[n])
    total = value(first)
    for n in others:
        total = total + value(n) if signs[n] > 0 else total - value(n)
    return total

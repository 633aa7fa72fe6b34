"""A depthwise convolution along rows of the image, by Winograd's method down its columns.

    point[n, t, k, p]   = Σ Bᵀ[k, d] · x[n, 2t + d − top, p]                0 beyond the border
    product[n, t, k, p] = Σ point[n, t, k, p + (j − left)·C] · w[k, j, p]   over the taps across
    y[n, h, p]          = Σ product[n, h / 2, k, p] · Aᵀ[h % 2, k]          p = column · C + channel

The points are no stage of their own, as in ``depthwise_winograd``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tunefarm.compiler import te
from tunefarm.compiler.ir import Function, tensor_type
from tunefarm.compiler.space.depthwise_winograd.program import (
    TAPS,
    TILE,
    Depthwise,
    combined,
    depthwise_of,
)
from tunefarm.compiler.space.image_rows.program import flattened
from tunefarm.compiler.space.program import create_program, find_anchor, fold_epilogue
from tunefarm.compiler.space.winograd.transforms import transforms
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Expr


@lru_cache(maxsize=64)
def rows_of(function: Function) -> Depthwise | None:
    """The convolution of a fused function; None if the method does not apply, or rows of results
    are not as long as those of the image."""
    c = depthwise_of(function)
    return c if c is not None and flattened(function) is not None else None


@lru_cache(maxsize=64)
def create_rows(c: Depthwise) -> PrimFunc:
    """The plain loops of the products and of the results with what is fused behind them."""
    flat = flattened(c.function)
    assert flat is not None
    row = find_anchor(flat)
    assert row is not None
    points = transforms(TILE).points
    program = create_program(
        flat,
        computes={row: lambda args: _stages(c, args)},
        shapes={flat.params[c.filter_param]: (points, TAPS, tensor_type(row).shape[-1])},
    )
    return fold_epilogue(program, ("product",))


def _stages(c: Depthwise, args: Sequence[te.Tensor]) -> te.Tensor:
    x, w = args
    down, (top, left) = transforms(TILE), c.padding
    j, zero = te.reduce_axis(TAPS, "j"), te.const(0, "float32")

    def point(n: Expr, t: Expr, k: Expr, place: Expr) -> Expr:
        def data(d: int) -> Expr:
            row = t * TILE + (d - top)
            inside = (row >= 0) & (row < x.shape[1])
            return te.if_then_else(inside, x[n, row, place], zero)

        return combined(down.data, k, data)

    def term(n: Expr, t: Expr, k: Expr, p: Expr) -> te.Reduce:
        place = p + (j - left) * c.channels
        inside = (place >= 0) & (place < x.shape[2])
        factors = point(n, t, k, place) * w[k, j, p]
        return te.sum(te.if_then_else(inside, factors, zero), [j])

    shape: tuple[int, ...] = (c.batch, -(-c.height // TILE), down.points, w.shape[-1])
    product = te.compute(shape, term, "product", axis_names=["n", "t", "k", "p"])

    def result(n: Expr, h: Expr, p: Expr) -> Expr:
        return combined(down.result, h % TILE, lambda k: product[n, h // TILE, k, p])

    return te.compute((c.batch, c.height, w.shape[-1]), result, "image_rows_winograd")

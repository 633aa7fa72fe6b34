"""A convolution as the stages of Winograd's method along rows.

    window[n, y, t, x, c]  = the inputs of row y under tile t, 0 beyond the border
    tile_in[j, n, y, t, c] = Σ window[n, y, t, x, c] · Bᵀ[j, x]
    product[j, n, h, t, o] = Σ tile_in[j, n, h + i, t, c] · w[i, f(j), c, o]    over taps i and c
    y[n, h, v, o]          = Σ product[j, n, h, t, o] · Aᵀ[v % m, j]

The last tile of a row, of fewer results, may take fewer points (``space/winograd/ends.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tunefarm.compiler import te
from tunefarm.compiler.ir import tensor_type
from tunefarm.compiler.space.program import create_program, fold_epilogue
from tunefarm.compiler.space.winograd.convolution import image_size
from tunefarm.compiler.space.winograd.program import filter_of
from tunefarm.compiler.space.winograd.sums import Values, continued, transformed
from tunefarm.compiler.space.winograd_1d.convolution import RowConvolution, in_order
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Expr

STAGES = ("window", "tile_in", "product")  # in front of the result


@lru_cache(maxsize=64)
def create_winograd_1d(c: RowConvolution, tile: int, fewer: bool) -> PrimFunc:
    """The plain loops of the stages and of what is fused behind them, as one last block. With
    ``fewer`` the last tile of a row leaves out the products that its results do not need."""
    points = in_order((c.row_taps, c.transforms(tile).filters), c.turned)
    kernel = (*points, c.inputs, c.outputs)
    program = create_program(
        c.function,
        computes={c.anchor: lambda args: _stages(c, tile, fewer, args)},
        shapes={c.function.params[c.filter_param]: kernel},
    )
    return fold_epilogue(program, STAGES)


def points_of_last(c: RowConvolution, tile: int) -> int:
    """How many of a tile's points, the first ones, the last tile of a row needs, as it may have
    fewer results; of stride 2 all, unless one is missing."""
    results, points = (c.width - 1) % tile + 1, c.transforms(tile).points
    if c.stride == 1:
        return results + c.taps - 1
    return points - 2 if results == tile - 1 else points


def _stages(c: RowConvolution, tile: int, fewer: bool, args: Sequence[te.Tensor]) -> te.Tensor:
    x, w = args
    across, height = c.transforms(tile), c.image[0]
    _, length = in_order(image_size(c.anchor), c.turned)
    columns = -(-c.width // tile)
    zero = te.const(0, "float32")

    def data(n: Expr, y: Expr, t: Expr, column: Expr, k: Expr) -> Expr:
        left = t * (tile * c.stride) + column - c.padding[1]
        if c.cut:
            y, left = te.const(0, "int64"), y * (c.width * c.stride) + left
        inside = (left >= 0) & (left < length)
        return te.if_then_else(inside, x[n, *in_order((y, left), c.turned), k], zero)

    window = te.compute((c.batch, height, columns, across.points, c.inputs), data, "window")

    def by_columns(j: Expr, n: Expr, y: Expr, t: Expr, k: Expr) -> Expr:
        inputs: Values = lambda v: window[n, y, t, v, k]  # noqa: E731
        if fewer and c.stride == 1:
            inputs = continued(inputs, c.width, tile, t, c.taps)
        return transformed(across.data, across.data_parts, j, inputs)

    shape = (across.points, c.batch, height, columns, c.inputs)
    tile_in = te.compute(shape, by_columns, "tile_in")
    taps = [te.reduce_axis(c.row_taps, "i")] if c.row_taps > 1 else []
    i, k = taps[0] if taps else te.const(0, "int64"), te.reduce_axis(c.inputs, "k")

    def term(j: Expr, n: Expr, h: Expr, t: Expr, o: Expr) -> te.Reduce:
        row = h * c.row_stride + i - c.padding[0]
        made = (row >= 0) & (row < height)
        if fewer:
            # t < columns - 1 or j < points_of_last, as one form
            behind = (columns - 1 - t) * across.points + (points_of_last(c, tile) - 1)
            made = made & (j <= behind)
        weight = w[*in_order((i, filter_of(across, j)), c.turned), k, o]
        factors = tile_in[j, n, row, t, k] * weight
        return te.sum(te.if_then_else(made, factors, zero), [*taps, k])

    shape = (across.points, c.batch, c.height, columns, c.outputs)
    product = te.compute(shape, term, "product")

    def result(n: Expr, h: Expr, v: Expr, o: Expr) -> Expr:
        h, v = in_order((h, v), c.turned)
        if c.cut:
            h, v = v // c.width, v % c.width
        t, of_tile = v // tile, v % tile
        back: Values = lambda j: product[j, n, h, t, o]  # noqa: E731
        return transformed(across.result, across.result_parts, of_tile, back)

    return te.compute(tensor_type(c.anchor).shape, result, "winograd_1d")

"""A convolution as the stages of Winograd's method, its filters transformed between them.

    window, rows_in, tile_in                    as in ``winograd/program.py``
    taps_in[a, j, c, o]    = Σ w[a, b, c, o] · G[j, b]               over three taps of a row
    filter[i, j, c, o]     = Σ G[i, a] · taps_in[a, j, c, o]
    product[q, i, j, t, o] = Σ tile_in[i, j, t, c] · filter[i, j, c, o]      over c of block q
    rows_out[r, t, j, o]   = Σ Aᵀ[r, i] · product[q, i, j, t, o]     over blocks of inputs, too
    y                                           as there

The last row and the last column of tiles take no products that their results do not need
(``winograd/ends.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tunefarm.compiler import te
from tunefarm.compiler.space.program import create_program, fold_epilogue
from tunefarm.compiler.space.winograd.convolution import Convolution
from tunefarm.compiler.space.winograd.program import STAGES, result_of, transformed_tiles
from tunefarm.compiler.space.winograd.sums import transformed
from tunefarm.compiler.space.winograd_online.transforms import (
    POINTS,
    TAPS,
    TILE,
    scaled_transforms,
    transformed_taps,
)
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Expr

_STAGES = (*STAGES, "taps_in", "filter")


def points_of_last(extent: int) -> int:
    """Points of the last of the tiles along a dimension of ``extent`` results."""
    return (extent - 1) % TILE + TAPS


@lru_cache(maxsize=64)
def create_winograd_online(c: Convolution, blocks: int, lanes: int) -> PrimFunc:
    """The plain loops of the stages and of what is fused behind them, as one last block. Inputs
    are multiplied in ``blocks`` of equal size, one after the other."""
    program = create_program(
        c.function, computes={c.anchor: lambda args: _stages(c, blocks, lanes, args)}
    )
    return fold_epilogue(program, _STAGES)


def _stages(c: Convolution, blocks: int, lanes: int, args: Sequence[te.Tensor]) -> te.Tensor:
    x, w = args
    tile, matrices = (TILE, TILE), scaled_transforms()
    (rows, columns), zero = c.tiles(tile), te.const(0, "float32")
    tile_in = transformed_tiles(c, tile, lanes, (matrices, matrices), x, fewer=True)

    def of_rows(a: Expr, j: Expr, k: Expr, o: Expr) -> Expr:
        return transformed_taps(j, lambda b: w[a, b, k, o])

    taps_in = te.compute((TAPS, POINTS, c.inputs, c.outputs), of_rows, "taps_in")

    def of_columns(i: Expr, j: Expr, k: Expr, o: Expr) -> Expr:
        return transformed_taps(i, lambda a: taps_in[a, j, k, o])

    weight = te.compute((POINTS, POINTS, c.inputs, c.outputs), of_columns, "filter")
    size = c.inputs // blocks
    block, k = te.reduce_axis(blocks, "block"), te.reduce_axis(size, "k")

    def term(q: Expr, i: Expr, j: Expr, t: Expr, o: Expr) -> te.Reduce:
        # In the last row, and the last column of tiles points below those of the last, as forms.
        row, column = t // columns % rows, t % columns
        below = i <= (rows - 1 - row) * POINTS + (points_of_last(c.height) - 1)
        left = j <= (columns - 1 - column) * POINTS + (points_of_last(c.width) - 1)
        factors = tile_in[i, j, t, q * size + k] * weight[i, j, q * size + k, o]
        return te.sum(te.if_then_else(below & left, factors, zero), [k])

    count = c.batch * rows * columns
    product = te.compute((blocks, POINTS, POINTS, count, c.outputs), term, "product")

    def back(r: Expr, t: Expr, j: Expr, o: Expr) -> Expr | te.Reduce:
        q = block if blocks > 1 else te.const(0, "int64")
        values = lambda i: product[q, i, j, t, o]  # noqa: E731
        made = transformed(matrices.result, matrices.result_parts, r, values)
        return te.sum(made, [block]) if blocks > 1 else made

    rows_out = te.compute((TILE, count, POINTS, c.outputs), back, "rows_out")

    def result(n: Expr, h: Expr, v: Expr, o: Expr) -> Expr:
        t = (n * rows + h // TILE) * columns + v // TILE
        return result_of(c, tile, rows_out, (h % TILE, t, v, o))

    return te.compute((c.batch, c.height, c.width, c.outputs), result, "winograd_online")

"""Channels beyond whole vectors, if they are few: the tiles of a row side by side, as lanes.

A 17th channel takes as long as a whole vector of them, a number at a time, tile by tile. Seven
tiles of a row abreast take a seventh, from a copy of the channel whose pixels stand as the tiles
read them:

    plane[n, k, y, p, q]       = the input at (y, step · q + p)          step: columns between tiles
    lone_window[k, r, y, x, t] = the inputs under tile t of row r, 0 beyond the border
    lone_rows[i, k, r, j, t]   = Σ Bᵀ[i, y] · lone_window[k, r, y, j, t]
    lone_in[i, j, k, r, t]     = Σ lone_rows[i, k, r, x, t] · Bᵀ[j, x]
"""

from __future__ import annotations

from tunefarm.compiler import te
from tunefarm.compiler.space.winograd.convolution import Convolution, image_size
from tunefarm.compiler.space.winograd.counts import lone_columns
from tunefarm.compiler.space.winograd.sums import transformed
from tunefarm.compiler.tir.ir import Expr

LONE_STAGES = ("plane", "lone_window", "lone_rows", "lone_in")


def lone_tiles(
    c: Convolution, tile: tuple[int, int], lanes: int, x: te.Tensor, lone: int
) -> te.Tensor:
    """Both transforms of the last ``lone`` channels of a convolution's input ``x``: ``lone_in``,
    of whole vectors of tiles."""
    above, across = (c.transforms(size) for size in tile)
    down, step = (size * c.stride for size in tile)
    rows, columns = c.tiles(tile)[0], lone_columns(c, tile[1], lanes)
    (height, width), (top, left) = image_size(c.anchor), c.padding
    first = c.depth - lone
    zero = te.const(0, x.dtype)

    def pixel(n: Expr, k: Expr, y: Expr, p: Expr, q: Expr) -> Expr:
        column = q * step + p
        return te.if_then_else(column < width, x[n, y, column, first + k], zero)

    shape = (c.batch, lone, height, step, -(-width // step))
    plane = te.compute(shape, pixel, "plane")
    before = -(-left // step)

    def data(k: Expr, r: Expr, y: Expr, v: Expr, t: Expr) -> Expr:
        image, row = (r // rows, r % rows) if c.batch > 1 else (te.const(0, "int64"), r)
        at, column = row * down + y - top, t * step + v - left
        inside = (at >= 0) & (at < height) & (column >= 0) & (column < width)
        place = v + before * step - left
        value = plane[image, k, at, place % step, t + place // step - before]
        return te.if_then_else(inside, value, zero)

    of_row = (above.points, across.points, columns)
    window = te.compute((lone, c.batch * rows, *of_row), data, "lone_window")

    def by_rows(i: Expr, k: Expr, r: Expr, v: Expr, t: Expr) -> Expr:
        return transformed(above.data, above.data_parts, i, lambda y: window[k, r, y, v, t])

    shape = (above.points, lone, c.batch * rows, across.points, columns)
    half = te.compute(shape, by_rows, "lone_rows")

    def by_columns(i: Expr, j: Expr, k: Expr, r: Expr, t: Expr) -> Expr:
        return transformed(across.data, across.data_parts, j, lambda v: half[i, k, r, v, t])

    shape = (above.points, across.points, lone, c.batch * rows, columns)
    return te.compute(shape, by_columns, "lone_in")

"""A convolution as Winograd's stages: transformed tiles, products of matrices, results.

    phases[n, y, x, q]     = the input at (2y + i, 2x + j), channel c; q = (i, j, c)    (7 × 7)
                             0 behind the last, up to whole vectors
    window[t, y, x, c]     = the inputs under tile t, 0 beyond the border
    rows_in[i, t, j, c]    = Σ Bᵀ[i, y] · window[t, y, j, c]
    tile_in[i, j, t, c]    = Σ rows_in[i, t, x, c] · Bᵀ[j, x]
    product[i, j, t, o]    = Σ tile_in[i, j, t, c] · w[f(i), f(j), c, o]      c: of o's group
                             or lone_in[i, j, c, t]                           (``lone.py``)
    rows_out[r, t, j, o]   = Σ Aᵀ[r, i] · product[i, j, t, o]
    y[n, h, w, o]          = Σ rows_out[h % m, t, j, o] · Aᵀ[w % m, j]

Of a volume t counts the tiles of all frames of the result, and c = (frame that it reads, channel).
Rows and columns have matrices of their own: tiles may be 2 × 4.
The filters w are transformed when the model is built; f(i) = i but for the last points of stride 2,
which share a filter.

The last row and the last column of tiles may have fewer results, which need fewer products
(``Ends``): 14 are three times 4 and 2, of whose six points four are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from tunefarm.compiler import te
from tunefarm.compiler.space.program import create_program, fold_epilogue
from tunefarm.compiler.space.winograd.convolution import (
    Convolution,
    has_pixels,
    image_size,
)
from tunefarm.compiler.space.winograd.lone import LONE_STAGES, lone_tiles
from tunefarm.compiler.space.winograd.sums import Values, continued, transformed
from tunefarm.compiler.space.winograd.transforms import Transforms, phases
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Expr

STAGES = ("phases", "window", "rows_in", "tile_in", "product", "rows_out")  # before the result


@dataclass(frozen=True, slots=True)
class Ends:
    """How products are left out that the last tiles of an image need not have.

    ``tiles`` are rows and columns of tiles, ``points`` those that the last row and the last column
    of them have in one dimension. ``common`` tiles are multiplied for every point (i, j), in steps
    of ``height``, all others for the points of all tiles. Row q of a product belongs to tile

                     i and j < points   i ≥ points[0]   j ≥ points[1]
        q < common          q                 q         q + q // (columns - 1)
        q ≥ common          q              none, 0      none, 0
    """

    tiles: tuple[int, int]
    points: tuple[int, int]
    common: int
    height: int

    def made(self, i: Expr, j: Expr, q: Expr) -> Expr:
        """If there is a row q of the product for a point; the same for all of a register tile."""
        beyond = (i // self.points[0] + j // self.points[1] + 1) // 2
        return q // self.height // (self.common // self.height) + beyond <= 1

    def source(self, j: Expr, q: Expr) -> Expr:
        """The tile that row q belongs to."""
        whole = self.tiles[1] - 1
        return q + q // whole * (j // self.points[1]) if whole else q

    def place(self, j: Expr, row: Expr, column: Expr) -> Expr:
        """The row of the product that belongs to the tile at ``row`` and ``column``."""
        whole = self.tiles[1] - 1
        apart = te.if_then_else(column.equal(whole), self.common + row, row * whole + column)
        return te.if_then_else(j < self.points[1], row * self.tiles[1] + column, apart)


@lru_cache(maxsize=64)
def create_winograd(
    c: Convolution, tile: tuple[int, int], lanes: int, ends: Ends | None = None, lone: int = 0
) -> PrimFunc:
    """The plain loops of the stages and of what is fused behind them, as one last block; the last
    ``lone`` channels with tiles side by side."""
    kernel = (*(c.transforms(t).filters for t in tile), c.depth, *c.output_axes)
    program = create_program(
        c.function,
        computes={c.anchor: lambda args: _stages(c, tile, lanes, ends, lone, args)},
        shapes={c.function.params[c.filter_param]: kernel},
    )
    return fold_epilogue(program, (*STAGES, *LONE_STAGES))


def _stages(
    c: Convolution,
    tile: tuple[int, int],
    lanes: int,
    ends: Ends | None,
    lone: int,
    args: Sequence[te.Tensor],
) -> te.Tensor:
    rows_out = half_transformed(c, tile, lanes, ends, args, lone)
    rows, columns = c.tiles(tile)

    def result(n: Expr, *at: Expr) -> Expr:
        if c.frames is not None:
            n, at = n * c.frames.results + at[0], at[1:]
        h, v, *o = at
        t = (n * rows + h // tile[0]) * columns + v // tile[1]
        return result_of(c, tile, rows_out, (h % tile[0], t, v, *o))

    images: tuple[int, ...] = (c.batch,)
    if c.frames is not None:
        images = (c.batch // c.frames.results, c.frames.results)
    return te.compute((*images, c.height, c.width, *c.output_axes), result, "winograd")


def half_transformed(
    c: Convolution,
    tile: tuple[int, int],
    lanes: int,
    ends: Ends | None,
    args: Sequence[te.Tensor],
    lone: int = 0,
) -> te.Tensor:
    """The products of all tiles, their rows transformed back: ``rows_out``."""
    x, w = args
    above, across = (c.transforms(t) for t in tile)
    rows, columns = c.tiles(tile)
    tile_in = transformed_tiles(
        c, tile, lanes, (above, across), x, fewer=ends is not None, lone=lone
    )
    abreast = lone_tiles(c, tile, lanes, x, lone) if lone else None
    k, whole = te.reduce_axis(c.depth, "k"), c.depth - lone

    def value(i: Expr, j: Expr, t: Expr, *group: Expr) -> Expr:
        if abreast is None:
            return tile_in[i, j, t, *group, k]
        channel = te.minimum(te.maximum(k, whole), c.depth - 1) - whole
        other = abreast[i, j, channel, t // columns, t % columns]
        return te.if_then_else(k < whole, tile_in[i, j, t, te.minimum(k, whole - 1)], other)

    def term(i: Expr, j: Expr, t: Expr, *o: Expr) -> te.Reduce:
        weight = w[filter_of(above, i), filter_of(across, j), k, *o]
        group = o[:-1]
        if ends is None:
            return te.sum(value(i, j, t, *group) * weight, [k])
        factors = tile_in[i, j, ends.source(j, t), *group, k] * weight
        return te.sum(te.if_then_else(ends.made(i, j, t), factors, te.const(0, "float32")), [k])

    count = c.batch * rows * columns
    product = te.compute((above.points, across.points, count, *c.output_axes), term, "product")

    def back(r: Expr, t: Expr, j: Expr, *o: Expr) -> Expr:
        q = t if ends is None else ends.place(j, t // columns, t % columns)
        return transformed(above.result, above.result_parts, r, lambda i: product[i, j, q, *o])

    return te.compute((tile[0], count, across.points, *c.output_axes), back, "rows_out")


def result_of(
    c: Convolution, tile: tuple[int, int], rows_out: te.Tensor, at: Sequence[Expr]
) -> Expr:
    """The result at a row of a tile, the tile's number, a column of the image, an output; or a
    group and one of its outputs."""
    row, t, column, *o = at
    across = c.transforms(tile[1])
    values: Values = lambda j: rows_out[row, t, j, *o]  # noqa: E731
    return transformed(across.result, across.result_parts, column % tile[1], values)


def filter_of(transform: Transforms, point: Expr) -> Expr:
    """Which filter a point's weight is."""
    first, behind = transform.shared.start, transform.shared.stop
    if len(transform.shared) == 1:
        return point
    if behind == transform.points:
        return te.minimum(point, first)
    of_others = te.if_then_else(
        point < behind, te.const(first, "int64"), point - (behind - first) + 1
    )
    return te.if_then_else(point < first, point, of_others)


def transformed_tiles(
    c: Convolution,
    tile: tuple[int, int],
    lanes: int,
    matrices: tuple[Transforms, Transforms],
    x: te.Tensor,
    *,
    fewer: bool,
    lone: int = 0,
) -> te.Tensor:
    """Both transforms of the inputs of all tiles, those of rows and of columns: ``tile_in``. With
    ``fewer`` products may be left out of the last row and the last column of tiles. The last
    ``lone`` channels are left out."""
    above, across = matrices
    rows, columns = c.tiles(tile)
    count = c.batch * rows * columns
    apart = _apart(c, x, tile, lanes) if phases(c.taps) > 1 else None
    *groups, last = c.tile_axes(lanes)
    channels = (*groups, last - lone)
    step = [size * c.stride // phases(c.taps) for size in tile]

    def row_of(t: Expr) -> Expr:
        return t // columns % rows if c.batch > 1 else t // columns

    def data(t: Expr, y: Expr, column: Expr, *channel: Expr) -> Expr:
        image = t // (rows * columns) if c.batch > 1 else te.const(0, "int64")
        top, left = row_of(t) * step[0] + y, t % columns * step[1] + column
        if apart is not None:
            return apart[image, top, left, *channel]
        return _padded(c, x, image, top, left, *channel)

    window = te.compute((count, above.points, across.points, *channels), data, "window")

    def by_rows(i: Expr, t: Expr, j: Expr, *k: Expr) -> Expr:
        inputs: Values = lambda y: window[t, y, j, *k]  # noqa: E731
        if fewer:
            inputs = continued(inputs, c.height, tile[0], row_of(t))
        return transformed(above.data, above.data_parts, i, inputs)

    rows_in = te.compute((above.points, count, across.points, *channels), by_rows, "rows_in")

    def by_columns(i: Expr, j: Expr, t: Expr, *k: Expr) -> Expr:
        inputs: Values = lambda v: rows_in[i, t, v, *k]  # noqa: E731
        if fewer:
            inputs = continued(inputs, c.width, tile[1], t % columns)
        return transformed(across.data, across.data_parts, j, inputs)

    return te.compute((above.points, across.points, count, *channels), by_columns, "tile_in")


def _padded(c: Convolution, x: te.Tensor, image: Expr, row: Expr, column: Expr, *of: Expr) -> Expr:
    """The input of channel ``of`` at a place counted from the padding's corner, 0 beyond it."""
    if c.parts > 1:
        image, row = image // c.parts, row + image % c.parts * c.part_rows
    (height, width), top, left = image_size(c.anchor), row - c.padding[0], column - c.padding[1]
    inside = (top >= 0) & (top < height) & (left >= 0) & (left < width)
    if c.frames is not None:
        f, (q,) = c.frames, of
        frame = image % f.results * f.stride + q // c.inputs - f.padding
        inside &= (frame >= 0) & (frame < f.extent)
        value = x[image // f.results, frame, top, left, q % c.inputs]
    else:
        value = x[image, top, left, *of] if has_pixels(c.anchor) else x[image, *of, top, left]
    return te.if_then_else(inside, value, te.const(0, x.dtype))


def _apart(c: Convolution, x: te.Tensor, tile: tuple[int, int], lanes: int) -> te.Tensor:
    """Even and odd rows and columns of the padded input as channels of their own, behind them
    zeros that fill the last vector."""
    count = phases(c.taps)
    taps = -(-c.taps // count)
    sizes = [n * size + taps - 1 for n, size in zip(c.tiles(tile), tile, strict=True)]

    def data(n: Expr, y: Expr, column: Expr, q: Expr) -> Expr:
        row = y * count + q // (count * c.inputs)
        value = _padded(c, x, n, row, column * count + q // c.inputs % count, q % c.inputs)
        return te.if_then_else(q < c.depth, value, te.const(0, x.dtype))

    return te.compute((c.batch, *sizes, c.tile_channels(lanes)), data, "phases")

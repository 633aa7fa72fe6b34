"""Tiles at the end of an image, which have fewer results, take fewer products.

Of 14 results by fours the last tile has two, and four of its six points make them: with d₀ … d₃ as
they are, d₄ is free, and chosen so that the input of the fifth point is 0 (``continuation``); the
sixth point, infinity, has a part in the fourth result alone. So the last row and the last column of
tiles need no products of some points: 4 × 4 tiles of 4 × 4 results 496 instead of 576, 4 × 4 tiles
of 2 × 2 for 7 × 7 results 228 instead of 256.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.space.winograd.convolution import Convolution
from tunefarm.compiler.space.winograd.counts import points, tile_columns, tile_rows
from tunefarm.compiler.space.winograd.program import Ends


def ends_of(c: Convolution, k: Columns) -> Ends | None:
    """How the only config of ``k`` leaves products out; None if it does not."""
    if not fewer_products(c, k)[0]:
        return None
    tiles, kept = (tile_rows(c, k), tile_columns(c, k)), _points_of_last(c, k)
    numbers = (*tiles, *kept, common_tiles(c, k), whole(k, "rw"))
    rows, columns, above, across, common, height = (int(n[0]) for n in numbers)
    return Ends((rows, columns), (above, across), common, height)


def fewer_products(c: Convolution, k: Columns) -> Mask:
    """Where products are left out: blocks of one whole image whose last tiles have fewer results,
    and register tiles that the common rows are a multiple of."""
    rows, columns, tile = tile_rows(c, k), tile_columns(c, k), whole(k, "rw")
    common, (short_rows, short_columns) = common_tiles(c, k), _short(c, k)
    fits = (common > 0) & (common % tile == 0) & (rows * columns <= 2 * common)
    fits &= ~short_columns | (tile % np.maximum(columns - 1, 1) == 0)
    fits &= ~(short_rows & short_columns) | (rows <= columns)
    image = (c.batch == 1) & (whole(k, "mb") == rows) & (whole(k, "by_row") == 0)
    return image & (c.stride == 1) & (short_rows | short_columns) & fits


def common_tiles(c: Convolution, k: Columns) -> Numbers:
    """Tiles that are multiplied for every point, if products are left out."""
    rows, columns = tile_rows(c, k), tile_columns(c, k)
    short_rows, short_columns = _short(c, k)
    without_rows = np.where(short_rows, (rows - 1) * columns, rows * columns)
    return np.where(short_columns, rows * (columns - 1), without_rows)


def hinted_share(c: Convolution, k: Columns) -> Numbers:
    """The share of the products beside which the next panel's weights come: its hints are those of
    the tiles that all points have."""
    share = common_tiles(c, k) / (tile_rows(c, k) * tile_columns(c, k))
    return np.where(fewer_products(c, k), share, 1.0)


def _short(c: Convolution, k: Columns) -> tuple[Mask, Mask]:
    """If the last row, and the last column of tiles have fewer results than the others."""
    return c.height % whole(k, "tile_h") > 0, c.width % whole(k, "tile_w") > 0


def _points_of_last(c: Convolution, k: Columns) -> list[Numbers]:
    """Points of the last row of tiles, and of the last column."""
    taken = ((c.height, tile_rows(c, k), "tile_h"), (c.width, tile_columns(c, k), "tile_w"))
    return [extent - (tiles - 1) * whole(k, name) + c.taps - 1 for extent, tiles, name in taken]


def by_point(c: Convolution, k: Columns, every: Numbers, common: Numbers) -> Numbers:
    """A sum over all points where products are left out: ``every`` for each point that all tiles
    have, ``common`` for each other one."""
    above, across = _points_of_last(c, k)
    return above * across * (every - common) + points(c, k) * common


def image_cycles(c: Convolution, k: Columns, of_rows: Callable[[Numbers], Numbers]) -> Numbers:
    """Cycles of one term of all sums of an image for a panel, where products are left out;
    ``of_rows`` has those of so many tiles."""
    tiles = (tile_rows(c, k) * tile_columns(c, k), common_tiles(c, k))
    return by_point(c, k, *map(of_rows, tiles))


def multiplied_rows(c: Convolution, k: Columns) -> Numbers:
    """Rows of all products of a block."""
    tiles = whole(k, "mb") * tile_columns(c, k)
    fewer = by_point(c, k, tiles, common_tiles(c, k))
    return np.where(fewer_products(c, k), fewer, points(c, k) * tiles)

"""What a block of Winograd's method holds: tiles, their transforms and their products.

A row of tiles is padded where its planes would meet in few sets of the first cache.
"""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.space.winograd.convolution import Convolution, image_size
from tunefarm.compiler.space.winograd.counts import (
    column_points,
    lone_columns,
    of_tiles,
    panels_of,
    points,
    tile_columns,
    tile_rows,
)
from tunefarm.compiler.space.winograd.ends import fewer_products
from tunefarm.compiler.space.winograd.transforms import phases
from tunefarm.compiler.target import LINE_BYTES, SAME_SET_BYTES, Target

BY_GROUP = 2  # of the knob ``by_row``: products of a register tile, of one row, are held at once
BY_COLUMN = 3  # of a column of their points alone, in registers
LINE_FLOATS = LINE_BYTES // 4
PLANES_OF_SET = 6  # half of its ways
LONE_TILES = 3  # that a row has for each channel whose tiles are transformed side by side


def tiles_of_block(c: Convolution, k: Columns) -> Numbers:
    return whole(k, "mb") * tile_columns(c, k)


def held_tiles(c: Convolution, k: Columns) -> Numbers:
    """Tiles whose products are held at once: those of a block, of one row of it, or of a register
    tile of that row."""
    by_row = whole(k, "by_row")
    of_row = np.where(by_row >= BY_GROUP, whole(k, "rw"), tile_columns(c, k))
    return np.where(by_row > 0, of_row, tiles_of_block(c, k))


def multiplied_tiles(c: Convolution, k: Columns) -> Numbers:
    """Tiles that are held at once, with those that fill up the last tile of rows."""
    return -(-held_tiles(c, k) // whole(k, "rw")) * whole(k, "rw")


def has_short_tiles(target: Target) -> bool:
    """Whether a block's last register tile multiplies the rows alone that are left for it. Else the
    next block's tiles fill it up, whose inputs are transformed too.

    Of 16 registers blocks are seldom whole register tiles: 56² × 64 on two cores, 14
    tiles by fives, takes 0.84 of the time (Zen 3).
    """
    return target.has_few_registers


def transformed_tiles(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Tiles whose inputs are transformed for a block: whole rows of them, with those that fill up
    the last tile of rows."""
    columns, block = tile_columns(c, k), tiles_of_block(c, k)
    filled = -(-multiplied_tiles(c, k) // columns) * columns + block - held_tiles(c, k)
    return np.where(_exact(c, target, lanes, k) | has_short_tiles(target), block, filled)


def _exact(c: Convolution, target: Target, lanes: int, k: Columns) -> Mask:
    """Where products read the tiles of the block alone, whatever the register tile."""
    exact = fewer_products(c, k) | shared_tiles(c, target, lanes, k)
    return exact | (whole(k, "by_row") >= BY_GROUP)


def _stored_tiles(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Tiles that a block has room for."""
    if not has_short_tiles(target):
        return transformed_tiles(c, target, lanes, k)
    block = tiles_of_block(c, k)
    filled = block + multiplied_tiles(c, k) - held_tiles(c, k)
    return np.where(_exact(c, target, lanes, k), block, filled)


def shared_tiles(c: Convolution, target: Target, lanes: int, k: Columns) -> Mask:
    """Where blocks differ in their panels alone: their tiles are transformed once, by all cores."""
    image = (c.batch == 1) & (whole(k, "mb") == tile_rows(c, k)) & (phases(c.taps) == 1)
    image &= (whole(k, "by_row") < BY_GROUP) & (c.groups == 1)
    return image & (whole(k, "nb") < panels_of(c, lanes, k)) & (target.num_cores > 1)


def lone_channels(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """How many channels beyond whole vectors are transformed by themselves (``lone.py``). None
    where a block may end inside an image, of several: it would copy those of all images."""
    rest = c.depth % lanes if phases(c.taps) == 1 and c.groups == 1 else 0
    not_apart = shared_tiles(c, target, lanes, k) | fewer_products(c, k)
    over = transformed_tiles(c, target, lanes, k) > tiles_of_block(c, k)
    not_apart |= (c.batch > 1) & (over | (tile_rows(c, k) % whole(k, "mb") > 0))
    return np.where(~not_apart & (tile_columns(c, k) >= LONE_TILES * rest), rest, 0)


def copied_elements(c: Convolution, lanes: int, k: Columns) -> Numbers:
    """Elements of the phases of a block; 0 where the tiles read the input itself. Blocks that may
    end inside an image, of several, hold the phases of all images."""
    if phases(c.taps) == 1:
        return np.zeros_like(whole(k, "mb"))
    taps = -(-c.taps // phases(c.taps))
    tile, block = whole(k, "tile_h"), whole(k, "mb")
    rows, image = block * tile + taps - 1, tile_rows(c, k) * tile + taps - 1
    rows = np.where((c.batch > 1) & (tile_rows(c, k) % block != 0), c.batch * image, rows)
    return rows * (tile_columns(c, k) * whole(k, "tile_w") + taps - 1) * c.tile_channels(lanes)


def tile_padding(c: Convolution, lanes: int, lone: int = 0) -> int:
    """Elements between the rows of transformed tiles, of all but ``lone`` channels: a vector, if
    they fill an even number of vectors.

    Planes of 16 tiles, those of 14² pixels, would meet in few sets of the first cache: 48 channels
    took 1.5 × the time in rows of four lines (Zen 5).
    """
    return int(row_padding(np.array(c.depth - lone), lanes))


def row_padding(channels: Numbers, lanes: int) -> Numbers:
    """``tile_padding`` of so many channels that are no lone ones."""
    return np.where(-(-channels // lanes) % 2 == 0, lanes, 0)


def tile_bytes(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Transformed tiles of a block, padded, and those of lone channels with their pixels."""
    lone, stored = lone_channels(c, target, lanes, k), _stored_tiles(c, target, lanes, k)
    row = -(-(c.depth - lone) // lanes) * lanes + row_padding(c.depth - lone, lanes)
    rows, step = -(-stored // tile_columns(c, k)), whole(k, "tile_h") * c.stride
    abreast = rows * of_tiles(k, "tile_w", {n: lone_columns(c, n, lanes) for n in c.tile_sizes})
    pixels = (rows * step + column_points(c, k) - step) * of_tiles(
        k, "tile_w", {n: _plane_row(c, n, lanes) for n in c.tile_sizes}
    )
    return 4 * (points(c, k) * (stored * row + lone * abreast) + lone * pixels)


def _plane_row(c: Convolution, tile: int, lanes: int) -> int:
    """Elements of a row of a lone channel's pixels, as ``lone.py`` copies them for tiles of
    ``tile`` columns: room in front lets the image begin a line."""
    step, left = tile * c.stride, c.padding[1]
    before = -(-left // step)
    behind = (c.transforms(tile).points - 1 + before * step - left) // step
    return step * (lone_columns(c, tile, lanes) + behind + -before % LINE_FLOATS)


def lone_pixels(c: Convolution, k: Columns) -> Numbers:
    """Pixels of a lone channel that a row of tiles adds to those of the row above."""
    return whole(k, "tile_h") * c.stride * image_size(c.anchor)[1]


def product_padding(c: Convolution, lanes: int, k: Columns) -> Numbers:
    """Elements between the rows of products: none, or a vector, if the planes of a tile's points
    would meet in few sets; the planes of a register tile lie in the first cache as a whole."""
    plane = multiplied_tiles(c, k) * whole(k, "nv") * lanes * 4
    meeting = points(c, k) * np.gcd(plane, SAME_SET_BYTES) // SAME_SET_BYTES
    padded = (meeting > PLANES_OF_SET) & (whole(k, "by_row") < BY_GROUP)
    return np.where(padded, lanes, 0)


def product_bytes(c: Convolution, lanes: int, k: Columns) -> Numbers:
    """Products of a panel that are held at once, padded."""
    width = whole(k, "nv") * lanes + product_padding(c, lanes, k)
    return points(c, k) * multiplied_tiles(c, k) * width * 4


def held_bytes(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """What a thread keeps of a block: phases, transformed tiles (its part of those that all cores
    share), products; but for the half-transformed tile, a few KB of which registers may hold
    some."""
    tiles = tile_bytes(c, target, lanes, k)
    shared = shared_tiles(c, target, lanes, k)
    tiles = np.where(shared, -(-tiles // target.num_cores), tiles)
    return 4 * copied_elements(c, lanes, k) + tiles + product_bytes(c, lanes, k)

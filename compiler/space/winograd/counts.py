"""Tiles of an image and products of a tile, by the knobs that decide them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tunefarm.compiler.space.columns import Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.space.winograd.convolution import Convolution

SHORT_VECTORS = (4, 8)  # lanes


def points(c: Convolution, k: Columns) -> Numbers:
    """Products of a tile."""
    return column_points(c, k) * row_points(c, k)


def column_points(c: Convolution, k: Columns) -> Numbers:
    """Products of a tile in one column."""
    return of_tiles(k, "tile_h", _points(c))


def row_points(c: Convolution, k: Columns) -> Numbers:
    """Products of a tile in one row."""
    return of_tiles(k, "tile_w", _points(c))


def filters(c: Convolution, k: Columns) -> Numbers:
    """Different weights of a tile's products, each a matrix of inputs by outputs."""
    return of_tiles(k, "tile_h", _filters(c)) * row_filters(c, k)


def row_filters(c: Convolution, k: Columns) -> Numbers:
    """Different weights of a tile's products in one row."""
    return of_tiles(k, "tile_w", _filters(c))


def _filters(c: Convolution) -> Mapping[int, int]:
    return {tile: c.transforms(tile).filters for tile in c.tile_sizes}


def _points(c: Convolution) -> Mapping[int, int]:
    return {tile: c.transforms(tile).points for tile in c.tile_sizes}


def of_tiles(k: Columns, knob: str, count: Mapping[int, int]) -> Numbers:
    """``count`` of each candidate's tile in one dimension."""
    counts = np.zeros(max(count) + 1, np.int64)
    counts[list(count)] = list(count.values())
    return counts[whole(k, knob)]


def panels_of(c: Convolution, lanes: int, k: Columns) -> Numbers:
    """Panels of outputs, of all groups."""
    return c.groups * group_panels(c, lanes, k)


def group_panels(c: Convolution, lanes: int, k: Columns) -> Numbers:
    """Panels of the outputs of a group."""
    return -(-c.group_outputs // (whole(k, "nv") * lanes))


def tile_rows(c: Convolution, k: Columns) -> Numbers:
    return -(-c.height // whole(k, "tile_h"))


def tile_columns(c: Convolution, k: Columns) -> Numbers:
    return -(-c.width // whole(k, "tile_w"))


def lone_lanes(columns: int, lanes: int) -> int:
    """Lanes of a vector of a row's tiles, of a channel that is transformed by itself."""
    return next((n for n in SHORT_VECTORS if columns <= n < lanes), lanes)


def lone_columns(c: Convolution, tile: int, lanes: int) -> int:
    """Tiles of a row in whole such vectors, each ``tile`` results wide."""
    columns = -(-c.width // tile)
    vector = lone_lanes(columns, lanes)
    return -(-columns // vector) * vector


def lone_vectors(c: Convolution, lanes: int, k: Columns) -> Numbers:
    """Vectors of a row's tiles, of a channel that is transformed by itself."""
    return -(-tile_columns(c, k) // lanes)

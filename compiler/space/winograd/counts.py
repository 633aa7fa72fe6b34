"""Tiles of an image and products of a tile, by the knobs that decide them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from tunefarm.compiler.space.columns import Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.space.winograd.program import Convolution
from tunefarm.compiler.space.winograd.transforms import TILES


def points(c: Convolution, k: Columns) -> Numbers:
    """Products of a tile."""
    return _of_tiles(k, {tile: c.transforms(tile).points for tile in TILES[c.taps]})


def filters(c: Convolution, k: Columns) -> Numbers:
    """Different weights of a tile's products, each a matrix of inputs by outputs."""
    return _of_tiles(k, {tile: c.transforms(tile).filters for tile in TILES[c.taps]})


def _of_tiles(k: Columns, count: Mapping[int, int]) -> Numbers:
    above, across = (
        np.array([count[tile] for tile in whole(k, name)], np.int64)
        for name in ("tile_h", "tile_w")
    )
    return above * across


def tile_rows(c: Convolution, k: Columns) -> Numbers:
    return -(-c.height // whole(k, "tile_h"))


def tile_columns(c: Convolution, k: Columns) -> Numbers:
    return -(-c.width // whole(k, "tile_w"))

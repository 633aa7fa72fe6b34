"""The knobs of Winograd's method along rows, and what a config must hold."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import ROWS, UNROLLS, VECTORS, up_to
from tunefarm.compiler.space.winograd.counts import of_tiles, panels_of, row_points, tile_columns
from tunefarm.compiler.space.winograd.knobs import BLOCK_PANELS, STACK_BYTES
from tunefarm.compiler.space.winograd.memory import tile_padding
from tunefarm.compiler.space.winograd_1d.convolution import RowConvolution
from tunefarm.compiler.space.winograd_1d.program import points_of_last
from tunefarm.compiler.target import Target

NAME, VERSION = "winograd_1d", 1

AHEAD_LINES = 256  # that hints run ahead: 16 KiB


def knobs_of(c: RowConvolution, lanes: int) -> tuple[Knob, ...]:
    panels = -(-c.outputs // lanes)
    return (
        Knob("tile_w", c.tile_sizes),
        Knob("rh", up_to(ROWS, c.height)),
        Knob("rt", up_to(ROWS, -(-c.width // min(c.tile_sizes)))),
        Knob("nb", up_to(BLOCK_PANELS, panels)),
        Knob("nv", up_to(VECTORS, panels)),
        Knob("ku", up_to(UNROLLS, c.inputs)),
    )


def constraints_of(c: RowConvolution, target: Target, lanes: int) -> tuple[Constraint, ...]:
    def fits_registers(k: Columns) -> Mask:
        vectors = whole(k, "nv")
        used = register_rows(k) * vectors + np.where(vectors > 1, vectors + 1, 2)
        return used <= target.vector_registers

    def fits_stack(k: Columns) -> Mask:
        return tile_bytes(c, lanes, k) + product_bytes(c, lanes, k) <= STACK_BYTES

    def blocks_useful(k: Columns) -> Mask:
        panels = panels_of(c, lanes, k)
        return (whole(k, "rt") <= tile_columns(c, k)) & (
            (whole(k, "nb") == 1) | (whole(k, "nb") < 2 * panels)
        )

    return (
        Constraint("registers", fits_registers),
        Constraint("stack", fits_stack),
        Constraint("blocks within extents", blocks_useful),
        Constraint("unroll", lambda k: whole(k, "ku") * register_rows(k) * whole(k, "nv") <= 512),
    )


def register_rows(k: Columns) -> Numbers:
    """Rows of a register tile: tiles of some rows of results."""
    return whole(k, "rh") * whole(k, "rt")


def fewer_products(c: RowConvolution, k: Columns) -> Mask:
    """Where the last tile of a row leaves products out: rows that are one register tile wide."""
    return (whole(k, "rt") == tile_columns(c, k)) & (_last(c, k) < row_points(c, k))


def products_of_row(c: RowConvolution, k: Columns) -> Numbers:
    """Products of a row of tiles for a tap of rows."""
    every = row_points(c, k)
    left_out = np.where(fewer_products(c, k), every - _last(c, k), 0)
    return every * tile_columns(c, k) - left_out


def _last(c: RowConvolution, k: Columns) -> Numbers:
    """Products of the last tile of a row that its results need."""
    return of_tiles(k, "tile_w", {tile: points_of_last(c, tile) for tile in c.tile_sizes})


def input_rows(c: RowConvolution, k: Columns) -> Numbers:
    """Rows of the input that a block reads."""
    return np.minimum((whole(k, "rh") - 1) * c.row_stride + c.row_taps, c.image[0])


def tile_bytes(c: RowConvolution, lanes: int, k: Columns) -> Numbers:
    """Transformed tiles of a block, padded."""
    row = -(-c.inputs // lanes) * lanes + tile_padding(c, lanes)
    return row_points(c, k) * input_rows(c, k) * tile_columns(c, k) * row * 4


def product_bytes(c: RowConvolution, lanes: int, k: Columns) -> Numbers:
    return row_points(c, k) * whole(k, "rh") * tile_columns(c, k) * whole(k, "nv") * lanes * 4


def block_counts(c: RowConvolution, lanes: int, k: Columns) -> tuple[Numbers, Numbers]:
    """Blocks of rows, over all images, and blocks of panels."""
    panels = panels_of(c, lanes, k)
    return c.batch * -(-c.height // whole(k, "rh")), -(-panels // whole(k, "nb"))


def summed_rows(c: RowConvolution, k: Columns) -> Numbers:
    """Taps of all rows, without those in the padding where a block has the rows of an image."""
    rows = -(-c.height // whole(k, "rh")) * whole(k, "rh")
    return c.batch * np.where(whole(k, "rh") == c.height, c.taps_inside[0], c.row_taps * rows)

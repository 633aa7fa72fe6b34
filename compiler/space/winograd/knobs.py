"""The knobs of the Winograd sketch, and what a config must hold."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import ROWS, UNROLLS, VECTORS, up_to
from tunefarm.compiler.space.winograd.convolution import Convolution
from tunefarm.compiler.space.winograd.counts import (
    column_points,
    group_panels,
    tile_columns,
    tile_rows,
)
from tunefarm.compiler.space.winograd.memory import BY_COLUMN, BY_GROUP, held_bytes, held_tiles
from tunefarm.compiler.target import Target

NAME, VERSION = "winograd", 3

BLOCK_ROWS = (1, 2, 3, 4, 5, 7, 8, 14)
BLOCK_PANELS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
STACK_BYTES = 7 << 17  # a thread's tiles and products

GROUPED_VECTORS = 3  # of terms, by groups where there is one panel of one vector


def knobs_of(c: Convolution, lanes: int) -> tuple[Knob, ...]:
    tiles = c.tile_sizes
    most_rows, most_columns = c.tiles((min(tiles), min(tiles)))
    panels = -(-c.group_outputs // lanes)
    return (
        Knob("tile_h", tiles),
        Knob("tile_w", tiles),
        Knob("mb", up_to(BLOCK_ROWS, most_rows)),
        Knob("nb", up_to(BLOCK_PANELS, panels)),
        Knob("rw", up_to(ROWS, most_rows * most_columns)),
        Knob("nv", up_to(VECTORS, panels)),
        Knob("ku", up_to(UNROLLS, c.depth)),
        Knob("by_row", (0, 1, BY_GROUP, BY_COLUMN) if has_short_sums(c, lanes) else (0, 1)),
        Knob("next_panel", (0, 1)),
    )


def has_short_sums(c: Convolution, lanes: int) -> bool:
    """Whether a panel's weights may be read again for each register tile of a row."""
    return c.depth <= (GROUPED_VECTORS if c.group_outputs <= lanes else 1) * lanes


def constraints_of(c: Convolution, target: Target, lanes: int) -> tuple[Constraint, ...]:
    def fits_registers(k: Columns) -> Mask:
        return registers_of_sums(c, k) <= target.vector_registers

    def fits_stack(k: Columns) -> Mask:
        return held_bytes(c, target, lanes, k) <= STACK_BYTES

    def blocks_useful(k: Columns) -> Mask:
        rows, panels = whole(k, "mb"), group_panels(c, lanes, k)
        return (
            (rows <= tile_rows(c, k))
            & ((whole(k, "nb") == 1) | (whole(k, "nb") < 2 * panels))
            & ((rows > 1) | (whole(k, "by_row") == 0))
        )

    def rows_within(k: Columns) -> Mask:
        grouped = whole(k, "by_row") >= BY_GROUP
        return whole(k, "rw") <= np.where(grouped, tile_columns(c, k), held_tiles(c, k))

    return (
        Constraint("registers", fits_registers),
        Constraint("stack", fits_stack),
        Constraint("blocks within extents", blocks_useful),
        Constraint("rows within a block", rows_within),
        Constraint("unroll", lambda k: whole(k, "ku") * whole(k, "rw") * whole(k, "nv") <= 512),
        Constraint("hints", no_hints_by_column),
    )


def no_hints_by_column(k: Columns) -> Mask:
    """Sums of a column of points ask for no weights ahead."""
    return (whole(k, "by_row") != BY_COLUMN) | (whole(k, "next_panel") == 0)


def registers_of_sums(c: Convolution, k: Columns) -> Numbers:
    """Registers of a register tile of a point, or of a column of points, and of its operands."""
    vectors, by_column = whole(k, "nv"), whole(k, "by_row") == BY_COLUMN
    sums = whole(k, "rw") * vectors * np.where(by_column, column_points(c, k), 1)
    return sums + np.where(vectors > 1, vectors + 1, 2)


def block_counts(c: Convolution, lanes: int, k: Columns) -> tuple[Numbers, Numbers]:
    """Blocks of rows of tiles, over all images, and blocks of panels."""
    of_group = -(-group_panels(c, lanes, k) // whole(k, "nb"))
    return c.batch * -(-tile_rows(c, k) // whole(k, "mb")), c.groups * of_group

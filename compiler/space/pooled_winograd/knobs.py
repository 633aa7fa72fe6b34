"""The knobs of a convolution with the pooling behind it, and what a config must hold."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import ROWS, UNROLLS, VECTORS, up_to
from tunefarm.compiler.space.pooled_winograd.program import Bands, Pooled, bands_of, rows_knob
from tunefarm.compiler.space.winograd.counts import points, tile_columns
from tunefarm.compiler.space.winograd.knobs import no_hints_by_column, registers_of_sums
from tunefarm.compiler.space.winograd.memory import BY_COLUMN, BY_GROUP, tile_padding
from tunefarm.compiler.space.winograd.transforms import TILES, phases
from tunefarm.compiler.target import Target

NAME, VERSION = "pooled_winograd", 2

COLUMNS = (1, 2, 3, 4, 7, 8)  # of maxima
STACK_BYTES = 7 << 17


def knobs_of(p: Pooled, lanes: int) -> tuple[Knob, ...]:
    tiles = TILES[p.conv.taps]
    panels = -(-p.conv.outputs // lanes)
    return (
        Knob("tile_h", tiles),
        Knob("tile_w", tiles),
        Knob("rows", rows_knob(p)),
        Knob("rw", up_to(ROWS, -(-p.conv.width // min(tiles)))),
        Knob("nv", up_to(VECTORS, panels)),
        Knob("ku", up_to(UNROLLS, p.conv.depth)),
        Knob("by_row", (BY_GROUP, BY_COLUMN)),
        Knob("next_panel", (0, 1)),
        Knob("pool_w", up_to(COLUMNS, p.shape[2])),
        Knob("pool_v", up_to(VECTORS, panels)),
    )


def constraints_of(p: Pooled, target: Target, lanes: int) -> tuple[Constraint, ...]:
    def fits_registers(k: Columns) -> Mask:
        sums = registers_of_sums(p.conv, k)
        maxima = whole(k, "pool_w") * whole(k, "pool_v") + 2
        return np.maximum(sums, maxima) <= target.vector_registers

    return (
        Constraint("registers", fits_registers),
        Constraint("stack", lambda k: held_bytes(p, lanes, k) <= STACK_BYTES),
        Constraint("whole bands", lambda k: of_bands(p, k, lambda b: 1) > 0),
        Constraint("rows of a tile", lambda k: whole(k, "rw") <= tile_columns(p.conv, k)),
        Constraint("hints", no_hints_by_column),
        Constraint("unroll", lambda k: whole(k, "ku") * whole(k, "rw") * whole(k, "nv") <= 512),
    )


def of_bands(p: Pooled, k: Columns, value: Callable[[Bands], int]) -> Numbers:
    """``value`` of each candidate's bands; 0 where its blocks end inside one."""

    def number(rows: int, tile: int) -> int:
        try:
            return value(bands_of(p, rows, tile))
        except ScheduleError:
            return 0

    rows, tiles = whole(k, "rows"), whole(k, "tile_h")
    step = int(tiles.max()) + 1
    places, place_of = np.unique(rows * step + tiles, return_inverse=True)
    values = [number(*divmod(place, step)) for place in places.tolist()]
    return np.array(values, np.int64)[place_of]


def block_tiles(p: Pooled, k: Columns) -> Numbers:
    """Rows of tiles of a block."""
    return of_bands(p, k, lambda b: int(b.tiles(b.rows)))  # type: ignore[arg-type]


def product_bytes(p: Pooled, lanes: int, k: Columns) -> Numbers:
    """Of the products that are held at once, those of a register tile."""
    return 4 * points(p.conv, k) * whole(k, "rw") * whole(k, "nv") * lanes


def copied_elements(p: Pooled, lanes: int, k: Columns) -> Numbers:
    """Elements of the phases of a block."""
    return _phases(p, lanes, k, block_tiles(p, k))


def _phases(p: Pooled, lanes: int, k: Columns, tiles: Numbers) -> Numbers:
    """Elements of the phases that so many rows of tiles read."""
    more = -(-p.conv.taps // phases(p.conv.taps)) - 1
    rows = tiles * whole(k, "tile_h") + more
    columns = tile_columns(p.conv, k) * whole(k, "tile_w") + more
    return rows * columns * p.conv.tile_channels(lanes)


def held_bytes(p: Pooled, lanes: int, k: Columns) -> Numbers:
    """What a thread keeps: a block's phases, the transformed tiles of a row, products of a register
    tile (or fewer, where they stay in registers), and the rows that a band of windows reads; but
    for the half-transformed tile, a few KB of which registers may hold some."""
    channels = p.conv.tile_channels(lanes) + tile_padding(p.conv, lanes)
    tiles = points(p.conv, k) * _grouped_columns(p, k) * channels
    copied = _phases(p, lanes, k, of_bands(p, k, lambda b: b.tile_rows))
    kept = of_bands(p, k, lambda b: b.reads * b.tile) * _kept_of_row(p, lanes, k)
    return 4 * (copied + tiles + kept) + product_bytes(p, lanes, k)


def _grouped_columns(p: Pooled, k: Columns) -> Numbers:
    """Columns of tiles, with those that fill up the last register tile of a row."""
    return -(-tile_columns(p.conv, k) // whole(k, "rw")) * whole(k, "rw")


def _kept_of_row(p: Pooled, lanes: int, k: Columns) -> Numbers:
    """Elements of a row of the convolution's results, with those of the last group of tiles, panel
    and tile of maxima that are beyond it."""
    columns, left = whole(k, "pool_w"), p.before[1]
    windows = -(-p.shape[2] // columns) * columns
    read = (windows - 1) * p.strides[1] + p.kernel[1] - left
    width = np.maximum(_grouped_columns(p, k) * whole(k, "tile_w"), read) + left
    panels = (whole(k, name) * lanes for name in ("nv", "pool_v"))
    return width * np.maximum(*(-(-p.conv.outputs // panel) * panel for panel in panels))

"""The knobs of Winograd's method along rows, what a config must hold, and a model of its time."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import ROWS, UNROLLS, VECTORS, up_to
from tunefarm.compiler.space.product_cycles import (
    FORK_CYCLES,
    L2_SHARE,
    TASK_CYCLES,
    moved_cycles,
    overlapped,
    weight_rates,
)
from tunefarm.compiler.space.winograd.convolution import Convolution, image_size
from tunefarm.compiler.space.winograd.knobs import (
    BLOCK_PANELS,
    STACK_BYTES,
    TRANSFORM_CYCLES,
    activation_bytes,
)
from tunefarm.compiler.space.winograd.memory import tile_padding
from tunefarm.compiler.space.winograd.transforms import TILES
from tunefarm.compiler.space.winograd_1d.program import points_of_last
from tunefarm.compiler.target import Target

NAME, VERSION = "winograd_1d", 1

AHEAD_LINES = 256  # that hints run ahead: 16 KiB
LATENCY = 4.0  # of a multiply-add
LOAD_CYCLES = 0.3  # of a vector of weights, beside the multiply-adds


def knobs_of(c: Convolution, lanes: int) -> tuple[Knob, ...]:
    panels = -(-c.outputs // lanes)
    return (
        Knob("tile_w", TILES[c.taps]),
        Knob("rh", up_to(ROWS, c.height)),
        Knob("rt", up_to(ROWS, -(-c.width // min(TILES[c.taps])))),
        Knob("nb", up_to(BLOCK_PANELS, panels)),
        Knob("nv", up_to(VECTORS, panels)),
        Knob("ku", up_to(UNROLLS, c.inputs)),
    )


def constraints_of(c: Convolution, target: Target, lanes: int) -> tuple[Constraint, ...]:
    def fits_registers(k: Columns) -> Mask:
        vectors = whole(k, "nv")
        used = register_rows(k) * vectors + np.where(vectors > 1, vectors + 1, 2)
        return used <= target.vector_registers

    def fits_stack(k: Columns) -> Mask:
        return tile_bytes(c, lanes, k) + product_bytes(c, lanes, k) <= STACK_BYTES

    def blocks_useful(k: Columns) -> Mask:
        panels = -(-c.outputs // (whole(k, "nv") * lanes))
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


def tile_columns(c: Convolution, k: Columns) -> Numbers:
    return -(-c.width // whole(k, "tile_w"))


def points(c: Convolution, k: Columns) -> Numbers:
    """Products of a tile for a tap of rows."""
    return _by_tile(k, {tile: c.transforms(tile).points for tile in TILES[c.taps]})


def filters(c: Convolution, k: Columns) -> Numbers:
    """Different weights of these products."""
    return _by_tile(k, {tile: c.transforms(tile).filters for tile in TILES[c.taps]})


def _by_tile(k: Columns, count: dict[int, int]) -> Numbers:
    return np.array([count[tile] for tile in whole(k, "tile_w")], np.int64)


def fewer_products(c: Convolution, k: Columns) -> Mask:
    """Where the last tile of a row leaves products out: rows that are one register tile wide."""
    return (whole(k, "rt") == tile_columns(c, k)) & (_last(c, k) < points(c, k))


def products_of_row(c: Convolution, k: Columns) -> Numbers:
    """Products of a row of tiles for a tap of rows."""
    every = points(c, k)
    left_out = np.where(fewer_products(c, k), every - _last(c, k), 0)
    return every * tile_columns(c, k) - left_out


def _last(c: Convolution, k: Columns) -> Numbers:
    """Products of the last tile of a row that its results need."""
    return _by_tile(k, {tile: points_of_last(c, tile) for tile in TILES[c.taps]})


def input_rows(c: Convolution, k: Columns) -> Numbers:
    """Rows of the input that a block reads."""
    return np.minimum((whole(k, "rh") - 1) * c.stride + c.taps, image_size(c.anchor)[0])


def tile_bytes(c: Convolution, lanes: int, k: Columns) -> Numbers:
    """Transformed tiles of a block, padded."""
    row = -(-c.inputs // lanes) * lanes + tile_padding(c, lanes)
    return points(c, k) * input_rows(c, k) * tile_columns(c, k) * row * 4


def product_bytes(c: Convolution, lanes: int, k: Columns) -> Numbers:
    return points(c, k) * whole(k, "rh") * tile_columns(c, k) * whole(k, "nv") * lanes * 4


def block_counts(c: Convolution, lanes: int, k: Columns) -> tuple[Numbers, Numbers]:
    """Blocks of rows, over all images, and blocks of panels."""
    panels = -(-c.outputs // (whole(k, "nv") * lanes))
    return c.batch * -(-c.height // whole(k, "rh")), -(-panels // whole(k, "nb"))


def cycles(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all: transforms, products, weights from beyond L2."""
    vectors, cores = whole(k, "nv"), target.num_cores
    row_blocks, panel_blocks = block_counts(c, lanes, k)
    panels = -(-c.outputs // (vectors * lanes))
    weights = filters(c, k) * c.taps * c.inputs * c.outputs * 4.0
    held = weights + tile_bytes(c, lanes, k) + product_bytes(c, lanes, k)
    first_rate, rate = weight_rates(held, target)
    again = np.where(held > L2_SHARE * target.l2_bytes, weights * (row_blocks - 1) / rate, 0.0)
    readers = np.minimum(row_blocks, np.maximum(cores / panel_blocks, 1))  # of the same weights
    fetched = readers * weights / first_rate + again
    tiles = tile_columns(c, k)
    vectors_in = row_blocks * panel_blocks * input_rows(c, k) * tiles * -(-c.inputs // lanes)
    vectors_out = c.batch * c.height * tiles * -(-c.outputs // lanes)
    moved = TRANSFORM_CYCLES * points(c, k) * (vectors_in + vectors_out)
    tasks = row_blocks * panel_blocks
    blocks = c.batch * c.height / whole(k, "rh") * panels / whole(k, "nb")
    busy = np.clip(blocks / (-(-tasks // cores) * cores), 1 / cores, 1.0)  # a last one may be small
    exchanged = (cores - 1) * moved_cycles(activation_bytes(c), target)
    shared = np.where(row_blocks >= cores, 0.0, exchanged)
    multiply, groups = panels * _multiply(c, k), -(-tiles // whole(k, "rt"))
    first = overlapped(multiply / groups, fetched)  # later ones find weights in the caches
    work = first + multiply * (1 - 1 / groups) + moved + shared
    return (work + TASK_CYCLES * tasks) / (cores * busy) + FORK_CYCLES * (cores > 1)


def _multiply(c: Convolution, k: Columns) -> Numbers:
    """Cycles of all sums of a panel: two multiply-adds and two loads each."""
    tile, vectors = register_rows(k), whole(k, "nv")
    step = np.maximum(np.maximum(tile * vectors, tile + vectors) / 2, LATENCY)
    per_row = (step + LOAD_CYCLES * vectors) / tile
    return c.inputs * summed_rows(c, k) * products_of_row(c, k) * per_row


def summed_rows(c: Convolution, k: Columns) -> Numbers:
    """Taps of all rows, without those in the padding where a block has the rows of an image."""
    rows = -(-c.height // whole(k, "rh")) * whole(k, "rh")
    return c.batch * np.where(whole(k, "rh") == c.height, c.taps_inside[0], c.taps * rows)


def default_of(
    c: Convolution,
    target: Target,
    lanes: int,
    knobs: tuple[Knob, ...],
    constraints: tuple[Constraint, ...],
) -> tuple[Config, float]:
    """The config of the fewest cycles in the model, and their number."""
    choices = {k.name: k.choices for k in knobs}
    names = ("tile_w", "rh", "rt", "nb", "nv")
    found, estimate = cheapest(
        {n: choices[n] for n in names},
        {"ku": 1},
        constraints,
        lambda k: cycles(c, target, lanes, k),
    )
    return {"sketch": NAME, **found}, estimate

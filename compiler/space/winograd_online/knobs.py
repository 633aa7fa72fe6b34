"""The knobs of Winograd's method with filters transformed in registers, and a model of its time."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import up_to
from tunefarm.compiler.space.product_cycles import (
    FORK_CYCLES,
    LOADS,
    TASK_CYCLES,
    moved_cycles,
    overlapped,
    weight_rates,
)
from tunefarm.compiler.space.winograd.convolution import Convolution
from tunefarm.compiler.space.winograd.knobs import (
    BLOCK_PANELS,
    TRANSFORM_CYCLES,
    activation_bytes,
)
from tunefarm.compiler.space.winograd.memory import tile_padding
from tunefarm.compiler.space.winograd_online.program import points_of_last
from tunefarm.compiler.space.winograd_online.transforms import POINTS, TAPS, TILE
from tunefarm.compiler.target import Target

NAME, VERSION = "winograd_online", 1

TILE_ROWS = (1, 2, 3, 4)
INPUT_BLOCKS = (1, 2, 4, 8)
UNROLLS = (1, 2)
L2_SHARE = 0.6  # for a panel's weights of a block of inputs, those of the next, and their tiles
CROWDED = 1.12  # times the cycles, where they exceed that
L2_BYTES = 26.0  # that come from the second cache in a clock (Zen 4)
ADDITIONS = 96  # of nine taps for all points
TAPS_READ = 42  # vectors of them, by the points of columns: 3 of the outer ones, 9 of the others
ADDED = 0.15  # of a multiply-add, what an addition takes where it has ports of its own
OPERANDS = 6  # registers beside the sums


def knobs_of(c: Convolution, lanes: int) -> tuple[Knob, ...]:
    return (
        Knob("rt", up_to(TILE_ROWS, tile_rows(c))),
        Knob("nb", up_to(BLOCK_PANELS, panels(c, lanes))),
        Knob("kb", tuple(n for n in INPUT_BLOCKS if c.inputs % n == 0)),
        Knob("ku", UNROLLS),
    )


def constraints_of(c: Convolution, target: Target, lanes: int) -> tuple[Constraint, ...]:
    columns = tile_columns(c)

    def fits_registers(k: Columns) -> Mask:
        return POINTS * whole(k, "rt") * columns + OPERANDS <= target.vector_registers

    def blocks_useful(k: Columns) -> Mask:
        return (whole(k, "nb") == 1) | (whole(k, "nb") < 2 * panels(c, lanes))

    return (
        Constraint("registers", fits_registers),
        Constraint("groups of equal rows", lambda k: tile_rows(c) % whole(k, "rt") == 0),
        Constraint("blocks within extents", blocks_useful),
        Constraint("inputs of one group", lambda k: (whole(k, "kb") == 1) | (groups(c, k) == 1)),
        Constraint("unroll", lambda k: c.inputs // whole(k, "kb") % whole(k, "ku") == 0),
    )


def panels(c: Convolution, lanes: int) -> int:
    """Vectors of outputs."""
    return -(-c.outputs // lanes)


def tile_rows(c: Convolution) -> int:
    return -(-c.height // TILE)


def tile_columns(c: Convolution) -> int:
    return -(-c.width // TILE)


def groups(c: Convolution, k: Columns) -> Numbers:
    """Groups of tiles of all images, whose products are held at once."""
    return c.batch * -(-tile_rows(c) // whole(k, "rt"))


def products(c: Convolution) -> int:
    """Products of all tiles of all images for one input and one output."""
    rows, columns = (
        (count - 1) * POINTS + points_of_last(extent)
        for count, extent in ((tile_rows(c), c.height), (tile_columns(c), c.width))
    )
    return c.batch * rows * columns


def weight_bytes(c: Convolution) -> int:
    return 4 * TAPS**2 * c.inputs * c.outputs


def block_bytes(c: Convolution, lanes: int, k: Columns) -> Numbers:
    """Of a panel and a block of inputs the weights, as many of the next, and the tiles."""
    inputs = c.inputs // whole(k, "kb")
    return 4 * inputs * (2 * TAPS**2 * lanes + products(c))


def held_bytes(c: Convolution, lanes: int) -> int:
    """Transformed tiles, padded, which all cores share."""
    row = -(-c.inputs // lanes) * lanes + tile_padding(c, lanes)
    return 4 * POINTS**2 * c.batch * tile_rows(c) * tile_columns(c) * row


def cycles(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all: transforms, products, weights from beyond L2."""
    cores, count = target.num_cores, panels(c, lanes)
    tiles = c.batch * tile_rows(c) * tile_columns(c)
    made = -(-c.inputs // lanes) + count
    moved = TRANSFORM_CYCLES * POINTS**2 * tiles * made
    crowded = np.where(block_bytes(c, lanes, k) > L2_SHARE * target.l2_bytes, CROWDED, 1.0)
    multiply = count * c.inputs * _term_cycles(c, target, lanes, k) * crowded
    first_rate, _ = weight_rates(np.array(weight_bytes(c) + held_bytes(c, lanes)), target)
    shared = (cores - 1) * moved_cycles(activation_bytes(c), target)
    tasks = -(-count // whole(k, "nb"))
    busy = np.clip(count / whole(k, "nb") / (-(-tasks // cores) * cores), 1 / cores, 1.0)
    work = overlapped(multiply, weight_bytes(c) / first_rate) + moved + shared
    return (work + TASK_CYCLES * tasks) / (cores * busy) + FORK_CYCLES * (cores > 1)


def _term_cycles(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of all products of an input and a panel: two multiply-adds each, beside the loads of
    their tiles' numbers, additions, and taps from the second cache."""
    number, read = products(c), groups(c, k)
    added = ADDED if target.adds_apart else 1.0
    multiplied = number + added * ADDITIONS * read
    loaded = LOADS / target.product_clocks * (number + TAPS_READ * read)
    taps = TAPS_READ * read * 4 * lanes / target.beside_products(L2_BYTES)
    return overlapped(np.maximum(multiplied, loaded) / 2, taps)


def default_of(
    c: Convolution,
    target: Target,
    lanes: int,
    knobs: tuple[Knob, ...],
    constraints: tuple[Constraint, ...],
) -> tuple[Config, float] | None:
    """The config of the fewest cycles in the model, and their number; None if there is none."""
    choices = {k.name: k.choices for k in knobs if k.name != "ku"}
    found, estimate = cheapest(
        choices, {"ku": 1}, constraints, lambda k: cycles(c, target, lanes, k)
    )
    return ({"sketch": NAME, **found}, estimate) if np.isfinite(estimate) else None

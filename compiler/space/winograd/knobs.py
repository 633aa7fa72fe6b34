"""The knobs of the Winograd sketch, what a config must hold, and a model of its time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import ROWS, UNROLLS, VECTORS, up_to
from tunefarm.compiler.space.product_cycles import (
    FORK_CYCLES,
    L2_SHARE,
    LOADS,
    TASK_CYCLES,
    moved_cycles,
    overlapped,
    term_cycles,
    weight_rates,
)
from tunefarm.compiler.space.winograd.convolution import Convolution
from tunefarm.compiler.space.winograd.counts import (
    column_points,
    filters,
    points,
    tile_columns,
    tile_rows,
)
from tunefarm.compiler.space.winograd.ends import fewer_products, image_cycles
from tunefarm.compiler.space.winograd.memory import (
    BY_COLUMN,
    BY_GROUP,
    copied_elements,
    held_bytes,
    held_tiles,
    shared_tiles,
    tiles_of_block,
    transformed_tiles,
)
from tunefarm.compiler.space.winograd.transforms import TILES
from tunefarm.compiler.target import Target

NAME, VERSION = "winograd", 3

BLOCK_ROWS = (1, 2, 3, 4, 5, 7, 8, 14)
BLOCK_PANELS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
STACK_BYTES = 7 << 17  # a thread's tiles and products

TRANSFORM_CYCLES = 3.0  # of one vector of one tile's point
L1_SHARE = 0.8  # for products that are held
SPILLED_POINTS = 49  # more of a tile leave the registers again and again
HELD = 0.5  # of a transform's cycles, from products that the first cache holds
SHORTER = 0.4  # of a vector, what one of at most half of the lanes saves (Zen 4)
COPY_CYCLES = 1.5  # of an element of a phase
GROUPED_VECTORS = 3  # of terms, by groups where there is one panel of one vector
LEAST_GROUP = 7  # rows of a register tile, where terms are more than a vector
WORST_GROUP = 1.15  # times the cycles of a row of tiles, for the first cache to hold its products


def knobs_of(c: Convolution, lanes: int) -> tuple[Knob, ...]:
    tiles = TILES[c.taps]
    most_rows, most_columns = c.tiles((min(tiles), min(tiles)))
    panels = -(-c.outputs // lanes)
    return (
        Knob("tile_h", tiles),
        Knob("tile_w", tiles),
        Knob("mb", up_to(BLOCK_ROWS, most_rows)),
        Knob("nb", up_to(BLOCK_PANELS, panels)),
        Knob("rw", up_to(ROWS, most_rows * most_columns)),
        Knob("nv", up_to(VECTORS, panels)),
        Knob("ku", up_to(UNROLLS, c.depth)),
        Knob("by_row", (0, 1, BY_GROUP, BY_COLUMN) if _has_short_sums(c, lanes) else (0, 1)),
        Knob("next_panel", (0, 1)),
    )


def _has_short_sums(c: Convolution, lanes: int) -> bool:
    """Whether a panel's weights may be read again for each register tile of a row."""
    return c.depth <= (GROUPED_VECTORS if c.outputs <= lanes else 1) * lanes


def constraints_of(c: Convolution, target: Target, lanes: int) -> tuple[Constraint, ...]:
    def fits_registers(k: Columns) -> Mask:
        return registers_of_sums(c, k) <= target.vector_registers

    def fits_stack(k: Columns) -> Mask:
        return held_bytes(c, lanes, k, target.num_cores) <= STACK_BYTES

    def blocks_useful(k: Columns) -> Mask:
        panels = -(-c.outputs // (whole(k, "nv") * lanes))
        rows = whole(k, "mb")
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
    panels = -(-c.outputs // (whole(k, "nv") * lanes))
    return c.batch * -(-tile_rows(c, k) // whole(k, "mb")), -(-panels // whole(k, "nb"))


def cycles(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all: transforms, products, weights from beyond L2."""
    vectors, cores = whole(k, "nv"), target.num_cores
    row_blocks, panel_blocks = block_counts(c, lanes, k)
    tiles = tiles_of_block(c, k)
    products = points(c, k)
    panels = -(-c.outputs // (vectors * lanes))
    width = multiplied_vectors(c, target, lanes, k)
    clocks = target.product_clocks
    every, fewer = products * _steps(c, k, width, clocks), image_cycles(c, k, width, clocks)
    steps = np.where(fewer_products(c, k), fewer, every)
    multiply = panels * c.depth * steps
    weights = filters(c, k) * c.depth * c.outputs * 4.0
    kept = weights + held_bytes(c, lanes, k, cores)
    first_rate, rate = weight_rates(kept, target)
    again = np.where(kept > L2_SHARE * target.l2_bytes, weights * (row_blocks - 1) / rate, 0.0)
    readers = np.minimum(row_blocks, np.maximum(cores / panel_blocks, 1))  # of the same weights
    fetched = readers * weights / first_rate + again
    times = row_blocks * np.where(shared_tiles(c, lanes, k, cores), 1, panel_blocks)
    vectors_in = times * transformed_tiles(c, lanes, k, cores) * -(-c.depth // lanes)
    held = np.where(whole(k, "by_row") == BY_GROUP, HELD, 1.0)
    vectors_out = row_blocks * tiles * -(-c.outputs // lanes) * held
    spilled = np.where(products > SPILLED_POINTS, 2.0, 1.0)
    moved = TRANSFORM_CYCLES * spilled * products * (vectors_in + vectors_out)
    moved = moved + COPY_CYCLES * row_blocks * panel_blocks * copied_elements(c, lanes, k)
    tasks = row_blocks * panel_blocks
    blocks = c.batch * tile_rows(c, k) / whole(k, "mb") * panels / whole(k, "nb")
    busy = np.clip(blocks / (-(-tasks // cores) * cores), 1 / cores, 1.0)  # a last one may be small
    exchanged = (cores - 1) * moved_cycles(activation_bytes(c), target)
    shared = np.where(row_blocks >= cores, 0.0, exchanged)
    work = overlapped(multiply, fetched) + moved + shared
    return (work + TASK_CYCLES * tasks) / (cores * busy) + FORK_CYCLES * (cores > 1)


def multiplied_vectors(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Vectors of a panel in the mean. A last one of few lanes is shorter in register tiles of
    as many vectors as one has lanes, or fewer (``tir/transform/short_vectors.py``)."""
    vectors = whole(k, "nv")
    short = target.product_clocks > 1 and 0 < c.outputs % lanes <= lanes // 2
    panels = -(-c.outputs // (vectors * lanes))
    return vectors - np.where(short & (whole(k, "rw") * vectors <= lanes), SHORTER / panels, 0.0)


def column_cycles(c: Convolution, target: Target, k: Columns) -> Numbers:
    """Cycles of one term of a point's sums of a row of tiles for a panel, by columns of points in
    registers: a group of tiles loads the point's weights, and an input of each tile."""
    tiles = whole(k, "rw")
    steps = np.maximum(tiles * whole(k, "nv"), load_cycles(target, k)) / 2
    return -(-tile_columns(c, k) // tiles) * steps


def load_cycles(target: Target, k: Columns) -> Numbers:
    """Of the operands of a register tile, twice: processors load two in a cycle."""
    return LOADS * (whole(k, "rw") + whole(k, "nv")) / target.product_clocks


def _steps(c: Convolution, k: Columns, vectors: Numbers, clocks: int) -> Numbers:
    """Cycles of one term of the sums of all tiles for a panel: a block's last tile of rows, and the
    last block, may be smaller."""
    columns, height = tile_columns(c, k), whole(k, "mb")
    blocks, rest = np.divmod(tile_rows(c, k), height)
    tile = whole(k, "rw")
    full, last = (
        term_cycles(rows * columns, tile, vectors, clocks=clocks) for rows in (height, rest)
    )
    return c.batch * (blocks * full + last)


def activation_bytes(c: Convolution) -> float:
    return 4.0 * c.batch * c.height * c.width * (c.inputs * c.stride**2 + c.outputs)


def direct_cycles(c: Convolution, target: Target, lanes: int) -> float:
    """Cycles of the direct sum without its taps in the padding, at two multiply-adds a cycle."""
    multiply = c.batch * prod(c.taps_inside) * c.inputs * c.outputs / (2 * lanes)
    weights = c.taps**2 * c.inputs * c.outputs * 4
    rate, _ = weight_rates(weights, target)
    return float(overlapped(multiply, weights / rate)) / target.num_cores


def default_of(
    c: Convolution,
    target: Target,
    lanes: int,
    knobs: tuple[Knob, ...],
    constraints: tuple[Constraint, ...],
) -> tuple[Config, float]:
    """The config of the fewest cycles in the model, and their number."""
    choices = {k.name: k.choices for k in knobs}
    choices["rw"] = choices["rw"][::-1]  # of equals that with the most rows
    names = ("tile_h", "tile_w", "mb", "nb", "rw", "nv")
    found, estimate = cheapest(
        {n: choices[n] for n in names},
        {"ku": 1, "by_row": 0, "next_panel": 1},
        constraints,
        lambda k: cycles(c, target, lanes, k),
    )
    blocks = [int(n) for n in choices["nb"]]
    in_columns = _in_columns(c, target, lanes, found, blocks)
    found |= in_columns or _held_in_l1(c, target, lanes, found)
    chosen = {name: np.array([value]) for name, value in found.items()}
    streamed = filters(c, chosen)[0] * c.depth * c.outputs * 4 > target.l2_bytes
    most = 2 if streamed else 4  # many hints at once hold up the loads
    found["ku"] = max(int(u) for u in choices["ku"] if int(u) <= most and c.depth % int(u) == 0)
    found["next_panel"] = int(found["by_row"] != BY_COLUMN)
    return {"sketch": NAME, **found}, estimate


def _in_columns(
    c: Convolution, target: Target, lanes: int, found: Mapping[str, int], blocks: Sequence[int]
) -> dict[str, int]:
    """Products of a column of points in registers, where sums are short, a row has whole groups of
    tiles, and loads take less time than the multiply-adds of half of all registers. A block has as
    many outputs as the one that was found, or the next more of the choices ``blocks``.

    7 × 7 of a ResNet at 224² takes 0.93 of the time of products in the first cache on one core of a
    Zen 4, 0.90 on two; at 512², by two rows of tiles, 0.90 and 0.83 of that of products by row.
    """
    of_found = {name: np.array([value]) for name, value in found.items()}
    columns, rows = int(tile_columns(c, of_found)[0]), max(found["mb"], 2)
    uneven = rows > found["mb"] and tile_rows(c, of_found)[0] % (rows * target.num_cores) > 0
    if not _has_short_sums(c, lanes) or uneven:
        return {}
    widths = (1, 2) if c.outputs > lanes else (1,)
    groups = [(tiles, vectors) for vectors in widths for tiles in ROWS if columns % tiles == 0]
    tiles, vectors = np.array(groups).T
    k = {**of_found, "by_row": np.array([BY_COLUMN]), "rw": tiles, "nv": vectors}
    registers, sums = registers_of_sums(c, k), tiles * vectors
    fits = (registers <= target.vector_registers) & (2 * registers > target.vector_registers)
    sums = np.where(fits & (load_cycles(target, k) < sums), sums, 0)
    best = int(np.argmax(sums))
    if sums[best] == 0:
        return {}
    group = {"rw": int(tiles[best]), "nv": int(vectors[best])}
    panels = found["nb"] * found["nv"] / group["nv"]
    block = min((n for n in blocks if n >= panels), default=max(blocks))
    return {"by_row": BY_COLUMN, **group, "mb": rows, "nb": block}


def _held_in_l1(
    c: Convolution, target: Target, lanes: int, found: Mapping[str, int]
) -> dict[str, int]:
    """Products a register tile at a time, whose planes the first cache holds, where sums are short:
    the weights of a panel, read again for each of them, are few.

    7 × 7 of a ResNet at 224² takes 0.89 to 0.92 of the time on one core and on two of Zen 5, and
    half to two thirds of the memory. Groups that a row has a whole number of take 0.93 to 0.98 of
    the time of slightly smaller ones on a Zen 4, where 16 outputs of 17 to 48 inputs take 0.83 to
    0.98 of the time where a row has seven tiles (28², 56², 112²), and 1.08 where it has four (14²).
    Seven tiles by five and two take 1.27 × the time there (16 inputs to 32 outputs on 28²).
    """
    if not _has_short_sums(c, lanes) or found["mb"] == 1:
        return {}
    chosen = {name: np.array([value]) for name, value in found.items()}
    columns, vectors = int(tile_columns(c, chosen)[0]), found["nv"]
    row_bytes = int(points(c, chosen)[0]) * vectors * lanes * 4
    most = min(
        int(L1_SHARE * target.l1_bytes) // row_bytes,
        (target.vector_registers - vectors - 1) // vectors,
        columns,
    )
    least = LEAST_GROUP if c.depth > lanes else 1
    fitting = [r for r in ROWS if least <= r <= most]
    if not fitting:
        return {}
    even = [r for r in fitting if columns % r == 0 and 2 * r >= max(fitting)]
    grouped, usual = np.array([max(even or fitting)]), np.array([min(found["rw"], columns)])
    row = np.array([columns])
    longer = term_cycles(row, grouped, vectors) > WORST_GROUP * term_cycles(row, usual, vectors)
    return {} if longer[0] else {"by_row": BY_GROUP, "rw": int(grouped[0])}

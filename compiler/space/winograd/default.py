"""The time of Winograd's method in a closed form, and the config of the least."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from math import prod

import numpy as np
from tunefarm.compiler.space.columns import Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config
from tunefarm.compiler.space.contraction.knobs import ROWS
from tunefarm.compiler.space.product_cycles import (
    LOADS,
    fetched_cycles,
    latency_of,
    moved_cycles,
    overlapped,
    shared_cycles,
    task_cycles,
    term_cycles,
    weight_rates,
)
from tunefarm.compiler.space.winograd.convolution import Convolution
from tunefarm.compiler.space.winograd.counts import (
    filters,
    group_panels,
    lone_vectors,
    panels_of,
    points,
    tile_columns,
    tile_rows,
)
from tunefarm.compiler.space.winograd.ends import fewer_products, hinted_share, image_cycles
from tunefarm.compiler.space.winograd.knobs import (
    NAME,
    block_counts,
    constraints_of,
    has_short_sums,
    knobs_of,
    registers_of_sums,
)
from tunefarm.compiler.space.winograd.memory import (
    BY_COLUMN,
    BY_GROUP,
    copied_elements,
    held_bytes,
    lone_channels,
    lone_pixels,
    shared_tiles,
    tile_bytes,
    tiles_of_block,
    transformed_tiles,
)
from tunefarm.compiler.target import Target

TRANSFORM_CYCLES = 3.0  # of one vector of one tile's point
L1_SHARE = 0.8  # for products that are held
MESH_PART = 4  # of the second cache, for them on a mesh
SPILLED_POINTS = 49  # more of a tile leave the registers again and again
HELD = 0.5  # of a transform's cycles, from products that the first cache holds
SHORTER = 0.4  # of a vector, what one of at most half of the lanes saves (Zen 4)
# Shares: of the second cache in a block, of the cycles of transforms more beyond it. Zen 3; blocks
# of 0.75 of it take 1.03 to 1.06 × the time of those of half on a Zen 5, too; others, of a mesh
# apart, were not timed.
ROOMY, CROWDED = 0.5, 0.5
FIRST_LOAD = 0.5  # of a vector of weights, by the first tile of rows (Emerald Rapids)
COPY_CYCLES = 1.5  # of an element of a phase
LONE_CYCLES = 1.0  # of a pixel of a channel that is transformed by itself
LEAST_GROUP = 7  # rows of a register tile, where terms are more than a vector
LEAST_SUMS = 7  # of a register tile where two multiply-adds begin in a clock (``_in_groups``)
WORST_GROUP = 1.15  # times the cycles of a row of tiles, for the first cache to hold its products


def cycles(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all: transforms, products, weights from beyond L2."""
    row_blocks, panel_blocks = block_counts(c, lanes, k)
    weights = filters(c, k) * c.depth * c.outputs * 4.0
    kept = weights + held_bytes(c, target, lanes, k)
    fetched = fetched_cycles(weights, kept, row_blocks, panel_blocks, target)
    multiply = _product_cycles(c, target, lanes, k)
    hinted = hinted_share(c, k) if target.has_mesh else 1.0
    work = overlapped(hinted * multiply, fetched, target.seen_share) + (1 - hinted) * multiply
    work = work + _transform_cycles(c, target, lanes, k) + exchanged_cycles(c, target, row_blocks)
    tiles = np.where(shared_tiles(c, target, lanes, k), tile_bytes(c, target, lanes, k), 0)
    work = work + shared_cycles(tiles, target)
    panels = panels_of(c, lanes, k)
    blocks = c.batch * tile_rows(c, k) / whole(k, "mb") * panels / whole(k, "nb")
    return task_cycles(work, row_blocks * panel_blocks, blocks, target.num_cores)


def _product_cycles(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Of the products of all points, tiles and panels, their operands in the caches."""
    vectors = multiplied_vectors(c, target, lanes, k)
    first = FIRST_LOAD * vectors if target.has_mesh else 0.0

    def of_rows(rows: Numbers) -> Numbers:
        clocks, latency = target.product_clocks, latency_of(target)
        steps = term_cycles(rows, whole(k, "rw"), vectors, clocks=clocks, latency=latency)
        return steps + np.where(rows > 0, first, 0.0)

    every, fewer = points(c, k) * _steps(c, k, of_rows), image_cycles(c, k, of_rows)
    return panels_of(c, lanes, k) * c.depth * np.where(fewer_products(c, k), fewer, every)


def _transform_cycles(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Of the tiles on their way in and out, and of the copies by phase that they are read from."""
    products, (row_blocks, panel_blocks) = points(c, k), block_counts(c, lanes, k)
    times = row_blocks * np.where(shared_tiles(c, target, lanes, k), 1, panel_blocks)
    lone, tiles = lone_channels(c, target, lanes, k), transformed_tiles(c, target, lanes, k)
    rows = times * -(-tiles // tile_columns(c, k)) * lone
    vectors_in = times * tiles * -(-(c.depth - lone) // lanes) + rows * lone_vectors(c, lanes, k)
    held = np.where(whole(k, "by_row") == BY_GROUP, HELD, 1.0)
    outputs = c.groups * -(-c.group_outputs // lanes)
    vectors_out = row_blocks * tiles_of_block(c, k) * outputs * held
    spilled = np.where(products > SPILLED_POINTS, 2.0, 1.0)
    moved = TRANSFORM_CYCLES * spilled * products * (vectors_in + vectors_out)
    if not target.has_mesh:
        share = held_bytes(c, target, lanes, k) / target.l2_bytes
        moved = moved * (1 + CROWDED * np.clip(share - ROOMY, 0.0, 1.0))
    moved = moved + LONE_CYCLES * rows * lone_pixels(c, k)
    return moved + COPY_CYCLES * row_blocks * panel_blocks * copied_elements(c, lanes, k)


def exchanged_cycles(c: Convolution, target: Target, row_blocks: Numbers) -> Numbers:
    """In which inputs and results move between the cores, if not each has rows of its own. None for
    groups, of which cores take some each: on two of a Zen 5 that share a cache RegNets take 0.96 ×
    the time of rows for each (RegNetZ-B16 0.94). Where they share none RegNetX-008 takes 1.015 ×
    the time of the direct sum."""
    exchanged = (target.num_cores - 1) * moved_cycles(activation_bytes(c), target)
    return np.where((row_blocks >= target.num_cores) | (c.groups > 1), 0.0, exchanged)


def multiplied_vectors(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Vectors of a panel in the mean. A last one of few lanes is shorter in register tiles of
    as many vectors as one has lanes, or fewer (``tir/transform/short_vectors.py``)."""
    vectors = whole(k, "nv")
    short = target.product_clocks > 1 and 0 < c.group_outputs % lanes <= lanes // 2
    saved = SHORTER / group_panels(c, lanes, k)
    return vectors - np.where(short & (whole(k, "rw") * vectors <= lanes), saved, 0.0)


def column_cycles(c: Convolution, target: Target, k: Columns) -> Numbers:
    """Cycles of one term of a point's sums of a row of tiles for a panel, by columns of points in
    registers: a group of tiles loads the point's weights, and an input of each tile."""
    tiles = whole(k, "rw")
    steps = np.maximum(tiles * whole(k, "nv"), load_cycles(target, k)) / 2
    return -(-tile_columns(c, k) // tiles) * steps


def load_cycles(target: Target, k: Columns) -> Numbers:
    """Of the operands of a register tile, twice: processors load two in a cycle."""
    return LOADS * (whole(k, "rw") + whole(k, "nv")) / target.product_clocks


def _steps(c: Convolution, k: Columns, of_rows: Callable[[Numbers], Numbers]) -> Numbers:
    """Cycles of one term of the sums of all tiles for a panel, of which a block has some
    ``of_rows``: the last block may be smaller."""
    columns, height = tile_columns(c, k), whole(k, "mb")
    blocks, rest = np.divmod(tile_rows(c, k), height)
    full, last = (of_rows(rows * columns) for rows in (height, rest))
    return c.batch * (blocks * full + last)


def activation_bytes(c: Convolution) -> float:
    read = c.images * c.groups * c.inputs * c.stride**2
    return 4.0 * c.height * c.width * (read + c.batch * c.outputs)


def direct_cycles(c: Convolution, target: Target, lanes: int, *, at_peak: bool = False) -> float:
    """Cycles of the direct sum without its taps in the padding, at two multiply-adds a cycle; of
    groups, if not asked for ``at_peak``, at what tiles of their few outputs reach."""
    multiply = c.images_read * prod(c.taps_inside) * c.inputs * c.outputs / (2 * lanes)
    if c.groups > 1 and not at_peak:
        multiply *= _waiting(c, target, lanes)
    weights = prod(c.kernel) * c.frames_read * c.inputs * c.outputs * 4
    rate, _ = weight_rates(weights, target)
    return float(overlapped(multiply, weights / rate, target.seen_share)) / target.num_cores


def _waiting(c: Convolution, target: Target, lanes: int) -> float:
    """How much longer than its multiply-adds the direct sum of a group takes, whose register tiles
    hold no more than a row of the image and the group's outputs."""
    vectors = -(-c.group_outputs // lanes)
    width = min(vectors, 2)
    rows = min(c.width, (target.vector_registers - width - 1) // width)
    clocks, latency = target.product_clocks, latency_of(target)
    steps = term_cycles(np.array(c.width), rows, width, clocks=clocks, latency=latency)
    return float(2 * steps / width * vectors * lanes / (c.width * c.group_outputs))


@lru_cache(maxsize=64)
def default_of(c: Convolution, target: Target, lanes: int) -> tuple[Config, float]:
    """The config of the fewest cycles in the model, and their number."""
    choices = {k.name: k.choices for k in knobs_of(c, lanes)}
    choices["rw"] = choices["rw"][::-1]  # of equals that with the most rows
    names = ("tile_h", "tile_w", "mb", "nb", "rw", "nv")
    found, estimate = cheapest(
        {n: choices[n] for n in names},
        {"ku": 1, "by_row": 0, "next_panel": 1},
        constraints_of(c, target, lanes),
        lambda k: cycles(c, target, lanes, k),
    )
    blocks = [int(n) for n in choices["nb"]]
    in_columns = _in_columns(c, target, lanes, found, blocks)
    found |= in_columns or _in_groups(c, target, lanes, found)
    chosen = {name: np.array([value]) for name, value in found.items()}
    streamed = filters(c, chosen)[0] * c.depth * c.outputs * 4 > target.l2_bytes
    # Many hints at once hold up the loads; in 16 registers a step has too few multiply-adds.
    most = (1 if target.has_mesh else 2) if streamed and not target.has_few_registers else 4
    steps = c.depth - int(lone_channels(c, target, lanes, chosen)[0])
    found["ku"] = max(int(u) for u in choices["ku"] if int(u) <= most and steps % int(u) == 0)
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
    if not has_short_sums(c, lanes) or uneven:
        return {}
    widths = (1, 2) if c.group_outputs > lanes else (1,)
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


def held_room(target: Target) -> float:
    """Bytes of products that are read as fast as they come: of the first cache, or on a mesh of the
    second one, from which the 7 × 7 layer of a ResNet takes 0.96 × the time by 14 tiles at once
    instead of 6, on two cores 0.91."""
    return target.l2_bytes // MESH_PART if target.has_mesh else L1_SHARE * target.l1_bytes


def _in_groups(
    c: Convolution, target: Target, lanes: int, found: Mapping[str, int]
) -> dict[str, int]:
    """Products a register tile at a time, whose planes the first cache holds (``held_room``), where
    sums are short: the weights of a panel, read again for each of them, are few.

    7 × 7 of a ResNet at 224² takes 0.89 to 0.92 of the time on one core and on two of Zen 5, and
    half to two thirds of the memory. Groups that a row has a whole number of take 0.93 to 0.98 of
    the time of slightly smaller ones on a Zen 4, where 16 outputs of 17 to 48 inputs take 0.83 to
    0.98 of the time where a row has seven tiles (28², 56², 112²), and 1.08 where it has four (14²).
    Seven tiles by five and two take 1.27 × the time there (16 inputs to 32 outputs on 28²). On a
    Zen 5 four tiles of one vector wait for their sums: 14² in groups of 16 takes 0.9 × the time by
    twelve (13² 0.86).
    """
    if not has_short_sums(c, lanes) or found["mb"] == 1:
        return {}
    chosen = {name: np.array([value]) for name, value in found.items()}
    columns, vectors = int(tile_columns(c, chosen)[0]), found["nv"]
    row_bytes = int(points(c, chosen)[0]) * vectors * lanes * 4
    most = min(
        int(held_room(target)) // row_bytes,
        (target.vector_registers - vectors - 1) // vectors,
        columns,
    )
    least = LEAST_GROUP if c.depth > lanes else 1
    if target.product_clocks == 1:
        least = max(least, -(-LEAST_SUMS // vectors))
    fitting = [r for r in ROWS if least <= r <= most]
    if not fitting:
        return {}
    even = [r for r in fitting if columns % r == 0 and 2 * r >= max(fitting)]
    grouped, usual = np.array([max(even or fitting)]), np.array([min(found["rw"], columns)])
    row = np.array([columns])
    longer = term_cycles(row, grouped, vectors) > WORST_GROUP * term_cycles(row, usual, vectors)
    return {} if longer[0] else {"by_row": BY_GROUP, "rw": int(grouped[0])}

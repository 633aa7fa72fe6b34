"""The knobs of the Winograd sketch, what a config must hold, and a model of its time."""

from __future__ import annotations

from math import prod

import numpy as np
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob
from tunefarm.compiler.space.contraction.blocks import MOVED_BYTES
from tunefarm.compiler.space.contraction.knobs import ROWS, UNROLLS, VECTORS, up_to
from tunefarm.compiler.space.winograd.program import Convolution
from tunefarm.compiler.space.winograd.transforms import TILES, phases
from tunefarm.compiler.target import Target

NAME, VERSION = "winograd", 2

BLOCK_ROWS = (1, 2, 3, 4, 5, 7, 8, 14)
BLOCK_PANELS = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
STACK_BYTES = 1 << 20  # a thread's transformed tiles and products

TRANSFORM_CYCLES = 3.0  # of one vector of one tile's point
L3_BYTES = 12.0  # a cycle, of weights that the third level keeps
BOTH = 0.1  # of the shorter one of two that overlap is still seen
SPILLED_POINTS = 48  # more of a tile leave the registers again and again
COPY_CYCLES = 1.5  # of an element of a phase
FORK_CYCLES, TASK_CYCLES = 1000.0, 300.0


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
        Knob("next_panel", (0, 1)),
    )


def constraints_of(c: Convolution, target: Target, lanes: int) -> tuple[Constraint, ...]:
    def fits_registers(k: Columns) -> Mask:
        rows, vectors = whole(k, "rw"), whole(k, "nv")
        used = rows * vectors + np.where(vectors > 1, vectors + 1, 2)
        return used <= target.vector_registers

    def fits_stack(k: Columns) -> Mask:
        return tile_bytes(c, lanes, k) + product_bytes(c, lanes, k) <= STACK_BYTES

    def blocks_useful(k: Columns) -> Mask:
        panels = -(-c.outputs // (whole(k, "nv") * lanes))
        return (whole(k, "mb") <= tile_rows(c, k)) & (
            (whole(k, "nb") == 1) | (whole(k, "nb") < 2 * panels)
        )

    return (
        Constraint("registers", fits_registers),
        Constraint("stack", fits_stack),
        Constraint("blocks within extents", blocks_useful),
        Constraint("rows within a block", lambda k: whole(k, "rw") <= tiles_of_block(c, k)),
        Constraint("unroll", lambda k: whole(k, "ku") * whole(k, "rw") * whole(k, "nv") <= 512),
    )


def points(c: Convolution, k: Columns) -> Numbers:
    """Products of a tile."""
    count = {tile: c.transforms(tile).points for tile in TILES[c.taps]}
    above, across = (
        np.array([count[tile] for tile in whole(k, name)], np.int64)
        for name in ("tile_h", "tile_w")
    )
    return above * across


def tile_rows(c: Convolution, k: Columns) -> Numbers:
    return -(-c.height // whole(k, "tile_h"))


def tile_columns(c: Convolution, k: Columns) -> Numbers:
    return -(-c.width // whole(k, "tile_w"))


def tiles_of_block(c: Convolution, k: Columns) -> Numbers:
    return whole(k, "mb") * tile_columns(c, k)


def multiplied_tiles(c: Convolution, k: Columns) -> Numbers:
    """Tiles of a block, with those that fill up its last tile of rows."""
    return -(-tiles_of_block(c, k) // whole(k, "rw")) * whole(k, "rw")


def transformed_tiles(c: Convolution, k: Columns) -> Numbers:
    """Tiles whose inputs are transformed for a block: whole rows of them."""
    columns = tile_columns(c, k)
    return -(-multiplied_tiles(c, k) // columns) * columns


def tile_bytes(c: Convolution, lanes: int, k: Columns) -> Numbers:
    """Transformed tiles of a block, padded by a vector as in ``apply``."""
    return points(c, k) * transformed_tiles(c, k) * (-(-c.depth // lanes) + 1) * lanes * 4


def product_bytes(c: Convolution, lanes: int, k: Columns) -> Numbers:
    """Products of a panel, padded by a vector."""
    return points(c, k) * multiplied_tiles(c, k) * (whole(k, "nv") + 1) * lanes * 4


def copied_elements(c: Convolution, k: Columns) -> Numbers:
    """Elements of the phases of a block; 0 where the tiles read the input itself."""
    if phases(c.taps) == 1:
        return np.zeros_like(whole(k, "mb"))
    taps = -(-c.taps // phases(c.taps))
    rows = whole(k, "mb") * whole(k, "tile_h") + taps - 1
    return rows * (tile_columns(c, k) * whole(k, "tile_w") + taps - 1) * c.depth


def block_counts(c: Convolution, lanes: int, k: Columns) -> tuple[Numbers, Numbers]:
    """Blocks of rows of tiles, over all images, and blocks of panels."""
    panels = -(-c.outputs // (whole(k, "nv") * lanes))
    return c.batch * -(-tile_rows(c, k) // whole(k, "mb")), -(-panels // whole(k, "nb"))


def cycles(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all: transforms, products, weights from beyond L2."""
    vectors = whole(k, "nv")
    row_blocks, panel_blocks = block_counts(c, lanes, k)
    tiles = tiles_of_block(c, k)
    products = points(c, k)
    panels = -(-c.outputs // (vectors * lanes))
    multiply = products * panels * c.depth * _steps(c, k)
    weights = products * c.depth * c.outputs * 4.0
    leave_l2 = weights + tile_bytes(c, lanes, k) > target.l2_bytes
    kept = weights <= target.l3_bytes // 4  # what else the network reads takes the rest
    rate = np.where(kept, max(L3_BYTES, target.stream_bytes), target.stream_bytes)
    again = np.where(leave_l2, weights * (row_blocks - 1) / rate, 0.0)
    from_memory = weights / target.stream_bytes + again
    vectors_in = row_blocks * panel_blocks * transformed_tiles(c, k) * -(-c.depth // lanes)
    vectors_out = row_blocks * tiles * -(-c.outputs // lanes)
    spilled = np.where(products > SPILLED_POINTS, 2.0, 1.0)
    moved = TRANSFORM_CYCLES * spilled * products * (vectors_in + vectors_out)
    moved = moved + COPY_CYCLES * row_blocks * panel_blocks * copied_elements(c, k)
    tasks = row_blocks * panel_blocks
    cores = target.num_cores
    blocks = c.batch * tile_rows(c, k) / whole(k, "mb") * panels / whole(k, "nb")
    busy = np.clip(blocks / (-(-tasks // cores) * cores), 1 / cores, 1.0)  # a last one may be small
    shared = np.where(row_blocks >= cores, 0.0, (cores - 1) * activation_bytes(c) / MOVED_BYTES)
    work = _overlapped(multiply, from_memory) + moved + shared
    return (work + TASK_CYCLES * tasks) / (cores * busy) + FORK_CYCLES * (cores > 1)


def _steps(c: Convolution, k: Columns) -> Numbers:
    """Cycles of one term of the sums of all tiles for a panel: a block's last tile of rows, and the
    last block, may be smaller."""
    columns, height = tile_columns(c, k), whole(k, "mb")
    blocks, rest = np.divmod(tile_rows(c, k), height)
    return c.batch * (blocks * _block_steps(height * columns, k) + _block_steps(rest * columns, k))


def _block_steps(tiles: Numbers, k: Columns) -> Numbers:
    rows, vectors = whole(k, "rw"), whole(k, "nv")
    full, rest = np.divmod(tiles, rows)
    return full * _step(rows, vectors) + np.where(rest > 0, _step(rest, vectors), 0.0)


def _step(rows: Numbers, vectors: Numbers) -> Numbers:
    """Cycles of one term of a register tile: two multiply-adds and two loads each, latency 4."""
    work = np.maximum(rows * vectors, 1.3 * (rows + vectors)) / 2
    return np.maximum(work, 4.0) + 0.3 * vectors


def activation_bytes(c: Convolution) -> float:
    return 4.0 * c.batch * c.height * c.width * (c.inputs * c.stride**2 + c.outputs)


def direct_cycles(c: Convolution, target: Target, lanes: int) -> float:
    """Cycles of the direct sum without its taps in the padding, at two multiply-adds a cycle."""
    multiply = c.batch * prod(c.taps_inside) * c.inputs * c.outputs / (2 * lanes)
    weights = c.taps**2 * c.inputs * c.outputs * 4
    return float(_overlapped(multiply, weights / target.stream_bytes)) / target.num_cores


def _overlapped(multiply: Numbers, from_memory: Numbers) -> Numbers:
    return np.maximum(multiply, from_memory) + BOTH * np.minimum(multiply, from_memory)


def default_of(
    c: Convolution,
    target: Target,
    lanes: int,
    knobs: tuple[Knob, ...],
    constraints: tuple[Constraint, ...],
) -> tuple[Config, float]:
    """The config of the fewest cycles in the model, and their number."""
    choices = {k.name: k.choices for k in knobs}
    names = ("tile_h", "tile_w", "mb", "nb", "rw", "nv")
    found, estimate = cheapest(
        {n: choices[n] for n in names},
        {"ku": 1},
        constraints,
        lambda k: cycles(c, target, lanes, k),
    )
    chosen = {name: np.array([value]) for name, value in found.items()}
    streamed = points(c, chosen)[0] * c.depth * c.outputs * 4 > target.l2_bytes
    most = 2 if streamed else 4  # many hints at once hold up the loads
    found["ku"] = max(int(u) for u in choices["ku"] if int(u) <= most and c.depth % int(u) == 0)
    return {"sketch": NAME, **found, "next_panel": 1}, estimate

"""What a product takes on a matrix unit, by a model of the unit and of what feeds it."""

from __future__ import annotations

from math import prod

import numpy as np
from tunefarm.compiler.space.columns import Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.space.matrix_tiles.shape import LANES, TiledProduct
from tunefarm.compiler.space.product_cycles import (
    L2_SHARE,
    fetched_cycles,
    overlapped,
    task_cycles,
)
from tunefarm.compiler.target import LINE_BYTES, Target, dtype_bytes
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Buffer
from tunefarm.compiler.tir.schedule.tree import store_of
from tunefarm.compiler.tir.visit import loads_of

# Clocks on a Granite Rapids: of one instruction after another, whatever the rows of its tiles; of a
# tile's load from the first and the second cache; of an instruction's result.
PRODUCT, LOAD, LOAD_FROM_L2, LATENCY = 17.5, 8.0, 28.0, 60.0
STORE = 16.0  # of a tile of sums
VECTOR = 6.0  # of a vector of sums from there to the result
CONFIGURE = 200.0  # the unit told of its registers, once a task
SEEN = 0.3  # of the shorter one of work and of weights that come meanwhile
COPY = 4.0  # of a vector of the left operand
L1_SHARE = 0.75
# A tile of rows from beyond the second cache, and the share of it that a block's rows and panels
# may take: all come from beyond where they take a whole cache more. 512 rows of 3072 bfloat16 in
# one block took 1.85 × the time of four.
LOAD_FROM_BEYOND, KEPT_SHARE = 100.0, 5 / 8
# A line of results, or of what epilogues read beside them, from beyond the second cache and back,
# half of which (or of the sums) is seen beside the sums; and what it takes more where a block has
# so many bytes of results that prefetchers lose their rows, as its panels come one after another.
LINE, LOST_LINE, LOST_BYTES, SEEN_LINES = 14.0, 7.0, 1 << 19, 0.5
LINES_SHARE = 1 / 4  # of the second cache, from which on some of these lines come from beyond
HINT = 1.6  # of a line of weights that is asked for ahead
HINTED_SHARE = 1 / 8  # of the second cache: smaller weights are there, or come in no time


def cycles(product: TiledProduct, target: Target, k: Columns) -> Numbers:
    """Clocks of the whole product, its tasks shared out to the target's cores."""
    dot = product.dot
    c = dot.contraction
    rw, rh, nv = (whole(k, name) for name in ("rw", "rh", "nv"))
    mb, nb = whole(k, "mb"), whole(k, "nb")
    panels = -(-c.vector.extent // (nv * LANES))
    tiles, pieces = rows_of_tiles(product, k)
    outer = prod(a.extent for a in (*c.outer, *c.rows) if a not in (product.rows, product.second))
    steps = product.steps
    tile_bytes = LANES * LINE_BYTES
    panel_bytes = steps * nv * tile_bytes
    row_bytes = steps * rh * tile_bytes
    weights = panels * panel_bytes
    row_blocks, panel_blocks = -(-tiles // mb), -(-panels // nb)
    tiles, mb = tiles * pieces, mb * pieces
    # The panel stays in the first cache for all tiles of a block, or its rows for all panels.
    keeps_panel = panel_bytes + row_bytes <= L1_SHARE * target.l1_bytes
    keeps_rows = (mb * row_bytes + panel_bytes <= L1_SHARE * target.l1_bytes) & (nb > 1)
    of_panel = np.where(keeps_panel & (mb > 1), LOAD, LOAD_FROM_L2)
    # Taps of a window read much the same rows.
    read = mb * row_bytes / prod(axis.extent for axis in dot.words.reduce[:-1])
    lost = np.clip((read + 2 * panel_bytes) / target.l2_bytes - KEPT_SHARE, 0.0, 1.0)
    again = LOAD_FROM_L2 + (LOAD_FROM_BEYOND - LOAD_FROM_L2) * np.where(panels > 1, lost, 0.0)
    of_rows = np.where(keeps_rows, LOAD, again)
    loads = rh * of_rows + nv * of_panel
    step = np.maximum(rh * nv * PRODUCT, loads)
    step = np.maximum(step, LATENCY * 0.9)  # each instruction waits for its own last one
    macro = steps * step + LATENCY + rh * nv * STORE + rh * rw * nv * VECTOR
    lines = _line_cycles(product, outer * row_blocks, target)
    work = overlapped(outer * tiles * panels * macro, lines, SEEN_LINES)
    hinted = whole(k, "next_panel") if "next_panel" in k else int(has_hints(product, target))
    work = work + hinted * outer * row_blocks * weights / LINE_BYTES * HINT
    tasks = outer * row_blocks * panel_blocks
    copied = whole(k, "pack_lhs") | int(dot.copied)
    elements = prod(dot.contraction.lhs.load.buffer.shape)
    vectors = elements * dtype_bytes(dot.instruction.a) / LINE_BYTES
    # Blocks of all panels copy their rows once; others each for itself.
    work = work + copied * vectors * COPY * panel_blocks
    blocks = outer * tiles * panels / (mb * nb)
    # Of rows and results those of a block lie in the second cache beside the weights, and as many
    # of the block before it.
    rows = elements * dtype_bytes(dot.instruction.a) + _bytes_of(c.program.params[-1])
    held = weights + 2 * rows / (outer * row_blocks)
    fetched = fetched_cycles(weights, held, outer * row_blocks, panel_blocks, target)
    beyond = held > L2_SHARE * target.l2_bytes
    streams = beyond | target.weights_in_memory
    longer, shorter = np.maximum(work, fetched), np.minimum(work, fetched)
    total = np.where(streams, longer + SEEN * shorter, work)
    return task_cycles(total + CONFIGURE * tasks, tasks, blocks, target.num_cores)


def _line_cycles(product: TiledProduct, row_blocks: Numbers, target: Target) -> Numbers:
    """Clocks of the lines of results, and of what epilogues read beside them, that no second cache
    holds."""
    c = product.dot.contraction
    result = c.program.params[-1]
    read = loads_of(store_of(s.find_block(c.program, c.epilogue)).value) if c.epilogue else ()
    beside = {load.buffer for load in read if prod(load.buffer.shape) == prod(result.shape)}
    passing = sum(map(_bytes_of, {result, *beside.intersection(c.program.params)}))
    share = passing / (target.num_cores * target.l2_bytes)
    beyond = min(max((share - LINES_SHARE) / (1 - LINES_SHARE), 0.0), 1.0)
    lost = np.clip(_bytes_of(result) / row_blocks / LOST_BYTES, 0.0, 1.0)
    return beyond * passing / LINE_BYTES * (LINE + LOST_LINE * lost)


def _bytes_of(buffer: Buffer) -> int:
    return prod(buffer.shape) * dtype_bytes(buffer.dtype)


def _weight_bytes(product: TiledProduct) -> int:
    """Bytes of the constant operand in tiles."""
    vectors = -(-product.dot.contraction.vector.extent // LANES)
    return product.steps * vectors * LANES * product.groups * 4


def has_hints(product: TiledProduct, target: Target) -> bool:
    """Whether the default asks for the next panel of weights ahead."""
    several = product.dot.contraction.vector.extent > LANES
    large = _weight_bytes(product) > HINTED_SHARE * target.l2_bytes or target.weights_in_memory
    return large and several


def rows_of_tiles(product: TiledProduct, k: Columns) -> tuple[Numbers, Numbers]:
    """Macro tiles along the axis that blocks cut, and for each of them pieces of the last axis."""
    rw, rh = whole(k, "rw"), whole(k, "rh")
    if product.second is None:
        return -(-product.rows.extent // (rw * rh)), np.ones_like(rw)
    return -(-product.second.extent // rh), -(-product.rows.extent // rw)

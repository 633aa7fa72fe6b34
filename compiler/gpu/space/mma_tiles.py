"""Tiles of products on tensor cores by warps: how they lie in shared memory, what a config takes of
a multiprocessor, and its clocks."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.mma import COLUMNS, ROWS
from tunefarm.compiler.gpu.space.product import Product
from tunefarm.compiler.gpu.space.tiled import (
    OTHER_REGISTERS,
    STORED_BYTES,
    Footprint,
    adding_of,
    blocks_of,
)
from tunefarm.compiler.gpu.weave import AHEAD
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.target import Target, dtype_bytes

PADDING_BYTES = 16  # after each row of a tile that is turned
TERM_PADDING_BYTES = 32  # after each row of columns of which threads read their own terms
DEPTH_BYTES = 32  # of the terms of one instruction
RATE_BYTES = 2048  # of operands of products that a multiprocessor multiplies in a clock
SHARED_BYTES = 100  # that shared memory moves in a clock
FED_BYTES = 42  # that a multiprocessor gets a clock from the second-level cache, when all ask
LATENCY = 1200  # clocks until a step's tiles are there
STEP = 100  # clocks of a step beside its products: threads wait for one another
BURSTS = 1.35  # times the clocks, where products wait behind copies
SMALL_BLOCKS = 1.15  # times the clocks of a step, of blocks of one or two warps; assumed
JITTER = 240  # clocks that a step waits for others, where one is filled ahead
BEGIN = 1800  # clocks of a block before its first product


def tile_of(k: Columns) -> tuple[Numbers, Numbers]:
    """Rows and columns of a block's tile."""
    return whole(k, "wm") * whole(k, "mi") * ROWS, whole(k, "wn") * whole(k, "ni") * COLUMNS


def footprint_of(p: Product, k: Columns) -> Footprint:
    """Sums and fragments in registers; tiles of all stages in shared memory. With fragments of two
    parts of a step 152 registers for warps of 64 × 32, of which ``ptxas`` takes 148, and 232 for
    64 × 64, which take up to 244."""
    mi, ni, bk = (whole(k, n) for n in ("mi", "ni", "bk"))
    rows, columns = tile_of(k)
    by_terms = b_by_terms(p)
    b_rows, b_length = (columns, bk) if by_terms else (bk, columns)
    room = rows * row_bytes(p, "A", bk) + b_rows * row_bytes(p, "B", b_length)
    return Footprint(
        whole(k, "wm") * whole(k, "wn") * WARP,
        4 * mi * ni + np.where(weaves(p, k), AHEAD, 1) * (4 * mi + 2 * ni) + OTHER_REGISTERS,
        whole(k, "stages") * room,
    )


def weaves(p: Product, k: Columns) -> Mask:
    """True where copies and fragments go between products (``gpu/weave.py``)."""
    parts = whole(k, "bk") * dtype_bytes(p.dtypes[0]) // DEPTH_BYTES
    copied = copies_rows(p, "A") and copies_rows(p, "B")
    return (whole(k, "stages") > 2) & (parts % AHEAD == 0) & copied


def b_by_terms(p: Product) -> bool:
    """True if a column of B has its terms side by side in a tile: as in memory, or as fragments
    need them of bytes."""
    return dtype_bytes(p.dtypes[1]) == 1 or p.along[1] == "k"


def copies_rows(p: Product, block: str) -> bool:
    """True if rows of a tile are rows in memory, which are copied in vectors."""
    if block == "A":
        return p.along[0] == "k"
    return p.along[1] == ("k" if b_by_terms(p) else "n")


def padding_bytes(p: Product, block: str) -> int:
    """What lies between the rows of a tile; nothing where they are swizzled."""
    if block == "B" and dtype_bytes(p.dtypes[1]) == 4 and not b_by_terms(p):
        return TERM_PADDING_BYTES
    return 0 if copies_rows(p, block) else PADDING_BYTES


def row_bytes(p: Product, block: str, length: Numbers) -> Numbers:
    """Bytes from a row of a tile to the next."""
    size = dtype_bytes(p.dtypes[block == "B"])
    return length * size + padding_bytes(p, block)


def cost_of(p: Product, target: Target, k: Columns) -> Numbers:
    """The clocks of the busiest multiprocessor: what it multiplies, moves in shared memory, or gets
    of the second-level cache.

    Measured on an H200: 4096³ of float16 takes 294 µs in tiles of 128 × 256 by 8 warps in 4 stages,
    310 µs in 3; 327 µs in tiles of 128 × 128 by 4 warps, two blocks at once.
    """
    rows, columns = tile_of(k)
    warps, stages = whole(k, "wm") * whole(k, "wn"), whole(k, "stages")
    split = whole(k, "split") if "split" in k else 1
    each = -(-split * blocks_of(p, (rows, columns)) // target.num_cores)
    at_once = np.minimum(footprint_of(p, k).resident(target), each)
    step = step_of(p, k) * np.where(warps < 4, SMALL_BLOCKS, 1.0)
    waited = LATENCY / np.maximum(stages - 1, 1)
    turns, rest = each // at_once, each % at_once

    def clocks(blocks: Numbers) -> Numbers:
        """Of a step of so many blocks at once."""
        alone = STEP + JITTER / np.maximum(stages - 1, 1)
        return np.maximum(blocks * step * idle(blocks * warps) + alone, waited)

    steps = -(-p.depth // (whole(k, "bk") * split))
    size = dtype_bytes(p.contraction.program.params[-1].dtype)
    stored = np.where(split > 1, 4.0, size * (2.0 - whole(k, "wide")))
    end = rows * columns * stored / STORED_BYTES
    combined = np.where(split > 1, adding_of(p, target, split, FED_BYTES), 0.0)
    last = np.where(rest > 0, clocks(np.maximum(rest, 1)), 0.0)
    ends = (turns + (rest > 0)) * BEGIN + each * end
    return steps * (turns * clocks(at_once) + last) + ends + combined


def step_of(p: Product, k: Columns) -> Numbers:
    """The clocks of a step of one block among others that hide what it waits for: the longest of
    what it does, and a part of the rest."""
    rows, columns = tile_of(k)
    warps, bk = whole(k, "wm") * whole(k, "wn"), whole(k, "bk")
    size = max(dtype_bytes(d) for d in p.dtypes)
    fragments = warps * (whole(k, "mi") * ROWS + whole(k, "ni") * COLUMNS)
    filled = (rows + columns) * bk * size
    multiplied = rows * columns * bk * size / RATE_BYTES
    moved = (fragments * bk * size + filled) / SHARED_BYTES
    fed = filled / FED_BYTES
    longest = np.maximum(np.maximum(multiplied, moved), fed)
    both = longest + 0.15 * (multiplied + moved + fed - longest)
    return both * np.where(weaves(p, k), 1.0, BURSTS)


def idle(warps: Numbers) -> Numbers:
    """How much longer fewer than eight warps take, which leave tensor cores idle."""
    several = np.maximum(8.0 / np.maximum(warps, 4), 1.0) ** 0.15
    return several * np.maximum(4.0 / warps, 1.0)

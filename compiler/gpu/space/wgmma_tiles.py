"""Tiles of products by warpgroups: what a config takes of a multiprocessor, and its clocks."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.gpu import wgmma as w
from tunefarm.compiler.gpu.archs import REGISTERS, WARP
from tunefarm.compiler.gpu.intrinsics import QUAD
from tunefarm.compiler.gpu.launches import LINE
from tunefarm.compiler.gpu.mma import COLUMNS
from tunefarm.compiler.gpu.space.product import Product
from tunefarm.compiler.gpu.space.tiled import (
    OTHER_REGISTERS,
    STORED_BYTES,
    Footprint,
    adding_of,
    blocks_of,
)
from tunefarm.compiler.space.columns import Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.target import Target, dtype_bytes

# Fitted to 560 kernels of 14 products on an H200; bytes and clocks are those of a multiprocessor.
FED_BYTES = 44  # that it gets a clock from the second-level cache, when all of them ask
LATENCY = 1300  # clocks until the tiles of a step are there
BEGIN = 2000  # clocks of a block before its first product
THREE_GROUPS = 1.25  # how much longer products take in three groups
CLUSTERED = 0.3  # how much longer a step takes for each more block of a cluster
JOINED_BYTES = 40  # that it gets a clock from others' shared memory; assumed
MEET = 1400  # clocks until the threads of all blocks of a cluster have met; assumed
CLUSTER_ROOM = 7 / 8  # of the multiprocessors, that clusters of more than two blocks find at once


def turned(p: Product) -> bool:
    """Whether warpgroups compute the transposed product, their A the operand B in registers: its
    columns stand side by side, and the instruction for its dtype reads only terms so from shared
    memory. Then ``groups`` are those of columns, and ``columns`` counts rows."""
    return p.dtypes[1] == "float32" and p.along[1] != "k"


def tile_of(p: Product, k: Columns) -> tuple[Numbers, Numbers]:
    """Rows and columns of a block's tile of the result."""
    of_groups, others = whole(k, "groups") * w.ROWS, whole(k, "columns")
    return (others, of_groups) if turned(p) else (of_groups, others)


def footprint_of(k: Columns) -> Footprint:
    """Sums in registers, tiles of all stages in shared memory. Warps that only fill give registers
    away where they are too few: a thread's are the mean then."""
    rows, columns = whole(k, "groups") * w.ROWS, whole(k, "columns")
    groups, own = whole(k, "groups"), columns // 2 + OTHER_REGISTERS
    filling = whole(k, "producer") if "producer" in k else 0
    threads = (groups + filling) * w.GROUP * WARP
    split = whole(k, "split")
    sums = 4 * rows * columns * whole(k, "joined") * (split - 1) // split  # of other blocks
    mean = -(-(groups * own + filling * OTHER_REGISTERS) // (groups + filling))
    return Footprint(
        threads,
        np.where(own * threads > REGISTERS, mean, own),
        np.maximum(whole(k, "stages") * (rows + columns) * whole(k, "swizzle"), sums)
        + LINE * whole(k, "joined"),
    )


def shares_of(columns: Numbers, split: Numbers) -> tuple[Numbers, Numbers]:
    """Into how many rows of eight in 16, and into how many of columns, a tile is shared out: by
    columns alone where four threads that exchange have enough, whose sums go out as they lie."""
    whole_rows = columns % (QUAD * COLUMNS * split) == 0
    halves = np.where(whole_rows | (split % 2 == 1), 1, 2)
    return halves, split // halves


def cost_of(p: Product, target: Target, k: Columns) -> Numbers:
    """The clocks of the busiest multiprocessor: products, or the bytes that they wait for."""
    rows, columns = tile_of(p, k)
    split, stages, overlap = (whole(k, name) for name in ("split", "stages", "overlap"))
    cluster = whole(k, "cluster") if "cluster" in k else 1
    row_bytes = whole(k, "swizzle")
    part = -(-p.depth * dtype_bytes(p.dtypes[0]) // (row_bytes * split))  # steps of a block
    multiplied = rows * columns * row_bytes / w.RATE_BYTES
    multiplied = multiplied * np.where(whole(k, "groups") == 3, THREE_GROUPS, 1.0)
    fed = (rows + columns) * row_bytes / FED_BYTES
    waited = LATENCY / np.maximum(stages - 1 - overlap, 1)
    step = np.maximum(np.maximum(multiplied, fed), waited) + 0.2 * waited
    step = step + 0.2 * multiplied * (1 - overlap)
    step = step * (1.0 + CLUSTERED * (cluster - 1))
    large = whole(k, "joined") * split > 2  # clusters, which leave out some multiprocessors
    cores = np.where(large, max(int(target.num_cores * CLUSTER_ROOM), 1), target.num_cores)
    each = -(-split * blocks_of(p, (rows, columns)) // cores)
    at_once = np.minimum(footprint_of(k).resident(target), each)
    turns = -(-each // at_once)
    begun = np.where(whole(k, "resident") > 0, 1, turns) if "resident" in k else turns
    size = dtype_bytes(p.contraction.program.params[-1].dtype)
    boxes = whole(k, "store_boxes") if "store_boxes" in k else 0
    joined = whole(k, "joined")
    alone = (split > 1) & (joined == 0)
    stored = np.where(alone, 4.0, size * (2.0 - np.maximum(whole(k, "wide"), boxes)))
    end = rows * columns * stored / (STORED_BYTES * np.where(joined > 0, split, 1))
    end = end + joined * (rows * columns * 4.0 * (split - 1) / split / JOINED_BYTES + 2 * MEET)
    combined = np.where(alone, adding_of(p, target, split, FED_BYTES), 0.0)
    return each * part * step + begun * BEGIN + turns * end + combined

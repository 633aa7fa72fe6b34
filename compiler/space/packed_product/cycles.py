"""What a product with weights of a few bits takes, by a model of ports and of the weights' way."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.space.packed_product.program import PackedProduct
from tunefarm.compiler.space.product_cycles import fetched_cycles, overlapped, task_cycles
from tunefarm.compiler.target import Target

# Clocks, of which two instructions on vectors take one.
LATENCY = 5.0  # from one sum of bytes to the next of the same
SUMMED = 7.0  # instructions of a vector of sums of a block: numbers, their scale and zero point
BLOCK = 4.0  # of a block of a tile
TILE = 30.0  # of a tile, with its results
SPLIT = 16.0  # of a vector of a row on its way to bytes, with what is asked of its block
NEAR_SHARE = 0.8  # of the first cache, that holds the bytes of a tile's rows
FAR_BYTES = 24.0  # a clock, of those that come from the second one for each panel


def parameter_bytes(p: PackedProduct) -> int:
    """Of scales and zero points of a column and block."""
    return 4 * len(p.parameters)


def weight_bytes(p: PackedProduct) -> int:
    """Of all weights and what belongs to them."""
    a_column = p.blocks * (p.block_terms * p.bits // 8 + parameter_bytes(p))
    return p.columns * a_column


def cycles(p: PackedProduct, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all."""
    rh, nv, mb, nb = (whole(k, name) for name in ("rh", "nv", "mb", "nb"))
    groups = p.block_terms // p.group
    tiles, panels = -(-p.rows // rh), -(-p.columns // (nv * lanes))
    unpacked = nv * (2 * p.planes - 1 if p.planes > 1 else 1)
    work = (p.planes * nv * rh * p.bytes + unpacked) / 2
    step = np.maximum(work, p.planes * LATENCY)
    block = groups * step + rh * nv * SUMMED / 2 + BLOCK
    held = rh * p.bytes * float(p.blocks * p.block_terms)
    far = np.where(held > NEAR_SHARE * target.l1_bytes, held / FAR_BYTES, 0.0)
    row_blocks, panel_blocks = -(-tiles // mb), -(-panels // nb)
    tasks = row_blocks * panel_blocks
    products = tiles * panels * (p.blocks * block + TILE + far)
    split = tasks * mb * rh * -(-p.depth // lanes) * SPLIT
    weights = np.full(len(rh), float(weight_bytes(p)))
    fetched = fetched_cycles(weights, weights, row_blocks, panel_blocks, target)
    whole_tasks = tiles * panels / (mb * nb)
    return task_cycles(overlapped(products, fetched) + split, tasks, whole_tasks, target.num_cores)

"""What a product with weights of a few bits takes, by a model of ports and of the weights' way."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.ops.packed import NEIGHBOURS
from tunefarm.compiler.space.columns import Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.space.packed_product.program import PackedProduct
from tunefarm.compiler.space.product_cycles import fetched_cycles, overlapped, task_cycles
from tunefarm.compiler.target import Target

# Clocks, of which two instructions on vectors take one.
LATENCY, FLOAT_LATENCY = 5.0, 4.0  # from one sum of bytes, or floats, to the next of the same
# Instructions of a vector of a block's sums, with scale and zero point, of bytes and of floats.
SUMMED, SUMMED_FLOATS = 7.0, 2.0
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


def row_bytes(p: PackedProduct) -> float:
    """Of a row in parts."""
    return (p.bytes or 4) * float(p.blocks * p.block_terms)


def _group_cycles(p: PackedProduct, rh: Numbers, nv: Numbers) -> Numbers:
    """Clocks of a group of terms: sums of bytes behind a shift and a mask for each plane, or sums
    of floats behind these and a conversion, of each of the four neighbours by itself."""
    planes = p.planes
    if p.bytes:
        unpacked = nv * (2 * planes - 1 if planes > 1 else 1)
        return np.maximum((planes * nv * rh * p.bytes + unpacked) / 2, planes * LATENCY)
    converted = 2 * planes if planes > 1 else 1
    work = NEIGHBOURS * nv * (1 + converted + planes * rh) / 2
    return np.maximum(work, NEIGHBOURS * planes * FLOAT_LATENCY)


def cycles(p: PackedProduct, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all."""
    rh, nv, mb, nb = (whole(k, name) for name in ("rh", "nv", "mb", "nb"))
    groups = p.block_terms // p.group
    tiles, panels = -(-p.rows // rh), -(-p.columns // (nv * lanes))
    step = _group_cycles(p, rh, nv)
    block = groups * step + rh * nv * (SUMMED if p.bytes else SUMMED_FLOATS) / 2 + BLOCK
    held = rh * row_bytes(p)
    far = np.where(held > NEAR_SHARE * target.l1_bytes, held / FAR_BYTES, 0.0)
    row_blocks, panel_blocks = -(-tiles // mb), -(-panels // nb)
    tasks = row_blocks * panel_blocks
    products = tiles * panels * (p.blocks * block + TILE + far)
    split = tasks * mb * rh * -(-p.depth // lanes) * SPLIT
    weights = np.full(len(rh), float(weight_bytes(p)))
    fetched = fetched_cycles(weights, weights, row_blocks, panel_blocks, target)
    whole_tasks = tiles * panels / (mb * nb)
    return task_cycles(overlapped(products, fetched) + split, tasks, whole_tasks, target.num_cores)

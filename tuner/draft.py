"""An analytic draft of a candidate's time: a roofline over registers, caches and memory.

It ranks candidates before anything is measured, and is a feature of the learned model afterwards
(a draft before the learned model: Zhang et al., "Pruner", 2025). Only its order matters: clock
and bandwidths are those of a typical core.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.space.config import LEVELS, Access, Nest
from tunefarm.compiler.target import Target

Floats = NDArray[np.float64]

CLOCK_HZ = 3.0e9
FMA_UNITS = 2
FMA_LATENCY = 4
LOADS_PER_CYCLE = 2
LINE_BYTES = 64
# Bytes per cycle and core that L2, L3 and memory deliver.
L2_BYTES_PER_CYCLE = 32.0
L3_BYTES_PER_CYCLE = 12.0
MEMORY_BYTES_PER_CYCLE = 5.0
# Loop control, address arithmetic and the tile's prologue and epilogue, in cycles a tile.
TILE_CYCLES = 12.0
TASK_CYCLES = 3000.0
SPILL_FACTOR = 4.0


@dataclass(frozen=True, slots=True)
class Draft:
    """Seconds, one number a candidate. ``ideal`` is peak compute or streaming, the larger."""

    total: Floats
    ideal: Floats
    compute: Floats
    l1: Floats
    l2: Floats
    memory: Floats


def with_all_levels(nest: Nest) -> Nest:
    """The nest with every level's tiles: a missing one repeats the one inside it."""
    if all(level in nest.tiles for level in LEVELS):
        return nest
    tiles: dict[str, Mapping[str, NDArray[np.int64]]] = {}
    inner: Mapping[str, NDArray[np.int64]] = dict.fromkeys(
        nest.extents, np.ones_like(nest.parallelism)
    )
    for level in LEVELS:
        inner = tiles[level] = nest.tiles.get(level, inner)
    return replace(nest, tiles=tiles)


def draft(nest: Nest, target: Target) -> Draft:
    """Estimate all candidates of one sketch; ``total`` combines the parts and the parallelism."""
    cores = target.num_cores
    element = max((a.element_bytes for a in nest.accesses if a.write), default=4)
    lanes = target.vector_bytes / element
    peak = CLOCK_HZ * FMA_UNITS * lanes * 2.0

    compute = nest.operations / peak * _issue_factor(nest, target, lanes, element)
    served = [
        (target.l1_bytes, "register", L2_BYTES_PER_CYCLE),
        (target.l2_bytes, "l1", L3_BYTES_PER_CYCLE),
        (target.l3_bytes / cores, "l2", MEMORY_BYTES_PER_CYCLE),
    ]
    transfers = [_transfer(nest, level, size, rate) for size, level, rate in served]
    unique = sum(float(np.prod(a.shape)) * a.element_bytes for a in nest.accesses)
    stream = unique / (MEMORY_BYTES_PER_CYCLE * CLOCK_HZ)
    needed = 2.0 * math.prod(nest.extents.values())
    ideal = np.full(len(nest.parallelism), max(needed / peak, stream, 1e-12) / cores)

    parts = [compute, *transfers]
    serial = sum((p**2 for p in parts), start=np.zeros(())) ** 0.5
    tasks = np.maximum(nest.parallelism.astype(np.float64), 1.0)
    waves = np.ceil(tasks / cores) / tasks
    total = serial * waves + np.ceil(tasks / cores) * TASK_CYCLES / CLOCK_HZ
    per_core = [p / cores for p in parts]
    return Draft(total, ideal, *per_core)


def _issue_factor(nest: Nest, target: Target, lanes: float, element: int) -> Floats:
    """Cycles over the cycles of a full FMA pipe: lanes, latency, loads, spills, tile overhead."""
    width, tile, reduce = volume(nest, "vector"), volume(nest, "register"), np.ones(())
    for axis in nest.reduce:
        reduce = reduce * np.asarray(nest.tiles["register"][axis], np.float64)
    vectors_per_width = np.ceil(width / lanes) * lanes / width
    lane_loss = np.maximum(vectors_per_width, 1.0)

    writes = _footprints(nest, "register", write=True)
    accumulators = np.maximum(np.ceil(writes * element / target.vector_bytes), 1.0)
    latency_loss = np.maximum(FMA_UNITS * FMA_LATENCY / accumulators, 1.0)

    operands = np.ceil(_operand_loads(nest, lanes))
    issued = np.maximum(tile / lanes, 1.0)
    load_loss = np.maximum(operands / LOADS_PER_CYCLE / (issued / FMA_UNITS), 1.0)

    pressure = accumulators + np.minimum(operands / reduce, 3.0)
    spilled = np.maximum(pressure - target.vector_registers, 0.0)
    spill_loss = 1.0 + SPILL_FACTOR * spilled / target.vector_registers

    inner = volume(nest, "l1")
    tile_loss = 1.0 + TILE_CYCLES * FMA_UNITS * lanes / np.maximum(inner, 1.0)
    factor: Floats = lane_loss * np.maximum(latency_loss, load_loss) * spill_loss * tile_loss
    return factor


def _operand_loads(nest: Nest, lanes: float) -> Floats:
    """Vector loads (or broadcasts) of the operands of one register tile."""
    loads: Floats = np.zeros(())
    for access in nest.accesses:
        if access.write:
            continue
        wide: Floats = np.ones(())
        for axis in nest.extents:
            if any(d.get(axis) for d in access.dims):
                wide = wide * np.asarray(nest.tiles["vector"][axis], np.float64)
        loads = loads + tile_elements(access, nest, "register") / np.clip(wide, 1.0, lanes)
    return loads


def _transfer(nest: Nest, level: str, capacity: float, rate: float) -> Floats:
    """Seconds to bring the tiles of ``level`` through a cache that holds ``capacity`` bytes.

    A tensor moves its tile once for each step of the loops outside that change it; if the next
    level's whole tile fits the cache, once for each of those outer tiles only.
    """
    outer = {"register": "l1", "l1": "l2", "l2": "core"}[level]
    held = sum(
        (line_bytes(a, nest, outer) for a in nest.accesses),
        start=np.zeros(()),
    )
    inner_traffic = _traffic(nest, level)
    outer_traffic = _traffic(nest, outer)
    overflow = np.clip((held / capacity - 0.75) * 2.0, 0.0, 1.0)
    moved = outer_traffic + overflow * np.maximum(inner_traffic - outer_traffic, 0.0)
    return moved / (rate * CLOCK_HZ)


def _traffic(nest: Nest, level: str) -> Floats:
    grid: Floats = np.ones(())
    for axis, extent in nest.extents.items():
        grid = grid * np.ceil(extent / np.asarray(nest.tiles[level][axis], np.float64))
    moved: Floats = np.zeros(())
    for access in nest.accesses:
        moved = moved + grid * line_bytes(access, nest, level)
    return moved


def line_bytes(access: Access, nest: Nest, level: str) -> Floats:
    """Bytes of the cache lines that one tile touches; packed constants waste none."""
    elements = tile_elements(access, nest, level)
    size = elements * access.element_bytes
    if access.constant or not access.dims:
        return size
    row = _span(access.shape[-1], access.dims[-1], nest, level) * access.element_bytes
    full = access.shape[-1] * access.element_bytes
    waste = np.maximum(np.ceil(row / LINE_BYTES) * LINE_BYTES / row, 1.0)
    return np.where(row >= full, size, size * waste)


def tile_elements(access: Access, nest: Nest, level: str) -> Floats:
    """Elements of one tensor that one tile of a level touches."""
    size: Floats = np.ones(())
    for extent, strides in zip(access.shape, access.dims, strict=True):
        size = size * _span(extent, strides, nest, level)
    return size


def _span(extent: int, strides: Mapping[str, int], nest: Nest, level: str) -> Floats:
    span: Floats = np.ones(())
    for axis, stride in strides.items():
        span = span + abs(stride) * (np.asarray(nest.tiles[level][axis], np.float64) - 1.0)
    return np.minimum(span, extent)


def _footprints(nest: Nest, level: str, write: bool) -> Floats:
    total: Floats = np.zeros(())
    for access in nest.accesses:
        if access.write is write:
            total = total + tile_elements(access, nest, level)
    return total


def volume(nest: Nest, level: str) -> Floats:
    """Iterations of one tile: the product of its extents over all axes."""
    product: Floats = np.ones(())
    for axis in nest.extents:
        product = product * np.asarray(nest.tiles[level][axis], np.float64)
    return product

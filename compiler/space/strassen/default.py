"""The time of Strassen's method in a closed form, and the config of the least."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import numpy as np
from tunefarm.compiler.space.columns import Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Constraint
from tunefarm.compiler.space.contraction.knobs import ROWS, VECTORS, up_to
from tunefarm.compiler.space.product_cycles import (
    FORK_CYCLES,
    L2_SHARE,
    TASK_CYCLES,
    busy_cores,
    latency_of,
    moved_cycles,
    overlapped,
    term_cycles,
    weight_rates,
)
from tunefarm.compiler.space.strassen.knobs import (
    block_counts,
    constraints_of,
    held_bytes,
    knobs_of,
    panels_of,
)
from tunefarm.compiler.space.strassen.program import Product
from tunefarm.compiler.target import Target

HELD_BYTES = {1: 7 << 17, 2: 7 << 18}  # of a block, by levels
# The same of both where the third level is near: of 26 products with long sums such blocks take
# 0.96 × the time on one core, 0.95 on two and, of weights from memory, 0.94 and 0.95 (Zen 5). All
# cores' blocks take a part of what it keeps.
NEAR_BYTES, NEAR_SHARE = 3 << 20, 0.25
LEFT_CYCLES = {1: 8.0, 2: 50.0}  # of a vector of all left operands of a group of rows, by levels
COPIED_BYTES = 12.0  # a cycle, of a variable right operand that is read and written packed
RESULT_CYCLES = {1: 15.0, 2: 100.0}  # of a vector of all results: products stored, read and added
# The same of one level where the second cache takes a vector in four clocks (Emerald Rapids).
MESH_LEFT_CYCLES, MESH_RESULT_CYCLES = 27.0, 30.0
LOAD_CYCLES = 0.15  # of a vector of the right operand beside multiply-adds
TILE_CYCLES = 60.0  # of a register tile, where a sum begins and ends
MEMORY_CORES = 4  # as many as memory serves at the rate of one
L2_BYTES = 32.0  # a cycle, of rows that the second level keeps
LARGE_L2 = 1 << 20  # bytes of a second level that a block does not crowd
CROWDED = 0.02  # of a product's time, where a block fills a smaller one
MAX_BODY = 48  # multiply-adds of an unrolled step


def cycles(p: Product, target: Target, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all: products beside their weights, then the rest."""
    row_blocks, panel_blocks = block_counts(p, k)
    tasks, cores = row_blocks * panel_blocks, target.num_cores
    blocks = p.extents[0] / (whole(k, "mb") * whole(k, "rw")) * panel_blocks
    busy = busy_cores(tasks, blocks, cores)
    moved = 4.0 * p.rows * (p.depth + p.columns)
    shared = np.where(row_blocks >= cores, 0.0, (cores - 1) * moved_cycles(moved, target))
    others = (
        _sums(p, target, k) + _copied(p, 1 + p.products / p.side**2) + shared + TASK_CYCLES * tasks
    )
    multiply = _multiply(p, target, k) * _crowded(p, target, k)
    work = overlapped(multiply / busy, _fetched(p, target, k), target.seen_share)
    return work + others / busy + FORK_CYCLES * (cores > 1)


def _multiply(p: Product, target: Target, k: Columns) -> Numbers:
    """Cycles of all products. A block's last tile of rows, and the last block, may be smaller."""
    groups, terms, _ = p.extents
    vectors, tile = whole(k, "nv"), whole(k, "rw")
    height = np.minimum(whole(k, "mb") * tile, groups)
    blocks, rest = np.divmod(groups, height)
    tiles = blocks * -(-height // tile) + -(-rest // tile)
    latency = latency_of(target)
    full, last = (
        term_cycles(rows, tile, vectors, LOAD_CYCLES, latency=latency) for rows in (height, rest)
    )
    steps = blocks * full + last
    return p.products * panels_of(p, k) * (terms * steps + TILE_CYCLES * tiles)


def _crowded(p: Product, target: Target, k: Columns) -> Numbers:
    """A factor of the time of products whose block takes more than half of a small second level:
    blocks of half as many rows took 0.92 to 0.98 × the time on a Zen 3, whose 512 KB also hold
    what comes for the next panel."""
    if target.l2_bytes >= LARGE_L2:
        return 1.0
    return 1 + CROWDED * np.clip(2 * held_bytes(p, k) / target.l2_bytes - 1, 0.0, 1.0)


def _sums(p: Product, target: Target, k: Columns) -> Numbers:
    """Cycles of the left operands, made for each block of panels, and of the results."""
    groups, terms, columns = p.extents
    rows_bytes = 4 * p.rows * p.depth
    near = rows_bytes <= L2_SHARE * target.l2_bytes * target.num_cores
    left, result = LEFT_CYCLES[p.levels], RESULT_CYCLES[p.levels]
    if target.has_mesh and p.levels == 1:
        left, result = MESH_LEFT_CYCLES, MESH_RESULT_CYCLES
    lefts = left * groups * -(-terms // p.lanes)
    lefts += rows_bytes / (L2_BYTES if near else target.cached_stream_bytes)
    return lefts * block_counts(p, k)[1] + result * groups * columns / p.lanes


def _copied(p: Product, moved: float) -> float:
    """Cycles of the copy that packs a variable matrix, which moves it ``moved`` times."""
    return moved * 4.0 * p.depth * p.columns / COPIED_BYTES if p.variable else 0.0


def weight_bytes(p: Product) -> float:
    """Of the right operands of all products."""
    _, terms, columns = p.extents
    return 4.0 * p.products * terms * columns


def _fetched(p: Product, target: Target, k: Columns) -> Numbers:
    """Cycles in which weights come, those of a block of panels for each block of rows again where
    they do not stay in L2, and left operands that do not stay there, for each panel."""
    rows, terms, _ = p.extents
    row_blocks, panel_blocks = block_counts(p, k)
    weights, lefts = weight_bytes(p), 4.0 * p.products * rows * terms
    cached, l2 = target.cached_stream_bytes * target.num_cores, L2_SHARE * target.l2_bytes
    kept, held = weights / panel_blocks, held_bytes(p, k)
    rate = weight_rates(kept, target)[1] * target.num_cores
    weights_again = np.where(kept + held > l2, weights * (row_blocks - 1) / rate, 0.0)
    lefts_again = np.where(held > l2, lefts * panels_of(p, k) / cached, 0.0)
    return _read_cycles(p, target, weights) + weights_again + lefts_again


def _read_cycles(p: Product, target: Target, size_bytes: float) -> float:
    """Cycles in which all cores read right operands of so many bytes once."""
    if come_from_memory(p, target, size_bytes):
        return streamed_cycles(size_bytes, target)
    return size_bytes / target.cached_stream_bytes / target.num_cores


def come_from_memory(p: Product, target: Target, size_bytes: float) -> bool:
    """Whether right operands of so many bytes do: weights that the third level does not keep, and
    what is packed of a variable matrix, whose lines are read before they are written."""
    return p.variable or target.weights_in_memory or size_bytes > target.kept_bytes


def streamed_cycles(size_bytes: float, target: Target) -> float:
    """Cycles in which so many bytes come from memory, which serves a few cores at once."""
    return size_bytes / target.stream_bytes / min(target.num_cores, MEMORY_CORES)


def direct_cycles(p: Product, target: Target) -> float:
    """Cycles of a core of the direct product by its best register tile, in the same model."""
    vectors, registers = -(-p.columns // p.lanes), target.vector_registers
    fetched = _read_cycles(p, target, 4.0 * p.depth * p.columns)
    found = []
    for width in VECTORS:
        tile = np.array([r for r in up_to(ROWS, p.rows) if r * width + width + 1 <= registers])
        tiles, latency = -(-p.rows // tile), latency_of(target)
        full, last = (
            p.depth * term_cycles(p.rows, tile, some, LOAD_CYCLES, latency=latency)
            for some in (width, vectors % width)
        )
        panels, rest = vectors // width, min(vectors % width, 1)
        multiply = panels * full + rest * last + (panels + rest) * TILE_CYCLES * tiles
        found.append(np.min(multiply, initial=np.inf) / target.num_cores)
    large = 4 * p.depth * p.columns > target.l2_bytes // 2  # smaller ones are read where they lie
    copied = _copied(p, 2.0) / target.num_cores if large else 0.0
    return float(overlapped(min(found), fetched, target.seen_share)) + copied


@lru_cache(maxsize=256)
def default_of(p: Product, target: Target) -> tuple[Mapping[str, str | int], float]:
    """The config of the fewest cycles in the model, and their number."""
    choices = {k.name: k.choices for k in knobs_of(p)}
    most = HELD_BYTES[p.levels]
    if target.has_near_last_cache:
        share = int(NEAR_SHARE * target.kept_bytes) // target.num_cores
        most = max(most, min(NEAR_BYTES, share))
    small = Constraint("small blocks", lambda k: held_bytes(p, k) <= most)
    found, estimate = cheapest(
        {n: choices[n] for n in ("mb", "nb", "rw", "nv")},
        {"ku": 1, "by_tile": 0},
        (*constraints_of(p, target), small),
        lambda k: cycles(p, target, k),
    )
    body = found["rw"] * found["nv"]
    found["ku"] = max(int(u) for u in choices["ku"] if int(u) <= 2 or int(u) * body <= MAX_BODY)
    return MappingProxyType({"sketch": p.sketch, **found, "next_panel": 1}), estimate

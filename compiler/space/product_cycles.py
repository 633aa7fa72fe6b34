"""Cycles of a product of matrices: its register tiles, beside weights that come meanwhile."""

from __future__ import annotations

from functools import partial

import numpy as np
from tunefarm.compiler.processors import MESH_EXCHANGE_STREAM, SEEN_SHARE
from tunefarm.compiler.space.columns import Numbers
from tunefarm.compiler.target import Target

L2_SHARE = 7 / 8  # of the second cache, besides inputs and results that pass through it
MOVED_BYTES = 4.0  # a cycle, from another core's cache or from beyond the second level
LOADS = 1.3  # of an operand, in the time of a multiply-add
SLOW_LOADS = 1.04  # where multiply-adds take two clocks (Zen 4: by tiles of one vector)
LATENCY = 4.0  # clocks of a multiply-add
SEEN_LATENCY = 1.08 * LATENCY  # by tiles whose sums just cover it
FORK_CYCLES, TASK_CYCLES = 1000.0, 300.0


def weight_rates(held_bytes: Numbers, target: Target) -> tuple[Numbers, Numbers]:
    """Bytes of weights that a core gets beside two multiply-adds when it first reads them in a
    call, and when it reads them again: from the third level if this keeps ``held_bytes``, which are
    these weights, packed, and what else a kernel holds; else from memory. The first time they come
    from there also where the model has evicted them."""
    kept, streamed = held_bytes <= target.kept_bytes, target.stream_bytes
    again = np.where(kept, target.reread_stream_bytes, streamed)
    if target.weights_in_memory:
        return np.full_like(again, streamed), again
    return np.where(kept, target.cached_stream_bytes, streamed), again


def moved_cycles(moved_bytes: float, target: Target) -> float:
    """Cycles, of two multiply-adds each, in which bytes come from another core's cache or from
    beyond the second level."""
    return moved_bytes / target.beside_products(MOVED_BYTES)


def fetched_cycles(
    weights: Numbers,
    held_bytes: Numbers,
    row_blocks: Numbers,
    panel_blocks: Numbers,
    target: Target,
    reread_bytes: float | None = None,
) -> Numbers:
    """Cycles, summed over cores, in which bytes of ``weights`` come from beyond the second cache:
    for each core that reads the same ones, and where it does not keep the ``held_bytes``, for each
    further block of rows. ``reread_bytes`` are what a core then gets in a cycle from the third one,
    if that is not the target's.

    On a mesh cores that read the same weights at once help each other: two of them wait for 1.5
    times as much as one would, and each reads again for the further blocks of its own alone.
    """
    first_rate, rate = weight_rates(held_bytes, target)
    if reread_bytes is not None:
        rate = np.where(held_bytes <= target.kept_bytes, reread_bytes, rate)
    beyond = held_bytes > L2_SHARE * target.l2_bytes
    readers = np.minimum(row_blocks, np.maximum(target.num_cores / panel_blocks, 1))
    first, further = readers, row_blocks - 1
    if target.has_mesh:
        first = 1 + (readers - 1) * target.reread_share
        further = row_blocks - readers
    return first * weights / first_rate + np.where(beyond, weights * further / rate, 0.0)


def busy_cores(tasks: Numbers, blocks: Numbers, cores: int) -> Numbers:
    """Cores that have work, in the mean, while ``tasks`` run; as last ones may be small, they are
    as much as ``blocks`` whole ones."""
    return cores * np.clip(blocks / (-(-tasks // cores) * cores), 1 / cores, 1.0)


def task_cycles(work: Numbers, tasks: Numbers, blocks: Numbers, cores: int) -> Numbers:
    """Cycles of ``work`` that all cores share out as tasks (``busy_cores``)."""
    shared = (work + TASK_CYCLES * tasks) / busy_cores(tasks, blocks, cores)
    return shared + FORK_CYCLES * (cores > 1)


def latency_of(target: Target) -> float:
    """Clocks of a multiply-add as tiles of few sums see it. In 16 registers tiles have 8 to 12
    sums, and with 8, which just cover it, any delay shows (AVX2)."""
    return SEEN_LATENCY if target.has_few_registers else LATENCY


def step_cycles(
    rows: Numbers,
    vectors: Numbers,
    load: float = 0.3,
    *,
    clocks: int = 1,
    latency: float = LATENCY,
) -> Numbers:
    """Cycles of one term of a register tile: two multiply-adds and two loads each.

    ``load`` is what a vector of the right operand takes beside the multiply-adds. Where these take
    two ``clocks`` (``Target.product_clocks``), loads and ``latency`` are shorter beside them.
    """
    loads = (LOADS if clocks == 1 else SLOW_LOADS) * (rows + vectors)
    work = np.maximum(rows * vectors, loads) / 2
    return np.maximum(work, latency / clocks) + load * vectors


def term_cycles(
    rows: Numbers,
    tile: Numbers,
    vectors: Numbers,
    load: float = 0.3,
    *,
    clocks: int = 1,
    latency: float = LATENCY,
) -> Numbers:
    """Cycles of one term of ``rows`` rows, ``tile`` of them at a time, the last tile smaller."""
    full, rest = np.divmod(rows, tile)
    step = partial(step_cycles, vectors=vectors, load=load, clocks=clocks, latency=latency)
    return full * step(tile) + np.where(rest > 0, step(rest), 0.0)


def overlapped(multiply: Numbers, fetched: Numbers, seen: float = SEEN_SHARE) -> Numbers:
    """Cycles of products whose weights come from memory or the third level meanwhile, of whose
    shorter one a share is still ``seen``."""
    return np.maximum(multiply, fetched) + seen * np.minimum(multiply, fetched)


def shared_cycles(size_bytes: Numbers, target: Target) -> Numbers:
    """Cycles, summed over cores, in which each writes its part of ``size_bytes`` that all then read
    whole. Where cores share a last cache without a mesh that takes no time that was seen."""
    if not target.has_mesh:
        return np.zeros_like(size_bytes)
    return (target.num_cores - 1) * size_bytes / MESH_EXCHANGE_STREAM

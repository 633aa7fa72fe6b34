"""Features of a population, in closed form from the tiles and accesses of its loop nests.

Each row of ``features`` describes one candidate by what its loops do (footprint, reuse, traffic,
registers, vectors, parallelism, padding) and by an analytic draft of its time. No column names
the task, so one model learns across tasks; the last columns hold the knobs themselves, hashed
by name into a fixed width (Weinberger et al., "Feature hashing", 2009).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.space.config import (
    LEVELS,
    Columns,
    ConfigSpace,
    Nest,
    Population,
)
from tunefarm.compiler.target import Target
from tunefarm.tuner.draft import Draft, draft, tile_elements, volume, with_all_levels

Floats = NDArray[np.float64]

KNOB_SLOTS = 64
_PER_LEVEL = (
    "iterations", "reduce", "bytes", "write_bytes", "constant_bytes", "intensity", "traffic",
    "reuse",
)  # fmt: skip
_GLOBAL = (
    "register_fill", "l1_fill", "l2_fill", "core_fill",
    "register_waste", "l1_waste", "core_waste",
    "parallelism", "balance", "tasks_per_core", "operations", "work_waste",
    "vector_fill", "contiguous", "broadcast", "scattered",
    "accumulators", "loads_per_operation", "register_pressure",
    "draft", "draft_compute", "draft_l1", "draft_l2", "draft_memory",
)  # fmt: skip
FEATURES: tuple[str, ...] = (
    *(f"{name}_{level}" for level in LEVELS for name in _PER_LEVEL),
    *_GLOBAL,
    *(f"knob_{slot}" for slot in range(KNOB_SLOTS)),
)
DRAFT_COLUMN = FEATURES.index("draft")


def features(space: ConfigSpace, rows: Population, target: Target) -> NDArray[np.float32]:
    """One float32 row of ``FEATURES`` per candidate; rows of several sketches may be mixed."""
    matrix = np.zeros((len(rows), len(FEATURES)), np.float32)
    for index, sketch in enumerate(space.sketches):
        mine = np.flatnonzero(rows[:, 0] == index)
        if not len(mine):
            continue
        columns = space.columns(rows[mine], index)
        nest = with_all_levels(sketch.nest(columns))
        matrix[mine, :-KNOB_SLOTS] = nest_features(nest, target)
        matrix[mine, -KNOB_SLOTS:] = _knob_slots(sketch.sketch, columns, nest, len(mine))
    return matrix


@dataclass(frozen=True, slots=True)
class _Level:
    """Sizes of one level's tile, one number a candidate: iterations, bytes by role."""

    iterations: Floats
    reduce: Floats
    total_bytes: Floats
    write_bytes: Floats
    constant_bytes: Floats
    tiles: Floats
    reuse: Floats


def nest_features(nest: Nest, target: Target) -> NDArray[np.float32]:
    """The columns of ``FEATURES`` that come from the loop nest, ``[candidates, 64]``."""
    count = len(nest.parallelism)
    levels = [_measure_level(nest, level) for level in LEVELS]
    estimate = draft(nest, target)
    columns: list[Floats] = []
    unique_bytes = sum(float(np.prod(a.shape)) * a.element_bytes for a in nest.accesses)
    for level in levels:
        columns += [
            _log(level.iterations),
            _log(level.reduce),
            _log(level.total_bytes),
            _log(level.write_bytes),
            _log(level.constant_bytes),
            _log(level.iterations) - _log(level.total_bytes),
            _log(level.tiles * level.total_bytes / max(unique_bytes, 1.0)),
            _log(level.reuse),
        ]
    columns += _capacity(levels, target)
    columns += [_waste(nest, level) for level in ("register", "l1", "core")]
    columns += _parallel(nest, target)
    columns += _work(nest)
    columns += _vectors(nest, target)
    columns += _registers(nest, levels, target)
    columns += _draft_columns(estimate)
    return np.column_stack([np.broadcast_to(c, count) for c in columns]).astype(np.float32)


def _measure_level(nest: Nest, level: str) -> _Level:
    tiles = nest.tiles[level]
    count = len(nest.parallelism)
    iterations, reduce, grid = np.ones(count), np.ones(count), np.ones(count)
    for axis, extent in nest.extents.items():
        tile = np.asarray(tiles[axis], np.float64)
        iterations = iterations * tile
        grid = grid * np.ceil(extent / tile)
        if axis in nest.reduce:
            reduce = reduce * tile
    total, write, constant = np.zeros(count), np.zeros(count), np.zeros(count)
    reuse = np.full(count, np.inf)
    for access in nest.accesses:
        elements = tile_elements(access, nest, level)
        size = elements * access.element_bytes
        total = total + size
        if access.write:
            write = write + size
        else:
            reuse = np.minimum(reuse, iterations / elements)
        if access.constant:
            constant = constant + size
    reuse = np.where(np.isfinite(reuse), reuse, 1.0)
    return _Level(iterations, reduce, total, write, constant, grid, reuse)


def _capacity(levels: list[_Level], target: Target) -> list[Floats]:
    """Log₂ of footprint over capacity: register file, L1, L2, and each core's part of L3."""
    sizes = (
        target.vector_registers * target.vector_bytes,
        target.l1_bytes,
        target.l2_bytes,
        target.l3_bytes / target.num_cores,
    )
    return [_log(lv.total_bytes / s) for lv, s in zip(levels[1:], sizes, strict=True)]


def _waste(nest: Nest, level: str) -> Floats:
    """Log₂ of iterations that a grid of whole tiles would make over those that are needed."""
    waste: Floats = np.zeros(())
    for axis, extent in nest.extents.items():
        tile = np.asarray(nest.tiles[level][axis], np.float64)
        waste = waste + _log(np.ceil(extent / tile) * tile / extent)
    return waste


def _parallel(nest: Nest, target: Target) -> list[Floats]:
    tasks = np.maximum(nest.parallelism.astype(np.float64), 1.0)
    cores = target.num_cores
    return [_log(tasks), tasks / (np.ceil(tasks / cores) * cores), _log(tasks / cores)]


def _work(nest: Nest) -> list[Floats]:
    needed = float(np.prod([float(e) for e in nest.extents.values()]))
    return [_log(nest.operations), _log(nest.operations / max(needed, 1.0))]


def _vectors(nest: Nest, target: Target) -> list[Floats]:
    """How full a vector is, and which share of accesses is contiguous, broadcast, scattered."""
    tiles = nest.tiles["vector"]
    lanes = target.vector_bytes / _element_bytes(nest)
    width = volume(nest, "vector")
    contiguous: Floats = np.zeros(len(nest.parallelism))
    broadcast: Floats = np.zeros(len(nest.parallelism))
    for access in nest.accesses:
        touched, unit = np.zeros((), bool), np.ones((), bool)
        for axis in nest.extents:
            wide = tiles[axis] > 1
            strides = [(d, s[axis]) for d, s in enumerate(access.dims) if s.get(axis)]
            touched = touched | (wide & bool(strides))
            if strides and not access.constant:
                unit = unit & (~wide | (strides == [(len(access.dims) - 1, 1)]))
        contiguous = contiguous + (touched & unit)
        broadcast = broadcast + ~touched
    total = max(len(nest.accesses), 1)
    scattered = total - contiguous - broadcast
    return [_log(width / lanes), contiguous / total, broadcast / total, scattered / total]


def _registers(nest: Nest, levels: list[_Level], target: Target) -> list[Floats]:
    """Accumulators in vectors, elements loaded per operation, and pressure on the file."""
    tile = levels[1]
    accumulators = np.ceil(tile.write_bytes / target.vector_bytes)
    loaded = (tile.total_bytes - tile.write_bytes) / _element_bytes(nest)
    pressure = accumulators + np.ceil(
        (tile.total_bytes - tile.write_bytes) / tile.reduce / target.vector_bytes
    )
    return [
        _log(accumulators),
        _log(loaded / tile.iterations),
        pressure / target.vector_registers,
    ]


def _draft_columns(estimate: Draft) -> list[Floats]:
    """The draft over its ideal, so that it says how good a candidate is and not how large."""
    ideal = estimate.ideal
    parts = (estimate.total, estimate.compute, estimate.l1, estimate.l2, estimate.memory)
    return [_log(part / ideal) for part in parts]


def _element_bytes(nest: Nest) -> int:
    return max((a.element_bytes for a in nest.accesses if a.write), default=4)


def _knob_slots(sketch: str, columns: Columns, nest: Nest, count: int) -> NDArray[np.float32]:
    """Knobs, and the nest's extra columns, added into hashed columns: log₂ of a number, one-hot
    for a name."""
    slots = np.zeros((count, KNOB_SLOTS), np.float32)
    slots[:, _slot(f"sketch={sketch}")] += 1.0
    for slot, values in _slot_values(columns):
        slots[:, slot] += values
    for name, extra in nest.extra.items():
        if name not in columns:
            slots[:, _slot(name)] += np.log2(np.abs(extra) + 1.0)
    return slots


def _slot_values(columns: Columns) -> Iterator[tuple[int, NDArray[np.float32]]]:
    for name, values in columns.items():
        if values.dtype == object:
            for choice in dict.fromkeys(values.tolist()):
                yield _slot(f"{name}={choice}"), (values == choice).astype(np.float32)
        else:
            numbers = np.abs(values.astype(np.float64)) + 1.0
            yield _slot(name), np.log2(numbers).astype(np.float32)


def _slot(name: str) -> int:
    """A column by name: CRC-32, spread by a multiplication (Knuth, 6.4)."""
    return (zlib.crc32(name.encode()) * 2654435761 % 2**32) * KNOB_SLOTS >> 32


def _log(value: Floats) -> Floats:
    return np.log2(np.maximum(value, 2.0**-40))

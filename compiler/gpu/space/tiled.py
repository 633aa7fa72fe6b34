"""What the sketches of products share: blocks of a grid, each a tile of rows and columns."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.gpu.archs import MAX_GRID, REGISTERS
from tunefarm.compiler.gpu.intrinsics import QUAD
from tunefarm.compiler.gpu.space.common import product_of
from tunefarm.compiler.gpu.space.product import Product
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Access, Columns, Constraint, Nest
from tunefarm.compiler.target import Target, dtype_bytes

OTHER_REGISTERS = 40  # of a thread, beside sums and operands: addresses, counters
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)  # blocks that share the terms of a tile out
STORED_BYTES = 11  # of results that a multiprocessor of an H200 stores in a clock
COMBINE = 4000  # clocks of the kernel that adds parts, beside its traffic


@functools.lru_cache(maxsize=64)
def product(function: Function) -> Product | None:
    """The product that a function is; None if it is none."""
    c = product_of(function)
    return None if c is None else Product(c)


def exchange_width(p: Product, tiles: int) -> int:
    """The threads of a row that exchange parts of as many tiles, of some side by side, so that each
    has 16 bytes of the result to store, or what its rows allow; 1: none do."""
    return gcd(max(p.result_vector // 2, 1), QUAD, tiles)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the blocks of many candidates take of a multiprocessor, by a sketch's model: threads,
    registers of each, bytes of shared memory."""

    threads: Numbers
    registers: Numbers
    shared_bytes: Numbers

    def resident(self, target: Target) -> Numbers:
        """Blocks that a multiprocessor holds at once, if there are so many."""
        by_registers = np.minimum(target.gpu.threads, REGISTERS // self.registers) // self.threads
        by_memory = target.gpu.shared_bytes // np.maximum(self.shared_bytes, 1)
        return np.maximum(np.minimum(by_registers, by_memory), 1)

    def columns(self, target: Target) -> dict[str, NDArray[np.float64]]:
        """What a cost model may learn from, by name."""
        found = {
            "registers": self.registers,
            "shared_bytes": self.shared_bytes,
            "resident_threads": self.resident(target) * self.threads,
        }
        return {name: np.asarray(values, np.float64) for name, values in found.items()}


@dataclass(frozen=True, slots=True)
class Tiling:
    """The tiles of many candidates: rows and columns of a block's, and of one thread's or warp's
    registers; ``cost`` is that of a sketch's model, ``more`` what else it knows."""

    block: tuple[Numbers, Numbers]
    registers: tuple[Numbers, Numbers]
    cost: Numbers
    more: Mapping[str, NDArray[np.float64]]


def blocks_of(p: Product, tile: tuple[Numbers, Numbers]) -> Numbers:
    """The blocks of a product in tiles of rows and columns."""
    rows, columns = tile
    return p.batch * -(-p.rows // rows) * -(-p.columns // columns)


def shares_terms(
    p: Product,
    target: Target,
    split: Numbers,
    tile: tuple[Numbers, Numbers],
    step: Numbers,
    most: int,
) -> Mask:
    """Whether ``split`` blocks may share out the terms of a tile, at least twice ``step`` each:
    where there are no more than ``most`` parts to a multiprocessor, as tiles alone are too few."""
    few = split * blocks_of(p, tile) <= most * target.num_cores
    long = 2 * split * step <= p.depth
    return (split == 1) | (few & long & (p.batch * split <= MAX_GRID[2]))


def adding_of(p: Product, target: Target, split: Numbers, fed_bytes: int) -> Numbers:
    """The clocks of the kernel that adds parts, of which a multiprocessor writes and reads so many
    bytes in one."""
    return COMBINE + 8.0 * p.batch * p.rows * p.columns * split / (target.num_cores * fed_bytes)


def fits_grid(p: Product, tile: Callable[[Columns], tuple[Numbers, Numbers]]) -> Constraint:
    """Rows of blocks lie along the grid's second axis, the batch along its third."""

    def holds(k: Columns) -> Mask:
        rows, _ = tile(k)
        return (-(-p.rows // rows) <= MAX_GRID[1]) & (p.batch <= MAX_GRID[2])

    return Constraint("grid", holds)


def nest_of(p: Product, k: Columns, t: Tiling) -> Nest:
    """The nest of a product in numbers: register tiles, tiles of blocks, steps of ``bk`` terms."""
    (rows, columns), (own_rows, own_columns) = t.block, t.registers
    one = np.ones(len(rows), np.int64)
    block = {"b": one, "m": np.minimum(rows, p.rows), "n": np.minimum(columns, p.columns)}
    register = {
        "b": one,
        "m": np.minimum(own_rows, p.rows),
        "n": np.minimum(own_columns, p.columns),
        "k": one,
    }
    l1 = {**block, "k": np.minimum(whole(k, "bk"), p.depth)}
    l2 = {**block, "k": one * p.depth}
    blocks = blocks_of(p, t.block)
    extra = {n: whole(k, n).astype(np.float64) for n in k if n != "sketch"}
    extra |= {**t.more, "cost": np.asarray(t.cost, np.float64)}
    return Nest(
        {"b": p.batch, "m": p.rows, "n": p.columns, "k": p.depth},
        frozenset({"k"}),
        _accesses_of(p),
        {"vector": register, "register": register, "l1": l1, "l2": l2, "core": l2},
        np.asarray(blocks, np.int64),
        np.asarray(2.0 * blocks * rows * columns * p.depth, np.float64),
        extra,
    )


def _accesses_of(p: Product) -> tuple[Access, ...]:
    sizes = [dtype_bytes(d) for d in (*p.dtypes, p.sum_dtype)]
    axes = (("A", "bmk"), ("B", "bkn"), ("out", "bmn"))
    extents = {"b": p.batch, "m": p.rows, "n": p.columns, "k": p.depth}
    return tuple(
        Access(
            name, size, tuple(extents[a] for a in dims), tuple({a: 1} for a in dims), name == "out"
        )
        for (name, dims), size in zip(axes, sizes, strict=True)
    )

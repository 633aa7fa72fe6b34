"""Products on the ordinary arithmetic of threads: float32, and what tensor cores do not take.

blocks of (ty · m) × (tx · n) elements of the result, threads in ty rows and tx columns:
  each thread: accumulators = 0             (vm · m4) × (vn · n4) of them, in registers
  for steps of ``bk`` terms:
    the threads fill tiles of A and B       shared; of ``stages`` all but one ahead of their use
    accumulators += A[rows, k] · B[k, columns]
  epilogue → out

A thread's rows and columns lie in ``vm`` and ``vn`` pieces apart, so that the threads of a warp
read 16 bytes each that stand side by side. A is stored by columns (``by_column``: 4 rows at once)
or as it is in memory, which can be copied asynchronously. Several blocks may ``split`` the terms
of a tile: their sums are parts, which another kernel adds (``parts.py``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import MAX_REGISTERS, MAX_THREADS, REGISTERS, WARP
from tunefarm.compiler.gpu.pipeline import fill_ahead
from tunefarm.compiler.gpu.schedule import enclose_threads, keep_tile, unroll_short, with_predicate
from tunefarm.compiler.gpu.space import tiled
from tunefarm.compiler.gpu.space.parts import Parts
from tunefarm.compiler.gpu.space.product import Product, Tiles, guard_result, product_program
from tunefarm.compiler.gpu.space.tiled import (
    OTHER_REGISTERS,
    SPLITS,
    Footprint,
    Tiling,
    adding_of,
    blocks_of,
    fits_grid,
    product,
    shares_terms,
)
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Nest, SketchSpace
from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Var
from tunefarm.compiler.tir.schedule.tree import constant_extent

NAME, VERSION = "gpu_simt", 2
PART_BLOCKS = 4  # to a multiprocessor, of parts
SUMS = frozenset({"float32", "int32", "float64"})
PADDING = 4  # elements after a row of a tile that is stored by columns
MOST_TERMS = 64  # multiply-adds of one element in an unrolled step
RATE = 128  # multiply-adds of float32 that a multiprocessor does in a clock
STEP = 1500  # clocks of a step in which nothing is multiplied: copies, barriers, latency
ADDING = 2000  # clocks more than tensor cores' kernels take, until parts are added
MEMORY_BYTES = 11  # of parts that a multiprocessor writes or reads in a clock


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs; None for other targets and for what is no product."""
    p = product(function) if target.kind == "cuda" else None
    if p is None or p.sum_dtype not in SUMS:
        return None
    wide = 4 if p.columns % 4 == 0 else 2 if p.columns % 2 == 0 else 1
    knobs = (
        Knob("ty", (1, 2, 4, 8, 16, 32)),
        Knob("tx", (4, 8, 16, 32)),
        Knob("vm", (1, 2, 4)),
        Knob("m4", (1, 2, 4)),
        Knob("vn", (1, 2, 4)),
        Knob("n4", tuple(n for n in (1, 2, 4) if n <= wide)),
        Knob("bk", (4, 8, 16, 32)),
        Knob("stages", (1, 2, 3)),
        Knob("by_column", (0, 1)),
        Knob("split", SPLITS),
    )
    constraints = constraints_of(p, target)
    choices = {k.name: [int(c) for c in k.choices] for k in (*knobs[:6], knobs[-1])}
    choices["bk"] = [8, 16] if p.depth >= 16 else [8 if p.depth >= 8 else 4]
    fixed = {"stages": 2, "by_column": 1}
    found, _ = cheapest(choices, fixed, constraints, lambda k: cost_of(p, target, k))
    default: Config = {"sketch": NAME, **found, **fixed}
    return SketchSpace(NAME, VERSION, knobs, constraints, default, lambda k: nest_of(p, target, k))


def _tile(k: Columns) -> tuple[Numbers, Numbers]:
    """Rows and columns of a block's tile."""
    rows = whole(k, "ty") * whole(k, "vm") * whole(k, "m4")
    return rows, whole(k, "tx") * whole(k, "vn") * whole(k, "n4")


def _shared_bytes(p: Product, k: Columns) -> Numbers:
    rows, columns = _tile(k)
    depth = whole(k, "bk")
    a = np.where(whole(k, "by_column") > 0, depth * (rows + PADDING), rows * (depth + PADDING))
    sizes = [dtype_bytes(d) for d in p.dtypes]
    return whole(k, "stages") * (a * sizes[0] + depth * columns * sizes[1])


def _registers(k: Columns) -> Numbers:
    rows = whole(k, "vm") * whole(k, "m4")
    columns = whole(k, "vn") * whole(k, "n4")
    return rows * columns + rows + columns + OTHER_REGISTERS


def _footprint(p: Product, k: Columns) -> Footprint:
    return Footprint(whole(k, "ty") * whole(k, "tx"), _registers(k), _shared_bytes(p, k))


def constraints_of(p: Product, target: Target) -> tuple[Constraint, ...]:
    arch = target.gpu
    words = 2 if p.sum_dtype == "float64" else 1

    def threads_fit(k: Columns) -> Mask:
        threads = whole(k, "ty") * whole(k, "tx")
        return (threads % WARP == 0) & (threads <= MAX_THREADS)

    def registers_fit(k: Columns) -> Mask:
        threads = whole(k, "ty") * whole(k, "tx")
        taken = words * _registers(k)
        return (taken <= MAX_REGISTERS) & (taken * threads <= REGISTERS)

    def shared_fits(k: Columns) -> Mask:
        return _shared_bytes(p, k) <= arch.shared_bytes

    def small_code(k: Columns) -> Mask:
        rows, columns = whole(k, "vm") * whole(k, "m4"), whole(k, "vn") * whole(k, "n4")
        return rows * columns * np.minimum(whole(k, "bk"), 8) <= 8 * MOST_TERMS

    def parts_are_few(k: Columns) -> Mask:
        split, step = whole(k, "split"), whole(k, "bk")
        return shares_terms(p, target, split, _tile(k), step, PART_BLOCKS)

    return (
        Constraint("threads", threads_fit),
        Constraint("registers", registers_fit),
        Constraint("shared memory", shared_fits),
        Constraint("code size", small_code),
        Constraint("parts", parts_are_few),
        fits_grid(p, _tile),
    )


def cost_of(p: Product, target: Target, k: Columns) -> Numbers:
    """The clocks of the busiest multiprocessor, and of the kernel that adds parts.

    A step takes the longer of two, and three tenths of the other: what the blocks that are held at
    once multiply and load together, and what one of them alone takes (``STEP`` and its threads' own
    multiply-adds). Blocks of many threads wait longer at barriers. Fitted to 309 kernels of 14
    products on an H200, whose fastest configs took 0.96 of the time of the model's.
    """
    rows, columns = _tile(k)
    threads, step = whole(k, "ty") * whole(k, "tx"), whole(k, "bk")
    split = whole(k, "split") if "split" in k else 1
    own_rows, own_columns = whole(k, "vm") * whole(k, "m4"), whole(k, "vn") * whole(k, "n4")
    each = -(-split * blocks_of(p, (rows, columns)) // target.num_cores)
    held = np.minimum(each, _footprint(p, k).resident(target))
    read = 0.6 / own_rows + np.where(whole(k, "n4") < 4, 1.2, 0.6) / own_columns
    loads = 1.0 + read + 4.0 / rows + 4.0 / columns
    waits = 1.0 + (threads / 1024) ** 2
    together = held * rows * columns * step * loads * waits / RATE
    alone = STEP + 0.5 * step * own_rows * own_columns
    clocks = np.maximum(together, alone) + 0.3 * np.minimum(together, alone)
    combined = np.where(split > 1, ADDING + adding_of(p, target, split, MEMORY_BYTES), 0.0)
    return each / held * clocks * p.depth / (split * step) + combined + 1e-3 * threads


def nest_of(p: Product, target: Target, k: Columns) -> Nest:
    """Register tiles of threads, tiles of blocks."""
    own = whole(k, "vm") * whole(k, "m4"), whole(k, "vn") * whole(k, "n4")
    more = _footprint(p, k).columns(target)
    return tiled.nest_of(p, k, Tiling(_tile(k), own, cost_of(p, target, k), more))


# --- the schedule -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Knobs:
    """A config of the sketch."""

    ty: int
    tx: int
    vm: int
    m4: int
    vn: int
    n4: int
    bk: int
    stages: int
    by_column: int
    split: int = 1

    @property
    def rows(self) -> int:
        return self.ty * self.vm * self.m4

    @property
    def columns(self) -> int:
        return self.tx * self.vn * self.n4


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no product."""
    p = product(function)
    if p is None:
        raise ScheduleError("the workload is not a product of two operands")
    k = Knobs(**{n: int(v) for n, v in config.items() if n != "sketch"})
    most = [min(4, 16 // dtype_bytes(d)) for d in p.dtypes]
    tiles = Tiles(
        k.rows,
        k.columns,
        k.bk,
        min(p.vector(0, most[0]), k.bk),
        p.vector(1, min(most[1], k.bk if p.along[1] == "k" else k.columns)),
        k.n4,
        k.split,
    )
    parts = Parts(p, k.split, (k.rows, k.columns)) if k.split > 1 else None
    program = product_program(p, tiles, parts=parts.buffer if parts else None)
    program, bn, k0 = _sums(program, k)
    program = _fill(program, "A", k0, p.along[0], tiles.a_vector, k)
    program = _fill(program, "B", k0, p.along[1], tiles.b_vector, k)
    program = s.decompose_reduction(program, "C", k0)
    program = _store(program, p, tiles, bn, k)
    program, _ = enclose_threads(program, bn, "threadIdx.x", k.tx)
    program, _ = enclose_threads(program, bn, "threadIdx.y", k.ty)
    return program if parts is None else parts.followed(program, target)


def _sums(program: PrimFunc, k: Knobs) -> tuple[PrimFunc, Var, Var]:
    """The loops of the product; returns those over columns of blocks, and over steps of the sum."""
    program = s.set_scope(program, "C", "register")
    b, m, n, depth = s.loops_of(program, "C")
    program, (bm, vm, ty, m4) = s.split(program, m, k.vm, k.ty, k.m4)
    program, (bn, vn, tx, n4) = s.split(program, n, k.vn, k.tx, k.n4)
    program, (k0, k1) = s.split(program, depth, k.bk)
    program = s.reorder(program, b, bm, bn, k0, ty, tx, k1, vm, m4, vn, n4)
    for loop, axis in ((b, "blockIdx.z"), (bm, "blockIdx.y"), (bn, "blockIdx.x")):
        program = s.bind(program, loop, axis)
    program = s.bind(s.bind(program, ty, "threadIdx.y"), tx, "threadIdx.x")
    program, (k1, k2) = s.split(program, k1, min(k.bk, 8))
    for loop in (k2, vm, m4, vn):
        program = s.unroll(program, loop)
    return s.vectorize(program, n4), bn, k0


def _fill(program: PrimFunc, block: str, k0: Var, along: str, vector: int, k: Knobs) -> PrimFunc:
    """Fill a tile of an operand in each step, the threads side by side along its memory."""
    by_column = block == "A" and k.by_column
    padding = PADDING if block == "A" else 0
    program = s.set_scope(program, block, "shared", padding)
    program = with_predicate(s.compute_at(program, block, k0), block, None)
    own = own_loops(program, block, k0)
    first = next((v for v in own if v.name == along), None)
    if first is not None:
        program = s.reorder(program, *(v for v in own if v is not first), first)
        own = [*(v for v in own if v is not first), first]
    tile = (1, k.rows, k.bk) if block == "A" else (1, k.bk, k.columns)
    program = keep_tile(program, block, tile)
    if by_column:
        program = s.permute_buffer(program, block, (0, 2, 1))
    program, (*own, lane) = _split_last(program, own, vector)
    program = s.vectorize(program, lane)
    flat = own[0]
    if len(own) > 1:
        program, flat = s.fuse(program, *own)
    program, (turn, y, x) = s.split(program, flat, k.ty, k.tx)
    program = unroll_short(program, turn)
    program = s.bind(s.bind(program, y, "threadIdx.y"), x, "threadIdx.x")
    ahead = k.stages > 1 and constant_extent(s.find_loop(program, k0)) > 1
    return fill_ahead(program, block, k.stages) if ahead else program


def _split_last(program: PrimFunc, own: list[Var], vector: int) -> tuple[PrimFunc, list[Var]]:
    *rest, last = own
    program, parts = s.split(program, last, vector)
    return program, [*rest, *parts]


def _store(program: PrimFunc, p: Product, tiles: Tiles, bn: Var, k: Knobs) -> PrimFunc:
    """The epilogue of a block's tile, each thread its own elements."""
    program = s.reverse_compute_at(program, "out", bn)
    program = guard_result(program, p, tiles)
    *rows, n = own_loops(program, "out", bn)  # a tile of one row has no loop over them
    program, (vn, tx, n4) = s.split(program, n, k.tx, k.n4)
    unrolled, threads = [vn], [tx]
    for loop in rows:
        program, (vm, ty, m4) = s.split(program, loop, k.ty, k.m4)
        unrolled, threads = [vm, m4, vn], [ty, tx]
    program = s.reorder(program, *threads, *unrolled, n4)
    for loop in unrolled:
        program = s.unroll(program, loop)
    for loop, axis in zip(reversed(threads), ("threadIdx.x", "threadIdx.y"), strict=False):
        program = s.bind(program, loop, axis)
    return s.vectorize(program, n4)

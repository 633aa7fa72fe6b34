"""Products on tensor cores: float16, bfloat16, bytes, and float32 where a target allows TF32.

blocks of (wm · mi · 16) × (wn · ni · 8) elements of the result, wm × wn warps; by rows, of
``swath`` columns of blocks at a time:
  each warp: mi × ni tiles of 16 × 8 sums, in registers
  for steps of ``bk`` terms:
    the threads fill tiles of A and B       shared, copied asynchronously; some ``stages`` ahead
    sums += A[16, depth] · B[depth, 8]      fragments by ldmatrix, one instruction a tile
  if ``wide``: the four threads of a row exchange parts of four tiles, each gets 8 columns
  epilogue → out                          16 bytes a thread, else its own pairs of columns

Several blocks may ``split`` the terms of a tile: their sums are parts, which another kernel adds
(``parts.py``).

Rows of the tiles are swizzled (``gpu/swizzle.py``), so that eight of them meet in no bank; those of
a tile that is turned while it is filled are 16 bytes apart beside their length instead, and those
of columns of float32, of which each thread reads its own terms, 32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import MAX_REGISTERS, MAX_THREADS, REGISTERS, WARP
from tunefarm.compiler.gpu.mma import COLUMNS, MMAS, ROWS, Mma, exchange_at, tensorize_product
from tunefarm.compiler.gpu.pipeline import fill_ahead
from tunefarm.compiler.gpu.schedule import (
    enclose_threads,
    keep_tile,
    swizzle_rows,
    unroll_short,
    with_predicate,
)
from tunefarm.compiler.gpu.space import tiled
from tunefarm.compiler.gpu.space.mma_tiles import (
    b_by_terms,
    cost_of,
    footprint_of,
    padding_bytes,
    tile_of,
)
from tunefarm.compiler.gpu.space.parts import Parts
from tunefarm.compiler.gpu.space.product import Product, Tiles, guard_result, product_program
from tunefarm.compiler.gpu.space.tiled import (
    SPLITS,
    Tiling,
    exchange_width,
    fits_grid,
    product,
    shares_terms,
)
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Nest, SketchSpace
from tunefarm.compiler.space.nests import own_loops
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import Intrinsic, Var
from tunefarm.compiler.tir.schedule.tree import (
    constant_extent,
    store_of,
    written_buffer,
)

NAME, VERSION = "gpu_mma", 4
SWATHS = (0, 4, 8, 16)  # blocks of columns
PART_BLOCKS = 8  # to a multiprocessor, of parts
SECTOR_BYTES = 32  # that global memory is read in
WIDE_COLUMNS = 8192  # of a result whose blocks go by swaths


def instruction_of(p: Product, target: Target) -> Mma | None:
    """The instruction for a product's dtypes; TF32, which rounds float32, where that is allowed."""
    for m in MMAS.values():
        allowed = m.a != "float32" or target.rounds_to_tf32
        if (m.a, m.b, m.accumulator) == (*p.dtypes, p.sum_dtype) and allowed:
            return m
    return None


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs; None for other targets, dtypes, and operands in an order that no fragment has."""
    p = product(function) if target.kind == "cuda" and target.gpu.has_tensor_cores else None
    m = instruction_of(p, target) if p is not None else None
    if p is None or m is None or p.depth < m.depth // 2 or p.columns < COLUMNS:
        return None
    knobs = (
        Knob("wm", (1, 2, 4)),
        Knob("wn", (1, 2, 4)),
        Knob("mi", (1, 2, 4)),
        Knob("ni", (1, 2, 4, 8)),
        Knob("bk", (m.depth, 2 * m.depth, 4 * m.depth)),
        Knob("stages", (1, 2, 3, 4, 5, 6)),
        Knob("wide", (0, 1) if p.result_vector >= 4 else (0,)),
        Knob("swath", SWATHS),
        Knob("split", SPLITS),
    )
    constraints = constraints_of(p, target)
    choices = {k.name: [int(c) for c in k.choices] for k in knobs if k.name != "swath"}
    found, _ = cheapest(choices, {"swath": 0}, constraints, lambda k: cost_of(p, target, k))
    default: Config = {"sketch": NAME, **found, "swath": swath_of(p, found)}
    return SketchSpace(NAME, VERSION, knobs, constraints, default, lambda k: nest_of(p, target, k))


def constraints_of(p: Product, target: Target) -> tuple[Constraint, ...]:
    def threads_fit(k: Columns) -> Mask:
        return whole(k, "wm") * whole(k, "wn") * WARP <= MAX_THREADS

    def registers_fit(k: Columns) -> Mask:
        f = footprint_of(p, k)
        return (f.registers <= MAX_REGISTERS) & (f.registers * f.threads <= REGISTERS)

    def shared_fits(k: Columns) -> Mask:
        return footprint_of(p, k).shared_bytes <= target.gpu.shared_bytes

    def tiles_pair(k: Columns) -> Mask:
        return (whole(k, "wide") == 0) | (whole(k, "ni") % 2 == 0)

    def whole_swaths(k: Columns) -> Mask:
        _, columns = tile_of(k)
        count, swath = -(-p.columns // columns), whole(k, "swath")
        several = (
            (p.batch * whole(k, "split") == 1)
            & (swath < count)
            & (count % np.maximum(swath, 1) == 0)
        )
        return (swath == 0) | several

    def parts_are_few(k: Columns) -> Mask:
        """Nothing is exchanged where terms are shared out."""
        split = whole(k, "split")
        fits = shares_terms(p, target, split, tile_of(k), whole(k, "bk"), PART_BLOCKS)
        return fits & ((split == 1) | (whole(k, "wide") == 0))

    return (
        Constraint("threads", threads_fit),
        Constraint("exchange", tiles_pair),
        Constraint("swath", whole_swaths),
        Constraint("parts", parts_are_few),
        Constraint("registers", registers_fit),
        Constraint("shared memory", shared_fits),
        fits_grid(p, tile_of),
    )


def swath_of(p: Product, found: Mapping[str, int]) -> int:
    """The columns of blocks of a swath: of wide results 8, if those are whole ones."""
    count = -(-p.columns // (found["wn"] * found["ni"] * COLUMNS))
    return 8 if p.columns >= WIDE_COLUMNS and p.batch == 1 and count % 8 == 0 else 0


def nest_of(p: Product, target: Target, k: Columns) -> Nest:
    """Tiles of warps, tiles of blocks."""
    own = whole(k, "mi") * ROWS, whole(k, "ni") * COLUMNS
    more = footprint_of(p, k).columns(target)
    return tiled.nest_of(p, k, Tiling(tile_of(k), own, cost_of(p, target, k), more))


# --- the schedule -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Knobs:
    """A config of the sketch."""

    wm: int
    wn: int
    mi: int
    ni: int
    bk: int
    stages: int
    wide: int = 0
    swath: int = 0
    split: int = 1


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if no matrix instruction computes the function."""
    p = product(function)
    m = instruction_of(p, target) if p is not None else None
    if p is None or m is None:
        raise ScheduleError("the workload is no product that a matrix instruction computes")
    k = Knobs(**{n: int(v) for n, v in config.items() if n != "sketch"})
    if k.split > 1 and k.swath:
        raise ScheduleError("parts of a sum are not ordered in swaths")
    width = exchange_width(p, k.ni) if k.wide and k.split == 1 else 1
    tile = k.wm * k.mi * ROWS, k.wn * k.ni * COLUMNS
    tiles = Tiles(
        *tile,
        k.bk,
        p.vector(0, 16 // dtype_bytes(m.a)),
        p.vector(1, min(16 // dtype_bytes(m.b), k.wn * k.ni * COLUMNS)),
        2 * width if p.columns % 2 == 0 else 1,
        k.split,
    )
    parts = Parts(p, k.split, tile) if k.split > 1 else None
    source = product_program(p, tiles, parts=parts.buffer if parts else None)
    program = tensorize_product(source, "C", m.name, width)
    program, bn, k0 = _sums(program, k)
    for block, vector in (("A", tiles.a_vector), ("B", tiles.b_vector)):
        program = _fill(program, block, k0, p, vector, k)
    program = s.decompose_reduction(program, "C", k0)
    store = _store_wide if width > 1 else _store
    program = store(program, p, tiles, bn, k)
    for axis, extent in (("threadIdx.x", WARP), ("threadIdx.y", k.wn), ("threadIdx.z", k.wm)):
        program, _ = enclose_threads(program, bn, axis, extent)
    return program if parts is None else parts.followed(program, target)


def _sums(program: PrimFunc, k: Knobs) -> tuple[PrimFunc, Var, Var]:
    """The loops of the product; returns those over columns of blocks, and over steps of the sum."""
    program = s.set_scope(program, "C", "register")
    b, mt, nt, g, t, element, kt = s.loops_of(program, "C")
    program, (bm, wm, mi) = s.split(program, mt, k.wm, k.mi)
    program, (bn, wn, ni) = s.split(program, nt, k.wn, k.ni)
    depth = k.bk // _depth(program)
    program, (k0, k1) = s.split(program, kt, depth)
    outer = b
    if k.swath:  # there is one batch
        program, (outer, bn) = s.split(program, bn, k.swath)
        program = s.reorder(program, outer, bm, bn)
    program = s.reorder(program, outer, bm, bn, k0, wm, wn, g, t, k1, mi, ni, element)
    for loop, axis in ((outer, "blockIdx.z"), (bm, "blockIdx.y"), (bn, "blockIdx.x")):
        program = s.bind(program, loop, axis)
    program, lane = s.fuse(program, g, t)
    for loop, axis in ((wm, "threadIdx.z"), (wn, "threadIdx.y"), (lane, "threadIdx.x")):
        program = s.bind(program, loop, axis)
    if k.ni % 2 == 0:  # two instructions side by side, for which B is loaded at once
        program, (ni, pair) = s.split(program, ni, 2)
        program, element = s.fuse(program, pair, element)
    for loop in (k1, mi, ni):
        program = s.unroll(program, loop)
    return s.vectorize(program, element), bn, k0


def _depth(program: PrimFunc) -> int:
    """Terms of one instruction in the block of the product."""
    value = store_of(s.find_block(program, "C")).value
    assert isinstance(value, Intrinsic)
    return MMAS[value.name].depth


def _fill(program: PrimFunc, block: str, k0: Var, p: Product, vector: int, k: Knobs) -> PrimFunc:
    """Fill a tile of an operand in each step; one of B by terms, if fragments need it so."""
    size = dtype_bytes(written_buffer(s.find_block(program, block)).dtype)
    along, turned = p.along[block == "B"], block == "B" and b_by_terms(p)
    padding = padding_bytes(p, block)
    program = s.set_scope(program, block, "shared", padding // size)
    if not padding:
        program = swizzle_rows(program, block)
    program = with_predicate(s.compute_at(program, block, k0), block, None)
    own = own_loops(program, block, k0)
    first = next((v for v in own if v.name == along), own[-1])
    own = [*(v for v in own if v is not first), first]
    program = s.reorder(program, *own)
    rows, columns = k.wm * k.mi * ROWS, k.wn * k.ni * COLUMNS
    program = keep_tile(program, block, (1, rows, k.bk) if block == "A" else (1, k.bk, columns))
    if turned:
        program = s.permute_buffer(program, block, (0, 2, 1))
    program, (outer, lane) = s.split(program, own[-1], vector)
    program = s.vectorize(program, lane)
    own = [*own[:-1], outer]
    if turned:
        program, own = _by_sectors(program, own, lane, vector * size)
    flat = own[0]
    if len(own) > 1:
        program, flat = s.fuse(program, *own)
    program, (turn, z, y, x) = s.split(program, flat, k.wm, k.wn, WARP)
    program = unroll_short(program, turn)
    for loop, axis in ((z, "threadIdx.z"), (y, "threadIdx.y"), (x, "threadIdx.x")):
        program = s.bind(program, loop, axis)
    ahead = k.stages > 1 and constant_extent(s.find_loop(program, k0)) > 1
    return fill_ahead(program, block, k.stages) if ahead else program


def _by_sectors(
    program: PrimFunc, own: list[Var], lane: Var, size: int
) -> tuple[PrimFunc, list[Var]]:
    """Order the loops of a tile that is turned, so that a warp reads whole sectors and writes along
    terms, which lie side by side in shared memory: its elements meet in few banks.

    for k: for n:   ->   for k0: for n0: for k1 (terms of a warp): for n1 (``size`` bytes each, a
                         sector together)
    """
    *rest, k, n = own
    together = min(max(SECTOR_BYTES // size, 1), constant_extent(s.find_loop(program, n)))
    program, (n0, n1) = s.split(program, n, together)
    program, (k0, k1) = s.split(program, k, WARP // together)
    program = s.reorder(program, k0, n0, k1, n1, lane)
    return program, [*rest, k0, n0, k1, n1]


def _store(program: PrimFunc, p: Product, tiles: Tiles, bn: Var, k: Knobs) -> PrimFunc:
    """The epilogue of a block's tile, each thread its own elements."""
    program = s.reverse_compute_at(program, "out", bn)
    program = guard_result(program, p, tiles)
    own = {v.name: v for v in own_loops(program, "out", bn)}
    threads, unrolled = [], []
    for name, count, axis in (("mt", k.mi, "threadIdx.z"), ("nt", k.ni, "threadIdx.y")):
        if name in own:  # a tile of one has no loop
            program, (warp, each) = s.split(program, own[name], count)
            threads.append((warp, axis))
            unrolled.append(each)
    g, t, element = (own[n] for n in "gte")
    program, (h, c) = s.split(program, element, 2)
    program = s.reorder(program, *(v for v, _ in threads), g, t, *unrolled, h, c)
    program, lane = s.fuse(program, g, t)
    for loop, axis in (*threads, (lane, "threadIdx.x")):
        program = s.bind(program, loop, axis)
    for loop in (*unrolled, h):
        program = s.unroll(program, loop)
    return s.vectorize(program, c) if tiles.out_vector == 2 else s.unroll(program, c)


def _store_wide(program: PrimFunc, p: Product, tiles: Tiles, bn: Var, k: Knobs) -> PrimFunc:
    """The same where threads exchange what they hold: each has its part of a row at once."""
    program = with_predicate(exchange_at(program, "C", bn), "T", None)  # whole groups of tiles
    program = s.set_scope(program, "T", "register")
    own = {v.name: v for v in own_loops(program, "T", bn)}
    threads, unrolled = [], []
    each = {"mt": (k.mi, "threadIdx.z"), "nj": (2 * k.ni // tiles.out_vector, "threadIdx.y")}
    for name, (count, axis) in each.items():
        if name in own:  # a tile of one has no loop
            program, (warp, part) = s.split(program, own[name], count)
            threads.append((warp, axis))
            unrolled.append(part)
    h, g, t, e = (own[n] for n in "hgte")
    program = s.reorder(program, *(v for v, _ in threads), g, t, *unrolled, h, e)
    program, lane = s.fuse(program, g, t)
    for loop, axis in (*threads, (lane, "threadIdx.x")):
        program = s.bind(program, loop, axis)
    program = guard_result(s.reverse_compute_at(program, "out", h), p, tiles)
    for loop in (*unrolled, h):
        program = s.unroll(program, loop)
    for block in ("T", "out"):
        program = s.vectorize(program, own_loops(program, block, h)[-1])
    return program

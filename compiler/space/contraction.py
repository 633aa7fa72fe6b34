"""Dense, batched, depthwise and convolution contractions: one register-tiled sketch.

    parallel over blocks of (outer axes, panels of lanes, rows)
      for panel:  [pack its operand]                      nb panels a block
        for row tile:                                     mb tiles a block
          accumulators = 0                                rh × rw rows by nv vectors, registers
          for reduce axes:                                the last one unrolled by ku
            accumulators += lhs[row] · rhs[lanes]
          epilogue on the accumulators → result

The constant operand is packed at build time to [panel][reduce …][nv · lanes] (Goto & van de Geijn,
"Anatomy of high-performance matrix multiplication", 2008, without the blocking of the reduction).
"""

from __future__ import annotations

from itertools import pairwise
from math import log2, prod
from typing import Any, TypeAlias

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.analysis import Axis, Contraction, Operand, analyse
from tunefarm.compiler.space.config import (
    Access,
    Columns,
    Config,
    Constraint,
    Knob,
    Nest,
    SketchSpace,
)
from tunefarm.compiler.space.program import create_program, view_contraction
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PackedLayout, PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import Const, Expr, Prefetch, Var
from tunefarm.compiler.tir.schedule.tree import constant_extent, store_of
from tunefarm.compiler.tir.visit import loads_of, substitute

Mask: TypeAlias = Any  # NumPy's stubs give comparisons and sums of arrays no single type
Numbers: TypeAlias = Any
NAME, VERSION = "contraction", 3
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 20, 24, 28)
SECOND_ROWS = (1, 2, 3, 4, 7)
VECTORS = (1, 2, 3, 4, 6)
UNROLLS = (1, 2, 4, 8)
BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
PREFETCH = (0, 8, 32, 128)  # reduction steps ahead, for weights packed at build time
EXTRA = ("ku", "mb", "nb", "pack_lhs", "pack_rhs", "prefetch", "next_panel")
LINE_BYTES = 64
REREAD = 0.02  # of a kernel's time, for every halving of the blocks that its operands are read by
MAX_UNROLLED = 512  # multiply-adds of one unrolled body
MAX_COPIED_BYTES = 1 << 19
MAX_CODE = 1536  # and of all bodies of a kernel
SERIAL_FLOPS = 100_000  # below this a fork-join costs more than it saves


def contraction_of(function: Function) -> Contraction | None:
    """The contraction that a fused function is, pointwise convolutions viewed as products."""
    return analyse(create_program(view_contraction(function)))


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a contraction; None if the function is not one."""
    if target.kind != "llvm":
        return None
    c = contraction_of(function)
    if c is None or c.rhs.load.dtype not in ("float32", "float64"):
        return None
    lanes = _lanes(c, target)
    knobs = _knobs(c, lanes)
    constraints = _constraints(c, target, lanes)
    default = _default(c, target, lanes, knobs, constraints)
    return SketchSpace(
        NAME, VERSION, knobs, constraints, default, lambda columns: _nest(c, target, lanes, columns)
    )


def _lanes(c: Contraction, target: Target) -> int:
    """Lanes of one vector: the machine's, or fewer for a short axis."""
    full = target.lanes(c.rhs.load.dtype)
    lanes = 1
    while lanes < min(full, c.vector.extent):
        lanes *= 2
    return lanes


def _row_axes(c: Contraction) -> tuple[Axis | None, Axis | None]:
    """The axes of the register tile: (second last, last) of the rows longer than 1."""
    long = [a for a in c.rows if a.extent > 1]
    last = long[-1] if long else None
    return (long[-2] if len(long) > 1 else None), last


def _up_to(choices: tuple[int, ...], extent: int) -> tuple[int, ...]:
    """The choices that do not exceed an extent, and the extent itself if it is small."""
    kept = [x for x in choices if x <= extent]
    if extent <= max(choices) and extent not in kept:
        kept.append(extent)
    return tuple(kept) or (1,)


def _panels(extent: int, tile: int) -> int:
    return -(-extent // tile)


def _knobs(c: Contraction, lanes: int) -> tuple[Knob, ...]:
    second, last = _row_axes(c)
    blocked = second or last
    vectors = _panels(c.vector.extent, lanes)
    rows = blocked.extent if blocked is not None else 1
    return (
        Knob("rw", _up_to(ROWS, last.extent if last else 1)),
        Knob("rh", _up_to(SECOND_ROWS, second.extent if second else 1)),
        Knob("nv", _up_to(VECTORS, vectors)),
        Knob("ku", _up_to(UNROLLS, c.reduce[-1].extent)),
        Knob("mb", _up_to(BLOCKS, rows)),
        Knob("nb", _up_to(BLOCKS, vectors)),
        Knob("order", ("nm", "mn")),
        Knob("pack_lhs", _pack_choices(c, c.lhs)),
        Knob("pack_rhs", _pack_choices(c, c.rhs)),
        Knob("prefetch", PREFETCH if _packed_at_build(c) is not None else (0,)),
        Knob("next_panel", (0, 1) if _packed_at_build(c) is not None and vectors > 1 else (0,)),
    )


def _pack_choices(c: Contraction, operand: Operand) -> tuple[int, ...]:
    """1 offers a copy of the operand's block; constants are packed at build time anyway."""
    if operand is c.rhs and _packed_at_build(c) is not None:
        return (0,)
    if operand is c.lhs and (len([a for a in c.rows if a.extent > 1]) != 1 or _padded(c)):
        return (0,)
    return (0, 1)


def _padded(c: Contraction) -> bool:
    """True if the left operand is read under a padding condition or with strides."""
    return any(len(affine(i).terms) > 1 for i in c.lhs.load.indices)


def _constants(c: Contraction) -> frozenset[int]:
    return frozenset(c.program.constants)


def _packed_at_build(c: Contraction) -> PackedLayout | None:
    """Where the right operand is constant and read plainly: which dimension is the lanes'."""
    if c.rhs.param is None or c.rhs.param not in _constants(c):
        return None
    if not all(isinstance(i, Var) or not affine(i).terms for i in c.rhs.load.indices):
        return None
    return PackedLayout((), ())


def _constraints(c: Contraction, target: Target, lanes: int) -> tuple[Constraint, ...]:
    registers = target.vector_registers
    depth = c.reduce[-1].extent
    shared = _shares_vector(c)

    def fits_registers(k: Columns) -> Mask:
        rows = _int(k, "rw") * _int(k, "rh")
        vectors = _int(k, "nv")
        if shared:
            # The left operand is a vector of its own for each row, kept between unrolled taps.
            return rows * vectors * np.where(_int(k, "ku") > 1, 2, 1) + 3 <= registers
        return rows * vectors + np.where(vectors > 1, vectors + 1, 2) <= registers

    def small_code(k: Columns) -> Mask:
        body = _int(k, "rw") * _int(k, "rh") * _int(k, "nv") * _int(k, "ku")
        return (body <= MAX_UNROLLED) & (body * _bodies(c, k) <= MAX_CODE)

    def copies_fit(k: Columns) -> Mask:
        rows = _int(k, "mb") * _int(k, "rw")
        width = _int(k, "nv") * lanes
        total = prod(a.extent for a in c.reduce) * 4
        size = _int(k, "pack_lhs") * rows * total + _int(k, "pack_rhs") * width * total
        return size <= MAX_COPIED_BYTES

    def blocks_useful(k: Columns) -> Mask:
        second, last = _row_axes(c)
        axis, tile = (second, _int(k, "rh")) if second else (last, _int(k, "rw"))
        extent = axis.extent if axis else 1
        panels = -(-c.vector.extent // (_int(k, "nv") * lanes))
        fits_rows = (_int(k, "mb") == 1) | (_int(k, "mb") * tile < 2 * extent)
        return fits_rows & ((_int(k, "nb") == 1) | (_int(k, "nb") < 2 * panels))

    return (
        Constraint("registers", fits_registers),
        Constraint("code size", small_code),
        Constraint("copies fit the cache", copies_fit),
        Constraint("blocks within extents", blocks_useful),
        Constraint("unroll", lambda k: _int(k, "ku") <= depth),
    )


def _bodies(c: Contraction, k: Columns) -> Numbers:
    """How often the unrolled body is repeated: borders and their taps get code of their own."""
    bodies = np.ones_like(_int(k, "rw"))
    for axis, name in zip(_row_axes(c), ("rh", "rw"), strict=True):
        if axis is None:
            continue
        taps, tile = _taps(c, axis), _int(k, name)
        pieces = np.where(tile >= axis.extent, taps, np.where(axis.extent % tile, 2, 1) + 2 * taps)
        bodies = bodies * np.where((tile > 1) & (taps > 1), pieces, 1)
    return bodies


def _taps(c: Contraction, axis: Axis) -> int:
    """Extent of the window that slides along an axis; 1 if none does."""
    var = c.node.iters[axis.position].var
    summed = {c.node.iters[a.position].var: a.extent for a in c.reduce}
    for index in c.lhs.load.indices:
        terms = affine(index).terms
        if var in terms:
            return prod(extent for v, extent in summed.items() if v in terms)
    return 1


def _int(columns: Columns, name: str) -> Numbers:
    return np.asarray(columns[name], np.int64)


# --- the default --------------------------------------------------------------------------------


def _default(
    c: Contraction,
    target: Target,
    lanes: int,
    knobs: tuple[Knob, ...],
    constraints: tuple[Constraint, ...],
) -> Config:
    """The best config of a closed-form model of the core: FMA ports, load ports, padding waste."""
    choices = {k.name: k.choices for k in knobs}
    grid = np.array(
        np.meshgrid(*(choices[n] for n in ("rw", "rh", "nv")), indexing="ij"), np.int64
    ).reshape(3, -1)
    # Where the left operand has the lanes, unrolled taps share its loads: leave registers for them.
    unrolled = 2 if _shares_vector(c) and c.reduce[-1].extent > 1 else 1
    k: dict[str, np.ndarray] = {"rw": grid[0], "rh": grid[1], "nv": grid[2]}
    ones = np.ones_like(grid[0])
    k |= {"ku": unrolled * ones, "mb": ones, "nb": ones, "pack_lhs": 0 * ones, "pack_rhs": 0 * ones}
    valid = np.all([x.holds(k) for x in constraints], axis=0)
    cycles = np.where(valid, _tile_cycles(c, target, lanes, k), np.inf)
    best = int(np.argmin(cycles))
    rw, rh, nv = (int(x) for x in grid[:, best])
    config: dict[str, int | str] = {"sketch": NAME, "rw": rw, "rh": rh, "nv": nv}
    depth = c.reduce[-1].extent
    tile = {n: np.array([v]) for n, v in (("rw", rw), ("rh", rh), ("nv", nv))}
    config["ku"] = max(
        int(u)
        for u in choices["ku"]
        if rw * rh * nv * int(u) <= 128
        and depth % int(u) == 0
        and constraints[0].holds(tile | {"ku": np.array([int(u)])})[0]
    )
    config |= _default_blocks(c, target, lanes, choices, rw, rh, nv)
    return config


def _tile_cycles(c: Contraction, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of the whole contraction's reductions: two FMAs and two loads a cycle, latency 4."""
    second, last = _row_axes(c)
    rows, vectors = _int(k, "rw") * _int(k, "rh"), _int(k, "nv")
    tiles = -(-c.vector.extent // (vectors * lanes)).astype(np.float64)
    if last:
        tiles = tiles * -(-last.extent // _int(k, "rw"))
    if second:
        tiles = tiles * -(-second.extent // _int(k, "rh"))
    loads = rows * np.where(_shares_vector(c), vectors, 1) + vectors
    step = np.maximum(np.maximum(rows * vectors, 1.3 * loads) / 2, 4.0)
    panel = prod(a.extent for a in c.reduce) * vectors * lanes * dtype_bytes(c.rhs.load.dtype)
    from_l2 = np.where(panel > target.l1_bytes // 2, 0.6 * vectors, 0.0)
    borders = np.where((_int(k, "rh") > 1) & _padded(c), 1.05, 1.0)
    return tiles * (step + 0.02 * loads + from_l2) * borders


def _shares_vector(c: Contraction) -> bool:
    """True if the left operand has the lanes too (depthwise)."""
    used = {v for i in c.lhs.load.indices for v in affine(i).variables()}
    return c.node.iters[c.vector.position].var in used


def _default_blocks(
    c: Contraction,
    target: Target,
    lanes: int,
    choices: dict[str, tuple[int | str, ...]],
    rw: int,
    rh: int,
    nv: int,
) -> dict[str, int | str]:
    second, last = _row_axes(c)
    depth = prod(a.extent for a in c.reduce)
    panels = _panels(c.vector.extent, nv * lanes)
    axis, tile = (second, rh) if second else (last, rw)
    tiles = _panels(axis.extent, tile) if axis else 1
    element = dtype_bytes(c.rhs.load.dtype)
    weights = depth * c.vector.extent * element
    rows = prod(a.extent for a in c.rows)
    order = "nm" if weights > rows * depth * element else "mn"
    lanes_stride = c.rhs.load.buffer.shape[-1] * element
    reused = rows >= 64 and lanes_stride % 2048 == 0  # a panel's rows meet in few cache sets
    pack_rhs = 1 in choices["pack_rhs"] and (_transposed(c) or reused)
    row_bytes = tile * depth * element
    all_fit = order == "nm" and rows * depth * element <= target.l2_bytes // 2
    fitting = tiles if all_fit else max(1, target.l2_bytes // 4 // max(1, row_bytes))
    copies = prod(a.extent for a in (*c.outer, *c.rows) if a not in (second, last))

    def value(mb: int, nb: int) -> float:
        """Cores kept busy, less what is read again for blocks smaller than fit."""
        tasks = [m * n for m in _sizes(tiles, mb) for n in _sizes(panels, nb)] * copies
        again = log2(min(fitting, tiles) / min(mb, fitting, tiles))
        if order == "mn":
            again += log2(panels / min(nb, panels))
        return _busy(tasks, target.num_cores) - REREAD * again

    row_blocks = [int(x) for x in choices["mb"] if int(x) <= max(1, 1.34 * fitting)]
    panel_blocks = [int(x) for x in choices["nb"]] if order == "mn" else [1]
    mb, nb = max(
        ((m, n) for m in row_blocks for n in panel_blocks), key=lambda b: (value(*b), -b[0], -b[1])
    )
    return {
        "mb": mb,
        "nb": nb,
        "order": order,
        "pack_lhs": 0,
        "pack_rhs": int(pack_rhs),
        "prefetch": 0,
        "next_panel": int(1 in choices["next_panel"] and weights >= 1 << 18),
    }


def _sizes(extent: int, block: int) -> list[int]:
    """The sizes of the blocks that an extent is cut into."""
    return [block] * (extent // block) + [extent % block] * (extent % block > 0)


def _busy(tasks: list[int], cores: int) -> float:
    """The share of the cores' time that tasks fill: each core runs its part, then what is left."""
    count = len(tasks)
    if cores == 1 or count > 32 * cores:
        return 1.0
    bounds = [count * core // cores for core in range(cores + 1)]
    parts = [tasks[a:b][::-1] for a, b in pairwise(bounds)]
    until = [0] * cores
    for _ in tasks:
        core = min(range(cores), key=until.__getitem__)
        part = parts[core] or max(parts, key=len)
        until[core] += part.pop()
    return sum(tasks) / (cores * max(until))


def _transposed(c: Contraction) -> bool:
    """True if the right operand's lanes are not contiguous in memory."""
    var = c.node.iters[c.vector.position].var
    return affine(c.rhs.load.indices[-1]).coefficient(var) != 1


# --- the nest, for features ---------------------------------------------------------------------


def _nest(c: Contraction, target: Target, lanes: int, k: Columns) -> Nest:
    second, last = _row_axes(c)
    names = c.variables
    axes = {names[i.var]: i.extent for i in c.node.iters}
    count = len(_int(k, "rw"))
    one = np.ones(count, np.int64)
    vector = dict.fromkeys(axes, one) | {c.vector.name: lanes * one}
    register = dict(vector) | {c.vector.name: lanes * _int(k, "nv")}
    register[c.reduce[-1].name] = _int(k, "ku")
    if last:
        register[last.name] = _int(k, "rw")
    if second:
        register[second.name] = _int(k, "rh")
    l1 = dict(register) | {a.name: a.extent * one for a in c.reduce}
    l2 = dict(l1)
    l2[c.vector.name] = np.minimum(register[c.vector.name] * _int(k, "nb"), c.vector.extent)
    blocked = second or last
    if blocked:
        l2[blocked.name] = np.minimum(register[blocked.name] * _int(k, "mb"), blocked.extent)
    if second and last:
        l2[last.name] = last.extent * one
    spatial = (*c.outer, *c.rows, c.vector)
    blocks = np.ones(count, np.int64)
    executed = 2.0 * prod(a.extent for a in c.reduce) * np.ones(count)
    for a in spatial:
        blocks = blocks * -(-a.extent // l2[a.name])
        tile = register[a.name]
        executed = executed * (-(-a.extent // tile) * tile)
    core = {a: np.maximum(l2[a], 1) for a in axes}
    extra = {n: _int(k, n).astype(np.float64) for n in EXTRA}
    extra["rows_outer"] = (np.asarray(k["order"]) == "mn").astype(np.float64)
    extra["cycles"] = _tile_cycles(c, target, lanes, k)
    return Nest(
        axes,
        frozenset(a.name for a in c.reduce),
        tuple(_accesses(c)),
        {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core},
        blocks,
        executed,
        extra,
    )


def _accesses(c: Contraction) -> list[Access]:
    names = c.variables
    store = store_of(c.node)
    found = []
    for label, buffer, indices, constant in (
        ("lhs", c.lhs.load.buffer, c.lhs.load.indices, False),
        ("rhs", c.rhs.load.buffer, c.rhs.load.indices, c.rhs.param in _constants(c)),
        ("out", store.buffer, store.indices, False),
    ):
        dims = tuple(
            {names[v]: abs(n) for v, (n, _) in affine(i).terms.items() if v in names}
            for i in indices
        )
        element = dtype_bytes(buffer.dtype)
        found.append(Access(label, element, buffer.shape, dims, label == "out", constant))
    return found


# --- the schedule -------------------------------------------------------------------------------


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no contraction or a knob misfits."""
    c = contraction_of(function)
    if c is None:
        raise ScheduleError("the workload is not a contraction")
    lanes = _lanes(c, target)
    knob = {k: config[k] for k in config}
    rw, rh, nv = int(knob["rw"]), int(knob["rh"]), int(knob["nv"])
    second, last = _row_axes(c)
    program, block = c.program, c.block
    if c.epilogue is None:
        program, epilogue = s.cache_write(program, block, "register")
    else:
        epilogue = c.epilogue
        program = s.set_scope(program, block, "register")
    program = _pack_constant(program, c, nv * lanes)
    loops = s.loops_of(program, block)
    program, (n_block, n_panel, n_vec, n_lane) = s.split(
        program, loops[c.vector.position], int(knob["nb"]), nv, lanes
    )
    row_tiles, row_inner, m_block = [], [], None
    for axis, tile, blocked in ((second, rh, True), (last, rw, second is None)):
        if axis is None:
            continue
        if blocked:
            program, (m_block, outer, inner) = s.split(
                program, loops[axis.position], int(knob["mb"]), tile
            )
        else:
            program, (outer, inner) = s.split(program, loops[axis.position], tile)
        row_tiles.append(outer)
        row_inner.append(inner)
    reduce = [loops[a.position] for a in c.reduce]
    program, (k_outer, k_inner) = s.split(program, reduce[-1], int(knob["ku"]))
    reduce[-1:] = [k_outer]
    blocks = [n_block, m_block] if knob["order"] == "nm" else [m_block, n_block]
    rest = [loops[a.position] for a in (*c.outer, *c.rows) if a not in (second, last)]
    outermost = [*rest, *(b for b in blocks if b is not None)]
    inside = [*row_inner, n_vec, n_lane]
    program = s.reorder(program, *outermost, n_panel, *row_tiles, *reduce, k_inner, *inside)
    for loop in (k_inner, *row_inner, n_vec):
        program = s.unroll(program, loop)
    program = s.vectorize(program, n_lane)
    tile_loop = row_tiles[-1] if row_tiles else n_panel
    program = _place_epilogue(program, epilogue, tile_loop, lanes)
    program = s.decompose_reduction(program, block, reduce[0])
    if _packed_at_build(c) is not None:
        program = _prefetch_weights(program, c, config, row_tiles, reduce, (k_inner, *inside))
    program, top = s.fuse(program, *outermost)
    if int(knob["pack_lhs"]):
        program = _copy_rows(program, block, c.lhs, top, lanes)
    if int(knob["pack_rhs"]):
        program = _copy_panel(program, block, c, n_panel, lanes)
    flops = 2 * prod(a.extent for a in (*c.outer, *c.rows, c.vector, *c.reduce))
    if target.num_cores > 1 and flops > SERIAL_FLOPS:
        program = s.parallel(program, top)
    return program


def _pack_constant(program: PrimFunc, c: Contraction, width: int) -> PrimFunc:
    """Pack a constant right operand to [outer …][panel][reduce …][width]."""
    if _packed_at_build(c) is None or c.rhs.param is None:
        return program
    var_of = {i.var: n for n, i in enumerate(c.node.iters)}
    positions = [var_of.get(i, -1) if isinstance(i, Var) else -1 for i in c.rhs.load.indices]
    lanes_dim = positions.index(c.vector.position)
    factors = tuple((width,) if d == lanes_dim else () for d in range(len(positions)))
    # After the split the dimensions are numbered with the lanes' inner part behind its outer one.
    number = [d if d <= lanes_dim else d + 1 for d in range(len(positions))]
    reduced = {a.position for a in c.reduce}
    front = [number[d] for d, p in enumerate(positions) if d != lanes_dim and p not in reduced]
    summed = sorted((p, number[d]) for d, p in enumerate(positions) if p in reduced)
    order = (*front, number[lanes_dim], *(n for _, n in summed), lanes_dim + 1)
    return s.transform_layout(program, c.rhs.param, PackedLayout(factors, order))


def _prefetch_weights(
    program: PrimFunc,
    c: Contraction,
    config: Config,
    tiles: list[Var],
    reduce: list[Var],
    inside: tuple[Var, ...],
) -> PrimFunc:
    """Fetch packed weights before their use: some steps ahead, and the next panel bit by bit.

    A panel from beyond the second cache would otherwise come in one burst, read by its first tile
    of rows: each tile asks for its share of the next one instead.
    """
    node = s.find_block(program, c.block)
    values = dict(zip((i.var for i in node.iters), node.bindings, strict=True))
    load = next(ld for ld in loads_of(node.body) if ld.buffer is program.params[c.rhs.param or 0])
    place: Expr = Const(0)
    for index, extent in zip(load.indices, load.buffer.shape, strict=True):
        place = place * extent + index
    step = substitute(substitute(place, values), dict.fromkeys(inside, Const(0)))
    width = load.buffer.shape[-1]
    line = LINE_BYTES // dtype_bytes(load.buffer.dtype)
    lines = int(config["ku"]) * -(-width // line)
    if int(config["prefetch"]):
        ahead = step + int(config["prefetch"]) * width
        program = s.prefetch(program, reduce[-1], Prefetch(load.buffer, ahead, lines))
    if int(config["next_panel"]):
        panel = prod(a.extent for a in c.reduce) * width
        visits = [*tiles, *reduce]
        extents = [constant_extent(s.find_loop(program, v)) for v in visits]
        share = -(-panel // prod(extents))
        visit: Expr = Const(0)
        for var, extent in zip(visits, extents, strict=True):
            visit = visit * extent + var
        start = substitute(step, dict.fromkeys(reduce, Const(0))) + panel
        lines = max(1, share // line)
        hint = Prefetch(load.buffer, start + visit * share, lines, level=2)
        program = s.prefetch(program, reduce[-1], hint)
    return program


def _place_epilogue(program: PrimFunc, epilogue: str, loop: Var, lanes: int) -> PrimFunc:
    """The epilogue on one tile, unrolled and vectorized like the accumulators."""
    program = s.reverse_compute_at(program, epilogue, loop)
    own = _own_loops(program, epilogue, loop)
    if not own:
        return program
    *rows, last = own
    program, (vectors, lane) = s.split(program, last, lanes)
    program = s.vectorize(program, lane)
    rows.append(vectors)
    for row in rows:
        program = s.unroll(program, row)
    return program


def _copy_rows(program: PrimFunc, block: str, operand: Operand, loop: Var, lanes: int) -> PrimFunc:
    """Copy the rows of a block into a local tile whose row stride avoids cache conflicts."""
    buffer = operand.load.buffer
    program, copy = s.cache_read(program, block, buffer, "local", padding=lanes)
    program = s.compute_at(program, copy, loop)
    own = _own_loops(program, copy, loop)
    if own:
        program, (_, lane) = s.split(program, own[-1], lanes)
        program = s.vectorize(program, lane)
    return program


def _copy_panel(program: PrimFunc, block: str, c: Contraction, loop: Var, lanes: int) -> PrimFunc:
    """Copy a panel of the right operand into a local tile with the lanes innermost."""
    buffer = c.rhs.load.buffer
    var = c.node.iters[c.vector.position].var
    dims = range(len(buffer.shape))
    lane_dim = next(d for d in dims if var in affine(c.rhs.load.indices[d]).terms)
    program, copy = s.cache_read(program, block, buffer, "local")
    order = tuple(d for d in dims if d != lane_dim) + (lane_dim,)
    program = s.permute_buffer(program, copy, order)
    program = s.compute_at(program, copy, loop)
    own = _own_loops(program, copy, loop)
    lane_loop = next((v for v in own if v.name == f"i{lane_dim}"), None)
    if lane_loop is not None:
        program, (outer, lane) = s.split(program, lane_loop, lanes)
        rest = [v for v in own if v is not lane_loop]
        program = s.reorder(program, outer, *rest, lane)
        program = s.vectorize(program, lane)
    return program


def _own_loops(program: PrimFunc, block: str, loop: Var) -> list[Var]:
    """The loops of a block below ``loop``."""
    loops = s.loops_of(program, block)
    return loops[loops.index(loop) + 1 :]

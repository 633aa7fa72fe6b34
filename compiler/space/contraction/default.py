"""The default config: a closed-form model of a core, its caches and its neighbours."""

from __future__ import annotations

from itertools import pairwise
from math import log2, prod

import numpy as np
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import Numbers, whole
from tunefarm.compiler.space.contraction.shape import (
    NAME,
    padded,
    panel_count,
    row_axes,
    shares_vector,
    transposed,
)
from tunefarm.compiler.target import Target, dtype_bytes

TASK_CYCLES = 300.0  # of the pool, for each block that it hands out
REREAD = 0.02  # of a kernel's time, for every halving of the blocks that its operands are read by


def default_of(
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
    unrolled = 2 if shares_vector(c) and c.reduce[-1].extent > 1 else 1
    k: dict[str, np.ndarray] = {"rw": grid[0], "rh": grid[1], "nv": grid[2]}
    ones = np.ones_like(grid[0])
    k |= {"ku": unrolled * ones, "mb": ones, "nb": ones, "pack_lhs": 0 * ones, "pack_rhs": 0 * ones}
    valid = np.all([x.holds(k) for x in constraints], axis=0)
    cycles = np.where(valid, tile_cycles(c, target, lanes, k), np.inf)
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
    config |= _default_blocks(c, target, lanes, choices, (rw, rh, nv), float(cycles[best]))
    return config


def tile_cycles(c: Contraction, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of one step of all reductions: two FMAs and two loads a cycle, latency 4."""
    second, last = row_axes(c)
    rows, vectors = whole(k, "rw") * whole(k, "rh"), whole(k, "nv")
    tiles = -(-c.vector.extent // (vectors * lanes)).astype(np.float64)
    if last:
        tiles = tiles * -(-last.extent // whole(k, "rw"))
    if second:
        tiles = tiles * -(-second.extent // whole(k, "rh"))
    loads = rows * np.where(shares_vector(c), vectors, 1) + vectors
    step = np.maximum(np.maximum(rows * vectors, 1.3 * loads) / 2, 4.0)
    panel = prod(a.extent for a in c.reduce) * vectors * lanes * dtype_bytes(c.rhs.load.dtype)
    from_l2 = np.where(panel > target.l1_bytes // 2, 0.6 * vectors, 0.0)
    cycles = tiles * (step + 0.02 * loads + from_l2)
    cycles = cycles * np.where((whole(k, "rh") > 1) & padded(c), 1.05, 1.0)
    if shares_vector(c):
        # Bound by memory: lines beyond L1 come in pairs, and short rows keep more loads in flight.
        cycles = cycles * np.where(vectors % 2, 1.1, 1.0) * np.where(rows > 8, 1.05, 1.0)
    return cycles


def _default_blocks(
    c: Contraction,
    target: Target,
    lanes: int,
    choices: dict[str, tuple[int | str, ...]],
    register_tile: tuple[int, int, int],
    step_cycles: float,
) -> dict[str, int | str]:
    rw, rh, nv = register_tile
    second, last = row_axes(c)
    depth = prod(a.extent for a in c.reduce)
    panels = panel_count(c.vector.extent, nv * lanes)
    axis, tile = (second, rh) if second else (last, rw)
    tiles = panel_count(axis.extent, tile) if axis else 1
    element = dtype_bytes(c.rhs.load.dtype)
    weights = depth * c.vector.extent * element
    rows = prod(a.extent for a in c.rows)
    depthwise = shares_vector(c)
    order = "nm" if weights > rows * depth * element and not depthwise else "mn"
    lanes_stride = c.rhs.load.buffer.shape[-1] * element
    reused = rows >= 64 and lanes_stride % 2048 == 0  # a panel's rows meet in few cache sets
    pack_rhs = 1 in choices["pack_rhs"] and (transposed(c) or reused)
    row_bytes = tile * (_image_row_bytes(c) if depthwise else depth * element)
    all_fit = order == "nm" and rows * depth * element <= target.l2_bytes // 2
    fitting = tiles if all_fit else max(1, target.l2_bytes // 4 // max(1, row_bytes))
    copies = prod(a.extent for a in (*c.outer, *c.rows) if a not in (second, last))
    task = TASK_CYCLES / (step_cycles * depth * copies) if target.num_cores > 1 else 0.0

    def value(mb: int, nb: int) -> float:
        """Cores kept busy, less the pool's work and what is read again for small blocks."""
        row_sizes, panel_sizes = _sizes(tiles, mb), _sizes(panels, nb)
        again = log2(min(fitting, tiles) / min(mb, fitting, tiles))
        if order == "mn" and not depthwise:
            again += log2(panels / min(nb, panels))
        count = len(row_sizes) * len(panel_sizes) * copies
        lost = REREAD * again + task * count
        if count > 32 * target.num_cores:
            return 1.0 - lost
        tasks = [m * n for m in row_sizes for n in panel_sizes] * copies
        return _busy(tasks, target.num_cores) - lost

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
        # Few rows leave no time between two panels: the hardware's own prefetch does better.
        "next_panel": int(1 in choices["next_panel"] and weights >= 1 << 18 and rows >= 8),
    }


def _image_row_bytes(c: Contraction) -> float:
    """Bytes of the left operand for each row of the outermost axis of a tile, all lanes of it."""
    second, last = row_axes(c)
    inner = {a.position for a in (last if second else None, c.vector) if a is not None}
    around = prod(a.extent for a in (*c.outer, *c.rows) if a.position not in inner)
    shape = c.lhs.load.buffer.shape
    return prod(shape) / around * dtype_bytes(c.lhs.load.dtype)


def _sizes(extent: int, block: int) -> list[int]:
    """The sizes of the blocks that an extent is cut into."""
    return [block] * (extent // block) + [extent % block] * (extent % block > 0)


def _busy(tasks: list[int], cores: int) -> float:
    """The share of the cores' time that tasks fill: each core runs its part, then what is left."""
    bounds = [len(tasks) * core // cores for core in range(cores + 1)]
    parts = [tasks[a:b][::-1] for a, b in pairwise(bounds)]
    until = [0] * cores
    for _ in tasks:
        core = min(range(cores), key=until.__getitem__)
        part = parts[core] or max(parts, key=len)
        until[core] += part.pop()
    return sum(tasks) / (cores * max(until))

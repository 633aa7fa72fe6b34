"""The knobs of Strassen's method, what a config must hold, and a model of its time."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import ROWS, UNROLLS, VECTORS, up_to
from tunefarm.compiler.space.product_cycles import (
    FORK_CYCLES,
    L2_SHARE,
    TASK_CYCLES,
    cached_rate,
    moved_cycles,
    overlapped,
    term_cycles,
)
from tunefarm.compiler.space.strassen.forms import PRODUCTS
from tunefarm.compiler.space.strassen.program import Product
from tunefarm.compiler.target import Target

NAME, VERSION = "strassen", 1

BLOCK_TILES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
BLOCK_PANELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
WORKSPACE_BYTES = 4 << 20  # a thread's left operands and products
DEFAULT_BYTES = 7 << 17

LEFT_CYCLES = 8.0  # of a vector of all seven left operands of a pair of rows
COPIED_BYTES = 12.0  # a cycle, of a variable right operand that is read and written packed
RESULT_CYCLES = 15.0  # of a vector of four results: seven products stored, read and added up
LOAD_CYCLES = 0.15  # of a vector of the right operand beside multiply-adds
TILE_CYCLES = 60.0  # of a register tile, where a sum begins and ends
L3_SHARE = 3 / 4
MEMORY_CORES = 4  # as many as memory serves at the rate of one
L2_BYTES = 32.0  # a cycle, of rows that the second level keeps


def knobs_of(p: Product) -> tuple[Knob, ...]:
    pairs, terms, columns = p.halves
    vectors = columns // p.lanes
    return (
        Knob("mb", up_to(BLOCK_TILES, pairs)),
        Knob("nb", tuple(n for n in BLOCK_PANELS if n <= vectors)),
        Knob("rw", up_to(ROWS, pairs)),
        Knob("nv", tuple(n for n in VECTORS if vectors % n == 0)),
        Knob("ku", up_to(UNROLLS, terms)),
        Knob("by_tile", (0, 1)),
        Knob("next_panel", (0, 1)),
    )


def held_bytes(p: Product, k: Columns) -> Numbers:
    """What a thread keeps of a block: left operands, and the products of a panel or of a tile."""
    _, terms, _ = p.halves
    rows = whole(k, "mb") * whole(k, "rw")
    multiplied = np.where(whole(k, "by_tile") == 1, whole(k, "rw"), rows)
    width = whole(k, "nv") * p.lanes
    return 4 * PRODUCTS * (rows * (terms + 2 * p.lanes) + multiplied * width)


def panels_of(p: Product, k: Columns) -> Numbers:
    return p.halves[2] // (whole(k, "nv") * p.lanes)


def constraints_of(p: Product, target: Target) -> tuple[Constraint, ...]:
    pairs = p.halves[0]

    def fits_registers(k: Columns) -> Mask:
        rows, vectors = whole(k, "rw"), whole(k, "nv")
        return rows * vectors + np.where(vectors > 1, vectors + 1, 2) <= target.vector_registers

    def blocks_useful(k: Columns) -> Mask:
        return (whole(k, "mb") == 1) | ((whole(k, "mb") - 1) * whole(k, "rw") < pairs)

    return (
        Constraint("registers", fits_registers),
        Constraint("workspace", lambda k: held_bytes(p, k) <= WORKSPACE_BYTES),
        Constraint("blocks within extents", blocks_useful),
        Constraint("whole blocks of panels", lambda k: panels_of(p, k) % whole(k, "nb") == 0),
        Constraint("unroll", lambda k: whole(k, "ku") * whole(k, "rw") * whole(k, "nv") <= 512),
    )


def block_counts(p: Product, k: Columns) -> tuple[Numbers, Numbers]:
    """Blocks of rows and blocks of panels."""
    row_blocks = -(-p.halves[0] // (whole(k, "mb") * whole(k, "rw")))
    return row_blocks, -(-panels_of(p, k) // whole(k, "nb"))


def cycles(p: Product, target: Target, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all: products beside their weights, then the rest."""
    row_blocks, panel_blocks = block_counts(p, k)
    tasks, cores = row_blocks * panel_blocks, target.num_cores
    blocks = p.halves[0] / (whole(k, "mb") * whole(k, "rw")) * panel_blocks
    busy = np.clip(blocks / (-(-tasks // cores) * cores), 1 / cores, 1.0)  # a last one may be small
    moved = 4.0 * p.rows * (p.depth + p.columns)
    shared = np.where(row_blocks >= cores, 0.0, (cores - 1) * moved_cycles(moved, target))
    others = _sums(p, target, k) + _copied(p, 1 + PRODUCTS / 4) + shared + TASK_CYCLES * tasks
    work = overlapped(_multiply(p, k) / (cores * busy), _from_memory(p, target, k))
    return work + others / (cores * busy) + FORK_CYCLES * (cores > 1)


def _multiply(p: Product, k: Columns) -> Numbers:
    """Cycles of all products. A block's last tile of rows, and the last block, may be smaller."""
    pairs, terms, _ = p.halves
    vectors, tile = whole(k, "nv"), whole(k, "rw")
    height = np.minimum(whole(k, "mb") * tile, pairs)
    blocks, rest = np.divmod(pairs, height)
    tiles = blocks * -(-height // tile) + -(-rest // tile)
    full, last = (term_cycles(n, tile, vectors, LOAD_CYCLES) for n in (height, rest))
    steps = blocks * full + last
    return PRODUCTS * panels_of(p, k) * (terms * steps + TILE_CYCLES * tiles)


def _sums(p: Product, target: Target, k: Columns) -> Numbers:
    """Cycles of the left operands, made for each block of panels, and of the results."""
    pairs, terms, columns = p.halves
    rows_bytes = 4 * p.rows * p.depth
    near = rows_bytes <= L2_SHARE * target.l2_bytes * target.num_cores
    lefts = LEFT_CYCLES * pairs * -(-terms // p.lanes)
    lefts += rows_bytes / (L2_BYTES if near else cached_rate(target))
    return lefts * block_counts(p, k)[1] + RESULT_CYCLES * pairs * columns / p.lanes


def _copied(p: Product, moved: float) -> float:
    """Cycles of the copy that packs a variable matrix, which moves it ``moved`` times."""
    return moved * 4.0 * p.depth * p.columns / COPIED_BYTES if p.variable else 0.0


def _from_memory(p: Product, target: Target, k: Columns) -> Numbers:
    """Cycles in which weights come, for each block of rows again where they do not stay in L2."""
    _, terms, columns = p.halves
    weights = 4.0 * PRODUCTS * terms * columns
    kept = weights <= L3_SHARE * target.l3_bytes
    rate = cached_rate(target) if kept else target.stream_bytes
    again = weights * (block_counts(p, k)[0] - 1) / rate / target.num_cores
    leave_l2 = weights + held_bytes(p, k) > L2_SHARE * target.l2_bytes
    return _streamed(weights, target) + np.where(leave_l2, again, 0.0)


def _streamed(weights: float, target: Target) -> float:
    """Cycles in which weights come from memory, which serves a few cores at once."""
    return weights / target.stream_bytes / min(target.num_cores, MEMORY_CORES)


def direct_cycles(p: Product, target: Target) -> float:
    """Cycles of a core of the direct product by its best register tile, in the same model."""
    vectors, registers = -(-p.columns // p.lanes), target.vector_registers
    from_memory = _streamed(4.0 * p.depth * p.columns, target)
    found = []
    for width in VECTORS:
        tile = np.array([r for r in up_to(ROWS, p.rows) if r * width + width + 1 <= registers])
        tiles, steps = -(-p.rows // tile), term_cycles(p.rows, tile, width, LOAD_CYCLES)
        multiply = -(-vectors // width) * (p.depth * steps + TILE_CYCLES * tiles)
        found.append(np.min(multiply, initial=np.inf) / target.num_cores)
    large = 4 * p.depth * p.columns > target.l2_bytes // 2  # smaller ones are read where they lie
    copied = _copied(p, 2.0) / target.num_cores if large else 0.0
    return float(overlapped(min(found), from_memory)) + copied


def default_of(
    p: Product, target: Target, knobs: tuple[Knob, ...], constraints: tuple[Constraint, ...]
) -> tuple[Config, float]:
    """The config of the fewest cycles in the model, and their number."""
    choices = {k.name: k.choices for k in knobs}
    small = Constraint("small blocks", lambda k: held_bytes(p, k) <= DEFAULT_BYTES)
    found, estimate = cheapest(
        {n: choices[n] for n in ("mb", "nb", "rw", "nv")},
        {"ku": 1, "by_tile": 0},
        (*constraints, small),
        lambda k: cycles(p, target, k),
    )
    found["ku"] = min(2, max(int(u) for u in choices["ku"]))
    return {"sketch": NAME, **found, "next_panel": 1}, estimate

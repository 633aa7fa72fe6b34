"""What a product in parts takes, by the model of a matrix unit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.space.float_parts.forms import DEPTH, Parts, parts_of
from tunefarm.compiler.space.float_parts.program import padded_depth
from tunefarm.compiler.space.matrix_tiles.cycles import (
    CONFIGURE,
    LATENCY,
    LOAD,
    LOAD_FROM_L2,
    PRODUCT,
    STORE,
    VECTOR,
)
from tunefarm.compiler.space.matrix_tiles.shape import LANES, REGISTERS, ROWS
from tunefarm.compiler.space.product_cycles import (
    fetched_cycles,
    overlapped,
    shared_cycles,
    task_cycles,
)
from tunefarm.compiler.space.strassen.program import Product
from tunefarm.compiler.target import Target

EPILOGUE = 12.0  # clocks of a vector of results from a tile to memory
SHARED = 25_000.0  # clocks by which a product on two cores takes longer than half of one on one
IN_TURN = 6.0  # clocks of a vector whose lanes come from two rows in turn, beside its parts
LOAD_ALONE = 31.0  # clocks of a tile from the second cache, for products of one tile of rows
HINT = 1.0  # clocks of a line that is asked for
SEEN = 0.4  # of the shorter one of work and of weights that come meanwhile
MOST_AHEAD = 3 << 16  # bytes of weights that are asked for before they are read, if once
SPLIT = 16.0 / 3  # clocks of a part of a vector of float32
# Of rows that are split a tile ahead.
SPLIT_NEAR = 2.8  # clocks of a part of a vector, where the parts stay in the first cache
SEEN_AHEAD = 0.45  # of the shorter one of the split and the products beside it
EPILOGUE_NEAR = 4.0  # clocks of a vector of results, beside which no other sum runs
HELD_AHEAD = 1.3  # times its bytes that what is read again for each tile takes of the second cache
# Times the sum of these that it takes; on several cores other ways take longer than said, too.
LOST_AHEAD, LOST_AHEAD_SHARED = 1.13, 1.05
STORED_BYTES = 8.0  # a clock, of results that the second cache does not hold
RUN, RUN_SHARED = 100.0, 350.0  # clocks until a row's terms of a stretch come, from other cores too


def fits_tiles(rh: Numbers, nv: Numbers, parts: Parts) -> Mask:
    """Whether the registers hold sums and operands: a tile of weights and all parts of one tile of
    rows, or a tile of rows and those of weights."""
    return rh * nv + np.where(rh == 1, parts.number, nv) + 1 <= REGISTERS


def _load_cycles(parts: Parts, rh: Numbers, nv: Numbers, of_rows: float) -> Numbers:
    """Clocks of a step's loads: each tile of weights from the second cache; those of rows, each in
    ``of_rows`` the first time, again where pairs return to one, or for every pair where the
    registers do not hold all of them."""
    held = REGISTERS - rh * nv - nv
    again = np.where(rh <= held, parts.returns * rh, (len(parts.pairs) - parts.number) * rh)
    several = parts.number * (rh * of_rows + nv * LOAD_FROM_L2) + again * LOAD
    # All parts of one tile of rows stay, but each tile of weights comes alone.
    return np.where(rh == 1, parts.number * (of_rows + nv * LOAD_ALONE), several)


def macro_step_cycles(
    parts: Parts, rh: Numbers, nv: Numbers, of_rows: float = LOAD_FROM_L2
) -> Numbers:
    """Clocks of a step of ``DEPTH`` terms of a macro tile: of its products, its loads (of a tile of
    rows in ``of_rows``), or what each instruction waits for the one before it."""
    products = len(parts.pairs) * rh * nv * PRODUCT
    waits = len(parts.pairs) * LATENCY * 0.9
    return np.maximum(np.maximum(products, _load_cycles(parts, rh, nv, of_rows)), waits)


def cycles(p: Product, target: Target, k: Columns) -> Numbers:
    """Clocks of the whole product, its tasks shared out to the target's cores."""
    ahead = whole(k, "ahead") > 0
    found: Numbers = np.where(ahead, _cycles_ahead(p, target, k), _cycles_by_blocks(p, target, k))
    return found + SHARED * (target.num_cores > 1)


def _cycles_ahead(p: Product, target: Target, k: Columns) -> Numbers:
    """Of rows that are split a tile ahead, beside the products of the one before it."""
    parts = parts_of(target)
    nv, mb, nb = (whole(k, name) for name in ("nv", "mb", "nb"))
    depth, vectors = padded_depth(p), -(-p.columns // LANES)
    row_blocks, panel_blocks = -(-p.rows // (ROWS * mb)), -(-vectors // (nb * nv))
    steps, near = depth // DEPTH, ROWS * depth * parts.bytes <= target.l1_bytes
    loads = parts.number * (LOAD + nv * LOAD_FROM_L2)
    step = np.maximum(len(parts.pairs) * nv * PRODUCT, loads)
    split = np.float64(ROWS * depth / LANES * parts.number * (SPLIT_NEAR if near else SPLIT))
    epilogue = LATENCY + nv * (STORE + ROWS * EPILOGUE_NEAR)
    tile = overlapped(nb * steps * step, split, SEEN_AHEAD) + nb * epilogue
    lost = LOST_AHEAD if target.num_cores == 1 else LOST_AHEAD_SHARED
    task = lost * (mb * tile + split + CONFIGURE)
    weights = np.float64(parts.bytes * depth * vectors * LANES)
    held = HELD_AHEAD * weights / panel_blocks + 2 * ROWS * (
        depth * parts.bytes + 4 * nb * nv * LANES
    )
    source = replace(target, weights_in_memory=True)
    fetched = fetched_cycles(weights, held, row_blocks * mb, panel_blocks, source)
    tasks = row_blocks * panel_blocks
    # Cores that share the columns read all rows, part of which another one wrote: half is seen.
    rows = np.where(panel_blocks > 1, shared_cycles(np.float64(2 * p.rows * p.depth), target), 0.0)
    return task_cycles(tasks * task + fetched + rows, tasks, tasks, target.num_cores)


def _cycles_by_blocks(p: Product, target: Target, k: Columns) -> Numbers:
    """Of rows that are split for whole blocks, before the products."""
    parts = parts_of(target)
    rh, nv, mb, nb = (whole(k, name) for name in ("rh", "nv", "mb", "nb"))
    stretch = np.where(whole(k, "stretch") > 0, whole(k, "stretch"), padded_depth(p))
    stretches = padded_depth(p) // stretch
    steps, panels = padded_depth(p) // DEPTH, -(-p.columns // (nv * LANES))
    tiles = -(-p.rows // (rh * ROWS))
    row_blocks, panel_blocks = -(-tiles // mb), -(-panels // nb)
    tiles = row_blocks * mb  # with those of the last block beyond the last row
    # The epilogue of one macro tile runs beside the sum of the next, that of a task's last one, or
    # of the last before parts of a panel, beside none.
    sums = steps // stretches * macro_step_cycles(parts, rh, nv)
    epilogues = rh * nv * ROWS * EPILOGUE
    macro = stretches * (np.maximum(sums, epilogues) + LATENCY + rh * nv * STORE)
    last = row_blocks * (panels if p.variable else panel_blocks) * stretches * epilogues
    macro = macro + np.where(stretches > 1, rh * nv * ROWS * VECTOR, 0)
    results = 4.0 * p.rows * p.columns
    stored = results / STORED_BYTES if results > target.l2_bytes / 4 else 0.0
    run = RUN if target.num_cores == 1 else RUN_SHARED
    vector = parts.number * SPLIT
    row = padded_depth(p) / LANES * vector + np.where(stretches > 1, stretches * run, 0.0)
    split = tiles * rh * ROWS * row * panel_blocks
    work = tiles * panels * macro + last + split + stored
    # Every block of rows splits the panels again, or asks for them.
    lines = parts.number * LANES / DEPTH
    matrix = vector + IN_TURN if p.variable else lines * HINT
    work = work + row_blocks * panels * nv * padded_depth(p) * matrix
    fetched = _fetched(p, target, row_blocks, panel_blocks, panels * nv * LANES)
    total = overlapped(work, fetched, SEEN)
    tasks = row_blocks * panel_blocks
    blocks = tiles * panels / (mb * nb)
    return task_cycles(total + CONFIGURE * tasks, tasks, blocks, target.num_cores)


def _fetched(
    p: Product, target: Target, row_blocks: Numbers, panel_blocks: Numbers, columns: Numbers
) -> Numbers:
    """Clocks in which the matrix comes from beyond the second cache. A constant one is in parts,
    which come from the last cache no faster than from memory, and of a model's hardly any are still
    in the second one."""
    each = 4 if p.variable else parts_of(target).bytes
    weights = each * padded_depth(p) * columns
    held = weights + 4 * p.rows * (p.depth + p.columns)
    source = target if p.variable else replace(target, weights_in_memory=True)
    return fetched_cycles(weights, held, row_blocks, panel_blocks, source)

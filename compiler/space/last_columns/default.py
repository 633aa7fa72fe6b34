"""The knobs of a product with columns behind whole vectors, and a model of its time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tunefarm.compiler.space import narrow
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, unevenness, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob
from tunefarm.compiler.space.contraction.default import tile_cycles
from tunefarm.compiler.space.contraction.knobs import MAX_UNROLLED, UNROLLS, VECTORS, up_to
from tunefarm.compiler.space.last_columns.program import Product
from tunefarm.compiler.space.nests import task_choices
from tunefarm.compiler.space.tiles import SERIAL_FLOPS
from tunefarm.compiler.target import Target

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28)
BLOCK_TILES = (1, 2, 3, 4, 6, 7, 8, 12, 14, 16)
LAST_ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
SHORT = 32  # terms: sums of as many may be unrolled as a whole
STEP_CYCLES = 1.2  # of a step of a tile's sum, beside its sums (``_between_steps``)
MANY_SUMS = 16  # of a tile of the last columns: those of more take longer (``_few_sums``)
NEAR_ROWS = 0.85  # times the time of ``narrow``, whose rows lie in the second cache
FAR_BLOCK = 1.05  # times the time, if rows and results of a block fill half of the first cache


def knobs_of(p: Product, target: Target) -> tuple[Knob, ...]:
    rows, vectors = p.rows, p.whole // p.lanes
    steps = -(-p.depth // p.lanes)
    unrolls = tuple(dict.fromkeys((*up_to(UNROLLS, p.depth), *[p.depth] * (p.depth <= SHORT))))
    return (
        Knob("rw", up_to(ROWS, rows)),
        Knob("nv", tuple(v for v in VECTORS if v <= vectors)),
        Knob("ku", unrolls),
        Knob("mb", tuple(b for b in BLOCK_TILES if b <= rows)),
        Knob("lw", tuple(r for r in LAST_ROWS if r <= rows)),
        Knob("lu", tuple(u for u in narrow.UNROLLS if u <= steps)),
        Knob("tasks", task_choices([p.both.node], target)),
    )


def constraints_of(p: Product, target: Target) -> tuple[Constraint, ...]:
    def fits_registers(k: Columns) -> Mask:
        rows, vectors = whole(k, "rw"), whole(k, "nv")
        sums = rows * vectors + np.where(vectors > 1, vectors + 1, 2)
        last = (whole(k, "lw") + 1) * p.rest + 1
        return np.maximum(sums, last) <= target.vector_registers

    def small_code(k: Columns) -> Mask:
        sums, last = whole(k, "rw") * whole(k, "nv"), whole(k, "lw") * p.rest
        return (sums * whole(k, "ku") <= MAX_UNROLLED) & (last * whole(k, "lu") <= MAX_UNROLLED)

    def blocks_useful(k: Columns) -> Mask:
        within = (whole(k, "mb") == 1) | ((whole(k, "mb") - 1) * whole(k, "rw") < p.rows)
        return within & (whole(k, "lw") <= heights(p, k))

    return (
        Constraint("registers", fits_registers),
        Constraint("code size", small_code),
        Constraint("blocks within extents", blocks_useful),
    )


def heights(p: Product, k: Columns) -> Numbers:
    """Rows of a block."""
    return np.minimum(whole(k, "mb") * whole(k, "rw"), p.rows)


def cycles(p: Product, target: Target, k: Columns) -> Numbers:
    """Cycles of the whole product on one core, each part by the model of its own sketch."""
    one, height = np.ones_like(whole(k, "rw")), heights(p, k)
    blocks = -(-p.rows // height)
    tile = {"rw": whole(k, "rw"), "rh": one, "nv": whole(k, "nv"), "ku": one}
    vectors = p.depth * tile_cycles(p.vectors, target, p.lanes, tile)
    vectors = vectors * _tiles(p, k) / -(-p.rows // whole(k, "rw"))
    of_last = {"rw": whole(k, "lw"), "rh": one, "ku": whole(k, "lu")}
    last = NEAR_ROWS * narrow.cycles(p.last, target, of_last)
    last = last * (blocks * -(-height // whole(k, "lw"))) / -(-p.rows // whole(k, "lw"))
    block_bytes = 4 * height * (p.depth + p.columns)
    return (vectors + last) * np.where(block_bytes > target.l1_bytes // 2, FAR_BLOCK, 1.0)


def _tiles(p: Product, k: Columns) -> Numbers:
    """Tiles of rows of whole vectors: the last one of a block may be smaller."""
    return -(-p.rows // heights(p, k)) * -(-heights(p, k) // whole(k, "rw"))


def _between_steps(p: Product, target: Target, k: Columns) -> Numbers:
    """Cycles of the steps of all tiles beside their sums: 56² of 17 channels to 17 take 16.0 µs by
    16 rows with a term a step, 14.8 with all of them in one, of 64 to 17 50.9 and, with 8 a step,
    46.1 (Emerald Rapids, one core). No other sketch counts them."""
    panels = -(-(p.whole // p.lanes) // whole(k, "nv"))
    steps = _tiles(p, k) * panels * -(-p.depth // whole(k, "ku"))
    return STEP_CYCLES / target.product_clocks * steps


def default_of(p: Product, target: Target) -> Config:
    """The config of the fewest cycles in the model on the busiest core."""
    tasks = _default_tasks(p, target)

    def cost(k: Columns) -> Numbers:
        blocks = -(-p.rows // heights(p, k))
        shared = unevenness(blocks, target.num_cores) if tasks else 1.0
        return (cycles(p, target, k) + _between_steps(p, target, k)) * shared

    return _cheapest(p, target, cost, tasks)[0]


def least_cycles(p: Product, target: Target) -> float:
    """Cycles of the whole product on one core by the best config for that, as the models of other
    sketches have them."""
    return _cheapest(p, target, lambda k: cycles(p, target, k))[1]


def _cheapest(
    p: Product, target: Target, cost: Callable[[Columns], Numbers], tasks: int = 0
) -> tuple[Config, float]:
    knobs = {k.name: k.choices for k in knobs_of(p, target)}
    few = Constraint("few sums", lambda k: _few_sums(p, k))
    return cheapest(
        {n: knobs[n] for n in ("rw", "nv", "ku", "mb", "lw")},
        {"lu": max(int(u) for u in knobs["lu"]), "tasks": tasks},
        (*constraints_of(p, target), few),
        cost,
    )


def _few_sums(p: Product, k: Columns) -> Mask:
    """Whether a tile of the last columns has few sums, and the steps of one of vectors divide them.

    Four columns of 64 terms by 4 rows take 0.9 × the time of 8 × 1 vector more, by 8 rows 0.91, by
    16 1.07 (56², Emerald Rapids).
    """
    sums, unrolled = whole(k, "lw") * p.rest, whole(k, "ku")
    return (sums <= max(MANY_SUMS, p.rest)) & (p.depth % unrolled == 0)


def _default_tasks(p: Product, target: Target) -> int:
    """On a mesh one a core, as ``narrow`` has: cores that take turns move lines. 58,000 FLOPs take
    twice as long on two cores as on one, 97,000 as long (10² and 13² of 17 channels)."""
    shared = target.num_cores > 1 and 2 * p.rows * p.depth * p.columns > SERIAL_FLOPS
    return (1 if target.has_mesh else 2) if shared else 0

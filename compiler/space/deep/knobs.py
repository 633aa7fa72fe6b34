"""Which products have long sums, the knobs of their sketch, and its default."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.analysis import Axis, Contraction
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Nest
from tunefarm.compiler.space.contraction.knobs import BLOCKS, MAX_UNROLLED, ROWS, VECTORS, up_to
from tunefarm.compiler.space.contraction.nest import nest_of
from tunefarm.compiler.space.contraction.shape import (
    contraction_of,
    packed_at_build,
    padded,
    panel_count,
    row_axes,
    shares_vector,
    sum_dtype,
)
from tunefarm.compiler.space.product_cycles import (
    fetched_cycles,
    latency_of,
    overlapped,
    task_cycles,
    term_cycles,
)
from tunefarm.compiler.target import Target

NAME, VERSION = "deep", 1
PARTS = (128, 256, 384, 512, 768)  # terms of a part, about
UNROLLS = (1, 2, 4)
LEAST_DEPTH = 2048  # of a sum: 49 to 196 rows of 2048 terms take as long by other sketches (Zen 3)
DEEP = 4096  # where the other sketches take 1.17 to 1.5 × the time (Zen 3)
LEAST_ROWS = 16  # fewer wait for their weights, however they are read
HELD_BYTES = 1 << 20  # of a block's sums
PART_CYCLES = 1.5  # of a vector of sums, to add a part to it
L1_SHARE, L2_SHARE = 0.75, 0.5  # of the caches, that may be filled at no cost
CROWDED = 0.2  # of the cycles, more where the second one is filled once and a half


@lru_cache(maxsize=64)
def deep_product_of(function: Function, target: Target) -> Contraction | None:
    """A product of float32 rows and constant weights with a long sum; None for others."""
    c = None if target.kind != "llvm" else contraction_of(function)
    if c is None or sum_dtype(c) != "float32" or c.rhs.load.dtype != "float32":
        return None
    plain = len(c.reduce) == 1 and not c.outer and not padded(c) and not shares_vector(c)
    second, last = row_axes(c)
    if not plain or second is not None or last is None or not packed_at_build(c):
        return None
    return c if last.extent >= LEAST_ROWS and parts_of(c) else None


def rows_of(c: Contraction) -> Axis:
    """The axis of the rows."""
    axis = row_axes(c)[1]
    assert axis is not None
    return axis


def parts_of(c: Contraction) -> tuple[int, ...]:
    """Terms that a part may have: those that divide the sum, near the wanted ones."""
    depth = c.reduce[0].extent
    if depth < LEAST_DEPTH:
        return ()
    divisors = [n for n in range(PARTS[0] // 2, 2 * PARTS[-1]) if depth % n == 0]
    near = {min(divisors, key=lambda n: abs(n - wanted)) for wanted in PARTS} if divisors else set()
    return tuple(sorted(near))


def knobs_of(c: Contraction, target: Target) -> tuple[Knob, ...]:
    lanes, rows = target.lanes("float32"), rows_of(c).extent
    vectors = panel_count(c.vector.extent, lanes)
    return (
        Knob("rw", up_to(ROWS, rows)),
        Knob("nv", up_to(VECTORS, vectors)),
        Knob("ku", UNROLLS),
        Knob("mb", up_to(BLOCKS, rows)),
        Knob("nb", up_to(BLOCKS, vectors)),
        Knob("part", parts_of(c)),
    )


def held_bytes(c: Contraction, target: Target, k: Columns) -> Numbers:
    """Of a block's sums."""
    rows = np.minimum(whole(k, "mb") * whole(k, "rw"), rows_of(c).extent)
    return 4 * rows * whole(k, "nb") * whole(k, "nv") * target.lanes("float32")


def constraints_of(c: Contraction, target: Target) -> tuple[Constraint, ...]:
    lanes, rows = target.lanes("float32"), rows_of(c).extent

    def fits_registers(k: Columns) -> Mask:
        vectors = whole(k, "nv")
        operands = np.where(vectors > 1, vectors + 1, 2)
        return whole(k, "rw") * vectors + operands <= target.vector_registers

    def blocks_useful(k: Columns) -> Mask:
        panels = -(-c.vector.extent // (whole(k, "nv") * lanes))
        fits_rows = (whole(k, "mb") == 1) | (whole(k, "mb") * whole(k, "rw") < 2 * rows)
        return fits_rows & (panels % whole(k, "nb") == 0)

    return (
        Constraint("registers", fits_registers),
        Constraint("sums of a block", lambda k: held_bytes(c, target, k) <= HELD_BYTES),
        Constraint("whole blocks", blocks_useful),
        Constraint("part", lambda k: whole(k, "part") % whole(k, "ku") == 0),
        Constraint(
            "unroll", lambda k: whole(k, "ku") * whole(k, "rw") * whole(k, "nv") <= MAX_UNROLLED
        ),
    )


def cycles(c: Contraction, target: Target, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all: multiply-adds, parts added up, weights from beyond
    the second cache, and what parts and blocks that crowd their caches cost."""
    lanes, rows, depth = target.lanes("float32"), rows_of(c).extent, c.reduce[0].extent
    tile, vectors, part = whole(k, "rw"), whole(k, "nv"), whole(k, "part")
    panels = -(-c.vector.extent // (vectors * lanes))
    row_blocks = -(-rows // (whole(k, "mb") * tile))
    panel_blocks = np.maximum(panels // whole(k, "nb"), 1)
    step = term_cycles(
        rows, tile=tile, vectors=vectors, clocks=target.product_clocks, latency=latency_of(target)
    )
    adds = PART_CYCLES * rows * vectors * depth / part
    # The panel's part beside the tile's rows; the block's sums beside its rows.
    first = 4.0 * part * (vectors * lanes + tile)
    second = held_bytes(c, target, k) + 4.0 * part * whole(k, "mb") * tile
    crowded = np.clip(first / target.l1_bytes - L1_SHARE, 0.0, 1.0)
    crowded = crowded + CROWDED * np.clip(second / target.l2_bytes - L2_SHARE, 0.0, 1.0)
    work = panels * (step * depth + adds) * (1 + crowded)
    weights = 4.0 * depth * c.vector.extent
    kept = weights + 4.0 * rows * (depth + c.vector.extent)
    fetched = fetched_cycles(weights, kept, row_blocks, panel_blocks, target)
    tasks = row_blocks * panel_blocks
    return task_cycles(overlapped(work, fetched), tasks, tasks, target.num_cores)


def default_of(c: Contraction, target: Target) -> Config:
    """The config of the fewest cycles in the model."""
    choices = {k.name: k.choices for k in knobs_of(c, target)}
    found, _ = cheapest(
        {name: choices[name] for name in ("rw", "nv", "mb", "nb", "part")},
        {"ku": 1},
        constraints_of(c, target),
        lambda k: cycles(c, target, k),
    )
    found["ku"] = max(u for u in UNROLLS if found["part"] % u == 0)
    return {"sketch": NAME, **found}


def pays(c: Contraction, target: Target) -> bool:
    """Whether it is a task's default."""
    return target.has_few_registers and c.reduce[0].extent >= DEEP


def nest(c: Contraction, target: Target, k: Columns) -> Nest:
    """That of the contraction sketch, a part of the terms deep in the first cache."""
    ones = np.ones_like(whole(k, "rw"))
    none = dict.fromkeys(("pack_lhs", "pack_rhs", "prefetch", "next_panel"), 0 * ones)
    lanes = target.lanes("float32")
    return nest_of(
        c, target, lanes, {**k, **none, "rh": ones, "order": np.array(["nm"] * len(ones))}
    )

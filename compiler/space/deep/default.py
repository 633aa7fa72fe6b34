"""The time of a product with a long sum in a closed form, and the config of the least."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.columns import Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config
from tunefarm.compiler.space.deep.knobs import NAME, UNROLLS, constraints_of, held_bytes, knobs_of
from tunefarm.compiler.space.deep.shape import rows_of
from tunefarm.compiler.space.product_cycles import (
    fetched_cycles,
    latency_of,
    overlapped,
    task_cycles,
    term_cycles,
)
from tunefarm.compiler.target import Target

DEEP = 4096  # the plain product takes 1.16 to 1.5 × the time, Strassen's 0.96 to 1.3 × (Zen 3)
PART_CYCLES = 1.5  # of a vector of sums, to add a part to it
L1_SHARE, L2_SHARE = 0.75, 0.5  # of the caches, that may be filled at no cost
CROWDED = 0.2  # of the cycles, more where the second one is filled once and a half


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
    return task_cycles(overlapped(work, fetched, target.seen_share), tasks, tasks, target.num_cores)


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

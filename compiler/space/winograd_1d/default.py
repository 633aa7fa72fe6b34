"""The time of Winograd's method along rows in a closed form, and the config of the least."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from tunefarm.compiler.space.columns import Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config
from tunefarm.compiler.space.product_cycles import (
    LATENCY,
    fetched_cycles,
    overlapped,
    task_cycles,
)
from tunefarm.compiler.space.winograd.counts import (
    panels_of,
    row_filters,
    row_points,
    tile_columns,
)
from tunefarm.compiler.space.winograd.default import TRANSFORM_CYCLES, exchanged_cycles
from tunefarm.compiler.space.winograd_1d.convolution import RowConvolution
from tunefarm.compiler.space.winograd_1d.knobs import (
    NAME,
    block_counts,
    constraints_of,
    input_rows,
    knobs_of,
    product_bytes,
    products_of_row,
    register_rows,
    summed_rows,
    tile_bytes,
)
from tunefarm.compiler.target import Target

LOAD_CYCLES = 0.3  # of a vector of weights, beside the multiply-adds


def cycles(c: RowConvolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all: transforms, products, weights from beyond L2."""
    row_blocks, panel_blocks = block_counts(c, lanes, k)
    panels, tiles = panels_of(c, lanes, k), tile_columns(c, k)
    weights = row_filters(c, k) * c.row_taps * c.inputs * c.outputs * 4.0
    held = weights + tile_bytes(c, lanes, k) + product_bytes(c, lanes, k)
    fetched = fetched_cycles(weights, held, row_blocks, panel_blocks, target, _reread_bytes(target))
    vectors_in = row_blocks * panel_blocks * input_rows(c, k) * tiles * -(-c.inputs // lanes)
    vectors_out = c.batch * c.height * tiles * -(-c.outputs // lanes)
    moved = TRANSFORM_CYCLES * row_points(c, k) * (vectors_in + vectors_out)
    multiply, groups = panels * _multiply(c, k), -(-tiles // whole(k, "rt"))
    # Later groups find their weights in the caches.
    first = overlapped(multiply / groups, fetched, target.seen_share)
    work = first + multiply * (1 - 1 / groups) + moved + exchanged_cycles(c, target, row_blocks)
    blocks = c.batch * c.height / whole(k, "rh") * panels / whole(k, "nb")
    return task_cycles(work, row_blocks * panel_blocks, blocks, target.num_cores)


def _reread_bytes(target: Target) -> float:
    """Bytes a cycle of weights that further images read again: as many as the first one reads, on
    a mesh too (7² × 512, batches of 2 to 8, Emerald Rapids). Beside a matrix unit, whose methods
    were timed with the target's, these stay."""
    return target.reread_stream_bytes if target.has("amx-bf16") else target.cached_stream_bytes


def _multiply(c: RowConvolution, k: Columns) -> Numbers:
    """Cycles of all sums of a panel: two multiply-adds and two loads each."""
    tile, vectors = register_rows(k), whole(k, "nv")
    step = np.maximum(np.maximum(tile * vectors, tile + vectors) / 2, LATENCY)
    per_row = (step + LOAD_CYCLES * vectors) / tile
    return c.inputs * summed_rows(c, k) * products_of_row(c, k) * per_row


@lru_cache(maxsize=64)
def default_of(c: RowConvolution, target: Target, lanes: int) -> tuple[Config, float]:
    """The config of the fewest cycles in the model, and their number."""
    choices = {k.name: k.choices for k in knobs_of(c, lanes)}
    names = ("tile_w", "rh", "rt", "nb", "nv")
    found, estimate = cheapest(
        {n: choices[n] for n in names},
        {"ku": 1},
        constraints_of(c, target, lanes),
        lambda k: cycles(c, target, lanes, k),
    )
    return {"sketch": NAME, **found}, estimate

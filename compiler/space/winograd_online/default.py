"""The time of the method in a closed form, and the config of the least."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config
from tunefarm.compiler.space.product_cycles import LOADS, overlapped, task_cycles, weight_rates
from tunefarm.compiler.space.winograd.convolution import Convolution
from tunefarm.compiler.space.winograd.default import (
    L1_SHARE,
    TRANSFORM_CYCLES,
    exchanged_cycles,
)
from tunefarm.compiler.space.winograd_online.knobs import (
    NAME,
    block_bytes,
    constraints_of,
    groups,
    held_bytes,
    knobs_of,
    panel_bytes,
    panels,
    products,
    tile_columns,
    tile_rows,
    weight_bytes,
)
from tunefarm.compiler.space.winograd_online.transforms import POINTS, TAPS
from tunefarm.compiler.target import Target

L2_SHARE = 0.6  # for a panel's weights of a block of inputs, those of the next, and their tiles
CROWDED = 1.12  # times the cycles, where they exceed that
L2_BYTES = 26.0  # that come from the second cache in a clock (Zen 4)
ADDITIONS = 96  # of nine taps for all points
TAPS_READ = 42  # vectors of them, by the points of columns: 3 of the outer ones, 9 of the others
LOADED = 1.04  # of a multiply-add, what a load takes with AVX-512 (Zen 5)
ADDED = 0.15  # of a multiply-add, what an addition takes where it has ports of its own
TOGETHER = 1.2  # times the cycles, where additions take those of multiply-adds (Emerald Rapids)


def cycles(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all: transforms, products, weights from beyond L2."""
    count = panels(c, lanes)
    tiles = c.batch * tile_rows(c) * tile_columns(c)
    made = -(-c.inputs // lanes) + count
    moved = TRANSFORM_CYCLES * POINTS**2 * tiles * made
    crowded = np.where(block_bytes(c, lanes, k) > L2_SHARE * target.l2_bytes, CROWDED, 1.0)
    multiply = count * c.inputs * _term_cycles(c, target, lanes, k) * crowded
    first_rate, _ = weight_rates(np.array(weight_bytes(c) + held_bytes(c, lanes)), target)
    fetched = weight_bytes(c) / first_rate
    work = overlapped(multiply, fetched, target.seen_share) + moved + exchanged_cycles(c, target, 1)
    blocks = count / whole(k, "nb")
    return task_cycles(work, -(-count // whole(k, "nb")), blocks, target.num_cores)


def _term_cycles(c: Convolution, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of all products of an input and a panel: two multiply-adds each, beside the loads of
    their tiles' numbers, additions, and taps from the second cache.

    Of a block of inputs whose taps the first one holds each comes once, where two multiply-adds
    begin in a clock: 512 of 7² in eight blocks take 0.83 to 0.87 × the time of one on an Emerald
    Rapids, on one core and two, and 0.75 to 0.78 on a Zen 5. A Zen 4, which takes two clocks for
    them, waits for few of those from the second cache.
    """
    number, read = products(c), groups(c, k)
    added, together = (ADDED, 1.0) if target.adds_apart else (1.0, TOGETHER)
    multiplied = number + added * ADDITIONS * read
    loads = LOADED if target.has_avx512 else LOADS
    loaded = loads / target.product_clocks * (number + TAPS_READ * read)
    held = panel_bytes(c, lanes, k) <= L1_SHARE * target.l1_bytes
    waits = target.has_avx512 and target.product_clocks == 1
    taken = np.where(waits & held, TAPS**2, TAPS_READ)
    taps = taken * read * 4 * lanes / target.beside_products(L2_BYTES)
    return together * overlapped(np.maximum(multiplied, loaded) / 2, taps)


def default_of(c: Convolution, target: Target, lanes: int) -> tuple[Config, float] | None:
    """The config of the fewest cycles in the model, and their number; None if there is none."""
    choices = {k.name: k.choices for k in knobs_of(c, lanes) if k.name != "ku"}
    constraints = constraints_of(c, target, lanes)
    found, estimate = cheapest(
        choices, {"ku": 1}, constraints, lambda k: cycles(c, target, lanes, k)
    )
    return ({"sketch": NAME, **found}, estimate) if np.isfinite(estimate) else None

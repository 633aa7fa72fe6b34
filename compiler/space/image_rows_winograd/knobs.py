"""The knobs of depthwise convolutions along rows by Winograd's method, a model of their time, and
the loops in numbers for the features of the cost model."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Numbers, cheapest, whole
from tunefarm.compiler.space.config import Access, Columns, Config, Knob, Nest
from tunefarm.compiler.space.contraction.knobs import up_to
from tunefarm.compiler.space.depthwise_winograd.knobs import POINTS
from tunefarm.compiler.space.depthwise_winograd.program import TAPS, TILE, Depthwise
from tunefarm.compiler.space.product_cycles import FORK_CYCLES
from tunefarm.compiler.target import LINE_BYTES, Target

NAME, VERSION = "image_rows_winograd", 1

ROWS = (2, 4, 6, 8, 10, 12, 14, 16, 20, 28)
FAR_BYTES = 4096  # of a row, beyond which a strip's next row lies on another page
# Cycles, in each of which two multiply-adds begin; a Zen 4's are two clocks.
LOAD = 0.9  # of a vector that meets two lines, and
WEIGHT = 0.58  # of one that does not
ADDITIONS = 3.5  # of a vector of results, which units of their own start one a clock
BOTH = 0.25  # of the shorter of loads and additions that the longer does not hide
OUTSIDE = 3.0  # of a tile beside its sums
MANY, FAR = 14, 1.1  # times the time of tiles of more rows that are far apart
TASK = {False: 40.0, True: 150.0}  # of a turn of the outer loop, and of one that cores share


def knobs_of(c: Depthwise) -> tuple[Knob, ...]:
    """Rows ``rh`` of a tile."""
    return (Knob("rh", up_to(ROWS, c.height + c.height % TILE)),)


def strips_of(c: Depthwise, lanes: int) -> int:
    """Vectors of a row."""
    return -(-c.width * c.channels // lanes)


def cycles(c: Depthwise, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of the slowest core."""
    rows, cores = whole(k, "rh"), target.num_cores
    tasks = c.batch * -(-c.height // rows)
    per_core = -(-tasks // cores)
    share = np.minimum(per_core * np.minimum(rows / c.height, 1) / c.batch, 1)
    work = work_cycles(c, lanes, k) * share
    return work + TASK[cores > 1] * per_core + FORK_CYCLES * (cores > 1)


def work_cycles(c: Depthwise, lanes: int, k: Columns) -> Numbers:
    """Cycles of all tiles on one core: additions, whose units multiply-adds leave alone, or loads
    of a strip of them, whichever take longer, and a share of the others."""
    rows = whole(k, "rh")
    blocks = -(-c.height // rows)
    crossing = c.channels * 4 % LINE_BYTES != 0
    read = TAPS * (c.height + (TAPS - 1) * blocks)
    loads = (LOAD if crossing else WEIGHT) * read + WEIGHT * POINTS * TAPS * blocks
    sums = ADDITIONS * c.height
    strip = np.maximum(sums, loads) + BOTH * np.minimum(sums, loads) + OUTSIDE * blocks
    far = (rows > MANY) & (c.width * c.channels * 4 > FAR_BYTES)
    return c.batch * strips_of(c, lanes) * strip * np.where(far, FAR, 1.0)


def default_of(c: Depthwise, target: Target, lanes: int, knobs: tuple[Knob, ...]) -> Config:
    """The config of the fewest cycles in the model."""
    choices = {k.name: k.choices for k in knobs}
    found, _ = cheapest(choices, {}, (), lambda k: cycles(c, target, lanes, k))
    return {"sketch": NAME, **found}


def nest_of(c: Depthwise, target: Target, lanes: int, k: Columns) -> Nest:
    """Rows ``y`` of the result, places ``p`` along them, taps of rows and of columns."""
    one, length = np.ones(len(whole(k, "rh")), np.int64), c.width * c.channels
    axes = {"y": c.batch * c.height, "p": length, "i": TAPS, "j": TAPS}
    vector = {**dict.fromkeys(axes, one), "p": np.minimum(lanes, length) * one}
    register = {**vector, "y": whole(k, "rh"), "i": TAPS * one, "j": TAPS * one}
    core = {**register, "p": length * one}
    tiles = c.batch * -(-c.height // TILE)
    executed = 2.0 * POINTS * TAPS * tiles * strips_of(c, lanes) * lanes
    columns = ({"p": 1, "j": c.channels},)
    return Nest(
        axes,
        frozenset({"i", "j"}),
        (
            Access("image", 4, (c.batch * c.image[0], length), ({"y": 1, "i": 1}, *columns)),
            Access(
                "weights", 4, (POINTS, TAPS, length), ({"i": 1}, {"j": 1}, {"p": 1}), constant=True
            ),
            Access("out", 4, (c.batch * c.height, length), ({"y": 1}, {"p": 1}), write=True),
        ),
        {
            "vector": vector,
            **dict.fromkeys(("register", "l1"), register),
            **dict.fromkeys(("l2", "core"), core),
        },
        c.batch * -(-c.height // whole(k, "rh")),
        np.full(len(one), executed),
        {
            "rh": whole(k, "rh").astype(np.float64),
            "cycles": cycles(c, target, lanes, k),
        },
    )

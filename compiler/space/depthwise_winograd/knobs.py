"""The knobs of depthwise convolutions by Winograd's method, a model of their time, and the loops in
numbers for the features of the cost model."""

from __future__ import annotations

from math import gcd

import numpy as np
from tunefarm.compiler.space.aliases import rows_meet
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Access, Columns, Config, Constraint, Knob, Nest
from tunefarm.compiler.space.contraction.knobs import up_to
from tunefarm.compiler.space.depthwise_winograd.program import TAPS, TILE, Depthwise
from tunefarm.compiler.space.product_cycles import FORK_CYCLES
from tunefarm.compiler.space.winograd.knobs import BLOCK_PANELS
from tunefarm.compiler.space.winograd.transforms import transforms
from tunefarm.compiler.target import LINE_BYTES, SAME_SET_BYTES, Target

NAME, VERSION = "depthwise_winograd", 1

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 14)
POINTS = transforms(TILE).points
# Cycles, in each of which two multiply-adds begin; a Zen 4's are two clocks.
LOAD = 0.58  # of a vector
OUTSIDE = 1.8  # of a tile beside its sums
TALL = 1.03  # times the time of tiles of more than eight rows, if lines are whole
BEYOND_L1, BEYOND_L2 = 0.5, 1.25  # of two vectors of results that leave these levels
CROWDED = 0.75  # of the ways of a set that a tile may fill, and
CROWDING = 32.0  # what more costs, as a share of the time of all sets over those that are used
BY_COLUMN = 1.1  # times the time of whole rows, by columns of all panels or at least
COLUMN_PANELS = 8
WAITS = 1.6  # times the time, where loads wait for stores, and
FEW_ROWS, WAITS_IN_COLUMN = 3, 1.45  # of a column by tiles of more rows
MORE_ROWS, EVERY_OTHER = 5, 1.1  # the same where every other row meets, or of whole rows
NEAR_BYTES, FAR = 512, 0.4  # more where rows meet, for each KiB that pixels are further apart
TASK = {False: 40.0, True: 150.0}  # of a turn of the outer loop, and of one that cores share


def knobs_of(c: Depthwise, lanes: int) -> tuple[Knob, ...]:
    """Rows ``rh`` of a tile, panels ``nb`` of a block; with ``by_column`` a column of tiles takes
    all of these before the next one does."""
    panels = panels_of(c, lanes)
    return (
        Knob("rh", up_to(ROWS, c.height)),
        Knob("nb", up_to(BLOCK_PANELS, panels)),
        Knob("by_column", (0, 1) if panels > 1 else (0,)),
    )


def panels_of(c: Depthwise, lanes: int) -> int:
    """Vectors of channels."""
    return -(-c.channels // lanes)


def cycles(c: Depthwise, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of the slowest core."""
    rows, panels, cores = whole(k, "rh"), whole(k, "nb"), target.num_cores
    all_panels = panels_of(c, lanes)
    tasks = c.batch * -(-c.height // rows) * -(-all_panels // panels)
    per_core = -(-tasks // cores)
    largest = np.minimum(rows / c.height, 1) * np.minimum(panels / all_panels, 1) / c.batch
    share = np.minimum(per_core * largest, 1)
    work = work_cycles(c, target, lanes, k) * share
    return work + TASK[cores > 1] * per_core + FORK_CYCLES * (cores > 1)


def work_cycles(c: Depthwise, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of all tiles on one core: multiply-adds or loads of a column of them, whichever take
    longer, since additions run beside both; and of lines that leave the first level of cache."""
    rows = whole(k, "rh")
    blocks = -(-c.height // rows)
    sums = POINTS / 2 * c.taps_inside[0]
    crossing = 2 if c.channels * 4 % LINE_BYTES else 1  # lines, where pixels begin inside them
    read = POINTS * (c.height + (TAPS - 1) * blocks)
    loads = LOAD * (crossing * read + POINTS * TAPS * blocks)
    moved = 4 * c.batch * c.channels * (c.image[0] * c.image[1] + c.height * c.width)
    beyond = BEYOND_L2 if 2 * moved > target.l2_bytes else BEYOND_L1
    beyond = beyond if moved > target.l1_bytes else 0.0
    column = np.maximum(sums, loads) + OUTSIDE * blocks + beyond * c.height
    tall = np.where((rows > 8) & (crossing == 1), TALL, 1.0)
    columns = c.batch * panels_of(c, lanes) * c.tiles
    return columns * column * tall * _order(c, target, k) * _far(c)


def _far(c: Depthwise) -> float:
    """A factor of the time where rows, or every other one, meet in the last 12 bits of addresses:
    28² × 256 takes 1.3 × the cycles of the model without it, 14² × 512 1.8, 14² × 1024 2.9."""
    if not _every_other_meets(c) and not waits_for_stores(c):
        return 1.0
    pixel = c.channels * 4
    return 1 + FAR * max(0, gcd(pixel, SAME_SET_BYTES) - NEAR_BYTES) / 1024


def _order(c: Depthwise, target: Target, k: Columns) -> Numbers:
    """A factor of the time by the order of tiles: those of a row share lines, of a column that has
    panels enough none waits for the stores of the one before."""
    rows, panels = whole(k, "rh"), panels_of(c, target.lanes("float32"))
    enough = (whole(k, "nb") > 1) & (whole(k, "nb") >= min(panels, COLUMN_PANELS))
    by_column = (whole(k, "by_column") == 1) & enough
    if waits_for_stores(c):
        return np.where(by_column, np.where(rows > FEW_ROWS, WAITS_IN_COLUMN, 1.0), WAITS)
    if _every_other_meets(c) and c.channels * 4 <= NEAR_BYTES:
        column = np.where(rows > MORE_ROWS, EVERY_OTHER, 1.0)
        return np.where(by_column, column, EVERY_OTHER * _crowding(c, target, rows))
    return np.where(by_column, BY_COLUMN, _crowding(c, target, rows))


def _crowding(c: Depthwise, target: Target, rows: Numbers) -> Numbers:
    """A factor of the time of tiles whose lines meet in few sets of the first level: 56² of 128
    channels, with rows a multiple of 4 KiB apart, take 1.5 × as long by seven rows as by three."""
    sets = SAME_SET_BYTES // LINE_BYTES
    pixel = max(c.channels * 4 // LINE_BYTES, 1)
    row = c.image[1] * c.channels * 4 // LINE_BYTES
    ways = target.l1_bytes // SAME_SET_BYTES
    most = [_most_in_a_set(int(r), row, pixel, sets) / ways for r in np.ravel(rows)]
    beyond = np.maximum(np.array(most) - CROWDED, 0.0).reshape(np.shape(rows))
    used = sets // gcd(row, pixel, sets)
    return 1 + CROWDING / 2 / used * beyond


def _most_in_a_set(rows: int, row: int, pixel: int, sets: int) -> int:
    """Lines of a tile's inputs and results in the set that has the most."""
    y, x = np.indices((rows + TAPS - 1, POINTS))
    inputs = np.bincount(((y * row + x * pixel) % sets).ravel(), minlength=sets)
    within = (y[1:-1, 1:-1] * row + x[1:-1, 1:-1] * pixel) % sets
    return int((inputs + np.bincount(within.ravel(), minlength=sets)).max())


def waits_for_stores(c: Depthwise) -> bool:
    """True where a load of the next tile waits for a store of this one.

    By whole rows 33² of 32 channels take 1.1 × the time of the direct sum, 34² 0.7 × (Zen 4); by
    columns, whose next load is of other channels, 0.86 ×.
    """
    return rows_meet(c.image[1] * c.channels * 4, c.channels * 4)


def _every_other_meets(c: Depthwise) -> bool:
    """True where loads wait for the stores of the last tile but one, half as often.

    By columns of five rows 112² × 32, 56² × 64 and 28² × 128 take 0.9 × the time of whole rows, 0.8
    on two cores, 24² × 192 and 28² × 384 take 1.1 × (Zen 4).
    """
    return rows_meet(2 * c.image[1] * c.channels * 4, c.channels * 4)


def direct_cycles(c: Depthwise, lanes: int) -> float:
    """Cycles of the direct sum on one core, of the taps inside the image, at peak."""
    above, across = c.taps_inside
    return c.batch * panels_of(c, lanes) * above * across / 2


def default_of(c: Depthwise, target: Target, lanes: int, knobs: tuple[Knob, ...]) -> Config:
    """The config of the fewest cycles in the model, its blocks of panels all alike: a short vector
    takes a test in each turn of a loop over several."""
    panels = panels_of(c, lanes)

    def even(k: Columns) -> Mask:
        blocks = whole(k, "nb")
        return (blocks == 1) | ((panels % blocks == 0) & (c.channels % lanes == 0))

    found, _ = cheapest(
        {k.name: k.choices for k in knobs},
        {},
        (Constraint("whole blocks", even),),
        lambda k: cycles(c, target, lanes, k),
    )
    return {"sketch": NAME, **found}


def nest_of(c: Depthwise, target: Target, lanes: int, k: Columns) -> Nest:
    """Rows ``y`` and columns ``x`` of the result, channels ``c``, taps of rows and of columns."""
    one, panels = np.ones(len(whole(k, "rh")), np.int64), panels_of(c, lanes)
    axes = {"y": c.batch * c.height, "x": c.width, "c": c.channels, "i": TAPS, "j": TAPS}
    vector = {**dict.fromkeys(axes, one), "c": np.minimum(lanes, c.channels) * one}
    register = {**vector, "y": whole(k, "rh"), "x": min(TILE, c.width) * one, "i": TAPS * one}
    row = {**register, "x": c.width * one, "j": TAPS * one}
    core = {**row, "c": np.minimum(lanes * whole(k, "nb"), c.channels)}
    blocks = c.batch * -(-c.height // whole(k, "rh"))
    executed = 2.0 * POINTS * c.batch * c.taps_inside[0] * c.tiles * panels * lanes
    pixel = ({"y": 1, "i": 1}, {"x": 1, "j": 1}, {"c": 1})
    rows, columns = c.image
    return Nest(
        axes,
        frozenset({"i", "j"}),
        (
            Access("image", 4, (c.batch * rows, columns, c.channels), pixel),
            Access(
                "weights", 4, (TAPS, POINTS, c.channels), ({"i": 1}, {"j": 1}, {"c": 1}),
                constant=True,
            ),
            Access(
                "out", 4, (c.batch * c.height, c.width, c.channels),
                ({"y": 1}, {"x": 1}, {"c": 1}), write=True,
            ),
        ),
        {"vector": vector, "register": register, "l1": row, "l2": core, "core": core},
        blocks * -(-panels // whole(k, "nb")),
        np.full(len(one), executed),
        {
            "rh": whole(k, "rh").astype(np.float64),
            "nb": whole(k, "nb").astype(np.float64),
            "by_column": whole(k, "by_column").astype(np.float64),
            "cycles": cycles(c, target, lanes, k),
        },
    )  # fmt: skip

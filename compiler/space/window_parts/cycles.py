"""What a convolution in parts takes, and what it takes by multiply-adds."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from tunefarm.compiler.space.columns import Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.space.float_parts.cycles import (
    EPILOGUE,
    MOST_AHEAD,
    SEEN,
    SHARED,
    SPLIT,
    macro_step_cycles,
)
from tunefarm.compiler.space.float_parts.forms import DEPTH, parts_of
from tunefarm.compiler.space.matrix_tiles.cycles import (
    CONFIGURE,
    LATENCY,
    LOAD,
    LOAD_FROM_L2,
    STORE,
)
from tunefarm.compiler.space.matrix_tiles.shape import LANES, ROWS
from tunefarm.compiler.space.product_cycles import (
    L2_SHARE,
    fetched_cycles,
    overlapped,
    task_cycles,
    weight_rates,
)
from tunefarm.compiler.space.window_parts.program import Windows
from tunefarm.compiler.space.winograd import least_cycles as by_tiles
from tunefarm.compiler.space.winograd.convolution import convolution_of
from tunefarm.compiler.space.winograd_1d import least_cycles as along_rows
from tunefarm.compiler.target import Target

SEEN_SHARED = 0.7  # of the shorter one of work and of weights, on several cores
UNFORESEEN = 1.45  # times that of weights, where hints for them do not serve


def cycles(c: Windows, target: Target, k: Columns) -> Numbers:
    """Clocks of the whole convolution, its tasks shared out to the target's cores."""
    made = parts_of(target)
    rows, rh, nv = (whole(k, name) for name in ("rows", "rh", "nv"))
    mb, nb, panels = whole(k, "mb"), whole(k, "nb"), -(-c.outputs // (nv * LANES))
    groups, panel_blocks = -(-c.height // rows), -(-panels // nb)
    row_blocks = c.batch * -(-groups // mb)
    of_group = -(-rows * c.pitch // (rh * ROWS))
    tiles = c.batch * groups * of_group
    # The taps of a row find the pixels of the first of them in the first cache.
    of_pixels = (LOAD_FROM_L2 + (c.taps[1] - 1) * LOAD) / c.taps[1]
    sums = c.depth // DEPTH * macro_step_cycles(made, rh, nv, of_pixels)
    epilogue = rh * nv * ROWS * EPILOGUE
    macro = np.maximum(sums, epilogue) + LATENCY + rh * nv * STORE
    last = row_blocks * panel_blocks * of_group * epilogue  # of a task has no next one
    work = tiles * panels * macro + last
    parts = part_rows(c, k) * c.pitch * c.strides[1] * c.channels  # of a block, several each
    split = row_blocks * panel_blocks * parts / LANES
    weights = made.bytes * c.depth * c.outputs
    images = c.batch * (prod(c.image) * c.inputs + c.height * c.width * c.outputs)
    held = weights + 4.0 * images
    streamed = replace(target, weights_in_memory=True)
    fetched = fetched_cycles(weights, held, row_blocks, panel_blocks, streamed)
    # Hints for the next panel serve where the second cache holds two of them beside the parts;
    # one that is read once comes as it is read.
    panel = made.bytes * c.depth * nv * LANES
    ahead = 2 * np.where(mb * of_group > 1, panel, np.minimum(panel, MOST_AHEAD))
    foreseen = ahead + made.bytes * parts <= L2_SHARE * target.l2_bytes
    work = work + split * made.number * SPLIT
    seen = SEEN if target.num_cores == 1 else SEEN_SHARED
    total = np.where(foreseen, overlapped(work, fetched, seen), work + UNFORESEEN * fetched)
    tasks = row_blocks * panel_blocks
    shared = task_cycles(total + CONFIGURE * tasks, tasks, tasks, target.num_cores)
    return shared + SHARED * (target.num_cores > 1)


def part_rows(c: Windows, k: Columns) -> Numbers:
    """Rows of the image that a block's results read, with those that the stride skips."""
    return (whole(k, "mb") * whole(k, "rows") + c.reach[0]) * c.strides[0]


def least_cycles_of_others(c: Windows, target: Target) -> float:
    """Clocks by multiply-adds in the models: of the direct sum at the peak without its taps in the
    padding, or by Winograd's method."""
    lanes = target.lanes("float32")
    winograd = convolution_of(c.function)
    others = [] if winograd is None else [by_tiles(winograd, target, lanes)]
    others.append(along_rows(c.function, target, lanes))
    multiply = c.batch * c.taps_inside * c.inputs * c.outputs / (2 * lanes)
    weights = 4 * prod(c.taps) * c.inputs * c.outputs
    rate, _ = weight_rates(weights, target)
    direct = float(overlapped(multiply, weights / rate, target.seen_share)) / target.num_cores
    return min([direct, *others])

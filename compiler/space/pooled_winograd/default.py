"""The time of a convolution with the pooling behind it in a closed form, and the best config.

What it costs is the row of tiles that neighbouring blocks both make. What it saves is that the
convolution's result, four to nine times as large as the pooled one, is neither written nor read
beyond the second cache.
"""

from __future__ import annotations

from math import prod

import numpy as np
from tunefarm.compiler.space import winograd
from tunefarm.compiler.space.columns import Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config
from tunefarm.compiler.space.pooled_winograd.knobs import (
    NAME,
    block_tiles,
    constraints_of,
    copied_elements,
    held_bytes,
    knobs_of,
    of_bands,
    product_bytes,
)
from tunefarm.compiler.space.pooled_winograd.program import Pooled
from tunefarm.compiler.space.product_cycles import (
    FORK_CYCLES,
    L2_SHARE,
    TASK_CYCLES,
    overlapped,
    term_cycles,
    weight_rates,
)
from tunefarm.compiler.space.winograd.counts import filters, points, tile_columns
from tunefarm.compiler.space.winograd.default import (
    COPY_CYCLES,
    TRANSFORM_CYCLES,
    column_cycles,
    held_room,
)
from tunefarm.compiler.space.winograd.memory import BY_COLUMN
from tunefarm.compiler.target import Target

L2_BYTES = 16.0  # a cycle, of products that leave the first cache and come back
BEYOND_BYTES = 20.0  # a cycle, of what a separate kernel writes, and of what the next one reads
L3_SHARE = 4  # a result of more than this part of the third cache goes to memory and back


def cycles(p: Pooled, target: Target, lanes: int, k: Columns) -> Numbers:
    """Of the slowest core: transforms, products, weights, maxima."""
    c, cores = p.conv, target.num_cores
    tasks = c.batch * of_bands(p, k, lambda b: b.count)
    tiles = block_tiles(p, k) * tile_columns(c, k)
    groups = block_tiles(p, k) * -(-tile_columns(c, k) // whole(k, "rw"))
    panels = -(-c.outputs // (whole(k, "nv") * lanes))
    by_column = whole(k, "by_row") == BY_COLUMN
    by_group = term_cycles(tile_columns(c, k), whole(k, "rw"), whole(k, "nv"))
    steps = block_tiles(p, k) * np.where(by_column, column_cycles(c, target, k), by_group)
    multiply = points(c, k) * panels * c.depth * steps
    beyond = np.maximum(product_bytes(p, lanes, k) - held_room(target), 0)
    beyond = np.where(by_column, 0.0, beyond)
    vectors = -(-c.depth // lanes) + -(-c.outputs // lanes)
    work = multiply + TRANSFORM_CYCLES * points(c, k) * tiles * vectors
    work = (
        work + COPY_CYCLES * copied_elements(p, lanes, k) + 2 * groups * panels * beyond / L2_BYTES
    )
    work = work + maximum_cycles(p, lanes) * whole(k, "rows") / p.shape[1]
    weights = 4.0 * filters(c, k) * c.depth * c.outputs
    held = weights + held_bytes(p, lanes, k)
    first_rate, rate = weight_rates(held, target)
    again = np.where(held > L2_SHARE * target.l2_bytes, weights * tasks / rate, 0.0)
    fetched = np.minimum(tasks, cores) * weights / first_rate + again
    slowest = np.where(cores > 1, -(-tasks // cores) * work, _all_rows(p, k) * work)
    return overlapped(slowest, fetched / cores) + TASK_CYCLES * tasks / cores + _fork(target)


def _all_rows(p: Pooled, k: Columns) -> Numbers:
    """Pooled rows of all images, in those of a block."""
    return p.conv.batch * p.shape[1] / whole(k, "rows")


def _fork(target: Target) -> float:
    return FORK_CYCLES * (target.num_cores > 1)


def maximum_cycles(p: Pooled, lanes: int) -> float:
    """Of all windows of an image, their terms in the first two caches."""
    _, height, width, channels = p.shape
    return height * width * -(-channels // lanes) * (prod(p.kernel) / 2 + 2)


def default_of(p: Pooled, target: Target, lanes: int) -> tuple[Config, float]:
    """The config of the fewest cycles in the model, and their number: infinite if none is allowed.

    Of equals that with the most rows of tiles in registers. Maxima take two columns at a time, of
    as many vectors as registers have room for.
    """
    knobs = knobs_of(p, lanes)
    choices = {n.name: [int(c) for c in n.choices] for n in knobs}
    free = {n: choices[n] for n in ("tile_h", "tile_w", "rows", "nv", "by_row")}
    free["rw"] = choices["rw"][::-1]
    columns = max(n for n in choices["pool_w"] if n <= 2)
    room = (target.vector_registers - 2) // columns
    fixed = {"pool_w": columns, "pool_v": max(n for n in choices["pool_v"] if n <= min(room, 4))}
    found, estimate = cheapest(
        free,
        {"ku": 1, "next_panel": 0, **fixed},
        constraints_of(p, target, lanes),
        lambda k: cycles(p, target, lanes, k),
    )
    found["ku"] = max(u for u in choices["ku"] if u <= 4 and p.conv.depth % u == 0)
    found["next_panel"] = int(found["by_row"] != BY_COLUMN)
    return {"sketch": NAME, **{n.name: found[n.name] for n in knobs}}, estimate


def saved_cycles(p: Pooled, target: Target) -> float:
    """What one kernel saves over one of the convolution and one of the maxima, both at their
    defaults; 0 or less where two are better, or Winograd's method is not the convolution's."""
    lanes = target.lanes("float32")
    space = winograd.space(p.conv.function, target)
    if space is None or not space.preferred:
        return 0.0
    alone = winograd.least_cycles(p.conv, target, lanes)
    _, joined = default_of(p, target, lanes)
    pooling = p.conv.batch * maximum_cycles(p, lanes) + between_cycles(p, target)
    return float(alone + pooling / target.num_cores + _fork(target) - joined)


def between_cycles(p: Pooled, target: Target) -> float:
    """Of the convolution's result, written by one kernel and read by another: nothing where the
    second caches keep it; of memory its lines are read before they are written too.

    Images of 512² (16.8 MB) took 0.75 × the time as one kernel on two cores of Zen 5, 0.69 on one.
    """
    c = p.conv
    size = 4.0 * c.batch * c.height * c.width * c.outputs
    if size < target.l2_bytes * target.num_cores / 4:
        return 0.0
    if size < target.l3_bytes / L3_SHARE:
        return 2 * size / BEYOND_BYTES
    return 3 * size / target.stream_bytes

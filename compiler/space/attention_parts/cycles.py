"""What an attention in parts takes, by the model of a matrix unit and of what stands between."""

from __future__ import annotations

from tunefarm.compiler.space.attention_parts.program import Form
from tunefarm.compiler.space.columns import Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.space.float_parts.cycles import macro_step_cycles
from tunefarm.compiler.space.float_parts.forms import DEPTH
from tunefarm.compiler.space.matrix_tiles.cycles import CONFIGURE, LOAD
from tunefarm.compiler.space.matrix_tiles.shape import LANES, ROWS
from tunefarm.compiler.space.product_cycles import task_cycles
from tunefarm.compiler.target import Target

# Clocks on a Granite Rapids, fitted to 33 kernels of 37 to 1500 tokens by tiles of 2 × 2 (within
# 6%, standard deviation).
SUMS = 1.38  # times what products take by the model of the unit: their sums are short
TILE = 70.0  # of a tile of sums that is stored
SOFTMAX = 13.7  # of a vector of scores: scaled, their maximum, their powers, the sum of these
SPLIT_POWERS = 4.4  # of a part of it
SPLIT_OPERAND = 2.5  # of a part of a vector of queries, keys or values


def cycles(form: Form, target: Target, k: Columns) -> Numbers:
    """Clocks of a core, the work shared by all."""
    queries, keys, depth, values = form.extents
    rh, nv, mb = (whole(k, name) for name in ("rh", "nv", "mb"))
    parts, rows = form.parts, rh * ROWS
    tiles = -(-queries // rows)
    blocks = -(-tiles // mb)
    tasks = form.heads * blocks
    steps, key_steps = -(-depth // DEPTH), -(-keys // DEPTH)
    panels, value_panels = -(-keys // (nv * LANES)), -(-values // (nv * LANES))
    step = SUMS * macro_step_cycles(parts, rh, nv, LOAD)
    sums = (panels * steps + value_panels * key_steps) * step
    sums = sums + (panels + value_panels) * rh * nv * TILE
    softmax = rows * -(-keys // LANES) * (SOFTMAX + SPLIT_POWERS * parts.number)
    each = SPLIT_OPERAND * parts.number
    macro = sums + softmax + rows * steps * DEPTH / LANES * each
    # Each task splits the keys and values of its head.
    head = (panels * steps + value_panels * key_steps) * nv * DEPTH * each
    work = form.heads * blocks * mb * macro + tasks * (head + CONFIGURE)
    return task_cycles(work, tasks, form.heads * tiles / mb, target.num_cores)


def held_bytes(form: Form, k: Columns) -> Numbers:
    """Bytes of a task: a head's keys and values, and scores, powers and these in parts of a macro
    tile."""
    _, keys, depth, values = form.extents
    head = form.parts.bytes * keys * (-(-depth // DEPTH) * DEPTH + values)
    return head + whole(k, "rh") * ROWS * keys * (8 + form.parts.bytes)

"""What an attention by dot products takes, by a model of its register tiles and of what stands
between them."""

from __future__ import annotations

from tunefarm.compiler.space.attention_dots.shape import LANES, TERMS
from tunefarm.compiler.space.attention_parts.program import Form
from tunefarm.compiler.space.columns import Numbers, whole
from tunefarm.compiler.space.config import Columns
from tunefarm.compiler.space.product_cycles import step_cycles, task_cycles
from tunefarm.compiler.target import Target

# Clocks on a Zen 5, fitted to 128, 192 and 197 tokens of 64 elements (within 4%).
LOAD = 0.1  # of a vector of the right operand, beside the products
TILE = 20.0  # of a register tile, where a sum begins and ends
SOFTMAX = 8.0  # of a vector of scores: scaled, their maximum, their powers, the sum of these
ROUND = 1.5  # of a vector of powers or of queries
PACK = 2.0  # of a vector of keys or values


def cycles(form: Form, target: Target, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all."""
    queries, keys, depth, values = form.extents
    rw, nv, mb, ku = (whole(k, name) for name in ("rw", "nv", "mb", "ku"))
    tiles = -(-queries // rw)
    blocks = -(-tiles // mb)
    tasks = form.heads * blocks
    groups, key_groups = (-(-n // (TERMS * ku)) * ku for n in (depth, keys))
    panels, value_panels = -(-keys // (nv * LANES)), -(-values // (nv * LANES))
    step = step_cycles(rw, nv, LOAD, clocks=target.product_clocks)
    sums = (panels * groups + value_panels * key_groups) * step
    sums = sums + (panels + value_panels) * TILE
    softmax = rw * -(-keys // LANES) * (SOFTMAX + ROUND)
    tile = sums + softmax + ROUND * rw * -(-depth // LANES)
    head = PACK * nv * (panels * groups + value_panels * key_groups)
    work = form.heads * blocks * mb * tile + tasks * head
    return task_cycles(work, tasks, form.heads * tiles / mb, target.num_cores)


def held_bytes(form: Form, k: Columns) -> Numbers:
    """Bytes of a task: a head's keys and values, and scores, powers and these rounded of a tile."""
    _, keys, depth, values = form.extents
    return 2 * keys * (depth + values) + whole(k, "rw") * keys * 10

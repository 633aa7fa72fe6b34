"""The time of attention in a closed form, and the config of the least."""

from __future__ import annotations

from math import isfinite

import numpy as np
from tunefarm.compiler.space.attention.knobs import (
    NAME,
    blocks_of,
    constraints_of,
    knobs_of,
    stack_bytes,
)
from tunefarm.compiler.space.attention.program import Attention
from tunefarm.compiler.space.columns import Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config
from tunefarm.compiler.space.nests import fitting_lanes
from tunefarm.compiler.space.product_cycles import FORK_CYCLES, latency_of
from tunefarm.compiler.target import Target

BLOCK_CYCLES = 400.0  # of a block beside its products and its softmax
FAR_CYCLES = 0.6  # of a vector that comes from L2
SOFTMAX_CYCLES = 12.0  # of a vector of scores


def cycles(a: Attention, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all: two products, what lies between, and copies."""
    nq, rk, rv, nv = (whole(k, name) for name in ("nq", "rk", "rv", "nv"))
    vectors = -(-a.query.extent // lanes)
    width = fitting_lanes(lanes, a.value.extent)
    panels, last = np.divmod(-(-a.value.extent // width), nv)
    latency = latency_of(target)
    panel = 4 * a.depth.extent * nq * lanes
    far_queries = np.where(panel > target.l1_bytes // 4, FAR_CYCLES, 0.0)
    far_scores = np.where(stack_bytes(a, lanes, k) > target.l1_bytes, FAR_CYCLES, 0.0)
    rest = vectors % nq
    blocks = vectors // nq * _tile(rk, nq, far_queries, latency)
    blocks = blocks + np.where(rest, _tile(rk, rest, far_queries, latency), 0.0)
    scores = a.depth.extent * -(-a.key.extent // rk) * blocks
    values = panels * _tile(rv, nv, FAR_CYCLES, latency)
    values = values + np.where(last, _tile(rv, last, FAR_CYCLES, latency), 0.0)
    mixed = a.key.extent * -(-a.query.extent // rv) * values
    copied = 16.0 * a.depth.extent * vectors
    softmax = (SOFTMAX_CYCLES + 6 * far_scores) * a.key.extent * vectors
    tasks = blocks_of(a, lanes, k)
    busy = tasks / (-(-tasks // target.num_cores) * target.num_cores)
    work = a.heads * (scores + mixed + copied + softmax) + BLOCK_CYCLES * tasks
    return work / (busy * target.num_cores) + FORK_CYCLES * (target.num_cores > 1)


def _tile(rows: Numbers, vectors: Numbers, far: Numbers, latency: float) -> Numbers:
    """Cycles of one step of a register tile: two FMAs and two loads a cycle, and ``far`` for each
    vector that comes from beyond L1."""
    loads = rows + vectors
    step = np.maximum(np.maximum(rows * vectors, 1.3 * loads) / 2, latency)
    return step + 0.02 * loads + far * vectors


def default_of(a: Attention, target: Target, lanes: int) -> Config | None:
    """The config of the fewest cycles in the model; None if there is none that fits."""
    choices = {k.name: k.choices for k in knobs_of(a, lanes)}
    choices["ku"] = tuple(u for u in map(int, choices["ku"]) if a.depth.extent % u == 0 and u <= 4)
    found, estimate = cheapest(
        choices,
        {},
        constraints_of(a, target, lanes),
        lambda k: cycles(a, target, lanes, k) * (1 + 0.02 / whole(k, "ku")),
    )
    return {"sketch": NAME, **found} if isfinite(estimate) else None

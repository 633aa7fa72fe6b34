"""The knobs of the attention sketch, what a config must hold, and a model of its time."""

from __future__ import annotations

from math import isfinite

import numpy as np
from tunefarm.compiler.space.attention.program import Attention
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import UNROLLS, VECTORS, up_to
from tunefarm.compiler.space.nests import fitting_lanes
from tunefarm.compiler.target import Target

NAME, VERSION = "attention", 1

QUERY_VECTORS = (1, 2, 3, 4, 6, 8)
KEY_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 20, 24, 28)
VALUE_ROWS = (1, 2, 4, 6, 8, 12, 16, 24)
STACK_BYTES = 1_000_000  # of a thread: scores and powers of a block
MAX_UNROLLED = 256  # multiply-adds of one unrolled body
FORK_CYCLES = 1000.0
BLOCK_CYCLES = 400.0  # of a block beside its products and its softmax
FAR_CYCLES = 0.6  # of a vector that comes from L2
SOFTMAX_CYCLES = 12.0  # of a vector of scores


def knobs_of(a: Attention, lanes: int) -> tuple[Knob, ...]:
    vectors = -(-a.query.extent // lanes)
    panels = -(-a.value.extent // fitting_lanes(lanes, a.value.extent))
    return (
        Knob("nq", up_to(QUERY_VECTORS, vectors)),
        Knob("rk", up_to(KEY_ROWS, a.key.extent)),
        Knob("rv", up_to(VALUE_ROWS, vectors * lanes)),
        Knob("nv", up_to(VECTORS, panels)),
        Knob("ku", up_to(UNROLLS, min(a.depth.extent, a.key.extent))),
    )


def constraints_of(a: Attention, target: Target, lanes: int) -> tuple[Constraint, ...]:
    registers = target.vector_registers

    def fits(rows: Numbers, vectors: Numbers) -> Mask:
        return rows * vectors + np.where(vectors > 1, vectors + 1, 2) <= registers

    def small_code(k: Columns) -> Mask:
        tiles = (whole(k, "rk") * whole(k, "nq"), whole(k, "rv") * whole(k, "nv"))
        return np.maximum(*tiles) * whole(k, "ku") <= MAX_UNROLLED

    return (
        Constraint("registers of scores", lambda k: fits(whole(k, "rk"), whole(k, "nq"))),
        Constraint("registers of results", lambda k: fits(whole(k, "rv"), whole(k, "nv"))),
        Constraint("code size", small_code),
        Constraint("whole tiles", lambda k: whole(k, "nq") * lanes % whole(k, "rv") == 0),
        Constraint("stack", lambda k: stack_bytes(a, lanes, k) <= STACK_BYTES),
    )


def stack_bytes(a: Attention, lanes: int, k: Columns) -> Numbers:
    """Scores, powers, queries and factors of a block of queries."""
    rows = -(-a.key.extent // whole(k, "rk")) * whole(k, "rk") + a.key.extent
    return 4 * whole(k, "nq") * lanes * (rows + a.depth.extent + 1)


def blocks_of(a: Attention, lanes: int, k: Columns) -> Numbers:
    """Blocks of queries of all heads."""
    return a.heads * -(-a.query.extent // (whole(k, "nq") * lanes))


def cycles(a: Attention, target: Target, lanes: int, k: Columns) -> Numbers:
    """Cycles of a core, the work shared by all: two products, what lies between, and copies."""
    nq, rk, rv, nv = (whole(k, name) for name in ("nq", "rk", "rv", "nv"))
    vectors = -(-a.query.extent // lanes)
    width = fitting_lanes(lanes, a.value.extent)
    panels = -(-a.value.extent // (nv * width))
    panel = 4 * a.depth.extent * nq * lanes
    far_queries = np.where(panel > target.l1_bytes // 4, FAR_CYCLES, 0.0)
    far_scores = np.where(stack_bytes(a, lanes, k) > target.l1_bytes, FAR_CYCLES, 0.0)
    rest = vectors % nq
    blocks = vectors // nq * _tile(rk, nq, far_queries)
    blocks = blocks + np.where(rest, _tile(rk, rest, far_queries), 0.0)
    scores = a.depth.extent * -(-a.key.extent // rk) * blocks
    mixed = a.key.extent * -(-a.query.extent // rv) * panels * _tile(rv, nv, FAR_CYCLES)
    copied = 16.0 * a.depth.extent * vectors
    softmax = (SOFTMAX_CYCLES + 6 * far_scores) * a.key.extent * vectors
    tasks = blocks_of(a, lanes, k)
    busy = tasks / (-(-tasks // target.num_cores) * target.num_cores)
    work = a.heads * (scores + mixed + copied + softmax) + BLOCK_CYCLES * tasks
    return work / (busy * target.num_cores) + FORK_CYCLES * (target.num_cores > 1)


def _tile(rows: Numbers, vectors: Numbers, far: Numbers) -> Numbers:
    """Cycles of one step of a register tile: two FMAs and two loads a cycle, latency 4, and
    ``far`` for each vector that comes from beyond L1."""
    loads = rows + vectors
    step = np.maximum(np.maximum(rows * vectors, 1.3 * loads) / 2, 4.0)
    return step + 0.02 * loads + far * vectors


def default_of(
    a: Attention,
    target: Target,
    lanes: int,
    knobs: tuple[Knob, ...],
    constraints: tuple[Constraint, ...],
) -> Config | None:
    """The config of the fewest cycles in the model; None if there is none that fits."""
    choices = {k.name: k.choices for k in knobs}
    choices["ku"] = tuple(u for u in map(int, choices["ku"]) if a.depth.extent % u == 0 and u <= 4)
    found, estimate = cheapest(
        choices,
        {},
        constraints,
        lambda k: cycles(a, target, lanes, k) * (1 + 0.02 / whole(k, "ku")),
    )
    return {"sketch": NAME, **found} if isfinite(estimate) else None

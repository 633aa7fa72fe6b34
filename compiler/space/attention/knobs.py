"""The knobs of the attention sketch, and what a config must hold."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.attention.program import Attention
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import UNROLLS, VECTORS, up_to
from tunefarm.compiler.space.nests import fitting_lanes
from tunefarm.compiler.target import Target

NAME, VERSION = "attention", 1

QUERY_VECTORS = (1, 2, 3, 4, 6, 8)
KEY_ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 20, 24, 28)
VALUE_ROWS = (1, 2, 4, 6, 8, 12, 16, 24)
STACK_BYTES = 1_000_000  # of a thread: scores and powers of a block
MAX_UNROLLED = 256  # multiply-adds of one unrolled body


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

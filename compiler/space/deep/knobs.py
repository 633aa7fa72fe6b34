"""The knobs of products with long sums, and what a config must hold."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.analysis import Contraction
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import BLOCKS, MAX_UNROLLED, ROWS, VECTORS, up_to
from tunefarm.compiler.space.contraction.shape import panel_count
from tunefarm.compiler.space.deep.shape import parts_of, rows_of
from tunefarm.compiler.target import Target

NAME, VERSION = "deep", 1
UNROLLS = (1, 2, 4)
HELD_BYTES = 1 << 20  # of a block's sums


def knobs_of(c: Contraction, target: Target) -> tuple[Knob, ...]:
    lanes, rows = target.lanes("float32"), rows_of(c).extent
    vectors = panel_count(c.vector.extent, lanes)
    return (
        Knob("rw", up_to(ROWS, rows)),
        Knob("nv", up_to(VECTORS, vectors)),
        Knob("ku", UNROLLS),
        Knob("mb", up_to(BLOCKS, rows)),
        Knob("nb", up_to(BLOCKS, vectors)),
        Knob("part", parts_of(c)),
    )


def held_bytes(c: Contraction, target: Target, k: Columns) -> Numbers:
    """Of a block's sums."""
    rows = np.minimum(whole(k, "mb") * whole(k, "rw"), rows_of(c).extent)
    return 4 * rows * whole(k, "nb") * whole(k, "nv") * target.lanes("float32")


def constraints_of(c: Contraction, target: Target) -> tuple[Constraint, ...]:
    lanes, rows = target.lanes("float32"), rows_of(c).extent

    def fits_registers(k: Columns) -> Mask:
        vectors = whole(k, "nv")
        operands = np.where(vectors > 1, vectors + 1, 2)
        return whole(k, "rw") * vectors + operands <= target.vector_registers

    def blocks_useful(k: Columns) -> Mask:
        panels = -(-c.vector.extent // (whole(k, "nv") * lanes))
        fits_rows = (whole(k, "mb") == 1) | (whole(k, "mb") * whole(k, "rw") < 2 * rows)
        return fits_rows & (panels % whole(k, "nb") == 0)

    return (
        Constraint("registers", fits_registers),
        Constraint("sums of a block", lambda k: held_bytes(c, target, k) <= HELD_BYTES),
        Constraint("whole blocks", blocks_useful),
        Constraint("part", lambda k: whole(k, "part") % whole(k, "ku") == 0),
        Constraint(
            "unroll", lambda k: whole(k, "ku") * whole(k, "rw") * whole(k, "nv") <= MAX_UNROLLED
        ),
    )

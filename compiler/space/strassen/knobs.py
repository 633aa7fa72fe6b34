"""The knobs of Strassen's method, and what a config must hold."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns, Constraint, Knob
from tunefarm.compiler.space.contraction.knobs import ROWS, UNROLLS, VECTORS, up_to
from tunefarm.compiler.space.strassen.program import Product
from tunefarm.compiler.target import Target

VERSION = 1

BLOCK_TILES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
BLOCK_PANELS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
WORKSPACE_BYTES = 4 << 20  # a thread's left operands and products


def knobs_of(p: Product) -> tuple[Knob, ...]:
    groups, terms, columns = p.extents
    vectors = columns // p.lanes
    return (
        Knob("mb", up_to(BLOCK_TILES, groups)),
        Knob("nb", tuple(n for n in BLOCK_PANELS if n <= vectors)),
        Knob("rw", up_to(ROWS, groups)),
        Knob("nv", tuple(n for n in VECTORS if vectors % n == 0)),
        Knob("ku", up_to(UNROLLS, terms)),
        Knob("by_tile", (0, 1)),
        Knob("next_panel", (0, 1)),
    )


def held_bytes(p: Product, k: Columns) -> Numbers:
    """What a thread keeps of a block: left operands, and the products of a panel or of a tile."""
    _, terms, _ = p.extents
    rows = whole(k, "mb") * whole(k, "rw")
    multiplied = np.where(whole(k, "by_tile") == 1, whole(k, "rw"), rows)
    width = whole(k, "nv") * p.lanes
    return 4 * p.products * (rows * (terms + 2 * p.lanes) + multiplied * width)


def panels_of(p: Product, k: Columns) -> Numbers:
    return p.extents[2] // (whole(k, "nv") * p.lanes)


def constraints_of(p: Product, target: Target) -> tuple[Constraint, ...]:
    groups = p.extents[0]

    def fits_registers(k: Columns) -> Mask:
        rows, vectors = whole(k, "rw"), whole(k, "nv")
        return rows * vectors + np.where(vectors > 1, vectors + 1, 2) <= target.vector_registers

    def blocks_useful(k: Columns) -> Mask:
        return (whole(k, "mb") == 1) | ((whole(k, "mb") - 1) * whole(k, "rw") < groups)

    return (
        Constraint("registers", fits_registers),
        Constraint("workspace", lambda k: held_bytes(p, k) <= WORKSPACE_BYTES),
        Constraint("blocks within extents", blocks_useful),
        Constraint("whole blocks of panels", lambda k: panels_of(p, k) % whole(k, "nb") == 0),
        Constraint("unroll", lambda k: whole(k, "ku") * whole(k, "rw") * whole(k, "nv") <= 512),
    )


def block_counts(p: Product, k: Columns) -> tuple[Numbers, Numbers]:
    """Blocks of rows and blocks of panels."""
    row_blocks = -(-p.extents[0] // (whole(k, "mb") * whole(k, "rw")))
    return row_blocks, -(-panels_of(p, k) // whole(k, "nb"))

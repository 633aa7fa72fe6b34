"""The knobs of the contraction sketch, and what a config must hold."""

from __future__ import annotations

from math import prod

import numpy as np
from tunefarm.compiler.space.analysis import Contraction, Operand
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import Columns, Constraint, Knob
from tunefarm.compiler.space.contraction.shape import (
    FEW_TAPS,
    GROUPS_INSIDE,
    PACK_PANEL,
    PACK_WHOLE,
    PANELS_INSIDE,
    ends_inside,
    groups_of,
    is_strided,
    lane_dimension,
    packable,
    packed_at_build,
    padded,
    panel_count,
    row_axes,
    row_by_row,
    shares_vector,
    step_of,
    taps,
    whole_window,
)
from tunefarm.compiler.target import Target

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 14, 16, 20, 24, 28)
SECOND_ROWS = (1, 2, 3, 4, 7)
VECTORS = (1, 2, 3, 4, 6)
UNROLLS = (1, 2, 4, 8)
BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
ROW_BLOCKS = (1, 2, 3, 4, 6, 7, 8, 12, 14, 16, 24, 32, 64)  # halves of 28 rows, and of 56
PREFETCH = (0, 8, 32, 128)  # reduction steps ahead, for weights packed at build time
MAX_UNROLLED = 512  # multiply-adds of one unrolled body
MAX_COPIED_BYTES = 1 << 19
WINDOW_OPERANDS = 12  # registers beside the sums of a whole window
MAX_CODE = 1536  # and of all bodies of a kernel


def knobs_of(c: Contraction, lanes: int) -> tuple[Knob, ...]:
    second, last = row_axes(c)
    blocked = second or last
    vectors = panel_count(c.vector.extent, lanes)
    rows = blocked.extent if blocked is not None else 1
    hints = packed_at_build(c) or packable(c)
    unrolls = up_to(UNROLLS, c.reduce[-1].extent)
    if whole_window(c):
        unrolls = (*unrolls, whole_window(c))
    return (
        Knob("rw", up_to(ROWS, last.extent if last else 1)),
        Knob("rh", up_to(SECOND_ROWS, second.extent if second else 1)),
        Knob("nv", up_to(VECTORS, vectors)),
        Knob("ku", unrolls),
        Knob("mb", up_to(ROW_BLOCKS, rows)),
        Knob("nb", up_to(BLOCKS, vectors)),
        Knob("order", _orders(c, vectors)),
        Knob("pack_lhs", _pack_choices(c, c.lhs)),
        Knob("pack_rhs", _pack_choices(c, c.rhs)),
        Knob("prefetch", PREFETCH if hints else (0,)),
        Knob("next_panel", (0, 1) if hints and vectors > 1 else (0,)),
    )


def _orders(c: Contraction, vectors: int) -> tuple[str, ...]:
    """Which blocks are outermost, panels (n) or rows (m); and, where each panel or group reads
    channels of its own, tiles of rows that take all of them in turn."""
    inside = shares_vector(c) and vectors > 1 and row_axes(c)[1] is not None
    # The copy of another panel for each tile of rows would cost more than turns gain.
    groups = bool(groups_of(c)) and packed_at_build(c)
    more = [(PANELS_INSIDE, inside), (GROUPS_INSIDE, groups)]
    return ("nm", "mn", *(order for order, has in more if has))


def up_to(choices: tuple[int, ...], extent: int) -> tuple[int, ...]:
    """The choices that do not exceed an extent, and the extent itself if it is small."""
    kept = [x for x in choices if x <= extent]
    if extent <= max(choices) and extent not in kept:
        kept.append(extent)
    return tuple(kept) or (1,)


def _pack_choices(c: Contraction, operand: Operand) -> tuple[int, ...]:
    """Copies of the operand's block, or of all of it; constants are packed at build time anyway."""
    if operand is c.rhs and packed_at_build(c):
        return (0,)
    if operand is c.lhs and (len([a for a in c.rows if a.extent > 1]) != 1 or padded(c)):
        return (0,)
    if operand is c.lhs and c.lhs.load.buffer is c.rhs.load.buffer:  # one copy for both
        return (0,)
    if operand is c.rhs and lane_dimension(c) is None:
        return (0,)
    return (0, PACK_PANEL, PACK_WHOLE) if operand is c.rhs and packable(c) else (0, PACK_PANEL)


def constraints_of(c: Contraction, target: Target, lanes: int) -> tuple[Constraint, ...]:
    registers = target.vector_registers
    depth = c.reduce[-1].extent
    shared = shares_vector(c)

    def fits_registers(k: Columns) -> Mask:
        rows = whole(k, "rw") * whole(k, "rh")
        vectors = whole(k, "nv")
        if shared:
            # The left operand is a vector of its own for each row, kept between unrolled taps; of
            # a whole window, those of one column are.
            kept = rows * vectors * np.where(whole(k, "ku") > 1, 2, 1) + 3
            sums = np.where(row_by_row(c, k), whole(k, "rw"), rows) * vectors
            kept = np.where(whole(k, "ku") > depth, sums + WINDOW_OPERANDS, kept)
            return kept <= registers
        return rows * vectors + np.where(vectors > 1, vectors + 1, 2) <= registers

    def small_code(k: Columns) -> Mask:
        body = whole(k, "rw") * whole(k, "rh") * whole(k, "nv") * whole(k, "ku")
        return (body <= MAX_UNROLLED) & (body * bodies(c, k) <= MAX_CODE)

    def copies_fit(k: Columns) -> Mask:
        rows = whole(k, "mb") * whole(k, "rw")
        width = whole(k, "nv") * lanes
        total = prod(a.extent for a in c.reduce) * 4
        panel = np.where(whole(k, "pack_rhs") == PACK_PANEL, width, 0)
        return (whole(k, "pack_lhs") * rows + panel) * total <= MAX_COPIED_BYTES

    def hints_packed(k: Columns) -> Mask:
        hints = (whole(k, "prefetch") > 0) | (whole(k, "next_panel") > 0)
        return packed_at_build(c) | (whole(k, "pack_rhs") == PACK_WHOLE) | ~hints

    def unrolls(k: Columns) -> Mask:
        return (whole(k, "ku") <= depth) | (whole(k, "ku") == whole_window(c))

    def blocks_useful(k: Columns) -> Mask:
        second, last = row_axes(c)
        axis, tile = (second, whole(k, "rh")) if second else (last, whole(k, "rw"))
        extent = axis.extent if axis else 1
        panels = -(-c.vector.extent // (whole(k, "nv") * lanes))
        fits_rows = (whole(k, "mb") == 1) | (whole(k, "mb") * tile < 2 * extent)
        return fits_rows & ((whole(k, "nb") == 1) | (whole(k, "nb") < 2 * panels))

    return (
        Constraint("registers", fits_registers),
        Constraint("code size", small_code),
        Constraint("copies fit the cache", copies_fit),
        Constraint("hints for packed panels", hints_packed),
        Constraint("blocks within extents", blocks_useful),
        Constraint("unroll", unrolls),
    )


def bodies(c: Contraction, k: Columns) -> Numbers:
    """How often the unrolled body is repeated: borders and their taps get code of their own.

    Where all taps are unrolled, each tile that some of them leave has a body at either end; of
    few taps that read pixels two apart row by row at the near end alone, if there are none beyond
    the far one.
    """
    together = whole(k, "ku") > c.reduce[-1].extent
    bodies = np.ones_like(whole(k, "rw"))
    few = is_strided(c) and whole_window(c) <= FEW_TAPS
    apart = few & row_by_row(c, k) & (whole(k, "rw") > 1)
    for axis, name in zip(row_axes(c), ("rh", "rw"), strict=True):
        if axis is None:
            continue
        window, tile = taps(c, axis), whole(k, name)
        pieces = np.where(
            tile >= axis.extent, window, np.where(axis.extent % tile, 2, 1) + 2 * window
        )
        pieces = np.where((tile > 1) & (window > 1), pieces, 1)
        before = -(-(window // 2) // (tile * step_of(c, axis)))  # tiles with taps beyond an end
        outer = before * np.where(apart & ends_inside(c, axis), 1, 2)
        ends = np.where(tile >= axis.extent, 1, np.where(axis.extent % tile, 2, 1) + outer)
        bodies = bodies * np.where(together & (window > 1), ends, pieces)
    return bodies

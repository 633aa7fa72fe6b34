"""Contractions of bytes and bfloat16 by the tiles of a matrix unit (AMX).

    parallel over blocks of (outer axes, panels of lanes, rows)
      [copy the block's rows: padding, whole tiles of rows and terms]
      for panel:                                          nb panels a block
        for macro tile:                                   mb of them a block
          sums = 0                                        rh × nv tiles of rw rows by 16 lanes
          for taps, for steps of 16 groups of terms:
            sums += lhs[tile, step] · rhs[step, tile]     an instruction each, rh + nv loads
            [some rows of the epilogue of the macro tile before, in vectors → result]
          store the tiles, [then the epilogue]

Tiles of rows lie along the last axis of rows, those of a macro tile along the second last, if there
is one. No condition may cut through a tile: its rows divide the axis, or the copy has some of zeros
behind it. The constant operand is packed at build time to [panel][taps][step][vector][group][lane]
[term]: a tile's lines lie one behind the other. Where groups are taps, vectors are inside of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, cheapest, whole
from tunefarm.compiler.space.config import (
    Columns,
    Config,
    Constraint,
    Knob,
    Nest,
    SketchSpace,
)
from tunefarm.compiler.space.contraction.nest import nest_of
from tunefarm.compiler.space.matrix_tiles.apply import schedule
from tunefarm.compiler.space.matrix_tiles.cycles import cycles, has_hints, rows_of_tiles
from tunefarm.compiler.space.matrix_tiles.shape import (
    LANES,
    LEAST_ROWS,
    NAME,
    REGISTERS,
    ROWS,
    VERSION,
    TiledProduct,
    fullest_rows,
    row_choices,
    rows_of_axes,
    tiled_product_of,
)
from tunefarm.compiler.target import Target, dtype_bytes

BLOCKS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 13, 14, 16, 20, 24, 25, 28, 32, 49, 56, 64)
OVERLAPPED_STEPS = 6  # of a sum, from which on any epilogue runs beside another
OPERATIONS_AT_ONCE = 8  # 16 rows of 16 groups in 16 clocks, in which two vectors' units do 32
MAX_COPIED_BYTES = 1 << 20

__all__ = ["cycles", "schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a matrix unit's product; None if the target has no unit for it."""
    if target.kind != "llvm":
        return None
    product = tiled_product_of(function, target)
    if product is None:
        return None
    knobs, constraints = _knobs(product), _constraints(product)
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        constraints,
        _default(product, target, knobs, constraints),
        lambda columns: _nest(product, target, columns),
    )


def _knobs(product: TiledProduct) -> tuple[Knob, ...]:
    dot = product.dot
    vectors = _vectors(product)
    full = ROWS if product.second is None else fullest_rows(product.rows.extent)
    dividing = row_choices(product.rows.extent)
    rows = {n for n in dividing if n >= max(LEAST_ROWS, *dividing) // 2} | {full}
    blocks = product.blocked.extent
    return (
        Knob("rw", tuple(sorted(rows))),
        Knob("rh", tuple(n for n in (1, 2, 3, 4, 5, 6) if n <= blocks)),
        Knob("nv", tuple(n for n in (1, 2, 3) if n <= vectors)),
        Knob("mb", block_choices(blocks, (1, 2, 3, 4))),
        Knob("nb", block_choices(vectors, (1, 2, 3))),
        Knob("order", ("nm", "mn")),
        Knob("pack_lhs", (1,) if dot.copied else (0, 1)),
        Knob("next_panel", (0, 1) if vectors > 1 else (0,)),
        Knob("overlap", (0, 1)),
    )


def block_choices(extent: int, tiles: Sequence[int]) -> tuple[int, ...]:
    """Numbers of tiles in a block, of an extent that is cut into tiles of any of these sizes."""
    whole = {-(-extent // n) for n in tiles}
    return tuple(sorted(whole | {n for n in BLOCKS if n <= extent}))


def _constraints(product: TiledProduct) -> tuple[Constraint, ...]:
    dot = product.dot
    row_bytes = dot.padded_depth * dtype_bytes(dot.instruction.a)

    def fits_registers(k: Columns) -> Mask:
        return whole(k, "rh") * whole(k, "nv") + whole(k, "nv") + 1 <= REGISTERS

    def whole_blocks(k: Columns) -> Mask:
        return (rows_of_tiles(product, k)[0] % whole(k, "mb") == 0) & (
            _panels(product, k) % whole(k, "nb") == 0
        )

    def whole_tiles(k: Columns) -> Mask:
        whole_rows = np.bool_(True)
        for axis, each in rows_of_axes(product, whole(k, "rw"), whole(k, "rh")):
            whole_rows = whole_rows & (axis.extent % each == 0)
        return (whole(k, "pack_lhs") == 1) | whole_rows

    def copy_fits(k: Columns) -> Mask:
        rows = whole(k, "mb") * whole(k, "rh")
        last = product.rows.extent if product.second is not None else whole(k, "rw")
        return whole(k, "pack_lhs") * rows * last * row_bytes <= MAX_COPIED_BYTES

    return (
        Constraint("tiles fit the registers", fits_registers),
        Constraint("whole blocks", whole_blocks),
        Constraint("whole tiles", whole_tiles),
        Constraint("copy fits the cache", copy_fits),
    )


def _vectors(product: TiledProduct) -> int:
    return -(-product.dot.contraction.vector.extent // LANES)


def _panels(product: TiledProduct, k: Columns) -> Mask:
    return -(-_vectors(product) // whole(k, "nv"))


def _default(
    product: TiledProduct,
    target: Target,
    knobs: tuple[Knob, ...],
    constraints: tuple[Constraint, ...],
) -> Config:
    chosen = ("order", "next_panel", "overlap")
    choices = {k.name: k.choices for k in knobs if k.name not in chosen}
    found, _ = cheapest(choices, {}, constraints, lambda k: cycles(product, target, k))
    hints = int(has_hints(product, target))
    # Shares of an epilogue of one vector a row take longer than short sums can hide.
    overlap = int(product.steps >= OVERLAPPED_STEPS or found["nv"] > 1)
    return {"sketch": NAME, **found, "order": "mn", "next_panel": hints, "overlap": overlap}


def _nest(product: TiledProduct, target: Target, columns: Columns) -> Nest:
    """The nest over words, as that of the dot-product sketch. In the time of an operation of its
    vectors a tile's instruction does eight."""
    dot = product.dot
    rows = whole(columns, "rw")
    count = len(rows)
    none = np.zeros(count, np.int64)
    k = dict(columns) | {"pack_rhs": none, "prefetch": none, "ku": none + product.step}
    if product.second is None:
        k |= {"rw": rows * whole(columns, "rh"), "rh": none + 1}
    nest = nest_of(dot.words, target, LANES, k)
    extra = {**nest.extra, "cycles": cycles(product, target, columns)}
    extents = {**nest.extents, dot.depth.name: dot.words.reduce[-1].extent}
    operations = nest.operations / OPERATIONS_AT_ONCE
    return replace(nest, extents=extents, extra=extra, operations=operations)

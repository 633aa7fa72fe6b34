"""Products of float32 by the tiles of a matrix unit that multiplies bfloat16 (AMX).

    parallel over blocks of (panels of lanes, rows)
      [for stretch of the terms:                        whose sums are added up for the block]
      the block's rows as three bfloat16s each          parts [3, rows, terms], in the second cache
      for panel:
        [its parts, of a matrix that is no constant]
        for macro tile:                                 rh × nv tiles of 16 rows by 16 lanes
          sums = 0
          for step of 32 terms, for pair of parts:      six of them
            sums += part of the rows · part of the weights
            some rows of the epilogue of the macro tile before, in vectors → result
          store the tiles

Or, with ``ahead``, rows in tiles of sixteen, which pays where the second cache holds a block's
weights, and the first one the parts of a tile:

    parallel over blocks of (panels of lanes, rows)
      the first sixteen rows as parts
      for sixteen rows:
        for panel:                                      nv tiles of 16 rows by 16 lanes
          sums = 0
          for step of 32 terms, for tile of lanes:
            for pair of parts: sums += part of the rows · part of the weights
            some of the next sixteen rows as parts
          store the tiles; their epilogue in vectors → result

A float32 is the sum of three bfloat16s exactly, and products of those are exact in float32: six of
the nine pairs give a product to 2^-23 of its size, as one multiply-add would round it. The root of
the mean square of the errors is 0.4 to 0.6 of that of multiply-adds (64 to 3072 terms). The unit
takes denormals for zeros; what is infinite, or becomes it when it is rounded to bfloat16 (from
3.39e38 on), makes NaN of the results of its row. A target with ``-precision=strict`` leaves the
method out. Weights are split and packed when a model is built, and take 3/2 of the memory; of
another matrix each task splits the panels that it reads.

For ``-precision=tf32`` a float32 is the sum of two parts, and three pairs give a product to 2^-15
of its size at worst, where TF32 itself keeps 2^-10; weights take no more memory than before.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import numpy as np
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, cheapest, whole
from tunefarm.compiler.space.config import (
    Access,
    Columns,
    Config,
    Constraint,
    Knob,
    Nest,
    SketchSpace,
)
from tunefarm.compiler.space.float_parts.apply import schedule
from tunefarm.compiler.space.float_parts.cycles import cycles, fits_tiles
from tunefarm.compiler.space.float_parts.forms import DEPTH, Parts, parts_of
from tunefarm.compiler.space.float_parts.program import has_whole_parts, padded_depth
from tunefarm.compiler.space.matrix_tiles import OPERATIONS_AT_ONCE, block_choices
from tunefarm.compiler.space.matrix_tiles.shape import LANES, ROWS
from tunefarm.compiler.space.strassen.default import direct_cycles
from tunefarm.compiler.space.strassen.program import Product, product_of
from tunefarm.compiler.target import Target

NAME, VERSION = "float_parts", 3
LEAST_ROWS, LEAST_COLUMNS = 8, 16
STRETCHES = (256, 384, 512, 768, 1024)
WORTH = 1.08  # times fewer cycles than by multiply-adds, in the models, to be a task's default
# Times their model that multiply-adds take on several cores, beside parts; products of fewer rows
# wait for their weights, which the model has.
LOST_SHARED, LEAST_LOST_ROWS = 1.105, 64
MAX_COPIED_BYTES = 1 << 20
MAX_HELD_BYTES = 5 << 18  # with a panel of weights and the next: 5/8 of a second cache of 2 MB
MOST_BEYOND = 0.1  # of the tiles, that blocks of rows may compute beyond the last one

# What runs beside the products by default: hints for the next panel, or the split of the next rows.
WAYS = {"ahead": 0, "next_panel": 1}, {"ahead": 1, "next_panel": 0}

__all__ = ["cycles", "saved_cycles", "schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a product in parts; None where there is no unit for it, or it does not apply."""
    if target.kind != "llvm":
        return None
    p = product_of(function, LANES, 1)
    if p is None or not _applies(p, target):
        return None
    found, cost = _default_of(p, target)
    if not np.isfinite(cost):
        return None
    default: Config = {"sketch": NAME, **found}
    return SketchSpace(
        NAME,
        VERSION,
        _knobs(p),
        _constraints(p, parts_of(target)),
        default,
        lambda k: _nest(p, target, k),
        preferred=saved_cycles(p, target) > 0,
    )


def saved_cycles(p: Product, target: Target) -> float:
    """Clocks that a product takes less in parts than by multiply-adds, in the models; 0 where it is
    not made in parts by default."""
    if not _applies(p, target):
        return 0.0
    _, cost = _default_of(p, target)
    if target.num_cores == 1:  # parts are taken to come from memory, so the others are as well
        direct = direct_cycles(p, replace(target, weights_in_memory=True))
    else:
        direct = direct_cycles(p, target) * (LOST_SHARED if p.rows >= LEAST_LOST_ROWS else 1.0)
    return direct - cost if WORTH * cost < direct else 0.0


def _applies(p: Product, target: Target) -> bool:
    if target.strict or not target.has("amx-bf16"):
        return False
    return (
        has_whole_parts(p)
        and p.rows >= LEAST_ROWS
        and p.columns >= LEAST_COLUMNS
        and p.depth >= DEPTH
    )


@lru_cache(maxsize=256)
def _default_of(p: Product, target: Target) -> tuple[dict[str, int], float]:
    """The config of the fewest cycles in the model, and their number: hints for the next panel, or
    rows that are split ahead."""
    knobs = _knobs(p)
    choices = {k.name: k.choices for k in knobs if k.name not in WAYS[0]}
    constraints = _constraints(p, parts_of(target))
    found = (cheapest(choices, way, constraints, lambda k: cycles(p, target, k)) for way in WAYS)
    config, cost = min(found, key=lambda each: each[1])
    # Without a next panel there is but one choice.
    return {k.name: min(config[k.name], int(k.choices[-1])) for k in knobs}, cost


def _knobs(p: Product) -> tuple[Knob, ...]:
    vectors, tiles = -(-p.columns // LANES), -(-p.rows // ROWS)
    return (
        Knob("rh", tuple(n for n in (1, 2, 3, 4, 5, 6) if n <= tiles)),
        Knob("nv", tuple(n for n in (1, 2, 3, 4) if n <= vectors)),
        Knob("mb", block_choices(tiles, (1, 2, 3, 4))),
        Knob("nb", block_choices(vectors, (1, 2, 3, 4))),
        Knob("stretch", (0, *_stretches(p))),
        Knob("ahead", (0,) if p.variable else (0, 1)),
        Knob("next_panel", (0, 1) if vectors > 1 and not p.variable else (0,)),
    )


def _stretches(p: Product) -> tuple[int, ...]:
    """Terms of the stretches that a long sum may be cut into."""
    depth = padded_depth(p)
    return tuple(n for n in STRETCHES if n < depth and depth % n == 0)


def _constraints(p: Product, parts: Parts) -> tuple[Constraint, ...]:
    def fits_registers(k: Columns) -> Mask:
        return fits_tiles(whole(k, "rh"), whole(k, "nv"), parts)

    def ahead_of_one_tile(k: Columns) -> Mask:
        one = (whole(k, "rh") == 1) & (whole(k, "mb") > 1)
        plain = (whole(k, "stretch") == 0) & (whole(k, "next_panel") == 0) & (not p.variable)
        return (whole(k, "ahead") == 0) | (one & plain)

    def whole_blocks(k: Columns) -> Mask:
        tiles = -(-p.rows // (ROWS * whole(k, "rh")))
        panels = -(-p.columns // (LANES * whole(k, "nv")))
        beyond = -tiles % whole(k, "mb")  # tiles of the last block that hold no rows
        return (beyond <= MOST_BEYOND * tiles) & (panels % whole(k, "nb") == 0)

    def parts_fit(k: Columns) -> Mask:
        tiles = np.where(whole(k, "ahead") > 0, 2, whole(k, "mb") * whole(k, "rh"))
        rows, stretch = tiles * ROWS, whole(k, "stretch")
        columns = np.where(stretch > 0, whole(k, "nb") * whole(k, "nv") * LANES, 0)
        terms = np.where(stretch > 0, stretch, padded_depth(p))
        copied, panel = (
            rows * (terms * parts.bytes + columns * 4),
            terms * whole(k, "nv") * LANES * parts.bytes,
        )
        return (copied <= MAX_COPIED_BYTES) & (copied + 2 * panel <= MAX_HELD_BYTES)

    def whole_panels(k: Columns) -> Mask:
        may_end_early = (whole(k, "stretch") == 0) & (not p.variable)
        return may_end_early | (p.columns % (LANES * whole(k, "nv")) == 0)

    return (
        Constraint("tiles fit the registers", fits_registers),
        Constraint("rows ahead are those of one tile", ahead_of_one_tile),
        Constraint("whole blocks", whole_blocks),
        Constraint("parts fit the cache", parts_fit),
        Constraint("whole panels of stretches and variable matrices", whole_panels),
    )


def _nest(p: Product, target: Target, k: Columns) -> Nest:
    parts, one = parts_of(target), np.ones(len(whole(k, "rh")), np.int64)
    depth, rows = padded_depth(p), whole(k, "rh") * ROWS
    axes = {"i": p.rows, "j": p.columns, "p": len(parts.pairs), "k": depth}
    vector = {"i": ROWS * one, "j": LANES * one, "p": one, "k": DEPTH * one}
    register = {**vector, "i": rows, "j": LANES * whole(k, "nv"), "p": len(parts.pairs) * one}
    stretch = whole(k, "stretch")
    l1 = {**register, "k": np.where(stretch > 0, stretch, depth)}
    l2 = {**l1, "i": np.minimum(rows * whole(k, "mb"), p.rows)}
    core = {**l2, "j": np.minimum(register["j"] * whole(k, "nb"), p.columns)}
    blocks = -(-p.rows // core["i"]) * -(-p.columns // core["j"])
    block = rows * whole(k, "mb")
    tiles = -(-p.rows // block) * block * -(-p.columns // register["j"]) * register["j"]
    # A tile's instruction does 16 · 16 · 32 multiply-adds in the time of 16 · 16 · 2 of vectors'.
    executed = 2.0 * len(parts.pairs) * depth * tiles / (2 * OPERATIONS_AT_ONCE)
    extra = {
        n: whole(k, n).astype(np.float64) for n in ("mb", "nb", "stretch", "ahead", "next_panel")
    }
    extra["cycles"] = cycles(p, target, k)
    matrix = (parts.number, depth, p.columns)
    accesses = (
        Access("parts", 2, (parts.number, p.rows, depth), ({"p": 1}, {"i": 1}, {"k": 1})),
        Access("weights", 2, matrix, ({"p": 1}, {"k": 1}, {"j": 1}), constant=not p.variable),
        Access("out", 4, (p.rows, p.columns), ({"i": 1}, {"j": 1}), write=True),
    )
    levels = {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core}
    return Nest(axes, frozenset({"p", "k"}), accesses, levels, blocks, executed, extra)

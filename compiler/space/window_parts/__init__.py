"""Convolutions of float32 by the tiles of a matrix unit that multiplies bfloat16 (AMX).

    parallel over blocks of (images, panels of lanes, rows)
      the pixels that the block reads as three bfloat16s each          parts, in the second cache
      for panel:
        for group of rows:
          for macro tile of their pixels:               rh × nv tiles of 16 pixels by 16 lanes
            sums = 0
            for tap of rows, step of 32 channels, tap of columns, pair of parts:
              sums += part of the pixels · part of the weights
              some of the epilogue of the group before, in vectors → result
            store the tiles

A value is the sum of three parts, or of two, as in ``float_parts``, which has the errors and what
is not finite. Tiles run on from one row of a group to the next, and over what windows read beyond
its end. The sketch serves windows for which Winograd's method has no tiles, or saves little: of
stride 2, of 5 × 5 or 1 × 7 taps, dilated ones.
"""

from __future__ import annotations

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
from tunefarm.compiler.space.float_parts.cycles import fits_tiles
from tunefarm.compiler.space.float_parts.forms import DEPTH, parts_of
from tunefarm.compiler.space.matrix_tiles import OPERATIONS_AT_ONCE, block_choices
from tunefarm.compiler.space.matrix_tiles.shape import LANES, ROWS
from tunefarm.compiler.space.window_parts.apply import schedule
from tunefarm.compiler.space.window_parts.cycles import cycles, least_cycles_of_others, part_rows
from tunefarm.compiler.space.window_parts.program import Windows, windows_of
from tunefarm.compiler.target import Target

NAME, VERSION = "window_parts", 1
COPIED_SHARE = 0.4  # of the second cache, for what a block holds: larger blocks gain nothing
HINTED_SHARE = 1 / 2  # of the second cache: smaller weights stay there
WORTH = 1.08  # times fewer cycles than by multiply-adds, in the models, to be a task's default

__all__ = ["cycles", "schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a convolution in parts; None where there is no unit for it, or it does not
    apply."""
    c = windows_of(function) if target.kind == "llvm" and not target.strict else None
    if c is None or not target.has("amx-bf16"):
        return None
    knobs, constraints = _knobs(c), _constraints(c, target)
    choices = {k.name: k.choices for k in knobs if k.name != "next_panel"}
    found, cost = cheapest(choices, {"next_panel": 0}, constraints, lambda k: cycles(c, target, k))
    if not np.isfinite(cost):
        return None
    large = parts_of(target).bytes * c.depth * c.outputs > HINTED_SHARE * target.l2_bytes
    hints = int((large or target.weights_in_memory) and c.outputs > LANES)
    default: Config = {"sketch": NAME, **found, "next_panel": hints}
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        constraints,
        default,
        lambda k: _nest(c, target, k),
        preferred=WORTH * cost < least_cycles_of_others(c, target),
    )


def _knobs(c: Windows) -> tuple[Knob, ...]:
    vectors = c.outputs // LANES
    return (
        Knob("rows", tuple(n for n in range(1, c.height + 1) if c.height % n == 0)),
        Knob("rh", (1, 2, 3, 4)),
        Knob("nv", tuple(n for n in (1, 2, 3) if vectors % n == 0)),
        Knob("mb", tuple(n for n in block_choices(c.height, (1,)) if c.height % n == 0)),
        Knob("nb", tuple(n for n in block_choices(vectors, (1, 2, 3)) if vectors % n == 0)),
        Knob("next_panel", (0, 1) if vectors > 1 else (0,)),
    )


def _constraints(c: Windows, target: Target) -> tuple[Constraint, ...]:
    def fits_registers(k: Columns) -> Mask:
        return fits_tiles(whole(k, "rh"), whole(k, "nv"), parts_of(target))

    def whole_blocks(k: Columns) -> Mask:
        groups, panels = c.height // whole(k, "rows"), c.outputs // (LANES * whole(k, "nv"))
        return (groups % whole(k, "mb") == 0) & (panels % whole(k, "nb") == 0)

    def parts_fit(k: Columns) -> Mask:
        pixels = part_rows(c, k) * c.pitch * c.strides[1]
        tiles = -(-whole(k, "rows") * c.pitch // (ROWS * whole(k, "rh")))
        results = tiles * ROWS * whole(k, "rh") * LANES * whole(k, "nv")
        held = 4 * results * np.where(tiles > 1, 2, 1)
        return pixels * c.channels * parts_of(target).bytes + held <= COPIED_SHARE * target.l2_bytes

    return (
        Constraint("tiles fit the registers", fits_registers),
        Constraint("whole blocks", whole_blocks),
        Constraint("parts fit the cache", parts_fit),
    )


def _nest(c: Windows, target: Target, k: Columns) -> Nest:
    parts, one = parts_of(target), np.ones(len(whole(k, "rh")), np.int64)
    rows, nv = whole(k, "rows"), whole(k, "nv")
    pixels, channels = c.height * c.width, c.channels
    axes = {"n": c.batch, "i": pixels, "o": c.outputs, "p": len(parts.pairs), "k": c.depth}
    vector = {"n": one, "i": ROWS * one, "o": LANES * one, "p": one, "k": DEPTH * one}
    register = vector | {
        "i": vector["i"] * whole(k, "rh"),
        "o": LANES * nv,
        "p": len(parts.pairs) * one,
    }
    l1 = register | {"k": c.depth * one}
    l2 = l1 | {"i": rows * c.width * whole(k, "mb")}
    core = l2 | {"o": register["o"] * whole(k, "nb")}
    blocks = c.batch * -(-pixels // core["i"]) * -(-c.outputs // core["o"])
    # A tile's instruction does 16 · 16 · 32 multiply-adds in the time of 16 · 16 · 2 of vectors'.
    tiles = -(-rows * c.pitch // register["i"])
    products = c.batch * c.height // rows * tiles * register["i"] * c.depth * c.outputs
    executed = 2.0 * len(parts.pairs) * products / (2 * OPERATIONS_AT_ONCE)
    extra = {n: whole(k, n).astype(np.float64) for n in ("mb", "nb", "rows", "next_panel")}
    extra["cycles"] = cycles(c, target, k)
    weights = (parts.number, c.depth, c.outputs)
    read, made = (parts.number, c.batch, pixels, channels), (c.batch, pixels, c.outputs)
    accesses = (
        Access("parts", 2, read, ({"p": 1}, {"n": 1}, {"i": 1}, {"k": 1})),
        Access("weights", 2, weights, ({"p": 1}, {"k": 1}, {"o": 1}), constant=True),
        Access("out", 4, made, ({"n": 1}, {"i": 1}, {"o": 1}), write=True),
    )
    levels = {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core}
    return Nest(axes, frozenset({"p", "k"}), accesses, levels, blocks, executed, extra)

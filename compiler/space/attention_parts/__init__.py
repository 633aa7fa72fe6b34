"""softmax(Q·Kᵀ·scale + mask)·V by the tiles of a matrix unit that multiplies bfloat16 (AMX).

    parallel over blocks of queries of each head
      values as parts; keys turned in registers, and as parts      in the second cache
      for macro tile of queries:                                   rh tiles of 16 rows
        queries as parts
        for panel of keys:     sums = Σ queries · keys             rh × nv tiles of 16 × 16
                               scaled and masked
        the largest score of each row; powers, also as parts; their sum
        for panel of values:   sums = Σ powers · values            rh × nv tiles of 16 × 16
                               divided by the sum → result

Operands of float32 are in parts as in ``float_parts``, whose errors and limits hold here too.
A function that rounds the operands of both products to bfloat16, as ``precision="bf16"`` makes it,
has one part of each. All scores of a macro tile's rows are kept (16 KB for 32 queries of 128 keys).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite

import numpy as np
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.attention import default as in_vectors
from tunefarm.compiler.space.attention_parts.apply import schedule
from tunefarm.compiler.space.attention_parts.cycles import cycles, held_bytes
from tunefarm.compiler.space.attention_parts.program import Form, form_of, with_rounding
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
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
from tunefarm.compiler.space.float_parts.forms import DEPTH, ONE
from tunefarm.compiler.space.matrix_tiles import OPERATIONS_AT_ONCE, block_choices
from tunefarm.compiler.space.matrix_tiles.shape import LANES, ROWS
from tunefarm.compiler.target import Target

NAME, VERSION = "attention_parts", 1
LEAST = 16  # queries, keys and elements of either
ROWS_AT_ONCE = 8  # whose maxima and sums are combined over lanes together
MAX_HELD_BYTES = 4 << 20  # of a task
WORTH = 1.15  # times fewer cycles than by multiply-adds, in the models, to be a task's default

__all__ = ["cycles_in_vectors", "in_bfloat16", "nest_of", "schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of an attention in parts; None where there is no unit for it, or it does not
    apply."""
    form = form_of(function, target) if _has_unit(target) else None
    if form is None or min(form.extents) < LEAST:
        return None
    found, cost = _default_of(form, target)
    if not isfinite(cost):
        return None
    return SketchSpace(
        NAME,
        VERSION,
        _knobs(form),
        _constraints(form),
        {"sketch": NAME, **found},
        lambda k: _nest(form, target, k),
        preferred=form.parts is ONE or _pays(form, target),
    )


def in_bfloat16(function: Function, target: Target) -> Function | None:
    """An attention of float32 with the operands of its products rounded to bfloat16; None for
    another function, and where that does not save time."""
    if not _has_unit(target) or form_of(function, target) is None:
        return None
    rounded = with_rounding(function)
    form = form_of(rounded, target)
    return rounded if form is not None and _pays(form, target) else None


def _has_unit(target: Target) -> bool:
    return target.kind == "llvm" and not target.strict and target.has("amx-bf16")


def _pays(form: Form, target: Target) -> bool:
    """Whether the method takes less time than multiply-adds, in the models."""
    if min(form.extents) < LEAST:
        return False
    return WORTH * _default_of(form, target)[1] < cycles_in_vectors(form, target)


def _default_of(form: Form, target: Target) -> tuple[Config, float]:
    """The config of the fewest cycles in the model, by tiles of 2 × 2, and their number: other
    tiles took 0.92 to 1.27 × the time, mostly more."""
    knobs = _knobs(form)
    chosen = {k.name: min(2, int(k.choices[-1])) for k in knobs if k.name in ("rh", "nv")}
    chosen |= {"rt": ROWS_AT_ONCE, "overlap": int(form.parts.number > 1)}
    choices = {k.name: k.choices for k in knobs if k.name not in chosen}
    return cheapest(choices, chosen, _constraints(form), lambda k: cycles(form, target, k))


def cycles_in_vectors(form: Form, target: Target) -> float:
    """Clocks by multiply-adds, as ``attention`` has it."""
    a, lanes = form.attention, target.lanes("float32")
    config = in_vectors.default_of(a, target, lanes)
    if config is None:
        return float("inf")
    columns = {n: np.array([v]) for n, v in config.items() if n != "sketch"}
    return float(in_vectors.cycles(a, target, lanes, columns)[0])


def _knobs(form: Form) -> tuple[Knob, ...]:
    queries, keys, _, values = form.extents
    vectors, tiles = -(-min(keys, values) // LANES), -(-queries // ROWS)
    return (
        Knob("rh", tuple(n for n in (1, 2, 3) if n <= tiles)),
        Knob("nv", tuple(n for n in (1, 2, 3, 4) if n <= vectors)),
        Knob("mb", block_choices(tiles, (1, 2, 3))),
        Knob("rt", (4, 8, 16)),
        Knob("overlap", (0, 1)),
    )


def _constraints(form: Form) -> tuple[Constraint, ...]:
    queries, *_ = form.extents

    def fits_registers(k: Columns) -> Mask:
        return fits_tiles(whole(k, "rh"), whole(k, "nv"), form.parts)

    def whole_blocks(k: Columns) -> Mask:
        return whole(k, "mb") <= -(-queries // (whole(k, "rh") * ROWS))

    def fits_memory(k: Columns) -> Mask:
        return held_bytes(form, k) <= MAX_HELD_BYTES

    return (
        Constraint("tiles fit the registers", fits_registers),
        Constraint("whole blocks", whole_blocks),
        Constraint("a head fits the memory of a task", fits_memory),
    )


def _nest(form: Form, target: Target, k: Columns) -> Nest:
    """The two products as one loop nest."""
    one, pairs = np.ones(len(whole(k, "rh")), np.int64), len(form.parts.pairs)
    vector = {"h": one, "q": ROWS * one, "k": LANES * one, "p": one, "d": DEPTH * one}
    vector["e"] = LANES * one
    tile = whole(k, "rh") * ROWS, whole(k, "nv") * LANES

    def operations(rows: Numbers) -> Numbers:
        # A tile's instruction does 16 · 16 · 32 multiply-adds in the time of 16 · 16 · 2 of
        # vectors'.
        _, keys, depth, values = form.extents
        return 2.0 * pairs * rows * keys * (depth + values) / (2 * OPERATIONS_AT_ONCE)

    extra = {name: whole(k, name).astype(np.float64) for name in ("mb", "rt", "overlap")}
    extra["cycles"] = cycles(form, target, k)
    extra["held"] = held_bytes(form, k).astype(np.float64)
    return nest_of(form, k, tile, vector, operations, extra)


def nest_of(
    form: Form,
    k: Columns,
    tile: tuple[Numbers, Numbers],
    vector: Mapping[str, Numbers],
    operations: Callable[[Numbers], Numbers],
    extra: dict[str, Numbers],
) -> Nest:
    """The two products as one loop nest, of tiles of so many rows and columns, which do so many
    ``operations`` for a number of rows. Axes: heads, queries, keys, pairs of parts, and the sizes
    of a head's keys (d) and values (e)."""
    q, n, d, e = form.extents
    (rows, columns), pairs = tile, len(form.parts.pairs)
    one = np.ones(len(rows), np.int64)
    axes = {"h": form.heads, "q": q, "k": n, "p": pairs, "d": d, "e": e}
    register = {**vector, "q": rows, "k": columns, "p": pairs * one, "e": columns}
    l1 = {**register, "d": d * one}
    l2 = {**l1, "k": n * one, "e": e * one}
    core = {**l2, "q": np.minimum(rows * whole(k, "mb"), q)}
    blocks = form.heads * -(-q // core["q"])
    accesses = (
        Access("queries", 4, (form.heads, q, d), ({"h": 1}, {"q": 1}, {"d": 1})),
        Access("keys", 4, (form.heads, n, d), ({"h": 1}, {"k": 1}, {"d": 1})),
        Access("values", 4, (form.heads, n, e), ({"h": 1}, {"k": 1}, {"e": 1})),
        Access("out", 4, (form.heads, q, e), ({"h": 1}, {"q": 1}, {"e": 1}), write=True),
    )
    levels = {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core}
    executed = operations(blocks * core["q"])
    return Nest(axes, frozenset({"p", "k", "d"}), accesses, levels, blocks, executed, extra)

"""softmax(Q·Kᵀ·scale + mask)·V with both products of bfloat16, by dot products in vectors.

    parallel over blocks of queries of each head
      values, and keys turned in registers, as words of two terms          in the second cache
      for tile of queries:                                        rw rows
        queries rounded
        for panel of keys:     sums = Σ queries · keys            rw × nv vectors, registers
                               scaled and masked
        the largest score of each row; powers, also rounded; their sum
        for panel of values:   sums = Σ powers · values           rw × nv vectors, registers
                               divided by the sum → result

For functions that round the operands of both products, as ``precision="bf16"`` makes them where
processors multiply bfloat16 in vectors as fast as float32 (Zen 4 and 5). The stages are those of
``attention_parts``, which the tiles of a matrix unit take.
"""

from __future__ import annotations

from math import isfinite

import numpy as np
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.attention_dots.apply import schedule
from tunefarm.compiler.space.attention_dots.cycles import cycles, held_bytes
from tunefarm.compiler.space.attention_dots.shape import LANES, TERMS, form_of, has_instruction
from tunefarm.compiler.space.attention_parts import (
    LEAST,
    MAX_HELD_BYTES,
    cycles_in_vectors,
    nest_of,
)
from tunefarm.compiler.space.attention_parts.program import Form, with_rounding
from tunefarm.compiler.space.attention_parts.program import form_of as form_in_parts
from tunefarm.compiler.space.columns import Mask, Numbers, cheapest, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Nest, SketchSpace
from tunefarm.compiler.space.contraction.knobs import ROWS, UNROLLS, up_to
from tunefarm.compiler.space.matrix_tiles import block_choices
from tunefarm.compiler.target import Target

NAME, VERSION = "attention_dots", 1
VECTORS = (1, 2, 3, 4)
MAX_UNROLLED = 256  # instructions of one unrolled body
WORTH = 1.05  # times fewer cycles than in float32, in the models, for operands to be rounded

__all__ = ["in_bfloat16", "schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of an attention by dot products; None where there are none, or it does not
    apply."""
    form = form_of(function, target)
    if form is None or min(form.extents) < LEAST:
        return None
    found, cost = _default_of(form, target)
    if not isfinite(cost):
        return None
    return SketchSpace(
        NAME,
        VERSION,
        _knobs(form),
        _constraints(form, target),
        {"sketch": NAME, **found},
        lambda k: _nest(form, target, k),
        terms=TERMS,
    )


def in_bfloat16(function: Function, target: Target) -> Function | None:
    """An attention of float32 with the operands of its products rounded to bfloat16; None for
    another function, and where that does not save time."""
    if not has_instruction(target) or form_in_parts(function, target) is None:
        return None
    rounded = with_rounding(function)
    form = form_of(rounded, target)
    if form is None or min(form.extents) < LEAST:
        return None
    cost = WORTH * _default_of(form, target)[1]
    return rounded if cost < cycles_in_vectors(form, target) else None


def _default_of(form: Form, target: Target) -> tuple[Config, float]:
    """The config of the fewest cycles in the model, and their number."""
    choices = {k.name: k.choices for k in _knobs(form) if k.name in ("rw", "nv", "mb")}
    constraints = _constraints(form, target)
    found, cost = cheapest(
        choices, {"rt": 1, "ku": 2}, constraints, lambda k: cycles(form, target, k)
    )
    return {**found, "rt": found["rw"]}, cost


def _knobs(form: Form) -> tuple[Knob, ...]:
    queries, keys, depth, values = form.extents
    rows = tuple(n for n in up_to(ROWS, queries) if n > 1)
    return (
        Knob("rw", rows),
        Knob("nv", up_to(VECTORS, -(-min(keys, values) // LANES))),
        Knob("mb", block_choices(queries, [int(n) for n in rows])),
        Knob("rt", (1, *rows)),
        Knob("ku", up_to(UNROLLS, -(-min(depth, keys) // TERMS))),
    )


def _constraints(form: Form, target: Target) -> tuple[Constraint, ...]:
    queries, *_ = form.extents

    def fits_registers(k: Columns) -> Mask:
        rows, vectors = whole(k, "rw"), whole(k, "nv")
        return rows * vectors + vectors + 1 <= target.vector_registers

    def small_code(k: Columns) -> Mask:
        return whole(k, "rw") * whole(k, "nv") * whole(k, "ku") <= MAX_UNROLLED

    def whole_groups(k: Columns) -> Mask:
        return whole(k, "rw") % whole(k, "rt") == 0

    def whole_blocks(k: Columns) -> Mask:
        return whole(k, "mb") <= -(-queries // whole(k, "rw"))

    def fits_memory(k: Columns) -> Mask:
        return held_bytes(form, k) <= MAX_HELD_BYTES

    return (
        Constraint("sums fit the registers", fits_registers),
        Constraint("code size", small_code),
        Constraint("whole groups of rows", whole_groups),
        Constraint("whole blocks", whole_blocks),
        Constraint("a head fits the memory of a task", fits_memory),
    )


def _nest(form: Form, target: Target, k: Columns) -> Nest:
    """The two products as one loop nest, whose instructions do as many operations as two
    multiply-adds of vectors."""
    one = np.ones(len(whole(k, "rw")), np.int64)
    tile = whole(k, "rw"), whole(k, "nv") * LANES
    vector = {"h": one, "q": one, "k": LANES * one, "p": one, "d": TERMS * one, "e": LANES * one}

    def operations(rows: Numbers) -> Numbers:
        _, keys, depth, values = form.extents
        return 2.0 * rows * keys * (depth + values) / TERMS

    extra = {name: whole(k, name).astype(np.float64) for name in ("mb", "rt", "ku")}
    extra["cycles"] = cycles(form, target, k)
    extra["held"] = held_bytes(form, k).astype(np.float64)
    return nest_of(form, k, tile, vector, operations, extra)

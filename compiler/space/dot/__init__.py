"""Contractions of bytes and 16-bit floats by instructions of several terms a lane.

    parallel over blocks of (outer axes, panels of lanes, rows)
      [copy the block's rows: padding, whole groups of terms]
      for panel:                                          nb panels a block
        for row tile:                                     mb tiles a block
          accumulators = 0                                rh × rw rows by nv vectors, registers
          for taps, for groups of terms:                  ku groups unrolled
            accumulators += lhs[row, group] · rhs[group, lanes]     one instruction
          epilogue on the accumulators → result

It is the tile of the contraction sketch: an instruction multiplies 4 bytes (or 2 bfloat16s) of a
row, broadcast as one word, with those of 16 columns, and has the shape of a multiply-add. So a
group of terms counts as one word of 4 bytes, and the model of that sketch chooses the knobs. The
constant operand is packed at build time to [panel][taps][group][nv · lanes][term].
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, Numbers, whole
from tunefarm.compiler.space.config import (
    Columns,
    Config,
    Constraint,
    Knob,
    Nest,
    SketchSpace,
)
from tunefarm.compiler.space.contraction.default import default_of
from tunefarm.compiler.space.contraction.knobs import constraints_of, knobs_of
from tunefarm.compiler.space.contraction.nest import nest_of
from tunefarm.compiler.space.contraction.shape import row_axes
from tunefarm.compiler.space.dot.apply import schedule
from tunefarm.compiler.space.dot.shape import NAME, VERSION, DotProduct, dot_product_of
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir.affine import affine

MAX_COPIED_BYTES = 1 << 19

__all__ = ["schedule", "space"]


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a sum of dot products; None if the target has no instruction for it."""
    if target.kind != "llvm":
        return None
    dot = dot_product_of(function, target)
    if dot is None:
        return None
    lanes = dot.instruction.lanes
    copies = (1,) if dot.copied else (0, 1)
    own = {"order": ("nm", "mn"), "pack_lhs": copies, "pack_rhs": (0,)}
    knobs = tuple(Knob(k.name, own.get(k.name, k.choices)) for k in knobs_of(dot.words, lanes))
    constraints = _constraints(dot, target)
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        constraints,
        _default(dot, target, knobs, constraints),
        lambda columns: _nest(dot, target, columns),
        terms=dot.instruction.terms,
    )


def _constraints(dot: DotProduct, target: Target) -> tuple[Constraint, ...]:
    """Those of the contraction sketch, with the copy as large as it is, and a register for the
    products of an instruction that leaves it to others to add them up."""
    shared = constraints_of(dot.words, target, dot.instruction.lanes)
    kept = (c for c in shared if c.name != "copies fit the cache")

    def leaves_one(k: Columns) -> Mask:
        sums = whole(k, "rw") * whole(k, "rh") * whole(k, "nv")
        return sums + whole(k, "nv") + 2 <= target.vector_registers

    return (
        *kept,
        *(() if dot.instruction.accumulates else (Constraint("products", leaves_one),)),
        Constraint(
            "copy fits the cache",
            lambda k: whole(k, "pack_lhs") * _copied_bytes(dot, k) <= MAX_COPIED_BYTES,
        ),
    )


def _copied_bytes(dot: DotProduct, k: Columns) -> Numbers:
    """Bytes of the left operand that a block of rows reads."""
    c = dot.contraction
    second, last = row_axes(c)
    tile = {a.position: 1 for a in (*c.outer, *c.rows, c.vector)}
    extents: dict[Any, Any] = {a.position: a.extent for a in c.reduce} | tile
    extents[dot.depth.position] = dot.padded_depth
    if last is not None:
        rows = whole(k, "rw") if second is not None else whole(k, "rw") * whole(k, "mb")
        extents[last.position] = last.extent if second is not None else rows
    if second is not None:
        extents[second.position] = whole(k, "rh") * whole(k, "mb")
    of: dict[Any, Any] = {axis.var: extents[n] for n, axis in enumerate(c.node.iters)}
    spans = [
        1 + sum(abs(factor) * (of[var] - 1) for var, (factor, _) in affine(i).terms.items())
        for i in c.lhs.load.indices
    ]
    return prod(spans) * dtype_bytes(dot.instruction.a)


def _default(
    dot: DotProduct, target: Target, knobs: tuple[Knob, ...], constraints: tuple[Constraint, ...]
) -> Config:
    if dot.widened:  # once for all panels, not for each of them again
        knobs = tuple(replace(k, choices=("mn",)) if k.name == "order" else k for k in knobs)
    found = default_of(dot.words, target, dot.instruction.lanes, knobs, constraints)
    return {**found, "sketch": NAME, "pack_lhs": int(dot.copied), "pack_rhs": 0}


def _nest(dot: DotProduct, target: Target, columns: Columns) -> Nest:
    """The nest over words: the operations of a group of terms count as those of one multiply-add,
    which takes the processor as long."""
    nest = nest_of(dot.words, target, dot.instruction.lanes, columns)
    return replace(nest, extents={**nest.extents, dot.depth.name: dot.words.reduce[-1].extent})

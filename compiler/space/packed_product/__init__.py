"""Products with weights of a few bits, by dot products of bytes (VPDPBUSD).

    parallel over blocks of (panels of lanes, rows)
      the block's rows as whole numbers of 1 to 3 bytes         and their sums, by blocks of terms
      for panel: for tile of rows:                              rh × nv vectors
        total = 0
        for block of terms:                                     that share a scale
          sums = 0                                              rh × nv × bytes vectors, exact
          for group of terms: for neighbours in it:             a shift and a mask
            sums += bytes of the rows · weights
          total += scale · (sums - zero point · sum of the row's bytes), in float32
        epilogue → result

A row's terms that share a scale are rounded to whole numbers, of three bytes the largest of them to
8,355,000, which keeps 23 bits of it. Their products with whole weights are summed exactly, so
that what is off is mostly the rounding of a sum of blocks. Weights come from memory in an eighth of
the bytes of float32 (of four bits), and an instruction does 64 multiply-adds of bytes, three for
one of a number: 21 of these, where a multiply-add of floats does 16 and has to make the weights
floats before. A model that lets its activations be rounded to a byte takes a third of that.
Of what is infinite comes NaN.

Without the instruction, and with ``-precision=strict``, weights become floats in registers, for
rows of floats: of few rows, which wait for weights, that takes no longer.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from tunefarm.compiler.ir import Function
from tunefarm.compiler.ops.packed import NEIGHBOURS
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
from tunefarm.compiler.space.contraction.knobs import up_to
from tunefarm.compiler.space.matrix_tiles import block_choices
from tunefarm.compiler.space.packed_product.apply import (
    form_of,
    instruction_of,
    lanes_of,
    schedule,
)
from tunefarm.compiler.space.packed_product.cycles import cycles, row_bytes
from tunefarm.compiler.space.packed_product.program import (
    PackedProduct,
    has_whole_groups,
)
from tunefarm.compiler.target import Target

NAME, VERSION = "packed_product", 1
ROWS, VECTORS = (1, 2, 3, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6)
AHEAD = (0, 2, 4, 8, 16)  # blocks of terms whose weights are asked for before they are read
DEFAULT_AHEAD = 4  # 4096² of one row from memory 0.78 × the time, from the caches level
MAX_UNROLLED = 256  # instructions on bytes in a step
MAX_HELD_BYTES = 1 << 20  # of a block's rows in bytes

__all__ = ["has_whole_groups", "schedule", "space", "sums_bytes"]


def sums_bytes(target: Target) -> bool:
    """Whether a target has the instruction, and may use it."""
    return target.kind == "llvm" and instruction_of(target) is not None


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs of a product with weights of a few bits; None for others."""
    p = form_of(function, target)
    if p is None:
        return None
    lanes = lanes_of(target)
    knobs, constraints = _knobs(p, lanes), _constraints(p, target, lanes)
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        constraints,
        _default_of(p, target, lanes),
        lambda k: _nest(p, target, lanes, k),
    )


@lru_cache(maxsize=256)
def _default_of(p: PackedProduct, target: Target, lanes: int) -> Config:
    """The config of the fewest cycles in the model."""
    choices = {k.name: k.choices for k in _knobs(p, lanes)}
    ahead, unroll = choices.pop("prefetch"), int(choices.pop("ku")[:2][-1])
    limits = _constraints(p, target, lanes)
    fixed = {"ku": unroll, "prefetch": 0}
    found, _ = cheapest(choices, fixed, limits, lambda k: cycles(p, target, lanes, k))
    if found["rh"] >= p.rows and DEFAULT_AHEAD in ahead:  # weights are read once
        found["prefetch"] = DEFAULT_AHEAD
    return {"sketch": NAME, **found}


def _knobs(p: PackedProduct, lanes: int) -> tuple[Knob, ...]:
    vectors, groups = -(-p.columns // lanes), p.block_terms // p.group
    rows = up_to(ROWS, p.rows)
    return (
        Knob("rh", rows),
        Knob("nv", up_to(VECTORS, vectors)),
        Knob("mb", block_choices(p.rows, [int(n) for n in rows])),
        Knob("nb", block_choices(vectors, (1, 2, 3, 4, 6))),
        Knob("ku", tuple(n for n in (1, 2, 4) if groups % n == 0)),
        Knob("prefetch", AHEAD if p.blocks > 1 else (0,)),
    )


def _constraints(p: PackedProduct, target: Target, lanes: int) -> tuple[Constraint, ...]:
    def fits_registers(k: Columns) -> Mask:
        sums = whole(k, "rh") * whole(k, "nv") * (p.parts + 1)
        return sums + whole(k, "nv") + 1 <= target.vector_registers

    def small_code(k: Columns) -> Mask:
        sums = whole(k, "rh") * whole(k, "nv") * (p.bytes or NEIGHBOURS)
        return sums * p.planes * whole(k, "ku") <= MAX_UNROLLED

    def blocks_useful(k: Columns) -> Mask:
        tiles, panels = -(-p.rows // whole(k, "rh")), -(-p.columns // (lanes * whole(k, "nv")))
        return (whole(k, "mb") <= tiles) & (whole(k, "nb") <= panels)

    def rows_fit(k: Columns) -> Mask:
        rows = whole(k, "rh") * whole(k, "mb")
        return (rows * row_bytes(p) <= MAX_HELD_BYTES) | (rows == 1)

    return (
        Constraint("sums fit the registers", fits_registers),
        Constraint("code size", small_code),
        Constraint("blocks within extents", blocks_useful),
        Constraint("a block's rows fit the cache", rows_fit),
    )


def _nest(p: PackedProduct, target: Target, lanes: int, k: Columns) -> Nest:
    """An instruction on bytes does as many operations as four multiply-adds of vectors, for a part
    of a number."""
    one = np.ones(len(whole(k, "rh")), np.int64)
    depth, terms = p.blocks * p.block_terms, NEIGHBOURS if p.bytes else 1
    axes = {"p": p.parts, "i": p.rows, "j": p.columns, "k": depth}
    vector = {"p": one, "i": one, "j": lanes * one, "k": terms * one}
    register = {**vector, "p": p.parts * one, "i": whole(k, "rh"), "j": lanes * whole(k, "nv")}
    l1 = {**register, "k": p.block_terms * one}
    l2 = {**l1, "k": depth * one, "i": np.minimum(register["i"] * whole(k, "mb"), p.rows)}
    core = {**l2, "j": np.minimum(register["j"] * whole(k, "nb"), p.columns)}
    blocks = -(-p.rows // core["i"]) * -(-p.columns // core["j"])
    tiles = -(-p.rows // register["i"]) * register["i"]
    tiles = tiles * -(-p.columns // register["j"]) * register["j"]
    executed = 2.0 * p.parts * depth * tiles / terms
    extra = {n: whole(k, n).astype(np.float64) for n in ("mb", "nb", "ku", "prefetch")}
    extra["cycles"] = cycles(p, target, lanes, k)
    rows, weights = (p.parts, p.rows, depth), (depth // NEIGHBOURS, p.columns)
    accesses = (
        Access("rows", 1 if p.bytes else 4, rows, ({"p": 1}, {"i": 1}, {"k": 1})),
        Access("weights", NEIGHBOURS, weights, ({"k": 1}, {"j": 1}), constant=True),
        Access("out", 4, (p.rows, p.columns), ({"i": 1}, {"j": 1}), write=True),
    )
    levels = {"vector": vector, "register": register, "l1": l1, "l2": l2, "core": core}
    return Nest(axes, frozenset({"p", "k"}), accesses, levels, blocks, executed, extra)

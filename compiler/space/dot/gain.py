"""How much faster an instruction sums products than float32 multiply-adds do."""

from __future__ import annotations

from math import prod

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space import winograd, winograd_1d
from tunefarm.compiler.space.dot.shape import PAIRS, DotProduct, dot_product_of
from tunefarm.compiler.space.matrix_tiles.shape import tiled_product_of
from tunefarm.compiler.space.product_cycles import moved_cycles
from tunefarm.compiler.space.winograd.parts import equal_parts
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir.tensor_intrinsics import TensorIntrinsic

FMA_CYCLES = 0.5

# Measured on Emerald Rapids, whose cores these processors have: 89 GFLOP/s of VDPBF16PS beside 170
# of float32 multiply-adds and 719 of VPDPBUSD. Their unit for bfloat16 is AMX. Others, such as Zen,
# issue all of them at one rate.
_SLOW = {
    ("avx512bf16", cpu): 2.0
    for cpu in ("sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d")
}
TILE_CYCLES = 18.0  # of an instruction on whole tiles (Granite Rapids)
PAIRS_CYCLES = 0.56  # with the sums of chunks
WORDS_CYCLES = 0.68  # of VPMADDWD, with its addition and the bytes' way to words (Zen 3)
# Of an element that is copied where channels are fewer than lanes.
WIDENED_CYCLES = 2.5  # as a word (Zen 3)
FILLED_CYCLES = 1.75  # beside zeros, as channels fill no whole words (Zen 5)


def issue_cycles(intrinsic: TensorIntrinsic, target: Target) -> float:
    """Cycles from one instruction to the next independent one; of a tile's for one of its rows."""
    if intrinsic.rows:
        return TILE_CYCLES / (intrinsic.rows * intrinsic.groups)
    if intrinsic is PAIRS:
        return PAIRS_CYCLES
    if not intrinsic.accumulates:
        return WORDS_CYCLES
    return _SLOW.get((intrinsic.feature, target.mcpu), FMA_CYCLES)


def saved_by_winograd(wide: Function, target: Target) -> float:
    """How many times fewer cycles float32 sums take by Winograd's method, of tiles or along rows,
    of parts of many inputs too; 1 where it saves none."""
    return max(
        saving(function, target)
        for function in (wide, *equal_parts(wide).values())
        for saving in (winograd.saving, winograd_1d.saving)
    )


def gain_over_float32(narrow: Function, wide: Function, target: Target) -> float:
    """How many times faster ``narrow`` is than ``wide``, the same in float32, by a model of ports
    and of the weights' way to the core; 0 without an instruction for it."""
    tiles = tiled_product_of(narrow, target)
    dot = tiles.dot if tiles is not None else dot_product_of(narrow, target)
    if dot is None:
        return 0.0
    c, lanes = dot.contraction, dot.instruction.lanes
    vectors = prod(a.extent for a in (*c.outer, *c.rows)) * -(-c.vector.extent // lanes)
    terms = prod(a.extent for a in c.reduce)
    weights = terms * prod(a.extent for a in (*c.outer, c.vector))
    groups = prod(a.extent for a in dot.words.reduce)
    ours = vectors * groups * issue_cycles(dot.instruction, target)
    if tiles is None and dot.depth.extent < lanes:
        ours += _copy_cycles(dot) * prod(c.lhs.load.buffer.shape)
    saved = saved_by_winograd(wide, target)
    theirs = vectors * terms * lanes / target.lanes("float32") * FMA_CYCLES / saved
    if 4 * weights > target.l2_bytes:  # from beyond the second-level cache, once a call
        ours = max(ours, moved_cycles(dtype_bytes(c.rhs.load.dtype) * weights, target))
        theirs = max(theirs, moved_cycles(4.0 * weights, target))
    return theirs / ours


def _copy_cycles(dot: DotProduct) -> float:
    """Cycles of an element of the left operand on its way to a copy that is not as it stands."""
    if dot.widened:
        return WIDENED_CYCLES
    is_float = dot.instruction.accumulator == "float32"
    return FILLED_CYCLES if is_float and dot.depth.extent % dot.instruction.terms else 0.0

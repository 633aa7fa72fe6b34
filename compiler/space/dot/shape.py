"""What the dot-product sketch asks of a contraction: an instruction, the summed axis that its terms
run along, and how the operands must lie in memory for it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import count
from math import prod

from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.analysis import Axis, Contraction, Operand, analyse
from tunefarm.compiler.space.contraction.shape import (
    packed_at_build,
    shares_vector,
    sum_dtype,
    viewed_program,
)
from tunefarm.compiler.space.prefetch import PackedWeights
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import Buffer, Load, Var
from tunefarm.compiler.tir.schedule.tree import store_of
from tunefarm.compiler.tir.tensor_intrinsics import TENSOR_INTRINSICS, TensorIntrinsic

NAME, VERSION = "dot", 1
PAIRS = TensorIntrinsic(
    "pairs of float16", 16, 2, "float32", "float16", "float16", "llvm.fma.v32f16", "avx512fp16"
)  # not one instruction: ``pairs`` schedules it
CHUNK = 128  # terms that a lane sums in float16 before float32 takes over
WIDENED = {"uint8": ("int16",), "int8": ("int16",)}  # what a copy of a left operand may be
WORD = "float32"  # as wide as the terms of a lane, which are read and multiplied as one


@dataclass(frozen=True, slots=True)
class DotProduct:
    """A contraction that an instruction computes, some terms of ``depth`` in every lane.

    ``contraction`` reads a padded image as a buffer of its own, and sums over ``depth`` innermost;
    ``words`` is the same with the terms of a lane taken for one element. ``copied`` says of the
    left operand that its terms do not stand side by side, or not in whole groups, or that the
    instruction takes wider ones.
    """

    contraction: Contraction
    instruction: TensorIntrinsic
    depth: Axis
    words: Contraction
    copied: bool

    @property
    def widened(self) -> bool:
        """Whether the copy of the left operand is of a wider dtype."""
        return self.contraction.lhs.load.dtype != self.instruction.a

    @property
    def padded_depth(self) -> int:
        """Terms with those of the last group that are zeros."""
        return self.words.reduce[-1].extent * self.instruction.terms


def dot_product_of(function: Function, target: Target) -> DotProduct | None:
    """The dot products that a fused function sums; None if no instruction computes them."""
    vectors = [t for t in (*TENSOR_INTRINSICS.values(), PAIRS) if not t.rows and not t.turned]
    found = summed_by(function, vectors, target)
    if found is None or found.instruction is not PAIRS:
        return found
    groups = found.words.reduce[-1].extent
    if groups == 1:
        return None  # nothing to sum in float16
    return in_groups(found, next(g for g in count(groups) if 2 * chunk_of(g) >= min(CHUNK, g)))


def summed_by(
    function: Function, instructions: Iterable[TensorIntrinsic], target: Target
) -> DotProduct | None:
    """The dot products of a fused function by one of these instructions; None if the target has
    none that computes them."""
    c = analyse(viewed_program(function), inline_operands=False)
    if c is None or not packed_at_build(c) or shares_vector(c):
        return None
    if c.vector.extent == 1 and not _sums_bytes_of_windows(c):
        return None
    instruction = _instruction(c, instructions, target)
    depth = _depth(c)
    if instruction is None or depth is None:
        return None
    c = replace(c, reduce=(*(a for a in c.reduce if a is not depth), depth))
    groups = -(-depth.extent // instruction.terms)
    return in_groups(DotProduct(c, instruction, depth, c, False), groups)


def _sums_bytes_of_windows(c: Contraction) -> bool:
    """Single outputs for which nothing else has vectors: products of one column have their terms in
    lanes, and floats are multiplied so (``narrow``)."""
    return sum_dtype(c) == "int32" and len([a for a in c.reduce if a.extent > 1]) > 1


def in_groups(dot: DotProduct, groups: int) -> DotProduct:
    """The same products with so many groups of terms, the last of which may be zeros."""
    c, instruction, depth = dot.contraction, dot.instruction, dot.depth
    words = replace(
        c,
        reduce=(*c.reduce[:-1], replace(depth, extent=groups)),
        lhs=_in_words(c, c.lhs, depth, groups),
        rhs=_in_words(c, c.rhs, depth, groups),
    )
    last = c.lhs.load.indices[-1]
    copied = (
        c.lhs.param is None
        or last is not c.node.iters[depth.position].var
        or depth.extent != groups * instruction.terms
        or c.lhs.load.dtype != instruction.a
    )
    return DotProduct(c, instruction, depth, words, copied)


def chunk_of(groups: int) -> int:
    """Groups of pairs that are summed in float16: as many as ``CHUNK`` allows and divide them."""
    return max(n for n in range(1, min(CHUNK, groups) + 1) if groups % n == 0)


def packed_weights(program: PrimFunc, dot: DotProduct, vectors: int) -> PackedWeights:
    """The right operand in panels of so many vectors; a step of the sum is a group of terms."""
    assert dot.contraction.rhs.param is not None
    step = vectors * dot.instruction.lanes * dot.instruction.terms
    panel = step * prod(a.extent for a in dot.words.reduce)
    return PackedWeights(program.params[dot.contraction.rhs.param], step, panel)


def _instruction(
    c: Contraction, instructions: Iterable[TensorIntrinsic], target: Target
) -> TensorIntrinsic | None:
    """That of most products that multiplies and adds these dtypes, or copies of the left operand in
    a wider one."""
    left = (c.lhs.load.dtype, *WIDENED.get(c.lhs.load.dtype, ()))
    dtypes = (c.rhs.load.dtype, store_of(c.node).buffer.dtype)
    fitting = [
        t
        for t in instructions
        if t.a in left and (t.b, t.accumulator) == dtypes and target.has(t.feature)
    ]
    return max(fitting, key=lambda t: t.lanes * t.terms, default=None)


def _depth(c: Contraction) -> Axis | None:
    """The summed axis that is innermost in the left operand's memory, of those that both operands
    have as an index of its own."""
    axes = {c.node.iters[a.position].var: a for a in c.reduce}
    for index in reversed(c.lhs.load.indices):
        if isinstance(index, Var) and index in axes and index in c.rhs.load.indices:
            return axes[index]
    return None


def _in_words(c: Contraction, operand: Operand, depth: Axis, groups: int) -> Operand:
    """An operand with the terms of a lane as one element."""
    var, load = c.node.iters[depth.position].var, operand.load
    shape = tuple(
        groups if index is var else size
        for index, size in zip(load.indices, load.buffer.shape, strict=True)
    )
    return Operand(Load(Buffer(load.buffer.name, shape, WORD), load.indices), operand.param)

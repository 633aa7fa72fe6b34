"""Reductions of few results: their terms are shared out over blocks, and combined by a second
kernel.

    part[i, s] = Σ of terms s · length … (s + 1) · length - 1        ``split`` parts of each result
    whole[i]   = Σ_s part[i, s]
    out[…]     = what follows on it

Terms that stand side by side are reduced by a team of ``threads`` for each part (``gpu_rows``);
where results stand side by side (sums of columns), each thread has some of them (``gpu_elements``).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.space.common import block_nest, is_product, widest_vector
from tunefarm.compiler.gpu.space.elements import elements_program, spread, sums_in_parts
from tunefarm.compiler.gpu.space.row_kernel import RowKnobs, RowStages, row_kernel
from tunefarm.compiler.gpu.space.rows import COMBINED, DTYPES, VECTOR_BYTES
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Nest, SketchSpace
from tunefarm.compiler.space.nests import strides
from tunefarm.compiler.space.stages import linked, stages_of
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Buffer,
    Expr,
    IterVar,
    Load,
    Select,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule.tree import blocks, nest_around, store_of
from tunefarm.compiler.tir.visit import loads_of, seq, substitute

NAME, VERSION = "gpu_split", 1
SPLITS = (4, 8, 16, 32, 64, 128, 256)
THREADS = (32, 64, 128, 256, 512, 1024)
LEAST_TERMS = {True: 2048, False: 16}  # of a part, by whether they stand side by side
WORTH_IT = {True: 1 << 16, False: 256}  # terms of a result that two kernels are faster for


@dataclass(frozen=True)
class Reduction:
    """A function of one reduction over one axis: its flat program, ``node`` in it, and whether the
    terms stand side by side (``rows``) or the results do."""

    program: PrimFunc
    node: Block
    rows: bool

    @property
    def results(self) -> list[IterVar]:
        return [i for i in self.node.iters if i.kind == "spatial"]

    @property
    def reduced(self) -> IterVar:
        return next(i for i in self.node.iters if i.kind == "reduce")

    @property
    def count(self) -> int:
        """Results."""
        return prod(i.extent for i in self.results)

    @property
    def unit(self) -> int:
        """Terms that are one load, if they stand side by side."""
        widest = max((dtype_bytes(ld.dtype) for ld in loads_of(self.value.b)), default=4)
        return gcd(VECTOR_BYTES // widest, self.reduced.extent) if self.rows else 1

    @property
    def value(self) -> Binary:
        value = store_of(self.node).value
        assert isinstance(value, Binary)
        return value

    @property
    def first(self) -> Expr:
        assert isinstance(self.node.init, Store)
        return self.node.init.value

    def length(self, split: int) -> int:
        """Terms of a part, in whole units."""
        return -(-self.reduced.extent // (split * self.unit)) * self.unit

    def term(self, part: Expr, number: Expr, split: int) -> Expr:
        """A term of a part; beyond the last one, what changes nothing."""
        at = part * self.length(split) + number
        value = substitute(self.value.b, {self.reduced.var: at})
        if self.length(split) * split == self.reduced.extent:
            return value
        exists = at // self.unit < self.reduced.extent // self.unit
        return Select(exists, value, self.first, value.dtype)


@functools.lru_cache(maxsize=64)
def reduction_of(function: Function) -> Reduction | None:
    """The reduction that a function is; None for others."""
    stages = stages_of(function, keep=False)
    if stages is None:
        return None
    found = _found(stages.program, rows=True)
    if found is None or all(step in (0, 1) for step in strides(found.node, found.reduced.var)):
        return found
    return _found(elements_program(function), rows=False)


def _found(program: PrimFunc, rows: bool) -> Reduction | None:
    """The only reduction of a program, which comes first and leaves nothing but its results."""
    node, *rest = blocks(program.body)
    found = Reduction(program, node, rows)
    if len(rest) > 1 or not _is_combined(node) or any(b.init is not None for b in rest):
        return None
    same = all(prod(i.extent for i in b.iters) == found.count for b in rest)
    return found if same else None


def _is_combined(node: Block) -> bool:
    """True for a reduction over one axis that threads can combine."""
    value = store_of(node).value
    if node.init is None or not isinstance(value, Binary) or value.op not in COMBINED:
        return False
    reduced = [i for i in node.iters if i.kind == "reduce"]
    return len(reduced) == 1 and value.dtype in DTYPES and node.predicate is None


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs; None for other functions, and where the results alone are enough for a GPU."""
    if target.kind != "cuda" or is_product(function):
        return None
    r = reduction_of(function)
    if r is None:
        return None
    lanes = target.num_cores * (1 if r.rows else 4 * WARP)
    terms, least = r.reduced.extent, LEAST_TERMS[r.rows]
    splits = tuple(n for n in SPLITS if n * least <= terms and n * r.count <= 16 * lanes)
    if not splits or r.count > 2 * lanes:
        return None
    widest = r.unit if r.rows else widest_vector(r.node, target)
    vectors = tuple(n for n in (1, 2, 4, 8) if n <= widest)
    knobs = (Knob("split", splits), Knob("vec", vectors), Knob("threads", THREADS))

    def parts_fill(k: Columns) -> Mask:
        """Threads of a part have a vector each, at least; those of columns have columns."""
        if r.rows:
            length = -(-terms // (whole(k, "split") * r.unit)) * r.unit
            return (whole(k, "threads") * whole(k, "vec") <= length) & (whole(k, "vec") <= r.unit)
        each = whole(k, "threads") * whole(k, "vec")
        return each < np.maximum(2 * r.count * whole(k, "split"), 2 * WARP * whole(k, "vec"))

    def nest(k: Columns) -> Nest:
        found = block_nest(r.program, r.node, k, whole(k, "vec"), ("split", "vec", "threads"))
        return replace(found, parallelism=found.parallelism * whole(k, "split"))

    wanted = max(2 * lanes // max(r.count, 1), splits[0])
    split = max(n for n in splits if n <= wanted)
    default: Config = {
        "sketch": NAME,
        "split": split,
        "vec": vectors[-1] if r.rows else min(2, vectors[-1]),
        "threads": 256 if r.rows else 64 if r.count * split >= 4 * WARP else WARP,
    }
    constraint = Constraint("parts", parts_fill)
    preferred = terms >= WORTH_IT[r.rows]
    return SketchSpace(NAME, VERSION, knobs, (constraint,), default, nest, preferred)


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function is no such reduction."""
    r = reduction_of(function)
    if r is None:
        raise ScheduleError("the workload is no reduction whose terms can be shared out")
    split, vec, threads = (int(config[n]) for n in ("split", "vec", "threads"))
    if r.rows:
        return _by_teams(r, split, vec, threads)
    knobs: Config = {"vec": vec, "threads": threads, "each": 1, "taps": 0}
    program, inner = sums_in_parts(_in_parts(r, split))
    part, combined, *rest = (b for b in blocks(program.body) if b.name not in inner.values())
    program = spread(program, part, target, knobs, part=inner.get(part.name, ""))
    if not rest:
        return spread(program, combined, target, knobs)
    program = s.set_scope(program, combined.name, "register")
    return spread(program, s.find_block(program, combined.name), target, knobs, rest[0].name)


def _fresh(axes: list[IterVar]) -> list[IterVar]:
    return [IterVar(Var(i.var.name), i.extent, i.kind) for i in axes]


def _by_teams(r: Reduction, split: int, vec: int, threads: int) -> PrimFunc:
    """Two kernels of teams: parts, each a row of its own, and rows of parts."""
    sizes = [i.extent for i in r.results]
    parts = Buffer("parts", (*sizes, split), r.value.dtype)
    first = row_kernel(_part_rows(r, parts, split), RowKnobs(vec, threads, 1, 0))
    second = row_kernel(_whole_rows(r, parts, split), RowKnobs(1, WARP, 1, 0))
    body = seq(first.body, second.body)
    return replace(r.program, body=body, buffers=(parts, *first.buffers, *second.buffers))


def _part_rows(r: Reduction, parts: Buffer, split: int) -> RowStages:
    """The stages that make the parts."""
    own = Buffer("part", parts.shape, parts.dtype, "register")
    part, term = IterVar(Var("s"), split), IterVar(Var("t"), r.length(split), "reduce")
    at = (*(i.var for i in r.results), part.var)
    more = binary(r.value.op, Load(own, at), r.term(part.var, term.var, split))
    body = Store(own, at, more)
    made = Block("part", (*r.results, part, term), (), body, Store(own, at, r.first))
    axes = _fresh([*r.results, part])
    there = tuple(i.var for i in axes)
    told = Block("told", tuple(axes), (), Store(parts, there, Load(own, there)))
    return _stages(r, (*_inputs(r), parts), [made, told], (own,))


def _whole_rows(r: Reduction, parts: Buffer, split: int) -> RowStages:
    """The stages that combine them, and make of them what follows."""
    last = list(blocks(r.program.body))[-1]
    return _stages(r, (parts, *r.program.params), [_combined(r, parts, split), last])


def _combined(r: Reduction, parts: Buffer, split: int) -> Block:
    """The reduction of the parts into what the reduction wrote."""
    axes, number = _fresh(r.results), IterVar(Var("s"), split, "reduce")
    values = dict(zip((i.var for i in r.results), (i.var for i in axes), strict=True))
    buffer = store_of(r.node).buffer
    at = tuple(substitute(i, dict(values)) for i in store_of(r.node).indices)
    spatial = tuple(i.var for i in axes)
    part = Load(parts, (*spatial, number.var) if r.rows else (number.var, *spatial))
    body = Store(buffer, at, binary(r.value.op, Load(buffer, at), part))
    return Block("whole", (*axes, number), (), body, Store(buffer, at, r.first))


def _inputs(r: Reduction) -> tuple[Buffer, ...]:
    return r.program.params[: len(r.program.params) - r.program.outputs]


def _stages(
    r: Reduction, params: tuple[Buffer, ...], nodes: list[Block], more: tuple[Buffer, ...] = ()
) -> RowStages:
    body = seq(*map(nest_around, nodes))
    buffers = (*r.program.buffers, *more)
    return RowStages(linked(replace(r.program, params=params, body=body, buffers=buffers)))


def _in_parts(r: Reduction, split: int) -> PrimFunc:
    """The program with the reduction as two, results innermost in both."""
    parts = Buffer("parts", (split, *(i.extent for i in r.results)), r.value.dtype)
    axes = _fresh(r.results)
    part, term = IterVar(Var("s"), split), IterVar(Var("t"), r.length(split), "reduce")
    values = dict(zip((i.var for i in r.results), (i.var for i in axes), strict=True))
    at = (part.var, *(i.var for i in axes))
    value = substitute(r.term(part.var, term.var, split), dict(values))
    body = Store(parts, at, binary(r.value.op, Load(parts, at), value))
    made = Block("part", (part, *axes, term), (), body, Store(parts, at, r.first))
    rest = [b for b in blocks(r.program.body) if b is not r.node]
    nodes = [made, _combined(r, parts, split), *rest]
    return replace(
        r.program, body=seq(*map(nest_around, nodes)), buffers=(*r.program.buffers, parts)
    )

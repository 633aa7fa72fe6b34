"""Softmax and normalisations of few long rows, each shared out over ``split`` blocks.

With ``cluster`` these blocks are launched together and share a row as the threads of a team do
(``gpu_rows``): each has its part, in registers where it fits (``kept``; 2: and what else the result
is made of), and they tell each other what the reductions of their parts come to. It takes one
kernel, of at most 8 or 16 blocks a row. Else there are several:

    parts₁[i, s] = max of elements s · length … (s + 1) · length - 1 of row i      a kernel
    parts₂[i, s] = Σ exp(x[i, …] - max over all parts₁[i, …])                      another
    out[i, …]    = exp(x[i, …] - max) / sum of all parts₂[i, …]                    the last

A kernel for each reduction, and one for the result: all of them are of teams whose rows are the
parts. What the parts before came to, each block combines by itself: they are few.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import MAX_REGISTERS, REGISTERS
from tunefarm.compiler.gpu.space.common import block_nest, is_product
from tunefarm.compiler.gpu.space.row_kernel import RowKnobs, RowStages, row_kernel
from tunefarm.compiler.gpu.space.rows import MOST_KEPT, OTHER_REGISTERS, VECTOR_BYTES, row_stages
from tunefarm.compiler.gpu.space.split import LEAST_TERMS, SPLITS, THREADS
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Nest, SketchSpace
from tunefarm.compiler.space.stages import Stages, linked
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Buffer,
    Expr,
    IterVar,
    Load,
    Select,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule.tree import nest_around, store_of, written_buffer
from tunefarm.compiler.tir.visit import seq, substitute, transform_expr

NAME, VERSION = "gpu_long_rows", 2
WORTH_IT = 1 << 15  # elements of a row that several kernels are faster for


@dataclass(frozen=True)
class LongRows:
    """The stages of a function: ``reductions`` of whole rows, and a result of whole rows."""

    stages: Stages
    reductions: tuple[Block, ...]

    @property
    def final(self) -> Block:
        return self.stages.node(self.stages.final)

    @property
    def rows(self) -> tuple[IterVar, ...]:
        return self.stages.rows

    @property
    def inner(self) -> IterVar:
        (axis,) = self.stages.inner
        return axis

    @property
    def count(self) -> int:
        """Rows."""
        return prod(axis.extent for axis in self.rows)

    @property
    def unit(self) -> int:
        """Elements of the row that are one load."""
        return gcd(VECTOR_BYTES // RowStages(self.stages).widest_bytes, self.inner.extent)

    def length(self, split: int) -> int:
        """Elements of a part, in whole units."""
        return -(-self.inner.extent // (split * self.unit)) * self.unit

    def exists(self, part: Expr, number: Expr, split: int) -> Expr | None:
        """Whether an element of a part is one of the row; None if all are."""
        if self.length(split) * split == self.inner.extent:
            return None
        at = part * self.length(split) + number
        return at // self.unit < self.inner.extent // self.unit


@functools.lru_cache(maxsize=64)
def long_rows_of(function: Function) -> LongRows | None:
    """The stages of a function; None for others."""
    r = row_stages(function)
    if r is None or len(r.stages.inner) != 1:
        return None
    found = LongRows(r.stages, tuple(r.stages.node(name) for name in r.stages.before))
    rows = {axis.var for axis in found.rows}
    for node in (*found.reductions, found.final):
        links = r.stages.links[node.name]
        others = [i for i in node.iters if links.get(i.var) not in rows]
        if node.predicate is not None or [i.extent for i in others] != [found.inner.extent]:
            return None
    return found


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs; None for other functions, and where the rows alone are enough for a GPU."""
    if target.kind != "cuda" or is_product(function):
        return None
    r = long_rows_of(function)
    if r is None or 2 * r.count > target.num_cores:
        return None
    terms = r.inner.extent
    most = 16 * target.num_cores // r.count
    fewest = (2, *SPLITS) if target.gpu.has_clusters else SPLITS
    splits = tuple(n for n in fewest if n * LEAST_TERMS[True] <= terms and n <= most)
    if not splits or splits[-1] < SPLITS[0]:
        return None
    vectors = tuple(n for n in (1, 2, 4, 8) if n <= r.unit and r.unit % n == 0)
    knobs = (
        Knob("split", splits),
        Knob("vec", vectors),
        Knob("threads", THREADS),
        Knob("cluster", (0, 1) if target.gpu.has_clusters else (0,)),
        Knob("kept", (0, 1, 2) if target.gpu.has_clusters else (0,)),
    )
    kept_bytes = np.array([0, *(_kept_bytes(r, vectors[-1], most) for most in (False, True))])

    def parts_fill(k: Columns) -> Mask:
        """Threads of a part have a vector each; its parts are whole vectors, or blocks of a cluster
        that has as many."""
        split, vec, kept = (whole(k, name) for name in ("split", "vec", "kept"))
        length = -(-terms // (split * r.unit)) * r.unit
        several = (split % vec == 0) & (split >= SPLITS[0]) & (kept == 0)
        clustered = whole(k, "cluster") > 0
        fits = np.where(clustered, split <= target.gpu.most_cluster, several)
        return (whole(k, "threads") * vec <= length) & fits

    def registers_fit(k: Columns) -> Mask:
        """What a thread keeps of its row, beside what it computes with."""
        threads, kept = whole(k, "threads"), whole(k, "kept")
        vectors = whole(k, "split") * threads * whole(k, "vec")
        each = -(-terms // vectors) * whole(k, "vec")
        taken = each * kept_bytes[kept] // 4 + OTHER_REGISTERS
        fits = (taken <= MAX_REGISTERS) & (taken * threads <= REGISTERS) & (each <= MOST_KEPT)
        return (kept == 0) | fits

    def nest(k: Columns) -> Nest:
        names = ("split", "vec", "threads")
        found = block_nest(r.stages.program, r.reductions[0], k, whole(k, "vec"), names)
        return replace(found, parallelism=found.parallelism * whole(k, "split"))

    wanted = max(2 * target.num_cores // r.count, splits[0])
    split = max(n for n in splits if n <= max(wanted, SPLITS[0]))
    vec = max(n for n in vectors if split % n == 0)
    constraints = (Constraint("parts", parts_fill), Constraint("registers", registers_fit))
    apart = {"split": split, "vec": vec, "threads": 256, "cluster": 0, "kept": 0}
    tried = _clusters(r, target, vectors[-1], int(kept_bytes[2]) > int(kept_bytes[1]))
    together = (k for k in tried if k["split"] in splits and _holds(constraints, k))
    default: Config = {"sketch": NAME, **next(together, apart)}
    preferred = terms >= WORTH_IT and 4 * r.count <= target.num_cores
    return SketchSpace(NAME, VERSION, knobs, constraints, default, nest, preferred)


def _clusters(r: LongRows, target: Target, vec: int, keeps_more: bool) -> Iterator[dict[str, int]]:
    """Clusters for rows, the fastest first: on an H200 blocks of 256 threads, half as many of them
    as multiprocessors, take 0.69 times as long as a kernel for each reduction; where scales of the
    row's length can be kept as well, 512 threads with those are faster."""
    if not target.gpu.has_clusters:
        return
    ways = [(2, 512)] if keeps_more else []
    ways += [(1, 256), (1, 512), (1, 1024)]
    fewest = max(target.num_cores // 2 // r.count, 1)
    for split in (n for n in (4, 8, 16) if n >= min(fewest, 8)):
        for kept, threads in ways:
            yield {"split": split, "vec": vec, "threads": threads, "cluster": 1, "kept": kept}


def _holds(constraints: Sequence[Constraint], knobs: Mapping[str, int]) -> bool:
    k = {name: np.array([value]) for name, value in knobs.items()}
    return all(bool(c.holds(k)[0]) for c in constraints)


def _kept_bytes(r: LongRows, vec: int, most: bool) -> int:
    """Bytes of each element of a row that blocks of a cluster keep in registers."""
    loads = RowStages(r.stages).kept_loads(vec, most).values()
    return sum(dtype_bytes(load.dtype) for load in loads)


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function has no rows that can be shared out."""
    r = long_rows_of(function)
    if r is None:
        raise ScheduleError("the workload has no rows whose stages can be shared out over blocks")
    names = ("split", "vec", "threads", "kept")
    split, vec, threads, kept = (int(config[name]) for name in names)
    if int(config["cluster"]):
        return row_kernel(RowStages(r.stages), RowKnobs(vec, threads, 1, kept, split))
    return _Kernels(r, split, RowKnobs(vec, threads, 1, 0)).program()


class _Kernels:
    """Writes the kernels."""

    def __init__(self, r: LongRows, split: int, knobs: RowKnobs) -> None:
        self.r, self.split, self.knobs = r, split, knobs
        self.sizes = [axis.extent for axis in r.rows]
        self.whole: dict[Buffer, Buffer] = {}  # what a reduction came to, for each part of a row
        self.parts: list[Buffer] = []

    def program(self) -> PrimFunc:
        program = self.r.stages.program
        bodies: list[Stmt] = []
        buffers: list[Buffer] = []
        for node in (*self.r.reductions, self.r.final):
            last = node is self.r.final
            kernel = row_kernel(self.result() if last else self.part(node), self.knobs)
            bodies.append(kernel.body)
            buffers += kernel.buffers
        return replace(program, body=seq(*bodies), buffers=(*self.parts, *buffers))

    def part(self, node: Block) -> RowStages:
        """The stages that make the parts of a reduction."""
        value, first = _reduced(node)
        axes, part = self.axes()
        term = IterVar(Var("t"), self.r.length(self.split), "reduce")
        own = Buffer(f"{node.name}_part", (*self.sizes, self.split), value.dtype, "register")
        at = (*(i.var for i in axes), part.var)
        made: Expr = self.placed(value.b, node, axes, part.var, term.var)
        exists = self.r.exists(part.var, term.var, self.split)
        if exists is not None:
            made = Select(exists, made, first, made.dtype)
        body = Store(own, at, binary(value.op, Load(own, at), made))
        block = Block(f"{node.name}_part", (*axes, part, term), (), body, Store(own, at, first))
        axes, part = self.axes()
        there = (*(i.var for i in axes), part.var)
        parts = Buffer(f"{node.name}_parts", own.shape, value.dtype)
        told = Block("told", (*axes, part), (), Store(parts, there, Load(own, there)))
        before = self.combined()
        self.parts.append(parts)
        self.whole[written_buffer(node)] = Buffer(f"{node.name}_all", own.shape, own.dtype)
        return self.stages((*before, block, told), own)

    def result(self) -> RowStages:
        """The stages that make the parts of the result."""
        node = self.r.final
        store = store_of(node)
        axes, part = self.axes()
        element = IterVar(Var("t"), self.r.length(self.split))

        def placed(expr: Expr) -> Expr:
            return self.placed(expr, node, axes, part.var, element.var)

        body = Store(store.buffer, tuple(map(placed, store.indices)), placed(store.value))
        exists = self.r.exists(part.var, element.var, self.split)
        block = Block(node.name, (*axes, part, element), (), body, predicate=exists)
        return self.stages((*self.combined(), block))

    def axes(self) -> tuple[list[IterVar], IterVar]:
        """Fresh axes of the rows, and of the parts of one."""
        return [IterVar(Var(i.var.name), i.extent) for i in self.r.rows], IterVar(
            Var("s"), self.split
        )

    def placed(
        self, expr: Expr, node: Block, axes: Sequence[IterVar], part: Expr, number: Expr
    ) -> Expr:
        """An expression of a block at an element of a part."""
        links = self.r.stages.links[node.name]
        at: dict[Var, Expr] = {
            row.var: axis.var for row, axis in zip(self.r.rows, axes, strict=True)
        }
        place = part * self.r.length(self.split) + number
        values = {i.var: at.get(links.get(i.var, i.var), place) for i in node.iters}
        here = (*(i.var for i in axes), part)

        def rule(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.buffer in self.whole:
                return Load(self.whole[e.buffer], here)
            return None

        return transform_expr(substitute(expr, values), rule)

    def combined(self) -> list[Block]:
        """The reductions of the parts that there are so far."""
        found = []
        for node, parts in zip(self.r.reductions, self.parts, strict=False):
            value, first = _reduced(node)
            axes, part = self.axes()
            number = IterVar(Var("n"), self.split, "reduce")
            buffer = self.whole[written_buffer(node)]
            rows = tuple(i.var for i in axes)
            at = (*rows, part.var)
            more = binary(value.op, Load(buffer, at), Load(parts, (*rows, number.var)))
            init = Store(buffer, at, first)
            iters = (*axes, part, number)
            found.append(Block(f"{node.name}_all", iters, (), Store(buffer, at, more), init))
        return found

    def stages(self, nodes: Sequence[Block], *more: Buffer) -> RowStages:
        program = self.r.stages.program
        body = seq(*map(nest_around, nodes))
        params = (*self.parts, *program.params)
        buffers = (*program.buffers, *self.whole.values(), *more)
        return RowStages(linked(replace(program, params=params, body=body, buffers=buffers)))


def _reduced(node: Block) -> tuple[Binary, Expr]:
    """What a reduction combines, and what it begins with."""
    value = store_of(node).value
    assert isinstance(value, Binary)
    assert isinstance(node.init, Store)
    return value, node.init.value

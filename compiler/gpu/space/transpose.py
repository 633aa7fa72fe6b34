"""Moves that turn rows into columns: tiles through shared memory, side by side on either side.

blocks of ``tile`` × ``tile`` elements:
  the threads fill a tile             along the rows of what is read, ``vec`` elements each
  out[lanes] = f(tile, …)             along the rows of the result, down the columns of the tile

A row of the tile is a word longer than its elements, so that those of a column lie in other banks.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.space.common import certain_loads, contains_only_blocks, digits, loop
from tunefarm.compiler.gpu.space.elements import elements_program
from tunefarm.compiler.ir import Function
from tunefarm.compiler.space.columns import Mask, whole
from tunefarm.compiler.space.config import Columns, Config, Constraint, Knob, Nest, SketchSpace
from tunefarm.compiler.space.nests import accesses_of, cost_of
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import (
    Block,
    Buffer,
    Const,
    Expr,
    For,
    If,
    IterVar,
    Load,
    LoopKind,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule.tree import blocks, store_of
from tunefarm.compiler.tir.visit import seq, substitute, transform_expr

NAME, VERSION = "gpu_transpose", 1
TILES = (32, 64)
VECTORS = (1, 2, 4)
THREADS = (128, 256, 512)
LEAST = 8  # rows and columns: fewer are read whole by their neighbours, from the cache
WORD = 4  # bytes of a bank
MOST_TILES = 4


@dataclass(frozen=True)
class Turned:
    """A move of one block: ``across`` steps through the rows of the result, ``down`` through those
    of the loads that go through tiles; ``rest`` are the other axes."""

    program: PrimFunc
    node: Block
    across: IterVar
    down: IterVar
    rest: tuple[IterVar, ...]
    loads: tuple[Load, ...]

    @property
    def store(self) -> Store:
        return store_of(self.node)

    def vector(self, most: int) -> int:
        """Elements that one thread takes at once on either side, at most ``most``."""
        while self.across.extent % most or self.down.extent % most:
            most //= 2
        return most


@functools.lru_cache(maxsize=64)
def turned(function: Function) -> Turned | None:
    """The move that a function is; None if it computes sums, or its rows stay rows."""
    program = elements_program(function)
    nodes = blocks(program.body)
    if len(nodes) != 1 or nodes[0].init is not None or not contains_only_blocks(program):
        return None
    node, store = nodes[0], store_of(nodes[0])
    across = _along(node, store.indices)
    loads = [ld for ld in certain_loads(store.value) if across and _is_across(ld, across.var)]
    down = {_along(node, ld.indices) for ld in loads}
    axis = down.pop() if len(down) == 1 else None
    if across is None or axis is None or len(loads) > MOST_TILES:
        return None
    if min(across.extent, axis.extent) < LEAST:
        return None
    rest = tuple(i for i in node.iters if i not in (across, axis))
    return Turned(program, node, across, axis, rest, tuple(loads))


def _along(node: Block, indices: tuple[Expr, ...]) -> IterVar | None:
    """The axis of a block along which an array is stepped through side by side, if its places are
    sums of multiples of the axes."""
    form = affine(indices[0])
    if len(indices) != 1 or not all(isinstance(atom, Var) for _, atom in form.terms.values()):
        return None
    return next((i for i in node.iters if form.coefficient(i.var) == 1), None)


def _is_across(load: Load, across: Var) -> bool:
    return affine(load.indices[0]).coefficient(across) not in (0, 1)


def space(function: Function, target: Target) -> SketchSpace | None:
    """The knobs; None for other targets and functions."""
    t = turned(function) if target.kind == "cuda" else None
    if t is None:
        return None
    sizes = [dtype_bytes(b.dtype) for b in (t.store.buffer, *(ld.buffer for ld in t.loads))]
    widest = t.vector(max(VECTORS))
    knobs = (
        Knob("tile", TILES),
        Knob("vec", tuple(v for v in VECTORS if v <= widest and v * max(sizes) <= 16)),
        Knob("threads", THREADS),
    )

    def threads_fit(k: Columns) -> Mask:
        in_row = whole(k, "tile") // whole(k, "vec")
        rows = whole(k, "threads") // in_row
        return (whole(k, "threads") % in_row == 0) & (whole(k, "tile") % np.maximum(rows, 1) == 0)

    def shared_fits(k: Columns) -> Mask:
        rows = [whole(k, "tile") * (whole(k, "tile") + _padding(s)) * s for s in sizes[1:]]
        return sum(rows) <= target.gpu.shared_bytes

    small = max((int(v) for v in knobs[1].choices if int(v) * max(sizes) <= WORD), default=1)
    default: Config = {"sketch": NAME, "tile": WARP * small if small < 4 else 64, "vec": small}
    return SketchSpace(
        NAME,
        VERSION,
        knobs,
        (Constraint("threads", threads_fit), Constraint("shared memory", shared_fits)),
        {**default, "threads": 256},
        lambda k: _nest(t, k),
    )


def _padding(size: int) -> int:
    """Elements after a row of a tile: a word of them."""
    return max(WORD // size, 1)


def _nest(t: Turned, k: Columns) -> Nest:
    names = {i.var: f"{i.var.name}.{n}" for n, i in enumerate(t.node.iters)}
    tile = whole(k, "tile")
    one = np.ones(len(tile), np.int64)
    vector = dict.fromkeys(names.values(), one)
    vector[names[t.across.var]] = np.minimum(whole(k, "vec"), t.across.extent)
    block = dict(vector)
    for axis in (t.across, t.down):
        block[names[axis.var]] = np.minimum(tile, axis.extent)
    total = prod(i.extent for i in t.node.iters)
    return Nest(
        {names[i.var]: i.extent for i in t.node.iters},
        frozenset(),
        tuple(accesses_of(t.node, t.program, names)),
        {"vector": vector, "register": vector, "l1": block, "l2": block, "core": block},
        np.maximum(total // tile**2, 1),
        np.full(len(tile), float(total * cost_of(t.store.value))),
        {n: whole(k, n).astype(np.float64) for n in ("tile", "vec", "threads")},
    )


# --- the kernel ---------------------------------------------------------------------------------


def schedule(function: Function, target: Target, config: Config) -> PrimFunc:
    """Apply a config. Raises ScheduleError if the function turns nothing."""
    t = turned(function)
    if t is None:
        raise ScheduleError("the workload does not turn rows into columns")
    knobs = (int(config[n]) for n in ("tile", "vec", "threads"))
    return _Writer(t, *knobs).program()


class _Writer:
    """Writes the kernel: one loop over blocks of all axes, then the two sides of the tiles."""

    def __init__(self, t: Turned, tile: int, vector: int, threads: int) -> None:
        self.t, self.tile, self.vector, self.threads = t, tile, vector, threads
        self.block, self.thread = Var("block"), Var("thread")
        self.tiles = {
            load: Buffer(
                f"T{n}", (tile, tile), load.dtype, "shared", _padding(dtype_bytes(load.dtype))
            )
            for n, load in enumerate(t.loads)
        }
        self.counts = [-(-axis.extent // tile) for axis in (t.across, t.down)]

    def program(self) -> PrimFunc:
        fills = [self.turns(self.t.down, functools.partial(self.fill, x)) for x in self.t.loads]
        body: Stmt = seq(*fills, self.turns(self.t.across, self.store))
        body = For(self.thread, Const(self.threads), body, LoopKind.THREAD, axis="threadIdx.x")
        grid = prod(self.counts) * prod(i.extent for i in self.t.rest)
        body = For(self.block, Const(grid), body, LoopKind.THREAD, axis="blockIdx.x")
        return replace(self.t.program, body=body, buffers=tuple(self.tiles.values()))

    def turns(self, inner: IterVar, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """Each thread's vectors of a tile, side by side along ``inner``: their row, their number
        in it, and the element, which is a lane; those that exist."""
        in_row = self.tile // self.vector
        rows = self.threads // in_row
        outer = self.t.across if inner is self.t.down else self.t.down

        def turn(n: Expr) -> Stmt:
            row, column = n * rows + self.thread // in_row, self.thread % in_row
            inside = self.first(inner) // self.vector + column < inner.extent // self.vector
            whole = self.first(outer) + row < outer.extent
            stmt = loop(
                "part", self.vector, lambda part: body(row, column, part), LoopKind.VECTORIZED
            )
            return If(binary("and", whole, inside), stmt)

        return loop("turn", self.tile // rows, turn)

    def first(self, axis: IterVar) -> Expr:
        """Where the block's tile begins along one of its two axes."""
        across, down = self.counts
        number = self.block % across if axis is self.t.across else self.block // across % down
        return number * self.tile

    def places(self, across: Expr, down: Expr) -> dict[Var, Expr]:
        """The axes of the move at an element of the block's tile."""
        at = {
            self.t.across.var: self.first(self.t.across) + across,
            self.t.down.var: self.first(self.t.down) + down,
        }
        return at | digits(self.t.rest, self.block // prod(self.counts))

    def fill(self, load: Load, row: Expr, column: Expr, part: Expr) -> Stmt:
        down = column * self.vector + part
        value = substitute(load, self.places(row, down))
        return Store(self.tiles[load], (row, down), value)

    def store(self, row: Expr, column: Expr, part: Expr) -> Stmt:
        across = column * self.vector + part
        store, at = self.t.store, self.places(across, row)

        def rule(e: Expr) -> Expr | None:
            tile = self.tiles.get(e) if isinstance(e, Load) else None
            return None if tile is None else Load(tile, (across, row))

        value = substitute(transform_expr(store.value, rule), at)
        return Store(store.buffer, tuple(substitute(i, at) for i in store.indices), value)

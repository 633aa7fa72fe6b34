"""Tiles of keys and values in shared memory, and how the threads of a block fill them."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.mma import ROWS
from tunefarm.compiler.gpu.space.attention.problem import DEPTH, HEAD, KEY, VALUE, Attention
from tunefarm.compiler.gpu.space.common import loop
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import (
    Buffer,
    Const,
    Expr,
    If,
    Load,
    LoopKind,
    Select,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.visit import substitute

VECTOR_BYTES = 16
PADDING_BYTES = 16  # after each row of a tile: eight rows meet in no bank
MOST_TURNS = 16  # of a fill, that are unrolled


@dataclass(frozen=True, slots=True)
class Knobs:
    """A config: ``warps`` of ``mi`` · 16 queries each, ``keys`` a step, tiles in ``stages``;
    ``split`` blocks share out the keys of the same queries.

    With ``skip`` a warp leaves out the steps that a mask hides from all its queries; of 2 all warps
    look at all steps first, and tiles are not copied that no warp of the block sees.
    """

    warps: int
    mi: int
    keys: int
    stages: int
    skip: int
    split: int = 1

    @property
    def queries(self) -> int:
        return self.warps * self.mi * ROWS


@dataclass(frozen=True, slots=True)
class Tile:
    """A tile of K or V in shared memory: ``terms`` and ``columns`` are the axes of its product.
    With ``by_terms`` a row holds the terms of a column, else the columns of a term."""

    buffer: Buffer
    load: Load
    terms: Var
    columns: Var
    by_terms: bool

    def at(self, term: Expr, column: Expr) -> Load:
        return Load(self.buffer, (column, term) if self.by_terms else (term, column))


class TileFiller:
    """Writes how tiles are filled: of the variables a kernel has, those that say by whom.

    ``steps`` of keys are those of a block, ``number`` counts them over all blocks of ``part``."""

    def __init__(self, a: Attention, k: Knobs) -> None:
        self.a, self.k = a, k
        self.head, self.step = Var("head"), Var("step")
        self.warp, self.lane, self.part = Var("warp"), Var("lane"), Var("part")
        self.steps = -(-a.keys // (k.keys * k.split))
        self.number = self.part * self.steps + self.step if k.split > 1 else self.step
        self.exact = a.keys == self.steps * k.keys * k.split

    def fill(self, tile: Tile) -> Stmt:
        """Fill a tile of K or V, the threads side by side along its rows; zeros beyond the end."""
        rows, row_length = tile.buffer.shape
        outer, inner = (tile.columns, tile.terms) if tile.by_terms else (tile.terms, tile.columns)
        vector = self.vector_of(tile.load, inner)
        in_row = row_length // vector
        count, threads = rows * in_row, self.k.warps * WARP
        turns = -(-count // threads)

        def body(turn: Expr) -> Stmt:
            number = turn * threads + self.warp * WARP + self.lane
            row, column = number // in_row, number % in_row
            if count % threads:
                row = row % rows
            stmt = loop("part", vector, lambda part: store(row, column, part), LoopKind.VECTORIZED)
            return stmt if count % threads == 0 else If(number < count, stmt)

        def store(row: Expr, column: Expr, part: Expr) -> Stmt:
            at = {outer: self.of_step(outer, row, 1), inner: self.of_step(inner, column, vector)}
            limits = {outer: self.size_of(outer), inner: self.size_of(inner) // vector}
            ends = {outer: rows, inner: in_row}
            short = {axis: not self.exact if axis is KEY else limits[axis] != ends[axis]
                     for axis in limits}  # fmt: skip
            value: Expr = substitute(
                tile.load, {HEAD: self.head, outer: at[outer], inner: at[inner] * vector + part}
            )
            for axis in (inner, outer):
                if short[axis]:
                    value = _zero_unless(at[axis] < limits[axis], value)
            return Store(tile.buffer, (row, column * vector + part), value)

        kind = LoopKind.UNROLLED if turns <= MOST_TURNS else LoopKind.SERIAL
        return loop("turn", turns, body, kind)

    def vector_of(self, load: Load, inner: Var) -> int:
        """Elements that one thread copies at once along a row of a tile."""
        most = VECTOR_BYTES // dtype_bytes(self.a.dtype)
        vector = most if affine(load.indices[0]).coefficient(inner) == 1 else 1
        while self.size_of(inner) % vector:
            vector //= 2
        return vector

    def size_of(self, axis: Var) -> int:
        return {DEPTH: self.a.depth, KEY: self.a.keys, VALUE: self.a.values}[axis]

    def of_step(self, axis: Var, number: Expr, vector: int) -> Expr:
        """The number of a vector along an axis: keys begin with this step's."""
        return self.number * (self.k.keys // vector) + number if axis is KEY else number


def _zero_unless(condition: Expr, value: Expr) -> Expr:
    """A value where a condition holds, also that under which it was chosen already."""
    if isinstance(value, Select):
        return Select(binary("and", condition, value.condition), value.a, value.b, value.dtype)
    return Select(condition, value, Const(0.0, value.dtype), value.dtype)

"""The statements of a tile of rows: what each row has one of, and its columns in vectors.

for r in unrolled(8): S[r] = x                                        one for each row
for r in unrolled(8): for v in unrolled(2): for l in vectorized(16):
    if v*16 + l < 17: P[r, v, l] = x                                  one for each column
for r in unrolled(8): S[r] = 0; for l in vectorized(16): S[r] = S[r] + (P[r, 0, l] + P[r, 1, l])
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.tir.affine import Affine, affine, at_least_zero
from tunefarm.compiler.tir.ir import (
    Binary,
    Const,
    Expr,
    For,
    If,
    Load,
    LoopKind,
    Seq,
    Stmt,
    Store,
)


@dataclass(frozen=True, slots=True, eq=False)
class RowPart:
    """A store for each row, or for each column of a row: those below ``count`` if it has one. With
    a ``first`` value it combines the lanes of what a row has accumulated in ``sums``."""

    row: For
    store: Store
    lane: For | None = None
    vector: For | None = None
    count: int | None = None
    first: Store | None = None
    sums: tuple[Load, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Vectors and lanes of a row, where it stores each column; else 0 lanes."""
        vectors = 1 if self.vector is None else extent_of(self.vector)
        return vectors, 0 if self.lane is None or self.sums else extent_of(self.lane)

    @property
    def column(self) -> Affine:
        assert self.lane is not None
        vector = Affine(0, {}) if self.vector is None else affine(self.vector.var)
        return vector.scaled(extent_of(self.lane)) + affine(self.lane.var)


def part_of(row: Stmt) -> RowPart | None:
    """A tile's statement; None for another than these."""
    if not isinstance(row, For) or row.kind is not LoopKind.UNROLLED:
        return None
    vector, body = None, row.body
    if isinstance(body, For) and body.kind is LoopKind.UNROLLED:
        vector, body = body, body.body
    match body:
        case Store() if vector is None:
            return RowPart(row, body)
        case Seq((Store() as first, For(kind=LoopKind.VECTORIZED, body=Store() as store) as lane)):
            sums = _combined(store)
            return RowPart(row, store, lane, first=first, sums=sums) if sums else None
        case For(kind=LoopKind.VECTORIZED, body=Store() as store):
            return RowPart(row, store, body, vector)
        case For(kind=LoopKind.VECTORIZED, body=If(condition, Store() as store, None)):
            part, form = RowPart(row, store, body, vector), at_least_zero(condition)
            rest = None if form is None else form + part.column
            return None if rest is None or rest.terms else replace(part, count=rest.const + 1)
        case _:
            return None


def _combined(store: Store) -> tuple[Load, ...]:
    """What a store combines with the element that it replaces; empty if that is not loads alone."""
    match store:
        case Store(value=Binary(op, a=Load() as old, b=terms)) if old.buffer is store.buffer:
            return _added(terms, op)
        case _:
            return ()


def operation_of(part: RowPart) -> str:
    return part.store.value.op if isinstance(part.store.value, Binary) else ""


def _added(terms: Expr, op: str) -> tuple[Load, ...]:
    """What an operation combines; empty if that is not loads alone."""
    match terms:
        case Load():
            return (terms,)
        case Binary() if terms.op == op:
            a, b = _added(terms.a, op), _added(terms.b, op)
            return a + b if a and b else ()
        case _:
            return ()


def extent_of(loop: For) -> int:
    """The iterations of a loop from 0 on; 0 if their number, or the first one, is another."""
    match loop.start, loop.extent:
        case Const(0), Const(extent):
            return int(extent)
        case _:
            return 0


def place_of(access: Load | Store) -> Affine:
    """The element of a buffer, counted through."""
    place = Affine(0, {})
    for index, extent in zip(access.indices, access.buffer.shape, strict=True):
        place = place.scaled(extent) + affine(index)
    return place


def start_of(access: Load | Store) -> int:
    return place_of(access).const

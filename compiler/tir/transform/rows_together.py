"""What tiles of rows have one of, and the columns behind their whole vectors, for all rows at once.

A row's sum is combined from lanes, and so are those of eight rows together. In a vector whose lanes
are the rows they are divided by, and take logarithms, once. Of 17 columns the last would be a
vector of its own, of which 15 lanes are masked: of eight rows it is one such vector.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from tunefarm.compiler.tir.affine import Affine, Key, affine, key_of
from tunefarm.compiler.tir.facts import loops_below, variables
from tunefarm.compiler.tir.ir import (
    Allocate,
    Binary,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.transform.double_buffer import allocations_around
from tunefarm.compiler.tir.transform.row_parts import (
    RowPart,
    extent_of,
    operation_of,
    part_of,
    place_of,
    start_of,
)
from tunefarm.compiler.tir.visit import (
    loads_of,
    map_children,
    map_operands,
    seq,
    substitute,
    transform_loads,
    walk_expr,
)

ROWS = 8  # of a tile whose lanes are combined together
MOST_COLUMNS = 4  # behind whole vectors; more of them stay side by side in a row's last vector


def take_rows_together(program: PrimFunc) -> PrimFunc:
    """Give values of rows, and the last columns of these, lanes along the rows of their tile.

    for r in unrolled(8): for v in unrolled(2): for l in vectorized(16):
        if v*16 + l < 17: P[r, v, l] = P[r, v, l] + x[r*17 + v*16 + l]
    for r in unrolled(8): S[r] = 0; for l in vectorized(16): S[r] = S[r] + (P[r, 0, l] + P[r, 1, l])
    for r in unrolled(8): for v in unrolled(2): for l in vectorized(16):
        if v*16 + l < 17: y[r*17 + v*16 + l] = x[r*17 + v*16 + l] * (1 / S[r])
    ->
    for r in unrolled(8): for l in vectorized(16): P[r, 0, l] = P[r, 0, l] + x[r*17 + l]
    for r in vectorized(8): T[r] = T[r] + x[r*17 + 16]
    for r in unrolled(8): S[r] = 0; for l in vectorized(16): S[r] = S[r] + P[r, 0, l]
    for r in vectorized(8): V[r] = S[r] + T[r]
    for r in vectorized(8): Q[r] = 1 / V[r]
    for r in unrolled(8): for l in vectorized(16): y[r*17 + l] = x[r*17 + l] * Q[r]
    for r in vectorized(8): Z[0, r] = x[r*17 + 16] * Q[r]
    for r in unrolled(8): y[r*17 + 16] = Z[0, r]
    """
    if any(loop.kind is LoopKind.THREAD for loop in loops_below(program.body)):
        return program
    return replace(program, body=_together(program.body))


def _together(stmt: Stmt) -> Stmt:
    """Each tile by itself: what stands below the allocations of its registers."""
    around, body = allocations_around(stmt)
    buffers = frozenset(allocation.buffer for allocation in around)
    tile = body.then if isinstance(body, If) else body
    found = _tile(tile.stmts, buffers) if around and isinstance(tile, Seq) else None
    if found is None:
        return map_children(stmt, _together)
    body = replace(body, then=found) if isinstance(body, If) else found
    for allocation in reversed(around):
        body = Allocate(allocation.buffer, body)
    return body


def _tile(stmts: Sequence[Stmt], buffers: frozenset[Buffer]) -> Stmt | None:
    """A tile's statements anew; None if one is of another kind, or there is nothing to gain."""
    parts = [part for part in map(part_of, stmts) if part is not None]
    sums = [part for part in parts if part.sums]
    shapes = {part.shape for part in parts if part.shape[1]}
    counts = {part.count for part in parts if part.count is not None}
    if len(parts) < len(stmts) or not sums or len(shapes) != 1 or len(counts) > 1:
        return None
    ((vectors, lanes),) = shapes
    tail = next(iter(counts), 0) - (vectors - 1) * lanes
    sum_alone = len(sums) == 1 and operation_of(sums[0]) == "add"
    most = min(MOST_COLUMNS // max(vectors - 1, 1), lanes // 2)
    apart = vectors > 1 and 0 < tail <= most and not sum_alone
    accumulators = frozenset(load.buffer for part in sums for load in part.sums)
    tile = _Tile(vectors, lanes, tail if apart else 0, accumulators, buffers)
    if not tile.gains(parts) or not all(map(tile.holds, parts)):
        return None
    body = seq(*(stmt for part in parts for stmt in tile.rewritten(part)))
    for buffer in reversed(tile.own):
        body = Allocate(buffer, body)
    return body


# --- the rewrite --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Tile:
    """Eight rows of columns in vectors of ``lanes``, of which the last one's are a ``tail`` to be
    taken apart if there are any. The lanes of ``accumulators`` are combined. ``along`` has the
    registers, lanes along the rows, that hold what others held."""

    vectors: int
    lanes: int
    tail: int
    accumulators: frozenset[Buffer]
    buffers: frozenset[Buffer]
    along: dict[Buffer, Buffer] = field(default_factory=dict)
    own: list[Buffer] = field(default_factory=list)

    def gains(self, parts: Sequence[RowPart]) -> bool:
        """Whether there are columns to be taken apart, results or functions of rows: by division
        alone, of rows that fill vectors, softmax took 1.03 × the time."""
        alone = any(part.lane is None for part in parts)
        values = ((part.row.var, e) for part in parts for e in walk_expr(part.store.value))
        functions = any(isinstance(e, Intrinsic) and variables(e) == {row} for row, e in values)
        return self.tail > 0 or alone or functions

    def holds(self, part: RowPart) -> bool:
        """Whether all registers of a part are columns of rows, or hold one value a row."""
        accesses: list[Load | Store] = [part.store, *loads_of(part.store)]
        if extent_of(part.row) != ROWS or any(a.buffer.dtype != "float32" for a in accesses):
            return False
        if part.sums:
            return self._is_value(part, part.store) and self._are_vectors(part)
        if self.tail and part.lane is not None and part.count is None and not self._begins(part):
            return False
        return all(
            self._is_value(part, a) or self._is_column(part, a)
            for a in accesses
            if a.buffer.scope == "register" or a.buffer in self.buffers
        )

    def _begins(self, part: RowPart) -> bool:
        return part.store.buffer in self.accumulators and isinstance(part.store.value, Const)

    def _is_value(self, part: RowPart, access: Load | Store) -> bool:
        return self._is_at(access, affine(part.row.var), ROWS)

    def _is_column(self, part: RowPart, access: Load | Store) -> bool:
        columns = self.vectors * self.lanes
        place = affine(part.row.var).scaled(columns)
        return part.lane is not None and self._is_at(access, place + part.column, ROWS * columns)

    def _are_vectors(self, part: RowPart) -> bool:
        """Whether a part combines all vectors of a row, each once."""
        columns, place = self.vectors * self.lanes, part.column
        place += affine(part.row.var).scaled(columns)
        starts = range(0, columns, self.lanes)
        loads = zip(starts, sorted(part.sums, key=start_of), strict=False)
        whole = len(part.sums) == self.vectors and len({load.buffer for load in part.sums}) == 1
        return whole and all(
            self._is_at(load, place + Affine(start, {}), ROWS * columns) for start, load in loads
        )

    def _is_at(self, access: Load | Store, place: Affine, size: int) -> bool:
        rest = place_of(access) - place
        fits = prod(access.buffer.shape) == size and access.buffer in self.buffers
        return fits and not rest.terms and rest.const == 0

    def rewritten(self, part: RowPart) -> Iterator[Stmt]:
        store = replace(part.store, value=self._seen(part.row.var, part.store.value))
        if part.sums:
            yield from self._combined(part)
        elif part.lane is None:
            yield self._once_a_row(part.row, store)
        else:
            once: dict[Key, Store] = {}
            store = replace(store, value=self._lifted(store.value, part, once))
            yield from (self._along_rows(part.row.var, value) for value in once.values())
            yield from self._whole_vectors(part, store)
            if self.tail:
                yield from self._last_columns(part, store)

    def _seen(self, row: Var, value: Expr) -> Expr:
        """A value that reads what rows have one of where it is now."""
        values = [buffer for buffer in self.along if prod(buffer.shape) == ROWS]
        return transform_loads(value, values, lambda load: Load(self.along[load.buffer], (row,)))

    def _lifted(self, value: Expr, part: RowPart, once: dict[Key, Store]) -> Expr:
        """A value that reads what it would compute once a row, from registers that ``once``
        stores."""
        row = part.row.var

        def lift(expr: Expr) -> Expr:
            loads = loads_of(expr)
            if isinstance(expr, Load) or not loads:
                return expr
            if variables(expr) != {row} or any(load.buffer not in self.own for load in loads):
                return map_operands(expr, lift)
            key = key_of(expr)
            if key not in once:
                once[key] = Store(self._new(part.store.buffer.name, ROWS), (row,), expr)
            return Load(once[key].buffer, (row,))

        return lift(value)

    def _once_a_row(self, row: For, store: Store) -> Stmt:
        if store.buffer in self.buffers:
            mine = Store(self._of_rows(store.buffer), (row.var,), store.value)
            return self._along_rows(row.var, mine)
        if place_of(store).coefficient(row.var) == 1:
            return self._along_rows(row.var, store)
        return replace(row, body=store)

    def _combined(self, part: RowPart) -> Iterator[Stmt]:
        store, row, value = part.store, part.row.var, part.store.value
        assert isinstance(value, Binary)
        assert part.lane is not None
        assert part.first is not None
        total: Expr = Load(store.buffer, store.indices)
        terms: Expr = value.b
        if self.tail:
            first = (self.vectors - 1) * self.lanes
            terms, *others = [load for load in part.sums if start_of(load) < first]
            for load in others:
                terms = replace(value, a=terms, b=load)
            total = replace(value, a=total, b=Load(self._of_rows(part.sums[0].buffer), (row,)))
        lanes = replace(part.lane, body=replace(store, value=replace(value, b=terms)))
        yield replace(part.row, body=seq(part.first, lanes))
        yield self._along_rows(row, Store(self._of_rows(store.buffer), (row,), total))

    def _whole_vectors(self, part: RowPart, store: Store) -> Iterator[Stmt]:
        assert part.lane is not None
        asks = part.lane.body if isinstance(part.lane.body, If) and not self.tail else None
        body: Stmt = replace(part.lane, body=If(asks.condition, store) if asks else store)
        if part.vector is not None:
            whole = self.vectors - 1 if self.tail else self.vectors
            body = replace(part.vector, extent=Const(whole), body=body)
        yield replace(part.row, body=body)

    def _last_columns(self, part: RowPart, store: Store) -> Iterator[Stmt]:
        assert part.lane is not None
        assert part.vector is not None
        row, column = Var(part.row.var.name), Var(part.lane.var.name)
        places: dict[Var, Expr] = {
            part.row.var: row,
            part.vector.var: Const(self.vectors - 1),
            part.lane.var: column,
        }

        def moved(load: Load) -> Load:
            return Load(*self._last(load.buffer, row, column))

        columns = self.buffers & {load.buffer for load in loads_of(store.value)}
        value = substitute(transform_loads(store.value, columns, moved), places)
        if store.buffer in self.buffers:
            yield self._of_columns(
                column, self._along_rows(row, Store(*self._last(store.buffer, row, column), value))
            )
            return
        tail = self._new(store.buffer.name, self.tail, ROWS)
        yield self._of_columns(column, self._along_rows(row, Store(tail, (column, row), value)))
        indices = tuple(substitute(index, places) for index in store.indices)
        out = Store(store.buffer, indices, Load(tail, (column, row)))
        yield self._of_columns(column, For(row, Const(ROWS), out, LoopKind.UNROLLED))

    def _last(self, buffer: Buffer, row: Var, column: Var) -> tuple[Buffer, tuple[Var, ...]]:
        """Where a row's last columns are: added up, if they are accumulated."""
        if buffer in self.accumulators:
            return self._of_rows(buffer), (row,)
        if buffer not in self.along:
            self.along[buffer] = self._new(buffer.name, self.tail, ROWS)
        return self.along[buffer], (column, row)

    def _of_rows(self, buffer: Buffer) -> Buffer:
        """The register, lanes along the rows, of what a row has one of."""
        if buffer not in self.along:
            self.along[buffer] = self._new(buffer.name, ROWS)
        return self.along[buffer]

    def _new(self, name: str, *shape: int) -> Buffer:
        buffer = Buffer(f"{name}_rows", shape, "float32", "register")
        self.own.append(buffer)
        return buffer

    def _along_rows(self, row: Var, body: Stmt) -> For:
        return For(row, Const(ROWS), body, LoopKind.VECTORIZED)

    def _of_columns(self, column: Var, body: Stmt) -> For:
        return For(column, Const(self.tail), body, LoopKind.UNROLLED)

"""The kernel of an attention, as loops over blocks and threads.

It is written rather than scheduled: no primitive makes of a softmax and a product one loop over
keys whose sums are scaled again whenever a larger score is found (Milakov & Gimelshein, "Online
normalizer calculation for softmax", 2018). Places of tiles, stages and barriers are left to
lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.intrinsics import HELD_PRODUCTS, QUAD
from tunefarm.compiler.gpu.mma import COLUMNS, ELEMENTS, ROWS
from tunefarm.compiler.gpu.space.attention.problem import (
    DEPTH,
    HEAD,
    KEY,
    QUERY,
    VALUE,
    Attention,
)
from tunefarm.compiler.gpu.space.common import loop
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import (
    Buffer,
    Cast,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    LoopKind,
    Select,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.visit import seq, substitute, transform_expr

VECTOR = 8  # elements of 16 bytes
STEP = 16  # terms of one instruction
PADDING = 8  # elements after each row of a tile: eight rows meet in no bank
MOST_TURNS = 16  # of a fill, that are unrolled
LEAST = float(np.finfo(np.float32).min)
F32 = "float32"


@dataclass(frozen=True, slots=True)
class Knobs:
    """A config: ``warps`` of ``mi`` · 16 queries each, ``keys`` a step, tiles in ``stages``."""

    warps: int
    mi: int
    keys: int
    stages: int

    @property
    def queries(self) -> int:
        return self.warps * self.mi * ROWS


def whole_steps(extent: int) -> int:
    """An extent rounded up to whole instructions."""
    return -(-extent // STEP) * STEP


def attention_kernel(a: Attention, k: Knobs) -> PrimFunc:
    """The program of an attention: one kernel, a block for the queries of a head."""
    return _Kernel(a, k).program()


@dataclass(frozen=True, slots=True)
class _Tile:
    """A tile of K or V in shared memory: ``terms`` and ``columns`` are the axes of its product.
    With ``by_terms`` a row holds the terms of a column, else the columns of a term."""

    buffer: Buffer
    load: Load
    terms: Var
    columns: Var
    by_terms: bool

    def at(self, term: Expr, column: Expr) -> Load:
        return Load(self.buffer, (column, term) if self.by_terms else (term, column))


class _Kernel:
    """Writes the kernel. Registers are indexed by ``i``, which of a warp's groups of 16 queries,
    and an element: number ``4·n + 2·h + c`` is column ``c`` of row ``h`` that a thread has of tile
    ``n``."""

    def __init__(self, a: Attention, k: Knobs) -> None:
        self.a, self.k = a, k
        self.steps = -(-a.keys // k.keys)
        self.block, self.head, self.step = Var("block"), Var("head"), Var("step")
        self.warp, self.lane = Var("warp"), Var("lane")
        self.depth, self.values = whole_steps(a.depth), whole_steps(a.values)
        self.held = next(p for p in HELD_PRODUCTS.values() if p.operand == a.dtype)
        copies = k.stages if self.steps > 1 else 1

        def registers(name: str, columns: int, dtype: str = F32) -> Buffer:
            return Buffer(name, (k.mi, columns // COLUMNS * ELEMENTS), dtype, "register")

        def row(name: str) -> Buffer:
            return Buffer(name, (k.mi, 2), F32, "register")

        def tile(name: str, terms: int, columns: int, load: Load, axes: tuple[Var, Var]) -> _Tile:
            by_terms = a.along["KV".index(name)] == "terms"
            shape = (columns, terms) if by_terms else (terms, columns)
            buffer = Buffer(name, shape, a.dtype, "shared", PADDING, copies)
            return _Tile(buffer, load, *axes, by_terms)

        self.kt = tile("K", self.depth, k.keys, a.key, (DEPTH, KEY))
        self.vt = tile("V", k.keys, self.values, a.value, (KEY, VALUE))
        self.q = registers("Q", self.depth, a.dtype)
        self.sums = registers("sums", k.keys)
        self.scores = registers("scores", k.keys)
        self.powers = registers("powers", k.keys, a.dtype)
        self.mixed = registers("mixed", self.values)
        self.peak, self.top, self.factor, self.total = map(row, ("peak", "top", "factor", "total"))

    def program(self) -> PrimFunc:
        a, k = self.a, self.k
        body = seq(self.load_queries(), self.start(), self.over_keys(), self.store())
        for var, extent, axis in (
            (self.lane, WARP, "threadIdx.x"),
            (self.warp, k.warps, "threadIdx.y"),
            (self.block, -(-a.queries // k.queries), "blockIdx.x"),
            (self.head, a.heads, "blockIdx.y"),
        ):
            body = For(var, Const(extent), body, LoopKind.THREAD, axis=axis)
        buffers = (
            self.kt.buffer, self.vt.buffer, self.q, self.sums, self.scores, self.powers,
            self.mixed, self.peak, self.top, self.factor, self.total,
        )  # fmt: skip
        return replace(a.program, body=body, buffers=buffers)

    # --- places --------------------------------------------------------------------------------

    def query_of(self, i: Expr, h: Expr) -> Expr:
        """The query of a row that this thread holds."""
        warps = self.block * self.k.warps + self.warp
        return (warps * self.k.mi + i) * ROWS + h * 8 + self.lane // QUAD

    def existing_query(self, i: Expr, h: Expr) -> Expr:
        """The query of a row, or the last one: rows beyond it are computed and not stored."""
        query = self.query_of(i, h)
        exact = self.a.queries % self.k.queries == 0
        return query if exact else binary("min", query, Const(self.a.queries - 1))

    def pair_of(self, n: Expr) -> Expr:
        """Half the column at which a thread's two elements of a row of a tile begin."""
        return n * (COLUMNS // 2) + self.lane % QUAD

    def each_row(self, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """The rows of this thread, ``i`` and ``h``."""
        return loop("i", self.k.mi, lambda i: loop("h", 2, lambda h: body(i, h)))

    def each_element(
        self,
        columns: int,
        body: Callable[[Expr, Expr, Expr, Expr], Stmt],
        together: bool = True,
    ) -> Stmt:
        """The elements of this thread, ``i``, ``h``, ``n`` and ``c``: pairs are lanes, if they can
        be taken ``together``."""
        kind = LoopKind.VECTORIZED if together else LoopKind.UNROLLED
        return self.each_row(
            lambda i, h: loop(
                "n", columns // COLUMNS, lambda n: loop("c", 2, lambda c: body(i, h, n, c), kind)
            )
        )

    def each_result(self, columns: int, body: Callable[[Expr, Expr, Expr], Stmt]) -> Stmt:
        """The elements of this thread as two instructions side by side compute them: ``i``, ``n``
        (of 16 columns) and ``e`` of eight."""
        lanes = 2 * ELEMENTS
        return loop(
            "n",
            columns // (2 * COLUMNS),
            lambda n: loop(
                "i",
                self.k.mi,
                lambda i: loop("e", lanes, lambda e: body(i, n, e), LoopKind.VECTORIZED),
            ),
        )

    # --- before and after ----------------------------------------------------------------------

    def load_queries(self) -> Stmt:
        """Q[i, …] = the warp's queries, as A is held."""
        a, together = self.a, self.a.has_pairs[0]

        def element(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            pair = self.pair_of(n)
            at = {HEAD: self.head, QUERY: self.existing_query(i, h), DEPTH: pair * 2 + c}
            value: Expr = substitute(a.query, at)
            if self.depth != a.depth:
                inside = pair < a.depth // 2 if together else pair * 2 + c < a.depth
                value = Select(inside, value, Const(0.0, a.dtype), a.dtype)
            return Store(self.q, (i, _number(n, h, c)), value)

        return self.each_element(self.depth, element, together)

    def start(self) -> Stmt:
        """Nothing summed, and no score found."""
        nothing = self.each_row(
            lambda i, h: seq(
                Store(self.peak, (i, h), Const(LEAST, F32)),
                Store(self.total, (i, h), Const(0.0, F32)),
            )
        )
        return seq(nothing, self.clear(self.mixed, self.values))

    def clear(self, sums: Buffer, columns: int) -> Stmt:
        zero = Const(0.0, F32)
        return self.each_result(columns, lambda i, n, e: Store(sums, (i, n * 8 + e), zero))

    def store(self) -> Stmt:
        """out = mixed / total, of which each of a row's four threads has its part."""
        a, together = self.a, self.a.has_pairs[2]

        def inverse(i: Expr, h: Expr) -> Stmt:
            at = (i, h)
            whole = Intrinsic("warp_add", (Load(self.total, at), Const(QUAD)), F32)
            one = binary("div", Const(1.0, F32), Load(self.total, at))
            return seq(Store(self.total, at, whole), Store(self.factor, at, one))

        def element(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            pair, query = self.pair_of(n), self.query_of(i, h)
            at = {HEAD: self.head, QUERY: query, VALUE: pair * 2 + c}
            value = Load(self.mixed, (i, _number(n, h, c))) * Load(self.factor, (i, h))
            place = tuple(substitute(index, at) for index in a.result.indices)
            buffer = a.result.buffer
            stmt: Stmt = Store(buffer, place, Cast(value, buffer.dtype))
            if self.values != a.values:
                stmt = If(pair < a.values // 2 if together else pair * 2 + c < a.values, stmt)
            return stmt if a.queries % self.k.queries == 0 else If(query < a.queries, stmt)

        return seq(self.each_row(inverse), self.each_element(self.values, element, together))

    # --- the loop over keys --------------------------------------------------------------------

    def over_keys(self) -> Stmt:
        body = seq(
            self.fill(self.kt),
            self.fill(self.vt),
            self.clear(self.sums, self.k.keys),
            self.multiply(self.sums, self.q, self.kt, self.depth, self.k.keys),
            self.combine_scores(),
            self.each_row(self.raise_peak),
            self.exponentiate(),
            self.multiply(self.mixed, self.powers, self.vt, self.k.keys, self.values),
        )
        return For(self.step, Const(self.steps), body)

    def fill(self, tile: _Tile) -> Stmt:
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
            value: Expr = substitute(
                tile.load, {HEAD: self.head, outer: at[outer], inner: at[inner] * vector + part}
            )
            for axis in (inner, outer):
                if limits[axis] % ends[axis] if axis is KEY else limits[axis] != ends[axis]:
                    value = _zero_unless(at[axis] < limits[axis], value)
            return Store(tile.buffer, (row, column * vector + part), value)

        kind = LoopKind.UNROLLED if turns <= MOST_TURNS else LoopKind.SERIAL
        return loop("turn", turns, body, kind)

    def vector_of(self, load: Load, inner: Var) -> int:
        """Elements that one thread copies at once along a row of a tile."""
        vector = VECTOR if affine(load.indices[0]).coefficient(inner) == 1 else 1
        while self.size_of(inner) % vector:
            vector //= 2
        return vector

    def size_of(self, axis: Var) -> int:
        return {DEPTH: self.a.depth, KEY: self.a.keys, VALUE: self.a.values}[axis]

    def of_step(self, axis: Var, number: Expr, vector: int) -> Expr:
        """The number of a vector along an axis: keys begin with this step's."""
        return self.step * (self.k.keys // vector) + number if axis is KEY else number

    def multiply(self, sums: Buffer, left: Buffer, tile: _Tile, terms: int, columns: int) -> Stmt:
        """sums[16, columns] += left[16, terms] · tile[terms, columns], by matrix instructions."""

        def element(k: Expr, i: Expr, n: Expr, e: Expr) -> Stmt:
            at = (i, n * 8 + e)
            column = n * 16 + e // 4 * 8 + self.lane % QUAD * 2 + e % 2
            row = k * 8 + e % 4 // 2 * 2
            held = [Load(left, (i, row + half * ELEMENTS + c)) for half in (0, 1) for c in (0, 1)]
            right = [tile.at(k * STEP + term, column) for term in range(STEP)]
            value = Intrinsic(self.held.name, (Load(sums, at), *held, *right), F32)
            return Store(sums, at, value)

        return loop(
            "k",
            terms // STEP,
            lambda k: self.each_result(columns, lambda i, n, e: element(k, i, n, e)),
        )

    def combine_scores(self) -> Stmt:
        """scores = what the graph makes of the sums; beyond the last key there are none."""
        a, k = self.a, self.k
        together, exact = a.has_pairs[1], a.keys % k.keys == 0

        def pair(n: Expr) -> Expr:
            return self.step * (k.keys // 2) + self.pair_of(n)

        def element(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            key: Expr = pair(n) * 2 + c
            if not exact and together:
                key = binary("min", pair(n), Const((a.keys - 1) // 2)) * 2 + c
            elif not exact:
                key = binary("min", key, Const(a.keys - 1))
            at = {HEAD: self.head, QUERY: self.existing_query(i, h), KEY: key}
            total = Load(self.sums, (i, _number(n, h, c)))
            score = transform_expr(a.score, lambda e: total if e is a.total else None)
            return Store(self.scores, (i, _number(n, h, c)), substitute(score, at))

        def without(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            at = (i, _number(n, h, c))
            exists = pair(n) * 2 + c < a.keys
            value = Select(exists, Load(self.scores, at), Const(float("-inf"), F32), F32)
            return Store(self.scores, at, value)

        scores = self.each_element(k.keys, element, together)
        if exact:
            return scores
        last = If(self.step >= self.steps - 1, self.each_element(k.keys, without))
        return seq(scores, last)

    def raise_peak(self, i: Expr, h: Expr) -> Stmt:
        """The largest score of a row so far, and the factor of what was summed below another."""
        at = (i, h)
        peak, top = Load(self.peak, at), Load(self.top, at)

        def larger(n: Expr, c: Expr) -> Stmt:
            score = Load(self.scores, (i, _number(n, h, c)))
            return Store(self.top, at, binary("max", top, score))

        tiles = self.k.keys // COLUMNS
        return seq(
            Store(self.top, at, peak),
            loop("n", tiles, lambda n: loop("c", 2, lambda c: larger(n, c))),
            Store(self.top, at, Intrinsic("warp_max", (top, Const(QUAD)), F32)),
            Store(self.factor, at, Intrinsic("exp", (peak - top,), F32)),
            Store(self.peak, at, top),
        )

    def exponentiate(self) -> Stmt:
        """powers = exp(scores - peak); their sum and that of the values with them go on."""
        tiles = self.k.keys // COLUMNS

        def power(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            at = (i, _number(n, h, c))
            value = Intrinsic("exp", (Load(self.scores, at) - Load(self.peak, (i, h)),), F32)
            rounded = Cast(Load(self.scores, at), self.a.dtype)
            return seq(Store(self.scores, at, value), Store(self.powers, at, rounded))

        def scaled(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            at = (i, _number(n, h, c))
            return Store(self.mixed, at, Load(self.mixed, at) * Load(self.factor, (i, h)))

        def total(i: Expr, h: Expr) -> Stmt:
            at = (i, h)
            old = Load(self.total, at)

            def plus(n: Expr, c: Expr) -> Stmt:
                return Store(self.total, at, old + Load(self.scores, (i, _number(n, h, c))))

            more = loop("n", tiles, lambda n: loop("c", 2, lambda c: plus(n, c)))
            return seq(Store(self.total, at, old * Load(self.factor, at)), more)

        return seq(
            self.each_element(self.k.keys, power),
            self.each_row(total),
            self.each_element(self.values, scaled),
        )


def _number(n: Expr, h: Expr, c: Expr) -> Expr:
    """Which of a thread's elements is column ``c`` of row ``h`` of tile ``n``."""
    return n * ELEMENTS + h * 2 + c


def _zero_unless(condition: Expr, value: Expr) -> Expr:
    """A value where a condition holds, also that under which it was chosen already."""
    if isinstance(value, Select):
        return Select(binary("and", condition, value.condition), value.a, value.b, value.dtype)
    return Select(condition, value, Const(0.0, value.dtype), value.dtype)

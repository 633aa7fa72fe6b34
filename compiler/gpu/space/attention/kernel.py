"""The kernel of an attention, as loops over blocks and threads.

It is written rather than scheduled: no primitive makes of a softmax and a product one loop over
keys whose sums are scaled again whenever a larger score is found (Milakov & Gimelshein, "Online
normalizer calculation for softmax", 2018). Places of tiles, stages and barriers are left to
lowering.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.intrinsics import QUAD, HeldProduct
from tunefarm.compiler.gpu.mma import COLUMNS, ELEMENTS, ROWS
from tunefarm.compiler.gpu.space.attention.masks import visible_of
from tunefarm.compiler.gpu.space.attention.problem import (
    DEPTH,
    HEAD,
    KEY,
    QUERY,
    VALUE,
    Attention,
)
from tunefarm.compiler.gpu.space.attention.tiles import PADDING_BYTES, Knobs, Tile, TileFiller
from tunefarm.compiler.gpu.space.common import loop
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir import PrimFunc
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

STEP = 16  # what extents are rounded up to: terms of one or two instructions
LEAST = float(np.finfo(np.float32).min)
F32 = "float32"


def whole_steps(extent: int) -> int:
    """An extent rounded up to whole instructions."""
    return -(-extent // STEP) * STEP


def attention_kernel(a: Attention, k: Knobs, held: HeldProduct) -> PrimFunc:
    """The program of an attention: one kernel, a block for the queries of a head, which multiplies
    by ``held``."""
    return _Kernel(a, k, held).program()


class _Kernel(TileFiller):
    """Writes the kernel. Registers are indexed by ``i``, which of a warp's groups of 16 queries,
    and an element: number ``4·n + 2·h + c`` is column ``c`` of row ``h`` that a thread has of tile
    ``n``."""

    def __init__(self, a: Attention, k: Knobs, held: HeldProduct) -> None:
        super().__init__(a, k)
        self.held = held
        self.visible = visible_of(a) if k.skip else None
        self.steps = -(-a.keys // k.keys)
        self.block = Var("block")
        self.depth, self.values = whole_steps(a.depth), whole_steps(a.values)
        copies = k.stages if self.steps > 1 else 1

        def registers(name: str, columns: int, dtype: str = F32) -> Buffer:
            return Buffer(name, (k.mi, columns // COLUMNS * ELEMENTS), dtype, "register")

        def row(name: str) -> Buffer:
            return Buffer(name, (k.mi, 2), F32, "register")

        def tile(name: str, terms: int, columns: int, load: Load, axes: tuple[Var, Var]) -> Tile:
            by_terms = a.along["KV".index(name)] == "terms"
            shape = (columns, terms) if by_terms else (terms, columns)
            padding = PADDING_BYTES // dtype_bytes(a.dtype)
            buffer = Buffer(name, shape, a.dtype, "shared", padding, copies)
            return Tile(buffer, load, *axes, by_terms)

        self.kt = tile("K", self.depth, k.keys, a.key, (DEPTH, KEY))
        self.vt = tile("V", k.keys, self.values, a.value, (KEY, VALUE))
        self.q = registers("Q", self.depth, a.dtype)
        self.sums = registers("sums", k.keys)
        self.scores = registers("scores", k.keys)
        self.powers = registers("powers", k.keys, a.dtype)
        self.mixed = registers("mixed", self.values)
        self.seen = Buffer("seen", (2,), "int32", "register")
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
            *([self.seen] if self.visible is not None else []),
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

    def pair_of_keys(self, n: Expr) -> Expr:
        """Half the key at which a thread's two elements of a row of scores begin."""
        return self.step * (self.k.keys // 2) + self.pair_of(n)

    def existing_key(self, n: Expr, c: Expr) -> Expr:
        """The key of an element of the scores; beyond the last key that one, or its pair."""
        a, pair = self.a, self.pair_of_keys(n)
        if a.keys % self.k.keys == 0:
            return pair * 2 + c
        if a.has_pairs[1]:
            return binary("min", pair, Const((a.keys - 1) // 2)) * 2 + c
        return binary("min", pair * 2 + c, Const(a.keys - 1))

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
        compute = seq(
            self.clear(self.sums, self.k.keys),
            self.multiply(self.sums, self.q, self.kt, self.depth, self.k.keys),
            self.combine_scores(),
            self.each_row(self.raise_peak),
            self.exponentiate(),
            self.multiply(self.mixed, self.powers, self.vt, self.k.keys, self.values),
        )
        if self.visible is not None:
            found = Intrinsic("warp_max", (Load(self.seen, (Const(0),)), Const(WARP)), "int32")
            told = Store(self.seen, (Const(0),), found)
            any_seen = Load(self.seen, (Const(0),)) > Const(0, "int32")
            compute = seq(self.look(self.visible), told, If(any_seen, compute))
        body = seq(self.fill(self.kt), self.fill(self.vt), compute)
        return For(self.step, Const(self.steps), body)

    def look(self, visible: Expr) -> Stmt:
        """seen[0] = 1 if this thread has a score in the step that no mask hides, else 0."""
        none, one = Const(0, "int32"), Const(1, "int32")

        def element(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            at = {HEAD: self.head, QUERY: self.existing_query(i, h), KEY: self.existing_key(n, c)}
            mine = Select(substitute(visible, at), one, none, "int32")
            return Store(self.seen, (c,), binary("max", Load(self.seen, (c,)), mine))

        first, second = (Load(self.seen, (Const(c),)) for c in range(2))
        kind = LoopKind.VECTORIZED if self.a.has_pairs[1] else LoopKind.UNROLLED
        return seq(
            loop("c", 2, lambda c: Store(self.seen, (c,), none), kind),
            self.each_element(self.k.keys, element, self.a.has_pairs[1]),
            Store(self.seen, (Const(0),), binary("max", first, second)),
        )

    def multiply(self, sums: Buffer, left: Buffer, tile: Tile, terms: int, columns: int) -> Stmt:
        """sums[16, columns] += left[16, terms] · tile[terms, columns], by matrix instructions."""

        def element(k: Expr, i: Expr, n: Expr, e: Expr) -> Stmt:
            at = (i, n * 8 + e)
            column = n * 16 + e // 4 * 8 + self.lane % QUAD * 2 + e % 2
            parts = self.held.depth // COLUMNS
            row = k * (parts * ELEMENTS) + e % 4 // 2 * 2
            mine = [part * ELEMENTS + c for part in range(parts) for c in (0, 1)]
            held = [Load(left, (i, row + number)) for number in mine]
            right = [tile.at(k * self.held.depth + term, column) for term in range(self.held.depth)]
            value = Intrinsic(self.held.name, (Load(sums, at), *held, *right), F32)
            return Store(sums, at, value)

        return loop(
            "k",
            terms // self.held.depth,
            lambda k: self.each_result(columns, lambda i, n, e: element(k, i, n, e)),
        )

    def combine_scores(self) -> Stmt:
        """scores = what the graph makes of the sums; beyond the last key there are none."""
        a, k = self.a, self.k
        together, exact = a.has_pairs[1], a.keys % k.keys == 0

        def element(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            at = {HEAD: self.head, QUERY: self.existing_query(i, h), KEY: self.existing_key(n, c)}
            total = Load(self.sums, (i, _number(n, h, c)))
            score = transform_expr(a.score, lambda e: total if e is a.total else None)
            return Store(self.scores, (i, _number(n, h, c)), substitute(score, at))

        def without(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            at = (i, _number(n, h, c))
            exists = self.pair_of_keys(n) * 2 + c < a.keys
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

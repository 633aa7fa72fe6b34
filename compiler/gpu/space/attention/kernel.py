"""The kernel of an attention, as loops over blocks and threads.

It is written rather than scheduled: no primitive makes of a softmax and a product one loop over
keys whose sums are scaled again whenever a larger score is found (Milakov & Gimelshein, "Online
normalizer calculation for softmax", 2018). Places of tiles, stages and barriers are left to
lowering.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.intrinsics import QUAD, HeldProduct
from tunefarm.compiler.gpu.mma import COLUMNS, ELEMENTS, exchanged, square_place
from tunefarm.compiler.gpu.space.attention.combine import PEAK, TOTAL, Parts
from tunefarm.compiler.gpu.space.attention.masks import visible_of
from tunefarm.compiler.gpu.space.attention.places import Places, element_number
from tunefarm.compiler.gpu.space.attention.problem import (
    DEPTH,
    HEAD,
    KEY,
    QUERY,
    VALUE,
    Attention,
)
from tunefarm.compiler.gpu.space.attention.tiles import PADDING_BYTES, Knobs, Tile
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
from tunefarm.compiler.tir.visit import seq, substitute, substitute_stmt, transform_expr

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


class _Kernel(Places):
    """Writes the kernel."""

    def __init__(self, a: Attention, k: Knobs, held: HeldProduct) -> None:
        super().__init__(a, k)
        self.held = held
        self.visible = visible_of(a) if k.skip else None
        self.parts = Parts(a, k.split) if k.split > 1 else None
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
        self.width = gcd(max(a.result_vector // 2, 1), QUAD, self.values // COLUMNS)
        self.turned = Buffer("turned", (2 * self.width,), F32, "register")
        self.seen = Buffer("seen", (2,), "int32", "register")
        self.shown = Buffer("shown", (k.warps, self.steps + k.stages - 1), "int32", "shared")
        self.peak, self.top, self.factor, self.total = map(row, ("peak", "top", "factor", "total"))

    def program(self) -> PrimFunc:
        a, k = self.a, self.k
        body = seq(self.load_queries(), self.start(), self.over_keys(), self.store())
        for var, extent, axis in (
            (self.lane, WARP, "threadIdx.x"),
            (self.warp, k.warps, "threadIdx.y"),
            (self.block, -(-a.queries // k.queries), "blockIdx.x"),
            (self.head, a.heads, "blockIdx.y"),
            *([(self.part, k.split, "blockIdx.z")] if self.parts is not None else []),
        ):
            body = For(var, Const(extent), body, LoopKind.THREAD, axis=axis)
        if self.parts is not None:
            body = seq(body, self.parts.combine())
        buffers = (
            self.kt.buffer, self.vt.buffer, self.q, self.sums, self.scores, self.powers,
            self.mixed, self.peak, self.top, self.factor, self.total,
            *([self.turned] if self.width > 1 and self.parts is None else []),
            *([self.seen] if self.visible is not None else []),
            *([self.shown] if self.visible is not None and k.skip == 2 else []),
            *(self.parts.buffers if self.parts is not None else ()),
        )  # fmt: skip
        return replace(a.program, body=body, buffers=buffers)

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
            return Store(self.q, (i, element_number(n, h, c)), value)

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

        def inverse(i: Expr, h: Expr) -> Stmt:
            at = (i, h)
            whole = Intrinsic("warp_add", (Load(self.total, at), Const(QUAD)), F32)
            one = binary("div", Const(1.0, F32), Load(self.total, at))
            return seq(Store(self.total, at, whole), Store(self.factor, at, one))

        def element(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            value = Load(self.mixed, (i, element_number(n, h, c)))
            lanes = 2 if self.a.has_pairs[2] else 1
            return self.result(i, h, self.pair_of(n) * 2 + c, lanes, value)

        if self.parts is not None:
            return self.store_part(self.parts)
        if self.width > 1:
            groups = self.values // (COLUMNS * self.width)
            wide = self.each_row(lambda i, h: loop("j", groups, lambda j: self.wide(i, h, j)))
            return seq(self.each_row(inverse), wide)
        return seq(
            self.each_row(inverse), self.each_element(self.values, element, self.a.has_pairs[2])
        )

    def wide(self, i: Expr, h: Expr, j: Expr) -> Stmt:
        """Parts of ``width`` tiles, which as many threads of a row exchange, so that each has its
        own side by side (``gpu/mma.py``)."""
        width, t = self.width, self.lane % QUAD

        def exchange(e: Expr) -> Stmt:
            places = [element_number(j * width + n, h, e % 2) for n in range(width)]
            held = [Load(self.mixed, (i, place)) for place in places]
            return Store(self.turned, (e,), exchanged(held, t, e))

        def element(e: Expr) -> Stmt:
            _, column = square_place(width, i, j, h, self.lane // QUAD, t, e)
            return self.result(i, h, column, 2 * width, Load(self.turned, (e,)))

        return seq(*(
            loop("e", 2 * width, each, LoopKind.VECTORIZED) for each in (exchange, element)
        ))  # fmt: skip

    def result(self, i: Expr, h: Expr, column: Expr, lanes: int, value: Expr) -> Stmt:
        """Store an element of a query's result, of so many at once, if it exists."""
        a, query = self.a, self.query_of(i, h)
        at = {HEAD: self.head, QUERY: query, VALUE: column}
        place = tuple(substitute(index, at) for index in a.result.indices)
        buffer = a.result.buffer
        stmt: Stmt = Store(buffer, place, Cast(value * Load(self.factor, (i, h)), buffer.dtype))
        if self.values != a.values:
            stmt = If(column // lanes < a.values // lanes, stmt)
        return stmt if a.queries % self.k.queries == 0 else If(query < a.queries, stmt)

    def store_part(self, parts: Parts) -> Stmt:
        """What this block's keys make of the result, for the kernel that combines them."""
        a, together = self.a, self.a.values % 2 == 0

        def existing(stmt: Stmt, i: Expr, h: Expr) -> Stmt:
            exact = a.queries % self.k.queries == 0
            return stmt if exact else If(self.query_of(i, h) < a.queries, stmt)

        def row(i: Expr, h: Expr) -> Stmt:
            at, place = (i, h), (self.part, self.head, self.query_of(i, h))
            whole = Intrinsic("warp_add", (Load(self.total, at), Const(QUAD)), F32)
            told = seq(
                Store(parts.rows, (*place, PEAK), Load(self.peak, at)),
                Store(parts.rows, (*place, TOTAL), Load(self.total, at)),
            )
            first = If((self.lane % QUAD).equal(0), told)
            return seq(Store(self.total, at, whole), existing(first, i, h))

        def element(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            pair = self.pair_of(n)
            place = (self.part, self.head, self.query_of(i, h), pair * 2 + c)
            stmt: Stmt = Store(parts.mixed, place, Load(self.mixed, (i, element_number(n, h, c))))
            if self.values != a.values:
                stmt = If(pair < a.values // 2 if together else pair * 2 + c < a.values, stmt)
            return existing(stmt, i, h)

        return seq(self.each_row(row), self.each_element(self.values, element, together))

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
        fill = seq(self.fill(self.kt), self.fill(self.vt))
        if self.visible is None:
            return self.each_step(seq(fill, compute))
        none, seen = Const(0, "int32"), Load(self.seen, (Const(0),))
        if self.k.skip == 1:
            compute = seq(self.look(self.visible), If(seen > none, compute))
            return self.each_step(seq(fill, compute))
        anybody: Expr = none
        for warp in range(self.k.warps):
            anybody = binary("max", anybody, Load(self.shown, (Const(warp), self.step)))
        own = If(Load(self.shown, (self.warp, self.step)) > none, compute)
        return seq(
            self.look_ahead(self.visible),
            self.each_step(seq(If(anybody > none, fill), own)),
        )

    def each_step(self, body: Stmt) -> Stmt:
        return For(self.step, Const(self.steps), body)

    def look_ahead(self, visible: Expr) -> Stmt:
        """shown[warp, step] = 1 for the steps of which some query of a warp sees a key; 0 for those
        behind the last one, which fills that run ahead may look at."""
        seen, ahead, none = Load(self.seen, (Const(0),)), Var("ahead"), Const(0, "int32")
        told = If(self.lane.equal(0), Store(self.shown, (self.warp, self.step), seen))
        step = substitute_stmt(seq(self.look(visible), told), {self.step: ahead})
        looks = For(ahead, Const(self.steps), step)
        if self.k.stages == 1:
            return looks
        behind = Store(self.shown, (self.warp, self.steps + self.lane), none)
        return seq(looks, If(self.lane < self.k.stages - 1, behind))

    def look(self, visible: Expr) -> Stmt:
        """seen[0] = 1 if this warp has a score in the step that no mask hides, else 0."""
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
            Store(self.seen, (Const(0),), Intrinsic("warp_max", (first, Const(WARP)), "int32")),
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
        together = a.has_pairs[1]

        def element(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            at = {HEAD: self.head, QUERY: self.existing_query(i, h), KEY: self.existing_key(n, c)}
            total = Load(self.sums, (i, element_number(n, h, c)))
            score = transform_expr(a.score, lambda e: total if e is a.total else None)
            return Store(self.scores, (i, element_number(n, h, c)), substitute(score, at))

        def without(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            at = (i, element_number(n, h, c))
            exists = self.pair_of_keys(n) * 2 + c < a.keys
            value = Select(exists, Load(self.scores, at), Const(float("-inf"), F32), F32)
            return Store(self.scores, at, value)

        scores = self.each_element(k.keys, element, together)
        if self.exact:
            return scores
        last = If(self.number >= a.keys // k.keys, self.each_element(k.keys, without))
        return seq(scores, last)

    def raise_peak(self, i: Expr, h: Expr) -> Stmt:
        """The largest score of a row so far, and the factor of what was summed below another."""
        at = (i, h)
        peak, top = Load(self.peak, at), Load(self.top, at)

        def larger(n: Expr, c: Expr) -> Stmt:
            score = Load(self.scores, (i, element_number(n, h, c)))
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
            at = (i, element_number(n, h, c))
            value = Intrinsic("exp", (Load(self.scores, at) - Load(self.peak, (i, h)),), F32)
            rounded = Cast(Load(self.scores, at), self.a.dtype)
            return seq(Store(self.scores, at, value), Store(self.powers, at, rounded))

        def scaled(i: Expr, h: Expr, n: Expr, c: Expr) -> Stmt:
            at = (i, element_number(n, h, c))
            return Store(self.mixed, at, Load(self.mixed, at) * Load(self.factor, (i, h)))

        def total(i: Expr, h: Expr) -> Stmt:
            at = (i, h)
            old = Load(self.total, at)

            def plus(n: Expr, c: Expr) -> Stmt:
                return Store(self.total, at, old + Load(self.scores, (i, element_number(n, h, c))))

            more = loop("n", tiles, lambda n: loop("c", 2, lambda c: plus(n, c)))
            return seq(Store(self.total, at, old * Load(self.factor, at)), more)

        return seq(
            self.each_element(self.k.keys, power),
            self.each_row(total),
            self.each_element(self.values, scaled),
        )

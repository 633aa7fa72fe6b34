"""The kernel of a product by warpgroups, written as loop IR: how its tiles are filled, multiplied,
joined and stored."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from tunefarm.compiler.gpu import wgmma as w
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.intrinsics import JOINED, QUAD
from tunefarm.compiler.gpu.mma import COLUMNS, ROWS, exchanged, fragment_place, square_place
from tunefarm.compiler.gpu.space.common import loop
from tunefarm.compiler.gpu.space.parts import Parts
from tunefarm.compiler.gpu.space.product import Product, Tiles, product_program
from tunefarm.compiler.gpu.space.tiled import exchange_width
from tunefarm.compiler.gpu.space.wgmma_tiles import shares_of, turned
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.ir import (
    CLUSTER_AXIS,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    LoopKind,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule import find_block
from tunefarm.compiler.tir.schedule.tree import store_of
from tunefarm.compiler.tir.visit import seq, substitute, transform_expr


@dataclass(frozen=True, slots=True)
class Knobs:
    """A config of the sketch."""

    groups: int
    columns: int
    stages: int
    overlap: int = 0
    wide: int = 0
    swizzle: int = max(w.SWIZZLES)
    split: int = 1
    joined: int = 0


def shares_of_config(k: Knobs) -> tuple[int, int]:
    """``shares_of`` a config; the whole tile of each block where sums are not joined."""
    if not k.joined:
        return 1, 1
    halves, across = shares_of(np.array(k.columns), np.array(k.split))
    return int(halves), int(across)


class WgmmaKernel:
    """Writes the kernel of a product whose operands are gathered as ``product_program`` says.

    ``slot`` is the index of what a step uses of the tiles, if they are arrays of several.
    """

    slot: tuple[Expr, ...] = ()

    def __init__(self, p: Product, k: Knobs) -> None:
        self.p, self.k = p, k
        self.turned, self.item_bytes = turned(p), dtype_bytes(p.dtypes[0])
        of_groups, others = k.groups * w.ROWS, k.columns
        self.rows, self.columns = (others, of_groups) if self.turned else (of_groups, others)
        self.depth = k.swizzle // self.item_bytes  # terms of a step, elements of a tile's row
        self.chunk = gcd(self.columns, self.depth)  # columns of a row, where they are side by side
        self.steps = -(-p.depth // (self.depth * k.split))  # of a block
        chunk = w.CHUNK_BYTES // self.item_bytes
        vectors = p.vector(0, chunk), p.vector(1, chunk)
        alone = k.split > 1 and not k.joined
        exchanges = k.wide and not alone and not self.turned
        self.halves, across = shares_of_config(k)
        self.tiles_across = k.columns // COLUMNS // across
        self.width = exchange_width(p, gcd(QUAD, self.tiles_across)) if exchanges else 1
        together = 2 * self.width if alone or p.columns % 2 == 0 else 1
        depth = self.depth * self.steps * k.split
        self.tiles = Tiles(self.rows, self.columns, depth, *vectors, together)
        self.source = product_program(p, self.tiles)
        self.by_terms = p.along[1] == "k"
        self.instruction = next(
            m
            for m in w.WGMMAS.values()
            if (m.operand, m.columns, m.overlaps) == (p.dtypes[0], k.columns, k.overlap)
        )
        self.number, self.x = Var("batch"), Var("block_column")
        self.z: Expr = self.number
        self.y: Expr = Var("block_row")
        self.column: Expr = self.x
        self.group, self.warp, self.lane = Var("group"), Var("warp"), Var("lane")
        self.step = Var("step")
        self.now: Expr = self.step  # of all blocks'
        self.parts: Parts | None = None
        self.share: Expr = Const(0)
        if alone:
            self.parts = Parts(p, k.split, (self.rows, self.columns))
            self.z, self.share = self.number // k.split, self.number % k.split
        self.member = Var("block")
        if k.joined:
            self.share = self.member
        if k.split > 1:
            self.now = self.share * self.steps + self.step
        copies = k.stages if self.steps > 1 else 1
        by_columns = (self.columns // self.chunk, self.depth, self.chunk)
        shape = (self.columns, self.depth) if self.by_terms else by_columns
        self.a = Buffer("A", (self.rows, self.depth), p.dtypes[0], "shared", 0, copies)
        self.b = Buffer("B", shape, p.dtypes[1], "shared", 0, copies)
        self.c = Buffer("C", (k.columns // 2,), "float32", "register")
        self.joined = Buffer("J", (k.columns // 2 // k.split,), "float32", "register")
        self.exchanged = Buffer("T", (2 * self.width,), "float32", "register")

    def whole_program(self, target: Target) -> PrimFunc:
        """The program, with the kernel that adds its parts where its terms are shared out."""
        program = self.program()
        return self.parts.followed(program, target) if self.parts is not None else program

    def program(self) -> PrimFunc:
        step = seq(self.fill("A"), self.fill("B"), self.multiply())
        body = seq(self.clear(), For(self.step, Const(self.steps), step), self.store())
        return self.on_threads(body, self.k.groups, (self.a, self.b, *self.own()))

    def own(self) -> tuple[Buffer, ...]:
        """What each thread has of its own."""
        joined = (self.joined,) if self.k.joined else ()
        exchanged = (self.exchanged,) if self.width > 1 or self.turned else ()
        return (self.c, *joined, *exchanged)

    def clear(self) -> Stmt:
        zero = Const(0.0, "float32")
        return loop("e", self.k.columns // 2, lambda e: Store(self.c, (e,), zero))

    def on_threads(self, body: Stmt, groups: int, buffers: tuple[Buffer, ...]) -> PrimFunc:
        """The program that runs a body on every thread of every block."""
        threads = (
            (self.lane, WARP, "threadIdx.x"),
            (self.warp, w.GROUP, "threadIdx.y"),
            (self.group, groups, "threadIdx.z"),
        )
        alone = 1 if self.k.joined else self.k.split
        batches = (self.number, self.p.batch * alone, "blockIdx.z")
        for var, extent, axis in (*threads, *self.grid(), batches):
            body = For(var, Const(extent), body, LoopKind.THREAD, axis=axis)
        return replace(self.source, body=body, buffers=buffers)

    def grid(self) -> tuple[tuple[Var, int, str], ...]:
        """The loops over blocks of rows and columns, from the inside out: variables, how many there
        are, axes."""
        assert isinstance(self.y, Var)
        members = (self.member, self.k.split, CLUSTER_AXIS)
        return (
            *((members,) if self.k.joined else ()),
            (self.x, -(-self.p.columns // self.columns), "blockIdx.x"),
            (self.y, -(-self.p.rows // self.rows), "blockIdx.y"),
        )

    def node(self, name: str) -> Block:
        return find_block(self.source, name)

    # --- tiles ---------------------------------------------------------------------------------

    def fill(self, name: str) -> Stmt:
        """Fill a tile, the threads side by side along its rows."""
        k, node = self.k, self.node(name)
        vector = self.tiles.a_vector if name == "A" else self.tiles.b_vector
        rows = {"A": self.rows, "B": self.columns if self.by_terms else self.depth}[name]
        row_length = self.columns if name == "B" and not self.by_terms else self.depth
        in_row, threads = row_length // vector, k.groups * w.GROUP * WARP
        count = rows * in_row
        turns = -(-count // threads)

        def body(turn: Expr) -> Stmt:
            number = turn * threads + (self.group * w.GROUP + self.warp) * WARP + self.lane
            row, column = number // in_row % rows, number % in_row
            stmt = loop(
                "part",
                vector,
                lambda part: self.filled(name, node, row, column, vector, part),
                LoopKind.VECTORIZED,
            )
            return stmt if count % threads == 0 else If(number < count, stmt)

        return loop("turn", turns, body, LoopKind.UNROLLED if turns <= 16 else LoopKind.SERIAL)

    def filled(
        self, name: str, node: Block, row: Expr, number: Expr, vector: int, part: Expr
    ) -> Stmt:
        """An element of a vector of a tile: of A a row's terms, of B a column's terms or a term's
        columns."""
        element = number * vector + part
        term = self.now * self.depth + (element if name == "A" or self.by_terms else row)
        places: dict[str, Expr] = {"b": self.z, "k": term}
        if name == "A":
            places["m"] = self.y * self.rows + row
        else:
            places["n"] = self.column * self.columns + (row if self.by_terms else element)
        store = store_of(node)
        value = substitute(store.value, {i.var: places[i.var.name] for i in node.iters})
        if name == "A" or self.by_terms:
            tile = self.a if name == "A" else self.b
            return Store(tile, (row, self.swizzled(row, element, self.depth)), value)
        in_row = self.chunk // vector
        inside = self.swizzled(row, number % in_row * vector + part, self.chunk)
        return Store(self.b, (number // in_row, row, inside), value)

    def swizzled(self, row: Expr, element: Expr, length: int) -> Expr:
        """Where an element of a row of so many of a tile lies in it."""
        return w.swizzled(row % 8, element, length, self.item_bytes)

    def multiply(self) -> Stmt:
        """C += A · B, or Cᵀ += Bᵀ · Aᵀ, as many terms at a time as an instruction has: all elements
        of a thread by one."""
        g, t, depth = self.lane // 4, self.lane % 4, self.instruction.depth

        def row_terms(tile: Buffer, eight: Expr, row: Expr, term: Expr) -> Load:
            return Load(tile, (*self.slot, eight + row, self.swizzled(row, term, self.depth)))

        def term_columns(first: Expr, column: Expr, term: Expr) -> Load:
            place = (first + column // self.chunk, term)
            inside = self.swizzled(term, column % self.chunk, self.chunk)
            return Load(self.b, (*self.slot, *place, inside))

        def left(e: Expr, term: Expr) -> Load:
            if self.turned:
                column = self.warp * ROWS + g * 2 + e % 4 // 2
                return term_columns(self.group * (w.ROWS // self.chunk), column, term)
            first = self.group * w.ROWS + self.warp * ROWS
            return row_terms(self.a, first + e % 4 // 2 * 8, g, term)

        def right(e: Expr, term: Expr) -> Load:
            eight, inside = e // 4 * 8, t * 2 + e % 2
            if self.turned:
                return row_terms(self.a, eight, inside, term)
            if self.by_terms:
                return row_terms(self.b, eight, inside, term)
            return term_columns(Const(0), eight + inside, term)

        def product(k: Expr, e: Expr) -> Stmt:
            terms = [k * depth + n for n in range(depth)]
            factors = [left(e, n) for n in terms] + [right(e, n) for n in terms]
            value = Intrinsic(self.instruction.name, (Load(self.c, (e,)), *factors), "float32")
            return Store(self.c, (e,), value)

        count = self.instruction.elements
        return loop(
            "k",
            self.depth // depth,
            lambda k: loop("e", count, lambda e: product(k, e), LoopKind.VECTORIZED),
        )

    # --- the result ----------------------------------------------------------------------------

    def store(self) -> Stmt:
        """The epilogue, for each row of a thread's and each group of tiles of columns."""
        if self.turned:
            return self.store_turned()
        groups, rows = self.tiles_across // self.width, 2 // self.halves
        stores = loop("h", rows, lambda h: loop("j", groups, lambda j: self.part(h, j)))
        return seq(self.join(), stores) if self.k.joined else stores

    def join(self) -> Stmt:
        """The sums of this block's share of the tile: of all blocks of the cluster."""
        rows, count = 2 // self.halves, self.k.columns // 2 // self.k.split

        def held(share: int, e: Expr) -> Load:
            tile = share // self.halves * self.tiles_across + e // (2 * rows)
            h = share % self.halves if self.halves > 1 else e // 2 % 2
            return Load(self.c, (tile * 4 + h * 2 + e % 2,))

        def element(e: Expr) -> Stmt:
            shares = tuple(held(share, e) for share in range(self.k.split))
            return Store(self.joined, (e,), Intrinsic(JOINED, shares, "float32"))

        return loop("e", count, element, LoopKind.VECTORIZED)

    def part(self, h: Expr, j: Expr) -> Stmt:
        """What a thread stores at once."""
        width, quad, t = self.width, self.lane // QUAD, self.lane % QUAD
        first = self.y * self.rows + self.group * w.ROWS + self.warp * ROWS
        sums, rows, start = self.c, 2, self.column * self.columns
        if self.k.joined:
            sums, rows = self.joined, 2 // self.halves
            start += self.share // self.halves * (self.tiles_across * COLUMNS)
            first += self.share % self.halves * 8

        def held(e: Expr) -> list[Expr]:
            own = h * 2 + e % 2 if rows > 1 else e % 2
            return [Load(sums, ((j * width + n) * 2 * rows + own,)) for n in range(width)]

        def exchange(e: Expr) -> Stmt:
            return Store(self.exchanged, (e,), exchanged(held(e), t, e))

        def element(e: Expr) -> Stmt:
            if width == 1:
                row, column = fragment_place(Const(0), j, quad, t, h * 2 + e)
            else:
                row, column = square_place(width, Const(0), j, h, quad, t, e)
            value = held(e)[0] if width == 1 else Load(self.exchanged, (e,))
            return self.told(first + row, start + column, value)

        kind = LoopKind.VECTORIZED if self.tiles.out_vector > 1 else LoopKind.UNROLLED
        stores = loop("e", 2 * width, element, kind)
        if width == 1:
            return stores
        return seq(loop("e", 2 * width, exchange, LoopKind.VECTORIZED), stores)

    def told(self, row: Expr, column: Expr, value: Expr) -> Stmt:
        """What becomes of a sum: a part of it, or the result's element."""
        if self.parts is None:
            return self.result(row, column, value)
        return Store(self.parts.buffer, (self.share, self.z, row, column), value)

    def store_turned(self) -> Stmt:
        """The epilogue of a transposed product: a thread has two columns side by side of a row."""
        kind = LoopKind.VECTORIZED if self.tiles.out_vector > 1 else LoopKind.UNROLLED
        first = self.column * self.columns + self.group * w.ROWS + self.warp * ROWS
        column = first + self.lane // QUAD * 2

        def pair(j: Expr, c: Expr) -> Stmt:
            row = self.y * self.rows + j * COLUMNS + self.lane % QUAD * 2 + c

            def taken(h: Expr) -> Stmt:
                return Store(self.exchanged, (h,), Load(self.c, (j * 4 + h * 2 + c,)))

            def element(h: Expr) -> Stmt:
                return self.told(row, column + h, Load(self.exchanged, (h,)))

            return seq(loop("h", 2, taken), loop("h", 2, element, kind))

        tiles = self.k.columns // COLUMNS
        return loop("j", tiles, lambda j: loop("c", 2, lambda c: pair(j, c)))

    def result(self, row: Expr, column: Expr, value: Expr) -> If:
        """An element of the result whose sum is a value, if it exists."""
        p, node, vector = self.p, self.node("out"), self.tiles.out_vector
        store = store_of(node)
        total = next(b for b in self.source.buffers if b.name == "C")
        at: dict[str, Expr] = {"b": self.z, "m": row, "n": column}
        values = {i.var: at[i.var.name] for i in node.iters}

        def rule(e: Expr) -> Expr | None:
            return value if isinstance(e, Load) and e.buffer is total else None

        made = substitute(transform_expr(store.value, rule), values)
        place = tuple(substitute(i, values) for i in store.indices)
        inside = column // vector < p.columns // vector
        return If(binary("and", row < p.rows, inside), Store(store.buffer, place, made))

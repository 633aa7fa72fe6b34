"""Every contraction as one matrix product: its operands gathered into tiles of rows and columns.

    A[b, m, k] = x[…]                       padding and borders are zeros
    B[b, k, n] = w[…]
    C[b, m, n] = Σ_k A[b, m, k] · B[b, k, n]
    out[…]     = epilogue(C[b, m, n])

``m`` runs over all rows (for a convolution: images, heights, widths), ``k`` over all that is
summed (taps and channels): an implicit product, whose operands exist a tile at a time. The extents
are rounded up to whole tiles, and sizes of borders are conditions of A, B and ``out`` alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd, prod

from tunefarm.compiler.gpu.mma import FRAGMENT, fragment_place, square_place
from tunefarm.compiler.space.analysis import Axis, Contraction
from tunefarm.compiler.space.flatten import flat_index
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir.affine import affine
from tunefarm.compiler.tir.ir import (
    Binary,
    Block,
    Buffer,
    Cast,
    Const,
    Expr,
    IterVar,
    Load,
    Select,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule import find_block
from tunefarm.compiler.tir.schedule.tree import nest_around, replace_stmt, store_of
from tunefarm.compiler.tir.transform.simplify import simplify_expr
from tunefarm.compiler.tir.visit import loads_of, seq, substitute, transform_expr


@dataclass(frozen=True)
class Product:
    """A contraction in numbers: ``batch`` products of ``rows`` × ``depth`` by ``depth`` ×
    ``columns``. ``along`` says which axis of A and of B stands side by side in memory ("k", "n"
    or "")."""

    contraction: Contraction

    @cached_property
    def batch(self) -> int:
        return prod(a.extent for a in self.contraction.outer)

    @cached_property
    def rows(self) -> int:
        return prod(a.extent for a in self.contraction.rows)

    @property
    def columns(self) -> int:
        return self.contraction.vector.extent

    @cached_property
    def depth(self) -> int:
        return prod(a.extent for a in self.contraction.reduce)

    @cached_property
    def along(self) -> tuple[str, str]:
        c = self.contraction
        return self._along(c.lhs.load, ""), self._along(c.rhs.load, "n")

    def _along(self, load: Load, column: str) -> str:
        c = self.contraction
        iters = c.node.iters
        flat = affine(flat_index(load.indices, load.buffer.shape))
        if column and flat.coefficient(iters[c.vector.position].var) == 1:
            return column
        return "k" if flat.coefficient(iters[c.reduce[-1].position].var) == 1 else ""

    def vector(self, operand: int, most: int) -> int:
        """Elements of an operand (0 or 1) that can be taken at once: a power of two."""
        along = self.along[operand]
        extent = {"": 1, "k": self.contraction.reduce[-1].extent, "n": self.columns}[along]
        while extent % most:
            most //= 2
        return most

    @cached_property
    def result_vector(self) -> int:
        """Elements of the result that always lie side by side along n: a power of two, of at most
        16 bytes; 1 if neighbours lie apart."""
        program = product_program(self, Tiles(1, 1, 1, 1, 1, 1))
        node = find_block(program, "out")
        store = store_of(node)
        apart = affine(store.indices[0]).coefficient(node.iters[2].var)
        most = 16 // dtype_bytes(store.buffer.dtype) if apart == 1 else 1
        return gcd(most, self.columns)

    @cached_property
    def sum_dtype(self) -> str:
        return store_of(self.contraction.node).buffer.dtype

    @property
    def dtypes(self) -> tuple[str, str]:
        """The dtypes of the operands in memory."""
        return self.contraction.lhs.load.dtype, self.contraction.rhs.load.dtype


@dataclass(frozen=True, slots=True)
class Tiles:
    """What the extents are rounded up to, and the elements that vectors hold: of A along k, of B
    along its own axis, of the result along n. Of a ``split`` the terms are shared out: part s of
    product b is number b · split + s of as many, and its result is stored as it is."""

    rows: int
    columns: int
    depth: int
    a_vector: int
    b_vector: int
    out_vector: int
    split: int = 1


def product_program(
    p: Product, t: Tiles, params: Sequence[Buffer] = (), parts: Buffer | None = None
) -> PrimFunc:
    """The four nests of a product, unscheduled: blocks ``A``, ``B``, ``C`` and ``out``. ``params``
    are those of another program of it, if it is to have the same; ``parts[s, b, m, n]`` is where
    results go whose terms are split."""
    return _Builder(p, t, params, parts).program()


def guard_result(program: PrimFunc, p: Product, t: Tiles) -> PrimFunc:
    """Let ``out`` store what exists of a tile. To be done when it has its place among the loops."""
    node = find_block(program, "out")
    _, *rest = node.bindings
    m, n = rest if len(rest) == 2 else _place(rest, t.out_vector // 2)
    parts = []
    if t.rows * _count(p.rows, t.rows) != p.rows:
        parts.append(m < p.rows)
    if t.columns * _count(p.columns, t.columns) != p.columns:
        parts.append(n // t.out_vector < p.columns // t.out_vector)
    predicate = _all(parts)
    return replace_stmt(program, node, replace(node, predicate=predicate))


def _place(at: Sequence[Expr], width: int) -> tuple[Expr, Expr]:
    """The row and the column of an element that a thread holds."""
    return fragment_place(*at) if len(at) == len(FRAGMENT) else square_place(width, *at)


def _count(extent: int, tile: int) -> int:
    return -(-extent // tile)


def _all(parts: Sequence[Expr]) -> Expr | None:
    condition: Expr | None = None
    for part in parts:
        condition = part if condition is None else binary("and", condition, part)
    return condition


class _Builder:
    """Writes the nests of a product."""

    def __init__(
        self, p: Product, t: Tiles, params: Sequence[Buffer], parts: Buffer | None
    ) -> None:
        self.p, self.t, self.c, self.parts = p, t, p.contraction, parts
        self.extents = {
            "b": p.batch * t.split,
            "m": _count(p.rows, t.rows) * t.rows,
            "n": _count(p.columns, t.columns) * t.columns,
            "k": _count(p.depth, t.depth * t.split) * t.depth,
        }
        own = self.c.program.params
        params = params or [Buffer(b.name, (prod(b.shape),), b.dtype) for b in own]
        self.params = dict(zip(own, params, strict=True))
        a, b = p.dtypes
        e = self.extents
        self.a = Buffer("A", (e["b"], e["m"], e["k"]), a)
        self.b = Buffer("B", (e["b"], e["k"], e["n"]), b)
        self.sum = Buffer("C", (e["b"], e["m"], e["n"]), p.sum_dtype)

    def program(self) -> PrimFunc:
        old = self.c.program
        body = seq(self.operand(0), self.operand(1), self.product(), self.result())
        params = tuple(self.params[b] for b in old.params)
        return replace(
            old, params=params, body=body, buffers=(self.a, self.b, self.sum), layouts={}
        )

    # --- operands ------------------------------------------------------------------------------

    def operand(self, number: int) -> Stmt:
        """The nest that gathers A or B."""
        names = ("b", "m", "k") if number == 0 else ("b", "k", "n")
        iters = {n: IterVar(Var(n), self.extents[n]) for n in names}
        own = [i.var for i in iters.values()]
        v = self.of_whole(iters)
        vector = self.t.a_vector if number == 0 else self.t.b_vector
        along = self.p.along[number]
        in_k = vector if along == "k" else 1
        values = self.values(v, in_k)
        expr = self.factor(number)
        value = self.flat(substitute(expr, values), iters)
        conditions: list[Expr] = []
        if "m" in v and self.extents["m"] != self.p.rows:
            conditions.append(v["m"] < self.p.rows)
        if self.extents["k"] * self.t.split != self.p.depth:
            conditions.append(v["k"] // in_k < self.p.depth // in_k)
        if "n" in v and self.extents["n"] != self.p.columns:
            in_n = vector if along == "n" else 1
            conditions.append(v["n"] // in_n < self.p.columns // in_n)
        if isinstance(value, Select) and isinstance(value.b, Const) and not value.b.value:
            conditions.append(value.condition)
            value = value.a
        condition = _all(conditions)
        target = self.a if number == 0 else self.b
        if condition is not None:
            zero = Const(0.0 if "float" in target.dtype else 0, target.dtype)
            value = Select(condition, value, zero, target.dtype)
        store = Store(target, tuple(own), value)
        return nest_around(Block("AB"[number], tuple(iters.values()), (), store))

    def of_whole(self, iters: Mapping[str, IterVar]) -> dict[str, Expr]:
        """The product, the row, the column and the term that iterators of a part stand for."""
        v: dict[str, Expr] = {n: i.var for n, i in iters.items()}
        if self.t.split > 1:
            number, split = v["b"], self.t.split
            v["b"] = number // split
            if "k" in v:
                v["k"] = number % split * self.extents["k"] + v["k"]
        return v

    def factor(self, number: int) -> Expr:
        """What is multiplied, before it is widened."""
        value = store_of(self.c.node).value
        assert isinstance(value, Binary)
        product = value.b
        assert isinstance(product, Binary)
        operand = (self.c.lhs, self.c.rhs)[number]
        expr = product.a if any(ld is operand.load for ld in loads_of(product.a)) else product.b
        while isinstance(expr, Cast):
            expr = expr.value
        return expr

    def values(self, v: Mapping[str, Expr], in_k: int) -> dict[Var, Expr]:
        """The iterators of the contraction in terms of b, m, n and k; of k ``in_k`` elements
        stand side by side."""
        c = self.c
        found: dict[Var, Expr] = {}
        if "b" in v:
            found |= self._split(c.outer, v["b"])
        if "m" in v:
            found |= self._split(c.rows, v["m"])
        if "n" in v:
            found[self._var(c.vector)] = v["n"]
        if "k" in v and in_k == 1:
            found |= self._split(c.reduce, v["k"])
        elif "k" in v:
            last = c.reduce[-1]
            whole = [*c.reduce[:-1], Axis(last.name, last.position, last.extent // in_k)]
            found |= self._split(whole, v["k"] // in_k)
            var = self._var(last)
            found[var] = found[var] * in_k + v["k"] % in_k
        return found

    def _var(self, axis: Axis) -> Var:
        return self.c.node.iters[axis.position].var

    def _split(self, axes: Sequence[Axis], flat: Expr) -> dict[Var, Expr]:
        """The axes of which ``flat`` counts the elements, row-major; beyond the last element the
        first axis runs on."""
        found: dict[Var, Expr] = {}
        for number, axis in reversed(list(enumerate(axes))):
            found[self._var(axis)] = flat if number == 0 else flat % axis.extent
            flat = flat // axis.extent
        return found

    def flat(self, expr: Expr, iters: Mapping[str, IterVar]) -> Expr:
        """An expression that reads the parameters as vectors, simplified."""
        ranges = {i.var: (0, i.extent - 1) for i in iters.values()}

        def rule(e: Expr) -> Expr | None:
            if isinstance(e, Load) and e.buffer in self.params:
                at = tuple(simplify_expr(i, ranges) for i in e.indices)
                index = simplify_expr(flat_index(at, e.buffer.shape), ranges)
                return Load(self.params[e.buffer], (index,))
            return None

        return simplify_expr(transform_expr(expr, rule), ranges)

    # --- the sum and the result ----------------------------------------------------------------

    def product(self) -> Stmt:
        iters = [IterVar(Var(n), self.extents[n]) for n in "bmn"]
        iters.append(IterVar(Var("k"), self.extents["k"], "reduce"))
        b, m, n, k = (i.var for i in iters)
        total = Load(self.sum, (b, m, n))
        x, y = Load(self.a, (b, m, k)), Load(self.b, (b, k, n))
        kind = self.p.sum_dtype
        terms = [e if e.dtype == kind else Cast(e, kind) for e in (x, y)]
        body = Store(self.sum, (b, m, n), total + terms[0] * terms[1])
        zero = Const(0.0 if "float" in kind else 0, kind)
        init = Store(self.sum, (b, m, n), zero)
        return nest_around(Block("C", tuple(iters), (), body, init))

    def result(self) -> Stmt:
        """The nest of the epilogue, over whole tiles."""
        c = self.c
        iters = {n: IterVar(Var(n), self.extents[n]) for n in "bmn"}
        v = {n: i.var for n, i in iters.items()}
        if self.parts is not None:
            return self.part(iters)
        values = self.values(v, 1)
        spatial = [values[i.var] for i in c.node.iters if i.kind == "spatial"]
        total = Load(self.sum, tuple(v.values()))
        if c.epilogue is None:
            old = store_of(c.node).buffer
            value: Expr = total
            indices: tuple[Expr, ...] = tuple(spatial)
        else:
            node = find_block(c.program, c.epilogue)
            mine = dict(zip((i.var for i in node.iters), spatial, strict=True))
            anchor = store_of(c.node).buffer

            def rule(e: Expr) -> Expr | None:
                return total if isinstance(e, Load) and e.buffer is anchor else None

            store = store_of(node)
            old = store.buffer
            value = substitute(transform_expr(store.value, rule), mine)
            indices = tuple(substitute(i, mine) for i in store.indices)
        ranges = {i.var: (0, i.extent - 1) for i in iters.values()}
        at = tuple(simplify_expr(i, ranges) for i in indices)
        index = simplify_expr(flat_index(at, old.shape), ranges)
        store = Store(self.params[old], (index,), self.flat(value, iters))
        return nest_around(Block("out", tuple(iters.values()), (), store))

    def part(self, iters: Mapping[str, IterVar]) -> Stmt:
        """The nest that stores the sums of parts."""
        assert self.parts is not None
        b, m, n = (i.var for i in iters.values())
        at = (b % self.t.split, b // self.t.split, m, n)
        store = Store(self.parts, at, Load(self.sum, (b, m, n)))
        return nest_around(Block("out", tuple(iters.values()), (), store))

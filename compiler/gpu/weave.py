"""Products of matrix instructions with what they need next between them: copies, and fragments.

Threads that multiply would wait where they read their tile: behind all copies of a step, which
take their turn at shared memory, and for what comes first of a step. Here they find that in their
registers, and ask for a copy or a fragment every few products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tunefarm.compiler.gpu.mma import ELEMENTS, MMAS, Mma
from tunefarm.compiler.gpu.threads import ASYNC_BYTES, copied_from
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.ir import (
    Allocate,
    Barrier,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    LoopKind,
    PrimFunc,
    Select,
    Seq,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.visit import (
    seq,
    substitute,
    substitute_stmt,
    transform_stmt,
    walk_expr,
    walk_stmt,
)

AHEAD = 2  # fragments of as many parts of a step are in registers


def weave_products(program: PrimFunc) -> PrimFunc:
    """Spread copies of tiles and loads of fragments over the products of a step.

    for k in 8: barrier(1 pending); if k < 6: T[(k + 2) % 3, …] = f(k + 2)
                for j in 4: C += mma(T[k % 3, j, …])
    ->  F[0] = T[0, 0, …]
        for k in 8: for j in 3: F[(j + 1) % 2] = T[k % 3, j + 1, …]; C += mma(F[j % 2])
                                T[(k + 2) % 3, …] = f(k + 2) if k < 6 else 0     a third of it
                    barrier(1 pending); F[0] = T[(k + 1) % 3, 0, …]; C += mma(F[1])

    F, in registers, has the terms of a thread's own results. Other loops stay as they are: those of
    fewer than three stages or fewer steps than these, of an odd number of parts, and whose tiles
    are not copied as they are.
    """

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For):
            return None
        found = _step_of(stmt)
        return None if found is None else _woven(found)

    if not any(isinstance(s, Barrier) and s.pending for s in walk_stmt(program.body)):
        return program
    return replace(program, body=transform_stmt(program.body, rule))


@dataclass(frozen=True, slots=True)
class _Product:
    """A vectorized loop that stores results of an instruction, one of a part of the step."""

    loop: For
    store: Store
    value: Intrinsic

    @property
    def mma(self) -> Mma:
        return MMAS[self.value.name]

    @property
    def tiles(self) -> int:
        """Of columns of the result, side by side."""
        assert isinstance(self.loop.extent, Const)
        return int(self.loop.extent.value) // ELEMENTS


@dataclass(frozen=True, slots=True)
class _Step:
    """A loop over steps: the copies of each, under a condition, and the products of its parts."""

    loop: For
    pending: int
    condition: Expr
    copies: tuple[Stmt, ...]
    parts: tuple[tuple[_Product, ...], ...]


def _step_of(loop: For) -> _Step | None:
    match loop:
        case For(
            kind=LoopKind.SERIAL,
            extent=Const(extent),
            start=Const(0),
            body=Seq((Barrier(pending), If(condition, then, None), For() as parts)),
        ) if pending and int(extent) > pending + 1:
            pass
        case _:
            return None
    copies = tuple(_units(then))
    products = _parts_of(parts)
    whole = all(_copy_of(unit) is not None for unit in copies)
    if not whole or len(products) % AHEAD or not all(products):
        return None
    return _Step(loop, pending, condition, copies, products)


def _units(stmt: Stmt) -> list[Stmt]:
    """Statements with unrolled loops written out."""
    match stmt:
        case Seq(stmts):
            return [unit for each in stmts for unit in _units(each)]
        case For(var, Const(extent), body, LoopKind.UNROLLED, Const(start)):
            return [
                unit
                for n in range(int(start), int(start) + int(extent))
                for unit in _units(substitute_stmt(body, {var: Const(n)}))
            ]
        case _:
            return [stmt]


def _copy_of(unit: Stmt) -> Store | None:
    """The store of a copy that may run on by itself, in a vectorized loop or alone."""
    match unit:
        case For(var, Const(lanes), Store() as store, LoopKind.VECTORIZED):
            if any(e is var for index in store.indices[:-1] for e in walk_expr(index)):
                return None  # lanes that do not lie side by side
            size = int(lanes) * dtype_bytes(store.buffer.dtype)
        case Store() as store:
            size = dtype_bytes(store.buffer.dtype)
        case If(_, then, None):
            return _copy_of(then)
        case _:
            return None
    return store if size in ASYNC_BYTES and copied_from(store) is not None else None


def _parts_of(loop: For) -> tuple[tuple[_Product, ...], ...]:
    """The products of each part; an empty part where there is something else."""
    if loop.kind is not LoopKind.UNROLLED or not isinstance(loop.extent, Const):
        return ((),)
    found = []
    for j in range(int(loop.extent.value)):
        units = _units(substitute_stmt(loop.body, {loop.var: Const(j)}))
        products = [_product_of(unit) for unit in units]
        found.append(tuple(p for p in products if p is not None) if all(products) else ())
    return tuple(found)


def _product_of(unit: Stmt) -> _Product | None:
    match unit:
        case For(kind=LoopKind.VECTORIZED, body=Store(value=Intrinsic(name) as value) as store):
            operands = value.args[1:]
            shared = all(isinstance(a, Load) and a.buffer.scope == "shared" for a in operands)
            return _Product(unit, store, value) if name in MMAS and shared else None
        case _:
            return None


# --- what becomes of it -------------------------------------------------------------------------


class _Fragments:
    """The fragments of one operand that the parts of a step read, as they are numbered: those of
    one part that are read at the same place are one."""

    def __init__(self, name: str, step: _Step, operand: int) -> None:
        first = step.parts[0][0]
        self.operand, self.depth = operand, first.mma.depth
        self.tiles = first.tiles if operand else 1
        self.places: list[dict[str, int]] = [{} for _ in step.parts]
        self.fills: list[list[tuple[Load, Load, Var]]] = [[] for _ in step.parts]
        for j, products in enumerate(step.parts):
            for product in products:
                self.number(j, product)
        load = self._terms(first)[0]
        assert isinstance(load, Load)
        lanes = 2 * self.tiles * self.depth
        self.buffer = Buffer(
            f"{load.buffer.name}.held", (AHEAD, len(self.fills[0]), lanes), load.dtype, "register"
        )

    def _terms(self, product: _Product) -> tuple[Expr, ...]:
        start = 1 + self.operand * self.depth
        return product.value.args[start : start + self.depth]

    def number(self, j: int, product: _Product) -> int:
        """The number of what a product reads among those of its part."""
        first, second = self._terms(product)[:2]
        assert isinstance(first, Load)
        assert isinstance(second, Load)
        var = product.loop.var
        at = str(tuple(substitute(i, {var: Const(0)}) for i in first.indices))
        places = self.places[j]
        if at not in places:
            places[at] = len(places)
            self.fills[j].append((first, second, var))
        return places[at]

    def read(self, j: int, product: _Product) -> list[Expr]:
        """The operand of a product, from registers."""
        var, number = product.loop.var, self.number(j, product)
        tile, element = var // ELEMENTS, var % ELEMENTS
        row = element % 2 if self.operand else element // 2
        start = (tile * 2 + row) * self.depth if self.operand else row * self.depth
        at = Const(j % AHEAD), Const(number)
        return [Load(self.buffer, (*at, start + n)) for n in range(self.depth)]

    def load(self, j: int, number: int) -> Stmt:
        """The statement that loads a fragment: two rows of A or columns of B a tile, by terms."""
        first, second, var = self.fills[j][number]
        lane = Var("w")
        tile, row, term = lane // (2 * self.depth), lane // self.depth % 2, lane % self.depth
        element = tile * ELEMENTS + row if self.operand else row * 2
        indices = []
        for a, b in zip(first.indices, second.indices, strict=True):
            at = substitute(a, {var: element})
            indices.append(at if str(a) == str(b) else at + term)
        value = Load(first.buffer, tuple(indices))
        store = Store(self.buffer, (Const(j % AHEAD), Const(number), lane), value)
        return For(lane, Const(self.buffer.shape[-1]), store, LoopKind.VECTORIZED)


def _woven(step: _Step) -> Stmt:
    loop = step.loop
    a, b = (_Fragments(n, step, o) for o, n in enumerate("AB"))
    copies = [_under(step.condition, unit) for unit in step.copies]
    last = len(step.parts) - 1
    body: list[Stmt] = []
    for j, products in enumerate(step.parts):
        following = 0 if j == last else j + 1
        loads = _by_need(a, b, following)
        if j == last:
            body.append(Barrier(step.pending))
            loads = [substitute_stmt(x, {loop.var: loop.var + 1}) for x in loads]
        mine = copies[j * len(copies) // last : (j + 1) * len(copies) // last] if j < last else []
        body += _spread([_from_registers(a, b, j, p) for p in products], loads, mine)
    first = [substitute_stmt(x, {loop.var: Const(0)}) for x in _by_need(a, b, 0)]
    stmt = seq(*first, replace(loop, body=seq(*body)))
    return Allocate(a.buffer, Allocate(b.buffer, stmt))


def _by_need(a: _Fragments, b: _Fragments, j: int) -> list[Stmt]:
    """The loads of a part, in the order in which its products need them: all of B with the first
    rows of A, then the other rows."""
    columns = [b.load(j, n) for n in range(len(b.fills[j]))]
    rows = [a.load(j, n) for n in range(len(a.fills[j]))]
    return [*columns[:1], *rows[:1], *columns[1:], *rows[1:]]


def _from_registers(a: _Fragments, b: _Fragments, j: int, product: _Product) -> Stmt:
    value = product.value
    args = (value.args[0], *a.read(j, product), *b.read(j, product))
    return replace(product.loop, body=replace(product.store, value=replace(value, args=args)))


def _spread(products: Sequence[Stmt], *others: Sequence[Stmt]) -> list[Stmt]:
    """The products with the other statements in equal distances before them."""
    before: list[list[Stmt]] = [[] for _ in products]
    for other in others:
        for number, stmt in enumerate(other):
            before[number * len(products) // len(other)].append(stmt)
    return [s for own, product in zip(before, products, strict=True) for s in (*own, product)]


def _under(condition: Expr, unit: Stmt) -> Stmt:
    """A copy of zeros where a condition does not hold: nothing is read then, and no branch lies
    between the products."""

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, Store):
            return None
        value = stmt.value
        if isinstance(value, Select):
            both = binary("and", condition, value.condition)
            return replace(stmt, value=replace(value, condition=both))
        zero = Const(0.0 if "float" in stmt.buffer.dtype else 0, stmt.buffer.dtype)
        return replace(stmt, value=Select(condition, value, zero, stmt.buffer.dtype))

    return transform_stmt(unit, rule)

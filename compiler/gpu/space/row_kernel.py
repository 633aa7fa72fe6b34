"""The kernel of a team of threads a row, as loops over blocks and threads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from math import prod

from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.intrinsics import CLUSTER_REDUCTIONS, WARP_REDUCTIONS
from tunefarm.compiler.gpu.space.common import certain_loads, digits, loop
from tunefarm.compiler.space.nests import strides
from tunefarm.compiler.space.stages import Stages
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir import PrimFunc
from tunefarm.compiler.tir import schedule as s
from tunefarm.compiler.tir.affine import Key, key_of
from tunefarm.compiler.tir.facts import variables
from tunefarm.compiler.tir.ir import (
    CLUSTER_AXIS,
    Binary,
    BinaryOp,
    Block,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    IterVar,
    Load,
    LoopKind,
    Stmt,
    Store,
    Var,
    binary,
)
from tunefarm.compiler.tir.schedule.tree import store_of, written_buffer
from tunefarm.compiler.tir.transform.simplify import simplify_expr
from tunefarm.compiler.tir.visit import seq, substitute, transform_expr

ROW, NUMBER, PART = Var("row"), Var("number"), Var("part")
AT_ONCE = 4  # turns that are unrolled, so that their loads are under way together
_COMBINE = {op: name for name, op in WARP_REDUCTIONS.items()}
_ACROSS = {op: name for name, op in CLUSTER_REDUCTIONS.items()}


@dataclass(frozen=True, slots=True)
class RowKnobs:
    """A config: ``team`` threads for each of a block's ``rows``, vectors of ``vec`` elements, and
    whether what several stages read is ``kept`` in registers (2: whatever is read).

    The blocks of a ``cluster`` share the only row that they have then.
    """

    vec: int
    team: int
    rows: int
    kept: int
    cluster: int = 1


@dataclass(frozen=True)
class RowStages:
    """The stages of a function in terms of ``ROW``, the ``NUMBER`` of a vector in it, and the
    ``PART`` of the vector."""

    stages: Stages

    @cached_property
    def rows(self) -> int:
        return prod(a.extent for a in self.stages.rows)

    @cached_property
    def terms(self) -> int:
        """Elements of the longest row that is reduced or stored."""
        return max(prod(a.extent for a in self.axes(n)) for n in self.stages.nodes)

    def axes(self, node: Block) -> list[IterVar]:
        """The axes of a block that a team shares: those that are not of the rows."""
        rows = {a.var for a in self.stages.rows}
        links = self.stages.links[node.name]
        return [i for i in node.iters if links.get(i.var) not in rows]

    def vector(self, most: int) -> int:
        """Elements that a thread can take at once in every stage, at most ``most``."""
        for node in self.stages.nodes:
            axes = self.axes(node)
            if not axes:
                continue
            if any(step not in (0, 1) for step in strides(node, axes[-1].var)):
                return 1
            while axes[-1].extent % most:
                most //= 2
        return most

    @cached_property
    def widest_bytes(self) -> int:
        """Bytes of the widest element that rows are made of."""
        own = [ld for n in self.stages.nodes for ld in self._own_loads(n, 1)]
        result = dtype_bytes(written_buffer(self.stages.nodes[-1]).dtype)
        loaded = max((dtype_bytes(ld.dtype) for ld in own), default=1)
        return max(loaded, result if self.stages.inner else 1)

    def value(self, node: Block, vec: int) -> Expr:
        """What a block reduces, or stores."""
        return self.placed(self._own_value(node), node, vec)

    def _own_value(self, node: Block) -> Expr:
        value = store_of(node).value
        if node.init is None:
            return value
        assert isinstance(value, Binary)
        return value.b

    def placed(self, expr: Expr, node: Block, vec: int) -> Expr:
        """An expression of a block in terms of the team's variables."""
        links, axes = self.stages.links[node.name], self.axes(node)
        at = dict(digits(self.stages.rows, ROW))
        values = {i.var: at[links[i.var]] for i in node.iters if links.get(i.var) in at}
        ranges = {ROW: (0, self.rows - 1), PART: (0, vec - 1)}
        if axes:
            *rest, last = axes
            vectors = IterVar(last.var, last.extent // vec)
            found = digits((*rest, vectors), NUMBER)
            values |= {**found, last.var: found[last.var] * vec + PART}
            ranges[NUMBER] = (0, prod(a.extent for a in axes) // vec - 1)
        return _simplified(substitute(expr, values), ranges)

    def kept_loads(self, vec: int, most: bool = False) -> dict[Key, Load]:
        """The loads that several stages make of a row, by what they read; with ``most`` those that
        one makes too, also of what all rows share."""
        seen: Counter[Key] = Counter()
        loads: dict[Key, Load] = {}
        for node in self.stages.nodes:
            own = {key_of(x): x for x in self._own_loads(node, vec, most)}
            counted = own if self._length(node) == self.terms else {}
            seen.update(counted.keys())
            loads |= counted
        return {key: loads[key] for key, times in seen.items() if times > 1 or most}

    def _own_loads(self, node: Block, vec: int, most: bool = False) -> list[Load]:
        """The loads by which a block reads elements of the row itself: others in each row and
        place, or in each place of the only row; with ``most`` what is other in each place."""
        mine = {ROW, NUMBER} if self.rows > 1 and not most else {NUMBER}
        return [ld for ld in certain_loads(self.value(node, vec)) if mine <= variables(ld)]

    def _length(self, node: Block) -> int:
        return prod(a.extent for a in self.axes(node))

    @cached_property
    def kept_dtypes(self) -> tuple[str, ...]:
        return tuple(ld.dtype for ld in self.kept_loads(1).values())

    def shared(self) -> Stages:
        """The stages, in which a row divides once by what all of its elements share."""
        program = self.stages.program
        for node in self.stages.nodes:
            program = s.share_reciprocals(program, node.name, *(a.var for a in self.axes(node)))
        return replace(self.stages, program=program)


def _simplified(expr: Expr, ranges: Mapping[Var, tuple[int, int]]) -> Expr:
    """An expression whose places are simplified."""

    def rule(e: Expr) -> Expr | None:
        if not isinstance(e, Load):
            return None
        return Load(e.buffer, tuple(simplify_expr(i, ranges) for i in e.indices))

    return transform_expr(expr, rule)


def row_kernel(r: RowStages, k: RowKnobs) -> PrimFunc:
    """The program of a function with rows: one kernel."""
    return _Kernel(RowStages(r.shared()), k).program()


class _Kernel:
    """Writes the kernel."""

    def __init__(self, r: RowStages, k: RowKnobs) -> None:
        self.r, self.k = r, k
        self.block, self.member, self.y, self.x = map(Var, ("block", "member", "y", "x"))
        self.vectors = r.terms // k.vec
        self.team = k.team * k.cluster
        self.turns = -(-self.vectors // self.team)
        self.results: dict[Buffer, Buffer] = {}
        self.buffers: list[Buffer] = []
        self.kept = {
            key: self.register(f"kept{n}", (self.turns, k.vec), load.dtype)
            for n, (key, load) in enumerate(self._loads().items() if k.kept else ())
        }

    def register(
        self, name: str, shape: tuple[int, ...], dtype: str, scope: str = "register"
    ) -> Buffer:
        self.buffers.append(Buffer(name, shape, dtype, scope))
        return self.buffers[-1]

    def _loads(self) -> dict[Key, Load]:
        return self.r.kept_loads(self.k.vec, self.k.kept > 1)

    @property
    def number(self) -> Expr:
        """The thread's number in its team."""
        return self.x if self.k.cluster == 1 else self.member * self.k.team + self.x

    @property
    def row(self) -> Expr:
        """The team's row; beyond the last, the last again: it is computed and not stored."""
        row = self.block * self.k.rows + self.y
        exact = self.r.rows % self.k.rows == 0
        return row if exact else binary("min", row, Const(self.r.rows - 1))

    def program(self) -> PrimFunc:
        k, stages = self.k, self.r.stages
        parts = [self.keep()] if self.kept else []
        parts += [self.reduce(stages.node(b)) for b in stages.before]
        body = seq(*parts, self.store(stages.node(stages.final)))
        for var, extent, axis in (
            (self.x, k.team, "threadIdx.x"),
            (self.y, k.rows, "threadIdx.y"),
            *([(self.member, k.cluster, CLUSTER_AXIS)] if k.cluster > 1 else []),
            (self.block, -(-self.r.rows // k.rows), "blockIdx.x"),
        ):
            body = For(var, Const(extent), body, LoopKind.THREAD, axis=axis)
        return replace(stages.program, body=body, buffers=tuple(self.buffers))

    # --- the elements of a row -----------------------------------------------------------------

    def each_vector(self, count: int, body: Callable[[Expr, Expr], Stmt]) -> Stmt:
        """The team's turns over ``count`` vectors: the turn and the number of a thread's vector.

        The last turn, of some threads alone, stands apart: others are made without a condition.
        """
        team = self.team
        whole, rest = divmod(count, team)
        early = 0 if self.kept or whole <= 2 * AT_ONCE else whole // AT_ONCE

        def turn(number: Expr) -> Stmt:
            return body(number, number * team + self.number)

        def several(step: Expr) -> Stmt:
            return loop("turn", AT_ONCE, lambda n: turn(step * AT_ONCE + n))

        parts: list[Stmt] = []
        if early:
            parts.append(loop("step", early, several, LoopKind.SERIAL))
        if whole > early * AT_ONCE:
            first = early * AT_ONCE
            parts.append(loop("turn", whole - first, lambda n: turn(n + first)))
        if rest:
            parts.append(If(self.number < rest, turn(Const(whole))))
        return seq(*parts)

    def lanes(self, body: Callable[[Expr], Stmt]) -> Stmt:
        return loop("part", self.k.vec, body, LoopKind.VECTORIZED)

    def value(self, node: Block, turn: Expr, number: Expr, part: Expr) -> Expr:
        """A block's value at a thread's element, from what is kept and was reduced before."""
        is_row = prod(a.extent for a in self.r.axes(node)) == self.r.terms

        def rule(e: Expr) -> Expr | None:
            if not isinstance(e, Load):
                return None
            if e.buffer in self.results:
                return Load(self.results[e.buffer], (Const(0),))
            kept = self.kept.get(key_of(e)) if is_row else None
            return None if kept is None else Load(kept, (turn, part))

        value = transform_expr(self.r.value(node, self.k.vec), rule)
        return substitute(value, {ROW: self.row, NUMBER: number, PART: part})

    def keep(self) -> Stmt:
        """The row in registers, each element read once."""

        def load(key: Key, turn: Expr, number: Expr, part: Expr) -> Stmt:
            at = {ROW: self.row, NUMBER: number, PART: part}
            value = substitute(loads[key], at)
            return Store(self.kept[key], (turn, part), value)

        def vector(turn: Expr, number: Expr) -> Stmt:
            return seq(*(self.lanes(partial(load, key, turn, number)) for key in loads))

        loads = self._loads()
        return self.each_vector(self.vectors, vector)

    # --- stages --------------------------------------------------------------------------------

    def reduce(self, node: Block) -> Stmt:
        """The reduction of a row: by each thread, by each warp, by the team; all get the result."""
        value = store_of(node).value
        assert isinstance(value, Binary)
        assert isinstance(node.init, Store)
        op, dtype, name, first = value.op, value.dtype, node.name, node.init.value
        own = self.register(f"{name}_own", (self.k.vec,), dtype)
        result = self.register(f"{name}_row", (1,), dtype)
        zero = (Const(0),)

        def more(turn: Expr, number: Expr) -> Stmt:
            def lane(part: Expr) -> Stmt:
                term = self.value(node, turn, number, part)
                return Store(own, (part,), binary(op, Load(own, (part,)), term))

            return self.lanes(lane)

        def combine(part: Expr) -> Stmt:
            return Store(result, zero, binary(op, Load(result, zero), Load(own, (part,))))

        count = prod(a.extent for a in self.r.axes(node)) // self.k.vec
        made = seq(
            self.lanes(lambda part: Store(own, (part,), first)),
            self.each_vector(count, more),
            Store(result, zero, first),
            loop("part", self.k.vec, combine),
            Store(result, zero, _exchanged(op, Load(result, zero), min(self.k.team, WARP))),
            *self.across_warps(name, op, result),
        )
        self.results[written_buffer(node)] = result
        return made

    def across_warps(self, name: str, op: BinaryOp, result: Buffer) -> list[Stmt]:
        """What the warps of a team have, combined: each leaves its own where all can read it."""
        warps, zero = self.k.team // WARP, (Const(0),)
        if self.k.cluster > 1:
            blocks = Const(self.k.cluster)
            told = Intrinsic(_ACROSS[op], (Load(result, zero), blocks), result.dtype)
            return [Store(result, zero, told)]
        if warps < 2:
            return []
        tile = self.register(f"{name}_warps", (self.k.rows, warps), result.dtype, "shared")
        mine = Store(tile, (self.y, self.x // WARP), Load(result, zero))
        whole = _exchanged(op, Load(tile, (self.y, self.x % warps)), warps)
        return [If(self.x % WARP < 1, mine), Store(result, zero, whole)]

    def store(self, node: Block) -> Stmt:
        """The results of a row, those that exist; whole vectors of them do or do not."""
        store, axes = store_of(node), self.r.axes(node)
        there = self.r.placed(Load(store.buffer, store.indices), node, self.k.vec)
        assert isinstance(there, Load)

        def element(turn: Expr, number: Expr, part: Expr) -> Stmt:
            at = {ROW: self.row, NUMBER: number, PART: part}
            place = tuple(substitute(i, at) for i in there.indices)
            return Store(store.buffer, place, self.value(node, turn, number, part))

        def vector(turn: Expr, number: Expr) -> Stmt:
            stmt = self.lanes(lambda part: element(turn, number, part))
            if node.predicate is None:
                return stmt
            there = self.r.placed(node.predicate, node, self.k.vec)
            return If(substitute(there, {ROW: self.row, NUMBER: number, PART: Const(0)}), stmt)

        if axes:
            stmt = self.each_vector(prod(a.extent for a in axes) // self.k.vec, vector)
        else:
            stmt = If(self.number < 1, element(Const(0), Const(0), Const(0)))
        if self.r.rows % self.k.rows == 0:
            return stmt
        return If(self.block * self.k.rows + self.y < self.r.rows, stmt)


def _exchanged(op: BinaryOp, value: Expr, width: int) -> Expr:
    return Intrinsic(_COMBINE[op], (value, Const(width)), value.dtype)

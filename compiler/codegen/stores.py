"""Stores: elements side by side, and lanes that update one element together."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.compiler.codegen.branches import Branches
from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.reductions import MANY
from tunefarm.compiler.codegen.types import constant, is_float, is_narrow_float
from tunefarm.compiler.codegen.values import Lin, Val
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.target import Target
from tunefarm.compiler.te import identity
from tunefarm.compiler.tir.ir import (
    Binary,
    Buffer,
    Const,
    Expr,
    For,
    Load,
    LoopKind,
    Seq,
    Stmt,
    Store,
)


@dataclass(frozen=True, slots=True)
class LaneSum:
    """The lanes of ``term``, still to be combined for one element of a register buffer."""

    buffer: Buffer
    place: Lin | Val
    op: str
    term: Val


class Stores(Branches):
    """Writes stores, to memory or to registers. While ``waiting`` is a list, combinations of lanes
    wait in it, for others to be made together with them."""

    def __init__(self, target: Target, builder: FunctionBuilder, declares: set[str]) -> None:
        super().__init__(target, builder, declares)
        self.waiting: list[LaneSum] | None = None

    def store(self, stmt: Store) -> None:
        """Store a value in every lane; lanes that share an element are combined."""
        if self.repeated(stmt):
            return
        place = self.flat_index(stmt.buffer, stmt.indices)
        if self.lanes > 1 and isinstance(place, Lin) and place.lane == 0:
            self._reduce_lanes(stmt)
        else:
            self.store_at(stmt.buffer, place, self.value(stmt.value))

    def store_at(self, buffer: Buffer, place: Lin | Val, value: Val) -> None:
        """Store a value at a place of registers or of memory."""
        if buffer.scope == "register":
            self.store_register(buffer, place, value)
        else:
            self.store_memory(buffer, place, value)

    def _reduce_lanes(self, stmt: Store) -> None:
        """Every lane updates one element: combine the lanes, then update once.

        for l in vectorized(16): S[0] = S[0] + x[l]   ->   S[0] = S[0] + reduce_add(x[0:16])
        """
        value = stmt.value
        accumulates = self._accumulates(stmt)
        if not accumulates and not self.depends_on_lane(value):
            self._store_agreed(stmt)
            return
        if not accumulates:
            raise ScheduleError(f"lanes of a vectorized loop all store one {stmt.buffer.name}")
        assert isinstance(value, Binary)
        term = self.splat(self.value(value.b))
        if self.waiting is not None:
            place = self.flat_index(stmt.buffer, stmt.indices)
            self.waiting.append(LaneSum(stmt.buffer, place, value.op, term))
            return
        combined = self.horizontal(value.op, term, self.mask)
        lanes, self.lanes, mask, self.mask = self.lanes, 1, self.mask, None
        old = self.value(value.a)
        neutral = constant(identity(value.op, value.dtype).value, value.dtype)
        result = combined if old.text == neutral else self.arithmetic(value.op, old, combined)
        self.store_at(stmt.buffer, self.flat_index(stmt.buffer, stmt.indices), result)
        self.lanes, self.mask = lanes, mask

    def store_waiting(self) -> None:
        """Combine the lanes of all that waits: vectors of one dtype and operation."""
        assert self.waiting is not None
        sums, self.waiting = self.waiting, None
        totals = self.combined_together(sums[0].op, [s.term for s in sums])
        for lane_sum, total in zip(sums, totals, strict=True):
            self.store_at(lane_sum.buffer, lane_sum.place, total)

    def _store_agreed(self, stmt: Store) -> None:
        """Every lane stores the same value: one store, made if the mask has a lane.

        for l in vectorized(16): if l < n: S[0] = x   ->   if any(l < n): S[0] = x
        """
        lanes, mask, active = self.lanes, self.mask, self.active_lanes
        self.lanes, self.mask = 1, None
        if mask is None or active:
            self.store(stmt)
        elif active is None:
            bits = self.builder.here(f"bitcast <{lanes} x i1> {mask} to i{lanes}")
            self.branch_on(self.builder.here(f"icmp ne i{lanes} {bits}, 0"), stmt)
        self.lanes, self.mask = lanes, mask

    def _accumulates(self, stmt: Store) -> bool:
        """True if the value is the old one at the same place, combined with something."""
        if not isinstance(stmt.value, Binary) or not isinstance(stmt.value.a, Load):
            return False
        old = stmt.value.a
        if old.buffer is not stmt.buffer:
            return False
        return self.flat_index(old.buffer, old.indices) == self.flat_index(
            stmt.buffer, stmt.indices
        )


def combines_lanes(stmt: Stmt, count: int = 1) -> bool:
    """True for unrolled loops that do nothing but combine lanes, each for an element of its own,
    and for those that first combine vectors if so many elements are made together:

    for u in unrolled(8): S[u] = 0; for l in vectorized(16): S[u] = S[u] + (P[u, 0, l] + P[u, 1, l])
    """
    match stmt:
        case For(body=body, extent=Const(value=extent), kind=LoopKind.UNROLLED):
            return combines_lanes(body, count * int(extent))
        case Seq((Store() as first, For(body=Store() as sums, kind=LoopKind.VECTORIZED))):
            return _is_sum_of_lanes(first, sums, several=count >= MANY)
        case _:
            return False


def _is_sum_of_lanes(first: Store, sums: Store, several: bool) -> bool:
    value, buffer = sums.value, sums.buffer
    return (
        isinstance(value, Binary)
        and isinstance(value.a, Load)
        and (several or isinstance(value.b, Load))
        and _adds_registers(value.b, value.op, buffer)
        and first.buffer is value.a.buffer is buffer
        and first.indices == value.a.indices == sums.indices
        and isinstance(first.value, Const)
        and first.value.value == identity(value.op, value.dtype).value
        and buffer.scope == "register"
        and is_float(value.dtype)
        and not is_narrow_float(value.dtype)
    )


def _adds_registers(term: Expr, op: str, result: Buffer) -> bool:
    """True for registers other than the result's, one or several combined by the operation."""
    match term:
        case Binary(op=inner, a=a, b=b):
            return inner == op and all(_adds_registers(t, op, result) for t in (a, b))
        case Load(buffer=buffer):
            return buffer is not result and buffer.scope == "register"
        case _:
            return False

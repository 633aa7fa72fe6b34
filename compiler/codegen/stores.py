"""Stores: elements side by side, and lanes that update one element together."""

from __future__ import annotations

from tunefarm.compiler.codegen.branches import Branches
from tunefarm.compiler.codegen.types import constant
from tunefarm.compiler.codegen.values import Lin, Val
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.te import identity
from tunefarm.compiler.tir.ir import Binary, Buffer, Load, Store


class Stores(Branches):
    """Writes stores, to memory or to registers."""

    def store(self, stmt: Store) -> None:
        """Store a value in every lane; lanes that share an element are combined."""
        place = self.flat_index(stmt.buffer, stmt.indices)
        if self.lanes > 1 and isinstance(place, Lin) and place.lane == 0:
            self._reduce_lanes(stmt)
        else:
            self._store_at(stmt.buffer, place, self.value(stmt.value))

    def _store_at(self, buffer: Buffer, place: Lin | Val, value: Val) -> None:
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
        term = self.value(value.b)
        combined = self.horizontal(value.op, self.splat(term), self.mask)
        lanes, self.lanes, mask, self.mask = self.lanes, 1, self.mask, None
        old = self.value(value.a)
        neutral = constant(identity(value.op, value.dtype).value, value.dtype)
        result = combined if old.text == neutral else self.arithmetic(value.op, old, combined)
        self._store_at(stmt.buffer, self.flat_index(stmt.buffer, stmt.indices), result)
        self.lanes, self.mask = lanes, mask

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

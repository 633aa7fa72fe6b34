"""Stores of unrolled loops, taken apart once for all iterations.

In a nest of unrolled loops (``Indices.nest``) a store is written again and again, and nothing
differs but where its elements stand. From the second time on it is a function that finds the
places by adding numbers and writes the instructions that ``Expressions.value`` would write. What
has no rule here is left to that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from tunefarm.compiler.codegen.expressions import (
    Expressions,
    fusible,
    is_update,
    literal,
    reads_memory,
)
from tunefarm.compiler.codegen.indices import Steps, UnrolledNest
from tunefarm.compiler.codegen.values import Lin, Slot, Val, make
from tunefarm.compiler.tir.ir import Binary, Buffer, Const, Expr, Load, Select, Store

Evaluation: TypeAlias = Callable[[], Val]
"""The value of an expression for the current values of the nest's variables."""


class Repeated(Expressions, ABC):
    """Writes what a nest repeats: elements side by side, without a mask."""

    @abstractmethod
    def store_at(self, buffer: Buffer, place: Lin | Val, value: Val) -> None:
        """Store a value at a place of registers or of memory."""

    def repeated(self, stmt: Store) -> bool:
        """Write a store that the nest has written before; False if that is for others to do."""
        nest = self.current_nest
        if nest is None or self.mask is not None:
            return False
        if stmt not in nest.stores:
            nest.stores[stmt] = None  # its places are known from this time on
            return False
        write = nest.stores[stmt]
        if write is None:
            write = nest.stores[stmt] = self._write_again(nest, stmt)
        return write()

    def _write_again(self, nest: UnrolledNest, stmt: Store) -> Callable[[], bool]:
        found = nest.sums.get((stmt.buffer, stmt.indices))
        if found is None or (self.lanes > 1 and found[0].lane == 0):
            return lambda: False
        (const, terms, lane), steps = found
        buffer, value = stmt.buffer, self._evaluation(nest, stmt.value)

        def write() -> bool:
            place = make(Lin, (self.offset(const, steps), terms, lane))
            self.store_at(buffer, place, value())
            return True

        return write

    def _evaluation(self, nest: UnrolledNest, expr: Expr) -> Evaluation:
        key = (expr, self.lanes)
        known = nest.evaluations.get(key)
        if known is None:
            known = nest.evaluations[key] = self._taken_apart(nest, expr)
        return known

    def _taken_apart(self, nest: UnrolledNest, expr: Expr) -> Evaluation:
        match expr:
            case Load():
                self.flat_index(expr.buffer, expr.indices)
                found = nest.sums.get((expr.buffer, expr.indices))
                if found is not None and found[0].lane in (0, 1):
                    return self._loading(expr, *found)
            case Binary() if expr.dtype == "float32":
                return self._operation(nest, expr)
            case Select() if expr.dtype == "float32":
                return self._choice(nest, expr)
            case Const():
                known = literal(expr)
                return lambda: known
        return lambda: self.value(expr)

    def _loading(self, load: Load, base: Lin, steps: Steps) -> Evaluation:
        buffer, (const, terms, lane) = load.buffer, base
        lanes = self.lanes if lane else 1

        def from_memory() -> Val:
            place = make(Lin, (self.offset(const, steps), terms, lane))
            return self._load_at(buffer, place, lanes)

        def from_registers() -> Val:
            offset = self.offset(const, steps)
            if self.owners.get(buffer, {}).get(offset) == (offset, lanes):
                value = self.slots.get(make(Slot, (buffer, offset)))
                if value is not None:
                    return value
            return self.load_register(load)

        return from_registers if buffer.scope == "register" else from_memory

    def _choice(self, nest: UnrolledNest, expr: Select) -> Evaluation:
        """One arm where the nest's variables decide, which is taken apart when it is taken again;
        lanes of both where both only read registers."""
        numbered = self._one_of(nest, expr)
        if numbered is not None:
            return numbered
        arms: dict[int, Evaluation | None] = {}
        lanewise = self.lanes > 1 and not reads_memory(expr) and self.depends_on_lane(expr)

        def arm(which: bool) -> Val:
            return self._again(nest, arms, which, expr.a if which else expr.b)

        def chosen() -> Val:
            known = self.decide(expr.condition)
            if known is not None:
                return arm(known)
            if not lanewise:
                return self.value(expr)
            condition = self.left_open(expr.condition)
            assert not isinstance(condition, bool)
            return self.choose(self.splat(self.value(condition)), arm(True), arm(False))

        return chosen

    def _one_of(self, nest: UnrolledNest, expr: Select) -> Evaluation | None:
        """``te.one_of``: the arm whose number the nest's variables make, however many there are;
        None for other choices."""
        values: dict[int, Expr] = {}
        steps: Steps | None = None
        rest: Expr = expr
        while isinstance(rest, Select):
            equal = self._equal_in(nest, rest.condition)
            if equal is None or steps not in (None, equal[1]):
                break
            number, steps = equal
            values.setdefault(number, rest.a)
            rest = rest.b
        if steps is None:
            return None
        arms: dict[int, Evaluation | None] = {}

        def chosen() -> Val:
            number = -self.offset(0, steps)
            return self._again(nest, arms, number, values.get(number, rest))

        return chosen

    def _equal_in(self, nest: UnrolledNest, condition: Expr) -> tuple[int, Steps] | None:
        """``number + Σ steps = 0`` of the nest's variables alone; None for other conditions."""
        if not isinstance(condition, Binary) or condition.op != "eq":
            return None
        if self.compared(condition) is None:
            return None
        found = nest.sums.get(condition)
        if found is None or found[0].terms or found[0].lane:
            return None
        return found[0].const, found[1]

    def _again(
        self, nest: UnrolledNest, arms: dict[int, Evaluation | None], which: int, arm: Expr
    ) -> Val:
        """The value of an arm, which is taken apart the second time."""
        if which not in arms:
            arms[which] = None
            return self.value(arm)
        known = arms[which]
        if known is None:
            known = arms[which] = self._evaluation(nest, arm)
        return known()

    def _operation(self, nest: UnrolledNest, expr: Binary) -> Evaluation:
        op, a, b = expr.op, self._evaluation(nest, expr.a), self._evaluation(nest, expr.b)
        updates, factors = is_update(expr), fusible(expr)

        def plain() -> Val:
            old = a()
            if not updates:
                return self.arithmetic(op, old, b())
            return b() if self.is_neutral(old, op) else self.update(op, old, b())

        if factors is None:
            return plain
        x, y, rest = factors
        first, second = self._evaluation(nest, x), self._evaluation(nest, y)
        added = a if rest is expr.a else b

        def fused() -> Val:
            if not updates:
                return self.fused(first(), second(), added())
            old = a()
            if self.is_neutral(old, op):
                return b()
            return self.fused(first(), second(), old if added is a else added())

        return fused

"""What an expression evaluates to while a function is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from tunefarm.compiler.codegen.types import constant
from tunefarm.compiler.tir.ir import Buffer

make = tuple.__new__
"""``make(Val, (text, dtype, lanes))``: in half the time that a named tuple's constructor takes."""


class Lin(NamedTuple):
    """``const + Σ coefficient · ssa + lane · lane_number``: an int64 that needs no code yet."""

    const: int
    terms: tuple[tuple[str, int], ...] = ()
    lane: int = 0

    def plus(self, other: Lin, factor: int = 1) -> Lin:
        const, lane = self.const + factor * other.const, self.lane + factor * other.lane
        if not other.terms:
            return make(Lin, (const, self.terms, lane))
        total = dict(self.terms)
        for name, coefficient in other.terms:
            total[name] = total.get(name, 0) + factor * coefficient
        return make(Lin, (const, tuple([(n, c) for n, c in total.items() if c]), lane))

    def scaled(self, factor: int) -> Lin:
        if factor == 0:
            return Lin(0)
        terms = tuple([(n, c * factor) for n, c in self.terms])
        return make(Lin, (self.const * factor, terms, self.lane * factor))

    @property
    def is_constant(self) -> bool:
        """True if the number is known, and the same in all lanes."""
        return not self.terms and not self.lane


HANDED_ON = "acc"  # how names begin of what a loop's iterations hand on


class Val(NamedTuple):
    """An SSA value or literal of a dtype, scalar or with ``lanes`` lanes."""

    text: str
    dtype: str
    lanes: int = 1


class Slot(NamedTuple):
    """One element (or vector) of a register buffer, named by its flat offset."""

    buffer: Buffer
    offset: int


@dataclass(frozen=True, slots=True)
class KnownMask:
    """What is known of a mask when code is made: it has these lanes if a scalar condition holds
    (an SSA value; always, if there is none)."""

    lanes: frozenset[int]
    condition: str = ""


def zero_of(dtype: str, lanes: int) -> Val:
    return Val("zeroinitializer" if lanes > 1 else constant(0, dtype), dtype, lanes)

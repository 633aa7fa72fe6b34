"""Masks: which lanes of a vectorized loop a statement is for."""

from __future__ import annotations

from collections.abc import Iterator

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.indices import Indices
from tunefarm.compiler.codegen.values import KnownMask, Lin, Val
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.facts import variables
from tunefarm.compiler.tir.ir import Expr

_ORDERS = frozenset(("lt", "le", "gt", "ge"))


class Masks(Indices):
    """The mask around (None for all lanes), and what is known of masks when code is made."""

    def __init__(self, target: Target, builder: FunctionBuilder, declares: set[str]) -> None:
        super().__init__(target, builder, declares)
        self.mask: str | None = None

    def lane_mask(self, condition: Expr) -> str:
        """The lanes in which a condition holds, as a vector of bools."""
        text = self.short_comparison(condition) or self.splat(self.value(condition)).text
        self.know_lanes(text, condition)
        return text

    def short_comparison(self, condition: Expr) -> str | None:
        """A comparison of lanes' numbers with one that has few bits, in half the vectors that int64
        takes; None for another condition."""
        found = self.compared(condition)
        if found is None or found[0] not in _ORDERS or not (found[1].lane and found[1].terms):
            return None
        op, difference = found
        reach = self.reach(difference)
        if reach is None or max(map(abs, reach)) >= 1 << 31:
            return None
        b, lanes = self.builder, self.lanes
        rest = self.scalar_int(Lin(-difference.const, tuple((n, -c) for n, c in difference.terms)))
        short = b.pure(f"trunc i64 {rest} to i32", [rest])
        steps = ", ".join(f"i32 {difference.lane * n}" for n in range(lanes))
        wide = self.splat(Val(short, "int32")).text
        return b.pure(f"icmp s{op} <{lanes} x i32> <{steps}>, {wide}", [wide])

    def both_masks(self, a: str | None, b: str) -> str:
        """The lanes of both; ``None`` has all of them."""
        if a is None:
            return b
        kind = f"<{self.lanes} x i1>"
        text = self.builder.pure(f"and {kind} {a}, {b}", [a, b])
        x, y = self.known.get(a), self.known.get(b)
        if x is not None and y is not None:
            conditions = [k.condition for k in (x, y) if k.condition]
            both = conditions[0] if conditions else ""
            if len(conditions) == 2:
                both = self.builder.pure(f"and i1 {', '.join(conditions)}", conditions)
            self.known[text] = KnownMask(x.lanes & y.lanes, both)
        return text

    @property
    def active_lanes(self) -> frozenset[int] | None:
        """The lanes of the current mask, if they are known when code is made."""
        known = self.known.get(self.mask) if self.mask is not None else None
        return None if known is None or known.condition else known.lanes

    def know_lanes(self, mask: str, condition: Expr) -> None:
        """Remember in which lanes a condition holds, if all of that is known now."""
        lanes, env, used = self.lanes, self.env, variables(condition)
        self.lanes = 1
        found: list[bool | None] = []
        with self.nest(None):
            while len(found) < lanes and None not in found:
                lane = len(found)
                self.env = {v: Lin(env[v].const + lane * env[v].lane, env[v].terms) for v in used}
                found.append(self.decide(condition))
        self.lanes, self.env = lanes, env
        if None not in found:
            holds = frozenset(lane for lane, holds in enumerate(found) if holds)
            self.known[mask] = KnownMask(holds)

    def know_inverse(self, mask: str, inverse: str, condition: Val) -> None:
        """Remember what is known of a mask for its inverse."""
        known = self.known.get(mask)
        if known is None:
            return
        everything = frozenset(range(self.lanes))
        if not known.condition:
            self.known[inverse] = KnownMask(everything - known.lanes)
        elif condition.lanes == 1:
            opposite = self.builder.pure(f"xor i1 {condition.text}, true", [condition.text])
            self.known[inverse] = KnownMask(everything, opposite)


def pieces(lanes: frozenset[int]) -> Iterator[tuple[int, int]]:
    """The runs of lanes, cut into powers of two: (first, count)."""
    lane, end = 0, max(lanes, default=-1) + 1
    while lane < end:
        count = next(n for n in range(end - lane + 1) if lane + n not in lanes)
        count = 1 << (count.bit_length() - 1) if count else 0
        if count:
            yield lane, count
        lane += count or 1

"""All lanes of a vector combined to one value."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.codegen.arithmetic import Arithmetic
from tunefarm.compiler.codegen.types import (
    constant,
    is_float,
    is_narrow_float,
    is_unsigned,
    scalar_type,
    suffix,
)
from tunefarm.compiler.codegen.values import Val
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.te import identity

QUAD = 4  # elements of a quarter of 512 bits
MANY = 8  # vectors: softmax and layer norm with tiles of 4 rows were up to 4% slower together
_FLOAT = ("add", "mul", "max", "maxnum", "min")
_INT = {"add": "add", "mul": "mul", "max": "smax", "min": "smin", "or": "or", "and": "and"}


class Reductions(Arithmetic):
    """Horizontal operations: by shuffles for floats, by LLVM's intrinsics for integers."""

    def horizontal(self, op: str, value: Val, mask: str | None) -> Val:
        """All lanes combined to one scalar; lanes that the mask excludes do not count."""
        if is_narrow_float(value.dtype):
            # Rounded once.
            wide = self.horizontal(op, self.cast(value, "float32"), mask)
            return self.cast(wide, value.dtype)
        floating = is_float(value.dtype)
        if op not in (_FLOAT if floating else _INT):
            raise ScheduleError(f"lanes of a vectorized loop cannot be combined by {op}")
        n, kind = value.lanes, scalar_type(value.dtype)
        if mask is not None:
            neutral = constant(identity(op, value.dtype).value, value.dtype)
            text = self.builder.here(
                f"select <{n} x i1> {mask}, <{n} x {kind}> {value.text}, "
                f"<{n} x {kind}> splat ({kind} {neutral})"
            )
            value = Val(text, value.dtype, n)
        if floating:
            return self._shuffled_together(op, value)
        name = _INT[op]
        if is_unsigned(value.dtype) and op in ("max", "min"):
            name = f"u{op}"
        full = f"llvm.vector.reduce.{name}.{suffix(value.dtype, n)}"
        vector = f"<{n} x {kind}>"
        self.declares.add(f"declare {kind} @{full}({vector})")
        return Val(self.builder.here(f"call {kind} @{full}({vector} {value.text})"), value.dtype)

    def _shuffled_together(self, op: str, value: Val) -> Val:
        """Combine each lane with the one half, a quarter, … away: all lanes get the result, and
        whoever wants it in all lanes again takes the vector."""
        count = value.lanes
        value = self._to_power_of_two(op, value)
        lanes_around, self.lanes = self.lanes, value.lanes
        b, kind = self.builder, f"<{value.lanes} x {scalar_type(value.dtype)}>"
        step = value.lanes // 2
        while step:
            lanes = ", ".join(f"i32 {n ^ step}" for n in range(value.lanes))
            mask = f"<{value.lanes} x i32> <{lanes}>"
            text = b.pure(f"shufflevector {kind} {value.text}, {kind} poison, {mask}", [value.text])
            value = self.arithmetic(op, value, Val(text, value.dtype, value.lanes))
            step //= 2
        self.lanes = lanes_around
        scalar = b.pure(f"extractelement {kind} {value.text}, i64 0", [value.text])
        if value.lanes == count:
            self.spread[scalar] = value
        return Val(scalar, value.dtype)

    def _to_power_of_two(self, op: str, value: Val) -> Val:
        """The lanes and as many neutral elements as make their number a power of two."""
        count = value.lanes
        width = 1 << (count - 1).bit_length()
        if width == count:
            return value
        element = scalar_type(value.dtype)
        neutral = constant(identity(op, value.dtype).value, value.dtype)
        kind = f"<{count} x {element}>"
        lanes = ", ".join(f"i32 {min(n, count)}" for n in range(width))
        text = self.builder.pure(
            f"shufflevector {kind} {value.text}, {kind} splat ({element} {neutral}), "
            f"<{width} x i32> <{lanes}>",
            [value.text],
        )
        return Val(text, value.dtype, width)

    def combined_together(self, op: str, values: Sequence[Val]) -> list[Val]:
        """All lanes of each float vector combined to a scalar, for vectors of equal lanes.

        Those of several vectors at once: half as many additions, and fewer than half the shuffles.
        Few vectors are combined one by one, which leaves the result in all lanes.
        """
        if len(values) < MANY:
            return [self._shuffled_together(op, v) for v in values]
        lanes = values[0].lanes
        found: list[Val] = []
        while len(found) < len(values):
            rest = values[len(found) :]
            fitting = [n for n in (lanes, QUAD) if QUAD <= n <= len(rest)]
            if fitting and lanes >= QUAD and lanes & (lanes - 1) == 0:
                found += self._transposed_sums(op, rest[: fitting[0]])
            else:
                found.append(self._shuffled_together(op, rest[0]))
        return found

    def _transposed_sums(self, op: str, values: Sequence[Val]) -> list[Val]:
        """Four vectors, or as many as they have lanes, into one, a lane for each.

        a0 a1 a2 a3 · b0 b1 b2 b3   ->   a0 b0 a1 b1 + a2 b2 a3 b3     of each quarter
        ab02 ab13 · cd02 cd13       ->   ab02 cd02 + ab13 cd13         the quarter: a b c d
        abcd.0 … 3 · efgh.0 … 3     ->   quarters 0 2 of both + 1 3    until one is left
        """
        lanes, vectors = values[0].lanes, list(values)
        quarters = range(0, lanes, QUAD)
        low = [q + e + lanes * side for q in quarters for e in (0, 1) for side in (0, 1)]
        vectors = self._pairwise(op, vectors, low, [n + 2 for n in low])
        pairs = [q + e + lanes * side for q in quarters for side in (0, 1) for e in (0, 1)]
        vectors = self._pairwise(op, vectors, pairs, [n + 2 for n in pairs])
        even = [q + e for q in range(0, 2 * lanes, 2 * QUAD) for e in range(QUAD)]
        while len(vectors) > 1:
            vectors = self._pairwise(op, vectors, even, [n + QUAD for n in even])
        (total,) = vectors
        while total.lanes > len(values):
            half = total.lanes // 2
            parts = [self._picked(total, total, range(n, n + half)) for n in (0, half)]
            total = self._arithmetic_on(op, *parts)
        kind = f"<{total.lanes} x {scalar_type(total.dtype)}>"
        texts = [f"extractelement {kind} {total.text}, i64 {n}" for n in range(len(values))]
        return [Val(self.builder.pure(t, [total.text]), total.dtype) for t in texts]

    def _pairwise(
        self, op: str, vectors: Sequence[Val], first: Sequence[int], second: Sequence[int]
    ) -> list[Val]:
        """Each two neighbours as one: some of the lanes of both combined with the others."""
        return [
            self._arithmetic_on(op, self._picked(a, b, first), self._picked(a, b, second))
            for a, b in zip(vectors[::2], vectors[1::2], strict=True)
        ]

    def _picked(self, a: Val, b: Val, lanes: Sequence[int]) -> Val:
        """Lanes of two vectors, numbered through."""
        kind = f"<{a.lanes} x {scalar_type(a.dtype)}>"
        places = ", ".join(f"i32 {n}" for n in lanes)
        text = f"shufflevector {kind} {a.text}, {kind} {b.text}, <{len(lanes)} x i32> <{places}>"
        return Val(self.builder.pure(text, [a.text, b.text]), a.dtype, len(lanes))

    def _arithmetic_on(self, op: str, a: Val, b: Val) -> Val:
        lanes, self.lanes = self.lanes, a.lanes
        result = self.arithmetic(op, a, b)
        self.lanes = lanes
        return result

"""All lanes of a vector combined to one value."""

from __future__ import annotations

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

_FLOAT = ("add", "mul", "max", "min")
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

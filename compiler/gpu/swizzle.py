"""Shared arrays whose rows are swizzled, so that 16 bytes of eight rows lie in banks of their own.

    rows of 128 bytes or more   16 bytes number i of row r lie at number i xor r % 8
    rows of 64 bytes            … at i xor r / 2 % 4
    rows of 32 bytes            … at i xor r / 4 % 2

That is a function of an element's number in the array: bits of it that count 16 bytes are changed
by bits that count rows. What moves an element by eight rows moves it in the same way afterwards,
and so threads find tile after tile at constant distances.
"""

from __future__ import annotations

from math import gcd

from tunefarm.compiler.codegen.statements import Emitter
from tunefarm.compiler.codegen.values import Lin, Val
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.wgmma import CHUNK_BYTES, ROWS_TOGETHER
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.ir import Buffer, Expr

LINE_BYTES = 128  # of all banks


class SwizzleEmitter(Emitter):
    """Writes where elements of swizzled arrays lie."""

    def flat_index(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Lin | Val:
        place = self.plain_index(buffer, indices)
        return self.swizzled(buffer, place) if buffer.swizzled else place

    def plain_index(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Lin | Val:
        """The number of an element in its buffer, row by row, as if those were not swizzled."""
        return super().flat_index(buffer, indices)

    def swizzled(self, buffer: Buffer, place: Lin | Val) -> Lin:
        """Where the element lies whose number is ``place``."""
        length, size = buffer.shape[-1], dtype_bytes(buffer.dtype)
        chunk = CHUNK_BYTES // size
        if not isinstance(place, Lin) or length & (length - 1) or place.lane not in (0, 1):
            raise ScheduleError(
                f"{buffer.name} is swizzled in rows of {length}; they need a power of two, and "
                "elements at linear places"
            )
        in_line = max(LINE_BYTES // (length * size), 1)  # rows
        mask = max(ROWS_TOGETHER // in_line, 1) - 1
        period = ROWS_TOGETHER * length
        far = tuple((name, c) for name, c in place.terms if c % period == 0)
        near = tuple((name, c) for name, c in place.terms if c % period)
        const = place.const % period
        unit = gcd(chunk, const, *(c for _, c in near))  # elements that surely stay together
        if place.lane and self.lanes > unit:
            raise ScheduleError(f"a vector of {self.lanes} of {buffer.name} lies in several chunks")
        if not near:
            moved = const ^ (const // (length * in_line) & mask) * chunk
            return Lin(place.const - const + moved, far, place.lane)
        number = self.scalar_int(Lin(const // unit, tuple((name, c // unit) for name, c in near)))
        rows = self._bits(number, length * in_line // unit, mask, chunk // unit)
        there = self.builder.pure(f"xor i64 {number}, {rows}", [number, rows])
        return Lin(place.const - const, (*far, (there, unit)), place.lane)

    def _bits(self, number: str, unit: int, mask: int, scale: int) -> str:
        """(number // unit & mask) · scale, of powers of two."""
        b = self.builder
        down = b.pure(f"lshr i64 {number}, {unit.bit_length() - 1}", [number])
        kept = b.pure(f"and i64 {down}, {mask}", [down])
        return b.pure(f"shl i64 {kept}, {scale.bit_length() - 1}", [kept])

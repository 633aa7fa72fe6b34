"""How the lanes of a vector read an array, where that is neither side by side nor anywhere."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from tunefarm.compiler.codegen.forms import flat_form
from tunefarm.compiler.codegen.masked_moves import MaskedMoves
from tunefarm.compiler.codegen.values import Lin
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.ir import Binary, Const, Expr, Load

MOST_SHARED = 4  # vectors from whose elements the lanes of one take theirs


class SharedLanes(NamedTuple):
    """Elements that lie side by side, from the ``first`` on, and which of them each lane takes."""

    first: Lin
    elements: int
    taken: tuple[int, ...]


class LanePatterns(MaskedMoves):
    """Lanes that repeat few elements, or some of which share one."""

    def repetition_of(self, load: Load) -> tuple[Lin, int] | None:
        """The first place and the number of elements that the lanes read again and again, as a
        word has them; None if they read others, or a mask takes some of them.

        x[p + lane % 4]   ->   x[p : p + 4], four
        """
        varying = self._varying(load) if self.mask is None else None
        match varying:
            case (Binary("floormod", number, Const(divisor)), 1, place):
                inside, count = self.index(number), int(divisor)
            case _:
                return None
        if not isinstance(inside, Lin) or inside.lane != 1:
            return None
        whole = not any(c % count for c in (inside.const, self.lanes, *_coefficients(inside)))
        fits = dtype_bytes(load.buffer.dtype) * count in (2, 4, 8)
        return (place, count) if whole and fits else None

    def shared_of(self, load: Load) -> SharedLanes | None:
        """How lanes share elements that lie side by side; None if they read otherwise, or a mask
        takes some of them.

        x[8·p + lane // 4 · 4 + 1]   ->   x[8·p : 8·p + 8][1, 1, 1, 1, 5, 5, 5, 5]

        Groups of lanes read ``apart`` elements from one another. What is loaded begins at a
        multiple of that, as the array's end is one: nothing beyond it is read.
        """
        if self.lanes == 1 or self.mask is not None or not _has_quotient(load):
            return None
        match self._varying(load):
            case (Binary("floordiv", numerator, Const(divisor)), apart, rest) if apart > 0:
                number, sharing = self.index(numerator), int(divisor)
            case _:
                return None
        if not isinstance(number, Lin) or number.lane != 1 or self.lanes % sharing:
            return None
        if any(n % sharing for n in (number.const, *_coefficients(number))):
            return None
        elements = self.lanes // sharing * apart
        if not 1 < elements <= MOST_SHARED * self.lanes:
            return None
        terms = tuple((name, c // sharing) for name, c in number.terms)
        place = rest.plus(Lin(number.const // sharing, terms), apart)
        if any(c % apart for c in (*_coefficients(place), prod(load.buffer.shape))):
            return None
        inside = place.const % apart
        taken = tuple(lane // sharing * apart + inside for lane in range(self.lanes))
        return SharedLanes(place.plus(Lin(-inside)), elements, taken)

    def rows_in_turn(self, load: Load) -> tuple[Lin, Lin] | None:
        """The first places of two rows that even and odd lanes read side by side; None if they read
        others, or a mask takes some of them.

        x[i + lane % 2, j + lane // 2]   ->   x[i, j : j + 8], x[i + 1, j : j + 8]
        """
        found = self._turns_of(load)
        if found is None:
            return None
        number, rest, apart = found
        first = rest.plus(self._half(number))
        return first, first.plus(Lin(apart))

    def each_in_turn(self, load: Load) -> tuple[Expr, Lin] | None:
        """The number whose parity says which of two rows a lane reads, and the columns of either;
        None if lanes read otherwise."""
        found = self._turns_of(load)
        return None if found is None else (found[0], self._half(found[0]))

    def _half(self, number: Expr) -> Lin:
        """Half of an even number that grows by one from lane to lane: of two lanes one."""
        whole = self.index(number)
        assert isinstance(whole, Lin)
        return Lin(whole.const // 2, tuple((name, c // 2) for name, c in whole.terms), 1)

    def _turns_of(self, load: Load) -> tuple[Expr, Lin, int] | None:
        """The number of which rows are the remainder by two and columns the quotient, the rest of
        the place, and how far rows are apart; None if lanes read otherwise, or under a mask."""
        if self.mask is not None or self.lanes < 4 or self.lanes % 2:
            return None
        parts, rest = self._parts(load)
        match sorted(parts, key=lambda part: getattr(part[0], "op", "")):
            case [
                (Binary("floordiv", column, Const(value=2)), 1),
                (Binary("floormod", row, Const(value=2)), apart),
            ] if column is row:
                number = self.index(column)
            case _:
                return None
        if not isinstance(number, Lin) or number.lane != 1:
            return None
        if any(n % 2 for n in (number.const, *_coefficients(number))):
            return None
        return column, rest, apart

    def _varying(self, load: Load) -> tuple[Expr, int, Lin] | None:
        """The one part of a place that differs from lane to lane, its coefficient, and the rest of
        the place; None if there are several such parts, or none."""
        parts, rest = self._parts(load)
        return (*parts[0], rest) if len(parts) == 1 else None

    def _parts(self, load: Load) -> tuple[list[tuple[Expr, int]], Lin]:
        """The parts of a place that differ from lane to lane with their coefficients, and the rest
        of the place."""
        const, atoms = flat_form(load.buffer, load.indices)
        parts, rest = [], Lin(const)
        for atom, coefficient, _ in atoms:
            if self.depends_on_lane(atom):
                parts.append((atom, coefficient))
            else:
                bound = self.index(atom)
                assert isinstance(bound, Lin)
                rest = rest.plus(bound, coefficient)
        return parts, rest


def _coefficients(place: Lin) -> list[int]:
    return [coefficient for _, coefficient in place.terms]


def _has_quotient(load: Load) -> bool:
    """Whether a part of a place is a quotient by a number, as what lanes share is."""
    return any(
        isinstance(atom, Binary) and atom.op == "floordiv" and isinstance(atom.b, Const)
        for atom, _, is_variable in flat_form(load.buffer, load.indices)[1]
        if not is_variable
    )

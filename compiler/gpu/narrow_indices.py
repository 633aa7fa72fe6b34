"""Index arithmetic as GPUs have it: in words of 32 bits, and apart from what changes in a loop.

Registers and arithmetic units hold 32 bits; an integer of 64 takes two of each, and a division
some twenty instructions. Quotients, remainders and comparisons are words where the ranges of the
loop variables say that they can be. An address is a pointer to what no loop changes, moved by one
offset for each loop around: what all threads have in common is summed once, for all rows of a tile.
"""

from __future__ import annotations

from itertools import groupby

from tunefarm.compiler.codegen.statements import Emitter
from tunefarm.compiler.codegen.types import memory_type
from tunefarm.compiler.codegen.values import Lin, Val
from tunefarm.compiler.tir.affine import at_least_zero, interval, interval_of
from tunefarm.compiler.tir.facts import buffers_read
from tunefarm.compiler.tir.ir import Binary, Buffer, Const, Expr

WORD = 1 << 31  # what a signed word holds: −WORD to WORD − 1


class NarrowIndexEmitter(Emitter):
    """Writes indices, what is compared of them, and addresses."""

    def divided(self, expr: Binary, x: Lin | Val, y: Lin | Val) -> Lin | Val:
        """A quotient or remainder, of words if it is one of a number that is known to be small."""
        match expr, x, y:
            case Binary("floordiv" | "floormod", a, Const(divisor)), Lin(lane=0), Lin() if (
                divisor > 0
            ):
                low, high = interval(a, self.ranges)
                if 0 <= low <= high < WORD:
                    return self._divided_words(expr.op, x, y.const)
            case _:
                pass
        return super().divided(expr, x, y)

    def _divided_words(self, op: str, x: Lin, divisor: int) -> Lin:
        name = "udiv" if op == "floordiv" else "urem"
        word = self._narrowed(self.scalar_int(x))
        made = self.builder.pure(f"{name} i32 {word}, {divisor}", [word])
        return Lin(0, ((self.builder.pure(f"zext nneg i32 {made} to i64", [made]), 1),))

    def _binary(self, expr: Binary) -> Val:
        compared = self._compared_words(expr)
        return super()._binary(expr) if compared is None else compared

    def _compared_words(self, expr: Binary) -> Val | None:
        """A comparison of indices, all terms of whose difference are words; None for others."""
        form = None if buffers_read(expr) else at_least_zero(expr)
        if form is None:
            return None
        low, high = interval_of(form, self.ranges)
        place = self._difference(form.expr()) if _fits(low, high) else None
        if place is None or not place.terms:
            return None
        if not _fits(low - place.const, high - place.const):  # what the bound is compared with
            return None
        b, parts = self.builder, []
        sign = 1 if place.terms[0][1] > 0 else -1  # bounds from below and above test the same sum
        positive = tuple((name, sign * coefficient) for name, coefficient in place.terms)
        for _, terms in self._by_depth(positive):
            part = ""
            for name, coefficient in terms:
                term = self._narrowed(name)
                if coefficient != 1:
                    term = b.pure(f"mul i32 {term}, {coefficient}", [term])
                part = b.pure(f"add i32 {part}, {term}", [part, term]) if part else term
            parts.append(part)
        total = parts[0]
        for part in parts[1:]:
            total = b.pure(f"add i32 {total}, {part}", [total, part])
        test = "sge" if sign > 0 else "sle"
        return Val(b.pure(f"icmp {test} i32 {total}, {-sign * place.const}", [total]), "bool")

    def _difference(self, expr: Expr) -> Lin | None:
        place = self.index(expr)
        if not isinstance(place, Lin) or place.lane:
            return None
        return place if _fits(place.const, *(c for _, c in place.terms)) else None

    def _narrowed(self, name: str) -> str:
        return self.builder.pure(f"trunc i64 {name} to i32", [name])

    def scalar_int(self, lin: Lin) -> str:
        b, total = self.builder, ""
        for _, terms in self._by_depth(lin.terms):
            part = super().scalar_int(Lin(0, terms))
            total = b.pure(f"add nsw i64 {total}, {part}", [total, part]) if total else part
        if total and lin.const:
            total = b.pure(f"add nsw i64 {total}, {lin.const}", [total])
        return total or str(lin.const)

    def address(self, buffer: Buffer, place: Lin) -> str:
        """The pointer to an element. What lies before the first of an image, beyond its border,
        is no constant of the instruction: the array's own pointer is moved by it."""
        if place.const >= 0 or not place.terms or buffer.scope != "global":
            return super().address(buffer, place)
        element, pointer = memory_type(buffer.dtype), self.pointers[buffer]
        text = f"getelementptr inbounds {element}, ptr {pointer}, i64 {place.const}"
        return self._moved(element, self.builder.pure(text, [pointer]), place.terms)

    def _moved(self, element: str, pointer: str, terms: tuple[tuple[str, int], ...]) -> str:
        b, key = self.builder, (element, pointer, terms)
        if key in b.known:
            return b.known[key]
        for _, of_loop in self._by_depth(terms):
            offset = super().scalar_int(Lin(0, of_loop))
            text = f"getelementptr inbounds {element}, ptr {pointer}, i64 {offset}"
            pointer = b.pure(text, [pointer, offset])
        b.remember(key, pointer)
        return pointer

    def _by_depth(
        self, terms: tuple[tuple[str, int], ...]
    ) -> list[tuple[int, tuple[tuple[str, int], ...]]]:
        """Terms of a sum by the loop in which they are known, from the outermost inwards."""

        def depth(term: tuple[str, int]) -> int:
            return self.builder.depth_of.get(term[0], 0)

        return [(d, tuple(part)) for d, part in groupby(sorted(terms, key=depth), depth)]


def _fits(*numbers: int) -> bool:
    return all(-WORD < n < WORD for n in numbers)

"""Register buffers: tiles whose elements are SSA values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.memory import Memory
from tunefarm.compiler.codegen.transposition import transposed
from tunefarm.compiler.codegen.types import constant, scalar_type, vector_of
from tunefarm.compiler.codegen.values import HANDED_ON, Lin, Slot, Val, make, zero_of
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.ir import Buffer, Load


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """A serial loop that is being written: its depth, the buffers that it stores to, and the
    elements that an iteration may read before it stores them (a phi and its first value)."""

    depth: int
    stored: frozenset[Buffer]
    late: dict[Slot, tuple[Val, Val]] = field(default_factory=dict)


class Registers(Memory):
    """Elements of register buffers by slot, as they are stored: alone or as vectors."""

    def __init__(self, target: Target, builder: FunctionBuilder, declares: set[str]) -> None:
        super().__init__(target, builder, declares)
        self.slots: dict[Slot, Val] = {}
        # Register buffer → element → (first element, lanes) of the slot that holds it.
        self.owners: dict[Buffer, dict[int, tuple[int, int]]] = {}
        self.loops: list[OpenLoop] = []
        self.homes: dict[Buffer, int] = {}  # register buffer → loops open where it was allocated

    def _slot(self, buffer: Buffer, place: Lin | Val) -> Slot:
        if isinstance(place, Val) or place.terms or place.lane not in (0, 1):
            raise ScheduleError(
                f"register buffer {buffer.name} is indexed by what is not constant: "
                "unroll or vectorize the loops of its tile"
            )
        return make(Slot, (buffer, place.const))

    def load_register(self, load: Load) -> Val:
        """The elements of the current vector, or the one that its lanes share.

        As they were stored, if that was together; else taken from the slots that hold them. What
        is not stored is padding, of whatever value.
        """
        buffer, place = load.buffer, self.flat_index(load.buffer, load.indices)
        if isinstance(place, Lin) and place.lane > 1 and not place.terms:
            return self._column(buffer, place)
        slot, owners = self._slot(buffer, place), self.owners.get(buffer)
        lanes = self.lanes if place.lane else 1  # type: ignore[union-attr]
        if owners is None:
            raise ScheduleError(f"register {buffer.name}[{slot.offset}] is read before stored")
        places = range(slot.offset, slot.offset + lanes)
        if owners.get(slot.offset) == (slot.offset, lanes) or owners.keys().isdisjoint(places):
            return self.slots.get(slot) or self.unstored(slot, buffer.dtype, lanes)
        elements = [self._element(buffer, e) for e in places]
        return elements[0] if lanes == 1 else self._gathered(elements, buffer.dtype)

    def _gathered(self, elements: Sequence[Val], dtype: str) -> Val:
        """A vector of single elements."""
        kind, text, lanes = scalar_type(dtype), "poison", len(elements)
        for lane, element in enumerate(elements):
            text = self.builder.pure(
                f"insertelement <{lanes} x {kind}> {text}, {kind} {element.text}, i64 {lane}",
                [text, element.text],
            )
        return Val(text, dtype, lanes)

    def _column(self, buffer: Buffer, place: Lin) -> Val:
        """Lanes from different rows of a tile, which is transposed where it is square. Rows that
        are not stored are padding."""
        owners, lanes = self.owners.get(buffer, {}), self.lanes
        places = range(place.const, place.const + lanes * place.lane, place.lane)
        first = place.const - owners.get(place.const, (place.const, 1))[0]
        if all(owners.get(p, (p - first, lanes)) == (p - first, lanes) for p in places):
            slots = [Slot(buffer, p - first) for p in places]
            rows = [
                self.slots.get(slot) or self.unstored(slot, buffer.dtype, lanes)
                if slot.offset in owners
                else Val("poison", buffer.dtype, lanes)
                for slot in slots
            ]
            columns = transposed(self.builder, rows)
            if columns is not None:
                return columns[first]
        return self._gathered([self._element(buffer, p) for p in places], buffer.dtype)

    def _element(self, buffer: Buffer, place: int) -> Val:
        """One element of a register buffer, wherever it is held."""
        start, lanes = self.owners[buffer].get(place, (place, 1))
        slot = Slot(buffer, start)
        value = self.slots.get(slot) or self.unstored(slot, buffer.dtype, lanes)
        if lanes == 1:
            return value
        kind = vector_of(scalar_type(buffer.dtype), lanes)
        text = f"extractelement {kind} {value.text}, i64 {place - start}"
        return Val(self.builder.pure(text, [value.text]), buffer.dtype)

    def _claim(self, slot: Slot, lanes: int) -> None:
        """A slot is stored with so many lanes; ScheduleError if others hold its elements."""
        owners = self.owners.setdefault(slot.buffer, {})
        mine = (slot.offset, lanes)
        if owners.get(slot.offset) == mine:
            return
        for place in range(slot.offset, slot.offset + lanes):
            if owners.setdefault(place, mine) != mine:
                raise ScheduleError(
                    f"register {slot.buffer.name}[{place}] is stored in vectors of different "
                    "lanes: vectorize the loops that store it alike"
                )

    def unstored(self, slot: Slot, dtype: str, lanes: int) -> Val:
        """An element that this iteration has not stored: what an earlier one left, else zero
        (what follows reads it under the condition of its store, or as padding)."""
        value = zero_of(dtype, lanes)
        for loop in self.loops[self.homes[slot.buffer] :]:
            if slot.buffer not in loop.stored:
                continue
            if slot not in loop.late:
                phi = Val(self.builder.fresh(HANDED_ON), value.dtype, value.lanes)
                self.builder.depth_of[phi.text] = loop.depth
                loop.late[slot] = (phi, value)
            value = loop.late[slot][0]
        return value

    def store_register(self, buffer: Buffer, place: Lin | Val, value: Val) -> None:
        """Let the elements of the current vector have a value where the mask has them."""
        slot = self._slot(buffer, place)
        if self.lanes > 1:
            value = self.splat(value)
        self._claim(slot, value.lanes)
        if self.mask is not None:
            old = self.slots.get(slot) or self.unstored(slot, value.dtype, value.lanes)
            value = self._by_mask(value, old)
        self.slots[slot] = value

    def _by_mask(self, value: Val, other: Val) -> Val:
        """A value in the lanes of the current mask, and another in those that it leaves out."""
        kind = scalar_type(value.dtype)
        zeros = ("zeroinitializer", f"splat ({kind} {constant(0, value.dtype)})")
        if other.text in zeros and self.zero_outside.get(value.text) == self.mask:
            return value
        full = vector_of(kind, value.lanes)
        text = f"select <{self.lanes} x i1> {self.mask}, {full} {value.text}, {full} {other.text}"
        return Val(self.builder.here(text), value.dtype, value.lanes)

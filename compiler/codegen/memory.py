"""Loads and stores of buffers in memory."""

from __future__ import annotations

from tunefarm.compiler.codegen.lane_patterns import LanePatterns, SharedLanes
from tunefarm.compiler.codegen.types import memory_suffix, memory_type, scalar_type, vector_of
from tunefarm.compiler.codegen.values import Lin, Val, make
from tunefarm.compiler.target import LINE_BYTES, dtype_bytes
from tunefarm.compiler.tir.ir import Buffer, Load, Prefetch


class Memory(LanePatterns):
    """Elements in memory, one, several side by side, or apart: whole vectors or under a mask."""

    def address(self, buffer: Buffer, place: Lin) -> str:
        """The pointer to an element (to lane 0): outer terms first, the constant last."""
        b, element = self.builder, memory_type(buffer.dtype)
        pointer = self.pointers[buffer]
        if place.terms:
            pointer = self._moved(element, pointer, place.terms)
        if place.const:
            pointer = b.here(f"getelementptr inbounds {element}, ptr {pointer}, i64 {place.const}")
        return pointer

    def _moved(self, element: str, pointer: str, terms: tuple[tuple[str, int], ...]) -> str:
        """A pointer moved by a number of elements that is not constant."""
        b, key = self.builder, (element, pointer, terms)
        if key in b.known:
            return b.known[key]
        for name, coefficient in sorted(terms, key=lambda t: b.depth_of.get(t[0], 0)):
            offset = name
            if coefficient != 1:
                offset = b.pure(f"mul nsw i64 {name}, {coefficient}", [name])
            text = f"getelementptr inbounds {element}, ptr {pointer}, i64 {offset}"
            pointer = b.pure(text, [pointer, offset])
        b.remember(key, pointer)
        return pointer

    def load_memory(self, load: Load) -> Val:
        """The elements of the current vector, or the one that its lanes share."""
        if (shared := self.shared_of(load)) is not None:
            return self._load_shared(load, shared)
        buffer, place = load.buffer, self.flat_index(load.buffer, load.indices)
        if isinstance(place, Val):
            return self._repeated(load) or self._of_two_rows(load) or self._gather(buffer, place)
        if place.lane in (0, 1):
            return self._load_at(buffer, place, self.lanes if place.lane else 1)
        return self._strided(buffer, place)

    def load_if(self, condition: str, load: Load) -> Val:
        """The elements of the current vector where a scalar condition holds, else zeros."""
        buffer, lanes = load.buffer, self.lanes
        if (shared := self.shared_of(load)) is not None:
            return self._load_shared(load, shared, condition)
        place = self.flat_index(buffer, load.indices)
        assert isinstance(place, Lin)
        size_bytes = lanes * dtype_bytes(buffer.dtype)
        pointer = self._or_zeros(condition, self.address(buffer, place), size_bytes)
        return self._from_memory(self.load_whole(buffer, pointer, lanes), buffer.dtype, lanes)

    def _load_at(self, buffer: Buffer, place: Lin, lanes: int) -> Val:
        b, masked = self.builder, lanes > 1 and self.mask is not None
        key = (self.pointers[buffer], place, lanes)
        result = None if masked else b.loaded(buffer, key)
        if result is None and masked:
            result = self.load_by_mask(buffer, self.address(buffer, place), lanes)
        elif result is None:
            if _meets_two_lines(buffer, place, lanes):
                result = self._of_two_lines(buffer, place, lanes)
            elif buffer.joined:
                result = self._of_two_loads(buffer, place, lanes)
            if result is None:
                result = self.load_whole(buffer, self.address(buffer, place), lanes)
            b.remember_load(buffer, key, result)
        return self._from_memory(result, buffer.dtype, lanes)

    def _of_two_lines(self, buffer: Buffer, place: Lin, lanes: int) -> str:
        """A vector of two lines of the cache, each loaded once for all vectors that meet it.

        x[i + 5 : i + 21]   ->   (x[i : i + 16] ++ x[i + 16 : i + 32])[5 : 21]
        """
        shift = place.const % lanes
        starts = (place.const - shift + n for n in (0, lanes))
        first, second = (
            self._load_at(buffer, Lin(start, place.terms, place.lane), lanes).text
            for start in starts
        )
        return self._shifted(buffer, first, second, shift, lanes)

    def _of_two_loads(self, buffer: Buffer, place: Lin, lanes: int) -> str | None:
        """A vector between two that were loaded side by side; None if there are no such two."""
        for shift in range(1, lanes):
            starts = (place.const - shift + n for n in (0, lanes))
            places = (Lin(start, place.terms, place.lane) for start in starts)
            keys = ((self.pointers[buffer], at, lanes) for at in places)
            first, second = (self.builder.loaded(buffer, key) for key in keys)
            if first is not None and second is not None:
                return self._shifted(buffer, first, second, shift, lanes)
        return None

    def _shifted(self, buffer: Buffer, first: str, second: str, shift: int, lanes: int) -> str:
        """As many lanes of two vectors, from lane ``shift`` of the first one on."""
        vector = f"<{lanes} x {memory_type(buffer.dtype)}>"
        taken = ", ".join(f"i32 {shift + lane}" for lane in range(lanes))
        return self.builder.here(
            f"shufflevector {vector} {first}, {vector} {second}, <{lanes} x i32> <{taken}>"
        )

    def prefetch(self, hint: Prefetch, first: int = 0, end: int | None = None) -> None:
        """Ask for cache lines, the ``first`` to the ``end`` of a hint's; nothing is read."""
        place = self.index(hint.offset)
        if not isinstance(place, Lin) or place.lane:
            return
        self.declares.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        elements = LINE_BYTES // dtype_bytes(hint.buffer.dtype)
        for number in range(first, hint.lines if end is None else end):
            ahead = Lin(place.const + hint.lines_before(number) * elements, place.terms)
            pointer = self.address(hint.buffer, ahead)
            level = f"i32 0, i32 {4 - hint.level}, i32 1"
            self.builder.line(f"call void @llvm.prefetch.p0(ptr {pointer}, {level})")

    def _from_memory(self, text: str, dtype: str, lanes: int) -> Val:
        if dtype == "bool":
            kind = vector_of("i8", lanes)
            zero = "0" if lanes == 1 else "zeroinitializer"
            text = self.builder.here(f"icmp ne {kind} {text}, {zero}")
        return make(Val, (text, dtype, lanes))

    def _repeated(self, load: Load) -> Val | None:
        """x[i + lane % n]: n elements in all lanes, loaded and spread as one word; None if the
        lanes are otherwise."""
        buffer, found = load.buffer, self.repetition_of(load)
        if found is None:
            return None
        place, count = found
        b, words, align = self.builder, self.lanes // count, dtype_bytes(buffer.dtype)
        bits, kind = 8 * align * count, memory_type(buffer.dtype)
        word = b.load(f"load i{bits}, ptr {self.address(buffer, place)}, align {align}", buffer)
        one = b.here(f"insertelement <{words} x i{bits}> poison, i{bits} {word}, i64 0")
        full = b.here(
            f"shufflevector <{words} x i{bits}> {one}, <{words} x i{bits}> poison, "
            f"<{words} x i32> zeroinitializer"
        )
        text = b.here(f"bitcast <{words} x i{bits}> {full} to <{self.lanes} x {kind}>")
        return self._from_memory(text, buffer.dtype, self.lanes)

    def _of_two_rows(self, load: Load) -> Val | None:
        """x[i + lane % 2, j + lane // 2]: the elements of two rows in turn, each row loaded whole;
        None if the lanes are otherwise."""
        rows = self.rows_in_turn(load)
        if rows is None:
            return None
        first, second = (self._load_at(load.buffer, row, self.lanes // 2) for row in rows)
        return self.in_turn(first, second)

    def in_turn(self, even: Val, odd: Val) -> Val:
        """A vector of the elements of two of half its lanes."""
        half, kind = even.lanes, scalar_type(even.dtype)
        taken = ", ".join(f"i32 {lane + side * half}" for lane in range(half) for side in (0, 1))
        text = self.builder.pure(
            f"shufflevector <{half} x {kind}> {even.text}, <{half} x {kind}> {odd.text}, "
            f"<{2 * half} x i32> <{taken}>",
            [even.text, odd.text],
        )
        return make(Val, (text, even.dtype, 2 * half))

    def _load_shared(self, load: Load, shared: SharedLanes, condition: str = "") -> Val:
        """The elements that lanes share, zeros where a condition does not hold."""
        buffer, count, kind = load.buffer, shared.elements, scalar_type(load.buffer.dtype)
        if condition:
            size_bytes = count * dtype_bytes(buffer.dtype)
            pointer = self._or_zeros(condition, self.address(buffer, shared.first), size_bytes)
            one = self._from_memory(
                self.load_whole(buffer, pointer, count), buffer.dtype, count
            ).text
        else:
            one = self._load_at(buffer, shared.first, count).text
        taken = ", ".join(f"i32 {place}" for place in shared.taken)
        text = (
            f"shufflevector <{count} x {kind}> {one}, <{count} x {kind}> poison, "
            f"<{self.lanes} x i32> <{taken}>"
        )
        return make(Val, (self.builder.pure(text, [one]), buffer.dtype, self.lanes))

    def _every_other(self, buffer: Buffer, place: Lin) -> Val:
        """Lanes two elements apart, from two loads that end with the last one."""
        n, element = self.lanes, memory_type(buffer.dtype)
        first = self.load_whole(buffer, self.address(buffer, place.plus(Lin(0, (), -2), 1)), n)
        end = Lin(place.const + n - 1, place.terms)
        second = self.load_whole(buffer, self.address(buffer, end), n)
        taken = ", ".join(f"i32 {2 * lane if 2 * lane < n else 2 * lane + 1}" for lane in range(n))
        vector = f"<{n} x {element}>"
        text = self.builder.here(
            f"shufflevector {vector} {first}, {vector} {second}, <{n} x i32> <{taken}>"
        )
        return self._from_memory(text, buffer.dtype, n)

    def _strided(self, buffer: Buffer, place: Lin) -> Val:
        """Lanes that stand at a constant distance, one load each."""
        element = memory_type(buffer.dtype)
        full = f"<{self.lanes} x {element}>"
        if self.mask is not None:
            return self._gather(buffer, self.int_value(place, True))
        if place.lane == 2 and self.lanes % 2 == 0:
            return self._every_other(buffer, place)
        text = "poison"
        for lane in range(self.lanes):
            at = Lin(place.const + lane * place.lane, place.terms)
            pointer = self.address(buffer, at)
            align = dtype_bytes(buffer.dtype)
            one = self.builder.load(f"load {element}, ptr {pointer}, align {align}", buffer)
            text = self.builder.here(f"insertelement {full} {text}, {element} {one}, i64 {lane}")
        return self._from_memory(text, buffer.dtype, self.lanes)

    def _pointers(self, buffer: Buffer, place: Val) -> str:
        element = memory_type(buffer.dtype)
        base = self.pointers[buffer]
        text = f"getelementptr {element}, ptr {base}, <{self.lanes} x i64> {place.text}"
        return self.builder.here(text)

    def _gather(self, buffer: Buffer, place: Val) -> Val:
        n, element = self.lanes, memory_type(buffer.dtype)
        pointers = self._pointers(buffer, place)
        mask = self.mask or "splat (i1 true)"
        kind = f"<{n} x {element}>"
        name = f"llvm.masked.gather.{memory_suffix(buffer.dtype, n)}.v{n}p0"
        self.declares.add(f"declare {kind} @{name}(<{n} x ptr>, <{n} x i1>, {kind})")
        align = dtype_bytes(buffer.dtype)
        text = (
            f"call {kind} @{name}(<{n} x ptr> align {align} {pointers}, "
            f"<{n} x i1> {mask}, {kind} zeroinitializer)"
        )
        return self._from_memory(self.builder.load(text, buffer), buffer.dtype, n)

    def store_memory(self, buffer: Buffer, place: Lin | Val, value: Val) -> None:
        """Store the elements of the current vector, those that the mask has."""
        b = self.builder
        if self.lanes > 1:
            value = self.splat(value)
        element = memory_type(buffer.dtype)
        kind = vector_of(element, self.lanes)
        text = value.text
        if buffer.dtype == "bool":
            text = b.here(f"zext {vector_of('i1', self.lanes)} {text} to {kind}")
        align = dtype_bytes(buffer.dtype)
        b.forget(buffer)
        if self.lanes == 1:
            assert isinstance(place, Lin)
            b.line(f"store {kind} {text}, ptr {self.address(buffer, place)}, align {align}")
        elif isinstance(place, Lin) and place.lane == 1:
            pointer = self.address(buffer, place)
            if self.mask is None:
                b.line(f"store {kind} {text}, ptr {pointer}, align {align}")
            else:
                self.store_by_mask(element, text, pointer, align)
        else:
            self._scatter(buffer, place, text)
        if buffer.ordered:
            b.line('call void asm sideeffect "", "~{memory}"()')

    def _scatter(self, buffer: Buffer, place: Lin | Val, text: str) -> None:
        n, element = self.lanes, memory_type(buffer.dtype)
        pointers = self._pointers(buffer, self.int_value(place, True))
        mask = self.mask or "splat (i1 true)"
        kind = f"<{n} x {element}>"
        name = f"llvm.masked.scatter.{memory_suffix(buffer.dtype, n)}.v{n}p0"
        self.declares.add(f"declare void @{name}({kind}, <{n} x ptr>, <{n} x i1>)")
        align = dtype_bytes(buffer.dtype)
        self.builder.line(
            f"call void @{name}({kind} {text}, <{n} x ptr> align {align} {pointers}, "
            f"<{n} x i1> {mask})"
        )


def _meets_two_lines(buffer: Buffer, place: Lin, lanes: int) -> bool:
    """Whether a vector as long as a line of the cache surely lies in two of a buffer that is read
    by lines."""
    line = LINE_BYTES // dtype_bytes(buffer.dtype)
    inside = place.const % line and not any(c % line for _, c in place.terms)
    return buffer.by_lines and lanes == line and bool(inside)

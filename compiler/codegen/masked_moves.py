"""Loads and stores of vectors of which a mask takes some lanes."""

from __future__ import annotations

from math import prod

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.masks import Masks, pieces
from tunefarm.compiler.codegen.types import memory_suffix, memory_type, vector_of
from tunefarm.compiler.processors import X86_64
from tunefarm.compiler.target import LINE_BYTES, Target, dtype_bytes
from tunefarm.compiler.tir.ir import Buffer


class MaskedMoves(Masks):
    """Elements side by side in memory: by whole vectors, under a mask, or piece by piece.

    The first lanes of a vector, where they are known when code is made, move as a vector of half
    the width or less if that holds them all. A move by a mask counts as one of all lanes, which
    meets two lines of the cache nearly wherever it begins (7 of 8 times, and each costs two); a
    narrow one seldom does.
    """

    def __init__(self, target: Target, builder: FunctionBuilder, declares: set[str]) -> None:
        super().__init__(target, builder, declares)
        self.pointers: dict[Buffer, str] = {}
        self.constants: set[Buffer] = set()
        self.zero_outside: dict[str, str] = {}  # loads that are 0 where a mask has no lanes

    def load_by_mask(self, buffer: Buffer, pointer: str, lanes: int) -> str:
        """Lanes of the current mask, zeros in the others (on GPUs anything)."""
        assert self.mask is not None
        known, zeros = self.known.get(self.mask), self.target.has_one_memory
        small = not zeros and prod(buffer.shape) < lanes
        if known is None or (known.condition and small):
            result = self._masked_load(buffer, pointer, lanes, self.mask)
        else:
            if known.condition:
                pointer = self._or_others(known.condition, pointer, buffer, lanes)
            result = self._load_lanes(buffer, pointer, lanes, known.lanes)
        if zeros:
            self.zero_outside[result] = self.mask
        return result

    def _or_others(self, condition: str, pointer: str, buffer: Buffer, lanes: int) -> str:
        """A pointer if a condition holds, else one to zeros; on GPUs to the array's beginning."""
        if self.target.has_one_memory:
            return self._or_zeros(condition, pointer, lanes * dtype_bytes(buffer.dtype))
        choice = f"i1 {condition}, ptr {pointer}, ptr {self.pointers[buffer]}"
        return self.builder.here(f"select {choice}")

    def _load_lanes(self, buffer: Buffer, pointer: str, lanes: int, active: frozenset[int]) -> str:
        """The active lanes, zeros in the others: of a vector as wide as they ask for, by a mask, or
        piece by piece for a processor that would load them one by one."""
        assert self.mask is not None
        element = memory_type(buffer.dtype)
        if len(active) == lanes:
            return self.load_whole(buffer, pointer, lanes)
        if not self.target.has_masks(dtype_bytes(buffer.dtype)):
            result = "zeroinitializer"
            for first, count in pieces(active):
                part = self.load_whole(buffer, self._ahead(element, pointer, first), count)
                result = self._placed(result, element, part, first, count, lanes)
            return result
        width = self._width(active, lanes)
        if width == lanes:
            return self._masked_load(buffer, pointer, lanes, self.mask)
        result = self._load_narrow(buffer, pointer, active, width)
        return self._widened(element, result, width, lanes)

    def _load_narrow(self, buffer: Buffer, pointer: str, active: frozenset[int], width: int) -> str:
        if len(active) == width:
            return self.load_whole(buffer, pointer, width)
        return self._masked_load(buffer, pointer, width, _constant_mask(active, width))

    def _masked_load(self, buffer: Buffer, pointer: str, lanes: int, mask: str) -> str:
        kind, align = vector_of(memory_type(buffer.dtype), lanes), dtype_bytes(buffer.dtype)
        name = f"llvm.masked.load.{memory_suffix(buffer.dtype, lanes)}.p0"
        self.declares.add(f"declare {kind} @{name}(ptr captures(none), <{lanes} x i1>, {kind})")
        text = (
            f"call {kind} @{name}(ptr align {align} {pointer}, "
            f"<{lanes} x i1> {mask}, {kind} zeroinitializer)"
        )
        return self.builder.load(text, buffer)

    def _width(self, active: frozenset[int], lanes: int) -> int:
        """How many lanes a vector needs that moves the active ones: 1, 2, 4, … to half, or all."""
        width = 1 << max(active, default=lanes).bit_length()
        return width if 2 * width <= lanes and self.target.isa is X86_64 else lanes

    def _widened(self, element: str, part: str, count: int, lanes: int) -> str:
        """``part`` as the first lanes of a vector of zeros."""
        if count == 1:
            return self._placed("zeroinitializer", element, part, 0, 1, lanes)
        small = f"<{count} x {element}>"
        taken = ", ".join(f"i32 {min(lane, count)}" for lane in range(lanes))
        return self.builder.here(
            f"shufflevector {small} {part}, {small} zeroinitializer, <{lanes} x i32> <{taken}>"
        )

    def _or_zeros(self, condition: str, pointer: str, size_bytes: int) -> str:
        """A pointer if a condition holds, else one to zeros.

        A mask without lanes would do too, but where the page that it points into is absent, as in
        front of an array that begins a mapping, the processor takes hundreds of cycles to find that
        nothing is wrong: convolutions with padding take 1.12 to 1.3 × the time (Zen 5).
        """
        zeros = f"@zeros.{size_bytes}"
        kind = f"[{size_bytes} x i8]"
        self.declares.add(
            f"{zeros} = private unnamed_addr constant {kind} zeroinitializer, align {LINE_BYTES}"
        )
        return self.builder.here(f"select i1 {condition}, ptr {pointer}, ptr {zeros}")

    def load_whole(self, buffer: Buffer, pointer: str, lanes: int) -> str:
        invariant = ", !invariant.load !0" if buffer in self.constants else ""
        kind, align = vector_of(memory_type(buffer.dtype), lanes), dtype_bytes(buffer.dtype)
        return self.builder.load(f"load {kind}, ptr {pointer}, align {align}{invariant}", buffer)

    def _ahead(self, element: str, pointer: str, lane: int) -> str:
        if lane == 0:
            return pointer
        return self.builder.here(f"getelementptr inbounds {element}, ptr {pointer}, i64 {lane}")

    def _placed(
        self, whole: str, element: str, part: str, first: int, count: int, lanes: int
    ) -> str:
        """``whole`` with ``count`` lanes from ``first`` on replaced by ``part``."""
        b, full = self.builder, f"<{lanes} x {element}>"
        if count == 1:
            return b.here(f"insertelement {full} {whole}, {element} {part}, i64 {first}")
        small = f"<{count} x {element}>"
        wide = ", ".join(f"i32 {n}" if n < count else "i32 poison" for n in range(lanes))
        spread = b.here(f"shufflevector {small} {part}, {small} poison, <{lanes} x i32> <{wide}>")
        taken = ", ".join(
            f"i32 {lanes + n - first if first <= n < first + count else n}" for n in range(lanes)
        )
        return b.here(f"shufflevector {full} {whole}, {full} {spread}, <{lanes} x i32> <{taken}>")

    def store_by_mask(self, element: str, text: str, pointer: str, align: int) -> None:
        """Store the lanes of the current mask."""
        lanes, active, mask = self.lanes, self.active_lanes, self.mask
        has_masks = self.target.has_masks(align)
        if active is not None:
            width = self._width(active, lanes) if has_masks else lanes
            # LLVM 22 stores a truncated value too wide where a constant mask has one lane.
            if not has_masks or len(active) == 1 or (width < lanes and len(active) == width):
                for first, count in pieces(active):
                    self._store_piece(element, text, pointer, align, first, count)
                return
            if width < lanes:
                text = self._lanes_of(text, element, 0, width)
                lanes, mask = width, _constant_mask(active, width)
        kind = f"<{lanes} x {element}>"
        name = f"llvm.masked.store.v{lanes}{_element_suffix(element)}.p0"
        self.declares.add(f"declare void @{name}({kind}, ptr captures(none), <{lanes} x i1>)")
        self.builder.line(
            f"call void @{name}({kind} {text}, ptr align {align} {pointer}, <{lanes} x i1> {mask})"
        )

    def _store_piece(
        self, element: str, text: str, pointer: str, align: int, first: int, count: int
    ) -> None:
        """Store ``count`` lanes from ``first`` on."""
        b, full = self.builder, f"<{self.lanes} x {element}>"
        at = self._ahead(element, pointer, first)
        if count == 1:
            part = b.here(f"extractelement {full} {text}, i64 {first}")
            b.line(f"store {element} {part}, ptr {at}, align {align}")
            return
        part = self._lanes_of(text, element, first, count)
        b.line(f"store <{count} x {element}> {part}, ptr {at}, align {align}")

    def _lanes_of(self, text: str, element: str, first: int, count: int) -> str:
        """``count`` lanes of a vector, from ``first`` on."""
        full = f"<{self.lanes} x {element}>"
        taken = ", ".join(f"i32 {first + n}" for n in range(count))
        return self.builder.here(
            f"shufflevector {full} {text}, {full} poison, <{count} x i32> <{taken}>"
        )


def _constant_mask(active: frozenset[int], lanes: int) -> str:
    return f"<{', '.join(f'i1 {int(lane in active)}' for lane in range(lanes))}>"


def _element_suffix(element: str) -> str:
    return {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)

"""What the threads of a warp do together, in LLVM text: products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.statements import Module
from tunefarm.compiler.codegen.types import constant, scalar_type, suffix, vector_of
from tunefarm.compiler.codegen.values import Lin, Slot, Val
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.dialects import NVPTX, Dialect
from tunefarm.compiler.gpu.intrinsics import (
    HELD_PRODUCTS,
    QUAD,
    HeldProduct,
    owner_of_term,
)
from tunefarm.compiler.gpu.launches import Part
from tunefarm.compiler.gpu.mma import COLUMNS, ELEMENTS, MMAS, Mma
from tunefarm.compiler.gpu.shuffles import ShuffleEmitter
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.ir import Buffer, Expr, Intrinsic, Load, Stmt, Store, Var
from tunefarm.compiler.tir.visit import walk_stmt

LOG2_E = 1.4426950408889634
ROW_BYTES = 16  # of a row of the 8 × 8 matrices that are loaded as fragments


EXPONENTIALS = frozenset({"exp", "exp_shifted", "exp_within"})


class WarpEmitter(ShuffleEmitter):
    """Writes what a thread does, and what its warp does with it."""

    def __init__(
        self, module: Module, builder: FunctionBuilder, dialect: Dialect, part: Part, name: str
    ) -> None:
        super().__init__(module, builder, dialect, part, name)
        self.fragments = dict(_held_operands(part.body))

    def store(self, stmt: Store) -> None:
        if stmt.buffer in self.fragments:
            self._hold_fragment(stmt)
        else:
            super().store(stmt)

    def value(self, expr: Expr) -> Val:
        if isinstance(expr, Intrinsic) and expr.name in MMAS:
            return self._product(expr, MMAS[expr.name], 0)
        if isinstance(expr, Intrinsic) and expr.name in HELD_PRODUCTS:
            held = HELD_PRODUCTS[expr.name]
            if held.operand == "float32":
                return self._held_single(expr, held)
            return self._product(expr, MMAS[held.mma], held.terms)
        return super().value(expr)

    def intrinsic(self, name: str, args: Sequence[Val], dtype: str) -> Val:
        if name in EXPONENTIALS and dtype == "float32" and self.dialect is NVPTX:
            return self._exp(args[0])
        return super().intrinsic(name, args, dtype)

    def _extremum(self, op: str, a: Val, b: Val) -> Val:
        """By one instruction, which gives NaN if either is: the GPU has it from sm_80 on."""
        if a.dtype != "float32" or not self._is_ampere():
            return super()._extremum(op, a, b)
        name = "minimum" if op == "min" else "maximum"
        return self.call(f"llvm.{name}.{suffix(a.dtype, a.lanes)}", [a, b], a.dtype)

    def _to_bfloat16(self, a: Val) -> Val:
        """Rounded to even by an instruction for two values, or one."""
        if not self._is_ampere():
            return super()._to_bfloat16(a)
        b, lanes = self.builder, a.lanes
        if lanes == 1:
            self.module.declares.add("declare bfloat @llvm.nvvm.f2bf16.rn(float)")
            one = b.pure(f"call bfloat @llvm.nvvm.f2bf16.rn(float {a.text})", [a.text])
            return Val(b.pure(f"bitcast bfloat {one} to i16", [one]), "bfloat16")
        full, whole, text = vector_of("float", lanes), vector_of("i16", lanes), "poison"
        parts = [b.pure(f"extractelement {full} {a.text}, i64 {n}", [a.text]) for n in range(lanes)]
        for first in range(0, lanes, 2):
            low, high = parts[first], parts[min(first + 1, lanes - 1)]
            self.module.declares.add("declare <2 x bfloat> @llvm.nvvm.ff2bf16x2.rn(float, float)")
            made = f"call <2 x bfloat> @llvm.nvvm.ff2bf16x2.rn(float {high}, float {low})"
            pair = b.pure(made, [low, high])
            pair = b.pure(f"bitcast <2 x bfloat> {pair} to <2 x i16>", [pair])
            for n in range(min(2, lanes - first)):
                one = b.pure(f"extractelement <2 x i16> {pair}, i64 {n}", [pair])
                put = f"insertelement {whole} {text}, i16 {one}, i64 {first + n}"
                text = b.pure(put, [text, one])
        return Val(text, "bfloat16", lanes)

    def _is_ampere(self) -> bool:
        """True for NVIDIA's GPUs from sm_80 on."""
        return self.dialect is NVPTX and self.target.kind == "cuda" and self.target.gpu.number >= 80

    def _exp(self, x: Val) -> Val:
        """2^(x · log₂ e) by the special function unit: 2 ulp, and half an ulp of the exponent."""
        scale = self.number(constant(LOG2_E, "float32"), x)
        scaled = self.emit("fmul", x, scale)
        name = "llvm.nvvm.ex2.approx.ftz.f"
        self.module.declares.add(f"declare float @{name}(float)")
        return self._each_lane(scaled, lambda text: f"call float @{name}(float {text})")

    def _each_lane(self, value: Val, instruction: Callable[[str], str]) -> Val:
        """A scalar instruction in every lane."""
        b, lanes = self.builder, value.lanes
        if lanes == 1:
            return Val(b.pure(instruction(value.text), [value.text]), value.dtype)
        kind = scalar_type(value.dtype)
        full, text = f"<{lanes} x {kind}>", "poison"
        for lane in range(lanes):
            one = b.pure(f"extractelement {full} {value.text}, i64 {lane}", [value.text])
            one = b.pure(instruction(one), [one])
            text = b.pure(f"insertelement {full} {text}, {kind} {one}, i64 {lane}", [text, one])
        return Val(text, value.dtype, lanes)

    # --- products of matrices ------------------------------------------------------------------

    def _product(self, expr: Intrinsic, m: Mma, held: int) -> Val:
        """The elements of the result that this thread holds, with a product added to them: four a
        tile, of one tile or more beside one another.

        ``held`` terms of A lie in this thread's registers; 0: A is read from shared memory.
        """
        if not (self.target.kind == "cuda" and self.target.gpu.has_tensor_cores):
            raise ScheduleError(f"{expr.name} needs sm_80 or later, not {self.target}")
        if self.lanes % ELEMENTS or self.mask is not None:
            raise ScheduleError(f"{expr.name} computes {ELEMENTS} whole elements of a thread")
        total = self.splat(self.value(expr.args[0]))
        terms, right = expr.args[1 : 1 + (held or m.depth)], expr.args[1 + (held or m.depth) :]
        left = self._held_fragment(terms) if held else self._operand(terms, 4, 1)[0]
        b, kind = self.builder, scalar_type(m.accumulator)
        full, result = vector_of(kind, self.lanes), f"{{ {', '.join([kind] * ELEMENTS)} }}"
        kinds = [m.operand] * 6 + [kind] * ELEMENTS
        self.module.declares.add(f"declare {result} @{m.instruction}({', '.join(kinds)})")
        text = "poison"
        for tile, columns in enumerate(self._operand(right, 2, self.lanes // ELEMENTS)):
            words = [*left, *columns]
            if m.operand != "i32":
                words = [b.pure(f"bitcast i32 {w} to {m.operand}", [w]) for w in words]
            numbers = range(tile * ELEMENTS, (tile + 1) * ELEMENTS)
            sums = [
                b.pure(f"extractelement {full} {total.text}, i64 {n}", [total.text])
                for n in numbers
            ]
            given = [f"{m.operand} {w}" for w in words] + [f"{kind} {x}" for x in sums]
            made = b.now(f"call {result} @{m.instruction}({', '.join(given)})")
            for n in numbers:
                one = b.pure(f"extractvalue {result} {made}, {n % ELEMENTS}", [made])
                text = b.pure(f"insertelement {full} {text}, {kind} {one}, i64 {n}", [text, one])
        return Val(text, m.accumulator, self.lanes)

    def _held_single(self, expr: Intrinsic, held: HeldProduct) -> Val:
        """The same of float32, whose fragments are elements of 32 bits."""
        if self.lanes % ELEMENTS or self.mask is not None:
            raise ScheduleError(f"{expr.name} computes {ELEMENTS} whole elements of a thread")
        total = self.splat(self.value(expr.args[0]))
        left, right = expr.args[1 : 1 + held.terms], expr.args[1 + held.terms :]
        rows = [[self._of_lane(term, 2 * h).text for term in left] for h in range(2)]
        b, full, text = self.builder, vector_of("float", self.lanes), "poison"
        sums = [
            b.pure(f"extractelement {full} {total.text}, i64 {n}", [total.text])
            for n in range(self.lanes)
        ]
        for tile in range(self.lanes // ELEMENTS):
            mine = sums[tile * ELEMENTS : (tile + 1) * ELEMENTS]
            if held.mma in MMAS:
                mine = self._rounded_product(MMAS[held.mma], rows, self._terms(right, tile), mine)
            else:
                mine = self._exact_product(rows, right, tile, mine)
            for n, one in enumerate(mine, tile * ELEMENTS):
                put = f"insertelement {full} {text}, float {one}, i64 {n}"
                text = b.pure(put, [text, one])
        return Val(text, "float32", self.lanes)

    def _rounded_product(
        self, m: Mma, rows: list[list[str]], right: list[str], sums: list[str]
    ) -> list[str]:
        """By tensor cores. What the instruction calls terms t and t + 4 are here 2·t and 2·t + 1,
        of A and of B, so that a thread holds its own; the order of a sum is nobody's."""
        if not (self.target.kind == "cuda" and self.target.rounds_to_tf32):
            raise ScheduleError(f"{m.name} needs -precision=tf32, not {self.target}")
        b = self.builder
        left = [rows[h][c] for c in range(2) for h in range(2)]
        words = [b.pure(f"bitcast float {x} to i32", [x]) for x in (*left, *right)]
        result = f"{{ {', '.join(['float'] * ELEMENTS)} }}"
        kinds = [*["i32"] * len(words), *["float"] * ELEMENTS]
        self.module.declares.add(f"declare {result} @{m.instruction}({', '.join(kinds)})")
        given = ", ".join(f"{k} {x}" for k, x in zip(kinds, [*words, *sums], strict=True))
        made = b.now(f"call {result} @{m.instruction}({given})")
        return [b.pure(f"extractvalue {result} {made}, {n}", [made]) for n in range(ELEMENTS)]

    def _terms(self, right: Sequence[Expr], tile: int) -> list[str]:
        """Terms 2·t and 2·t + 1 of column g of a tile of B, for thread 4·g + t."""
        first, second = right[0], right[1]
        assert isinstance(first, Load)
        assert isinstance(second, Load)
        b, buffer = self.builder, first.buffer
        start = self._corner(first, tile * ELEMENTS)
        step = self._corner(second, tile * ELEMENTS).plus(start, -1)
        beside = self._corner(first, tile * ELEMENTS + 1).plus(start, -1)
        if buffer.scope != "shared" or not (step.is_constant and beside.is_constant):
            raise ScheduleError(f"{buffer.name} is not in shared memory as fragments are loaded")
        lane = self.number_of("threadIdx.x", self.part.block[0])
        row, own = b.pure(f"lshr i64 {lane}, 2", [lane]), b.pure(f"and i64 {lane}, 3", [lane])
        at = start.plus(Lin(0, ((row, beside.const), (own, 2 * step.const))))
        if step.const == 1:
            pair = b.load(f"load <2 x float>, ptr {self.address(buffer, at)}, align 8", buffer)
            return [b.pure(f"extractelement <2 x float> {pair}, i64 {n}", [pair]) for n in range(2)]
        places = [at, at.plus(step)]
        return [
            b.load(f"load float, ptr {self.address(buffer, p)}, align 4", buffer) for p in places
        ]

    def _exact_product(
        self, rows: list[list[str]], right: Sequence[Expr], tile: int, sums: list[str]
    ) -> list[str]:
        """By multiply-adds: each of a row's four threads gives what it holds to the others."""
        b, made = self.builder, list(sums)
        name = "llvm.nvvm.shfl.sync.idx.f32"
        self.module.declares.add(f"declare float @{name}(i32, float, i32, i32)")
        self.module.declares.add("declare float @llvm.fma.f32(float, float, float)")
        segment = (WARP - QUAD) << 8 | WARP - 1
        for k, term in enumerate(right):
            owner, number = owner_of_term(k)
            shared = [
                b.here(
                    f"call float @{name}(i32 -1, float {row[number]}, i32 {owner}, i32 {segment})"
                )
                for row in rows
            ]
            columns = [self._of_lane(term, tile * ELEMENTS + c).text for c in range(2)]
            for e in range(ELEMENTS):
                given = ", ".join(f"float {x}" for x in (shared[e // 2], columns[e % 2], made[e]))
                made[e] = b.now(f"call float @llvm.fma.f32({given})")
        return made

    def _held_fragment(self, terms: Sequence[Expr]) -> list[str]:
        """The four words of A that lie in registers: two terms of row g, of g + 8, and the next."""
        rows = [[self._of_lane(term, 2 * h) for term in terms] for h in range(2)]
        return [self._word(rows[h][2 * half : 2 * half + 2]) for half in range(2) for h in range(2)]

    def _word(self, pair: Sequence[Val]) -> str:
        """Two values of 16 bits as one of 32."""
        b, kind, text = self.builder, scalar_type(pair[0].dtype), "poison"
        for n, value in enumerate(pair):
            operands = [text, value.text]
            text = b.pure(
                f"insertelement <2 x {kind}> {text}, {kind} {value.text}, i64 {n}", operands
            )
        return b.pure(f"bitcast <2 x {kind}> {text} to i32", [text])

    def _hold_fragment(self, stmt: Store) -> None:
        """Load the fragments that a register buffer stands for. It has all terms of a thread's own
        results, of which the threads of a row hold a part each: words, whose slots are those of as
        many elements."""
        source, (count, depth) = stmt.value, self.fragments[stmt.buffer]
        place = self.flat_index(stmt.buffer, stmt.indices)
        assert isinstance(source, Load)
        assert isinstance(place, Lin)
        each = 2 * depth  # elements of a tile
        starts = [self._corner(source, first) for first in range(0, self.lanes, each)]
        tiles = self._loaded(source, starts, self._corner(source, 1), count)
        for tile, words in enumerate(tiles):
            for n, word in enumerate(words):
                slot = Slot(stmt.buffer, place.const + tile * each + n * each // count)
                self.slots[slot] = Val(word, "int32")

    def _operand(self, terms: Sequence[Expr], count: int, tiles: int) -> list[list[str]]:
        """``count`` words of 32 bits of an operand, as the instruction takes them, for each tile:
        held, or loaded now."""
        first, second = terms[0], terms[1]
        assert isinstance(first, Load)
        assert isinstance(second, Load)
        starts = [self._corner(first, tile * ELEMENTS) for tile in range(tiles)]
        if first.buffer not in self.fragments:
            return self._loaded(first, starts, self._corner(second, 0), count)
        apart = 2 * len(terms) // count
        return [
            [self.slots[Slot(first.buffer, at.const + n * apart)].text for n in range(count)]
            for at in starts
        ]

    def _loaded(
        self, first: Load, starts: Sequence[Lin], second: Lin, count: int
    ) -> list[list[str]]:
        """The words of tiles whose first elements are at ``starts``; the next term of the first
        tile is at ``second``.

        Four of A: rows 0 to 7 and 8 to 15, then both in the next 16 bytes. Two of B: columns 0 to 7
        in the first and the next 16 bytes along k, or its rows, transposed, if n is contiguous;
        of 32 bits a thread's own terms then. Those of two tiles of B side by side are loaded at
        once.
        """
        buffer, start = first.buffer, starts[0]
        pitch = buffer.shape[-1]
        size, along = dtype_bytes(buffer.dtype), ROW_BYTES // dtype_bytes(buffer.dtype)
        step = second.const - start.const
        by_row = step == 1
        if buffer.scope != "shared" or second.terms != start.terms or pitch * size % ROW_BYTES:
            raise ScheduleError(f"{buffer.name} is not in shared memory as fragments are loaded")
        if count == 2 and size == 4 and step == pitch:
            return [self._own_terms(buffer, one) for one in starts]
        if not by_row and (step != pitch or size != 2):
            raise ScheduleError(
                f"{buffer.name} has its terms {step} elements apart; a fragment of {buffer.dtype} "
                "needs them side by side"
            )
        beside = COLUMNS * (pitch if by_row else 1)
        paired = len(starts) % 2 == 0 and all(
            one.plus(start, -1) == Lin(n * beside) for n, one in enumerate(starts)
        )
        loaded: list[list[str]] = []
        for one in starts[:: 2 if paired else 1]:
            row, column = self._own_row(count, by_row, along, paired)
            at = Lin(one.const, one.terms).plus(Lin(0, ((row, pitch), *column)))
            at = self.swizzled(buffer, at) if buffer.swizzled else at
            words = self._matrices(first, at, 2 * count if paired else count, not by_row)
            loaded += [words[n : n + count] for n in range(0, len(words), count)]
        return loaded

    def _own_terms(self, buffer: Buffer, start: Lin) -> list[str]:
        """Terms t and t + 4 of column g of a tile of B, whose columns stand side by side."""
        b, pitch = self.builder, buffer.shape[-1]
        lane = self.number_of("threadIdx.x", self.part.block[0])
        column, term = b.pure(f"lshr i64 {lane}, 2", [lane]), b.pure(f"and i64 {lane}, 3", [lane])
        first = Lin(start.const, start.terms).plus(Lin(0, ((term, pitch), (column, 1))))
        places = [first, first.plus(Lin(QUAD * pitch))]
        return [
            b.load(f"load i32, ptr {self.address(buffer, at)}, align 4", buffer) for at in places
        ]

    def _corner(self, load: Expr, lane: int) -> Lin:
        """Where a tile of an operand begins for the warp: the element of its thread 0, of one lane
        of the current vector, as if the buffer were not swizzled."""
        assert isinstance(load, Load)
        env, lanes = self.env, self.lanes

        def at_corner(var: Var, at: Lin) -> Lin:
            of_warp = var in self.warp_lanes
            return Lin(0) if of_warp else Lin(at.const + lane * at.lane, at.terms)

        self.env = {v: at_corner(v, at) for v, at in env.items()}
        self.lanes = 1
        place = self.plain_index(load.buffer, load.indices)
        self.env, self.lanes = env, lanes
        if not isinstance(place, Lin):
            raise ScheduleError(f"{load.buffer.name} is read at no linear place")
        return place

    def _own_row(
        self, count: int, by_row: bool, along: int, paired: bool
    ) -> tuple[str, tuple[tuple[str, int], ...]]:
        """The row that this thread gives the address of, and its step along the rows.

        Matrices lie 8 rows below the one before, or ``along`` beside it: of A first below, then
        beside; of B by row first beside, else below. The second of a pair is the next tile of B.
        """
        b, lane = self.builder, self.number_of("threadIdx.x", self.part.block[0])

        def bit(number: int) -> str:
            shifted = b.pure(f"lshr i64 {lane}, {number}", [lane])
            return b.pure(f"and i64 {shifted}, 1", [shifted])

        if not by_row:  # 16 rows of B, one 8 × 8 matrix below the other
            row = b.pure(f"and i64 {lane}, 15", [lane])
            return row, ((bit(4), COLUMNS),) if paired else ()
        if not paired:
            rows = 8 * count // 2
            row = b.pure(f"and i64 {lane}, {rows - 1}", [lane])
            return row, ((bit(rows.bit_length() - 1), along),)
        row = b.pure(f"and i64 {lane}, 7", [lane])
        below = b.pure(f"shl i64 {bit(4)}, 3", [bit(4)])
        row = b.pure(f"or disjoint i64 {row}, {below}", [row, below])
        return row, ((bit(3), along),)

    def _matrices(self, load: Load, at: Lin, count: int, transposed: bool) -> list[str]:
        b = self.builder
        pointer = self.in_space(self.address(load.buffer, at), 3)
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}"
        kind = f"{{ {', '.join(['i32'] * count)} }}"
        self.module.declares.add(f"declare {kind} @{name}.b16.p3(ptr addrspace(3))")
        text = f"call {kind} @{name}.b16.p3(ptr addrspace(3) {pointer})"
        made = b.load(text, load.buffer)
        return [b.pure(f"extractvalue {kind} {made}, {n}", [made]) for n in range(count)]


def holds_fragments(stmt: Stmt) -> bool:
    """True if matrix instructions take operands from registers that were loaded before."""
    return next(_held_operands(stmt), None) is not None


def _held_operands(stmt: Stmt) -> Iterator[tuple[Buffer, tuple[int, int]]]:
    """The register buffers that instructions take operands from: words a tile, and terms."""
    for node in walk_stmt(stmt):
        if isinstance(node, Store) and isinstance(node.value, Intrinsic):
            m = MMAS.get(node.value.name)
            if m is None:
                continue
            for count, number in ((4, 1), (2, 1 + m.depth)):
                load = node.value.args[number]
                if isinstance(load, Load) and load.buffer.scope == "register":
                    yield load.buffer, (count, m.depth)

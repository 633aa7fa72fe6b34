"""What the threads of a warp do together, in LLVM text: shuffles, and products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tunefarm.compiler.codegen.types import constant, is_float, scalar_type
from tunefarm.compiler.codegen.values import Lin, Val
from tunefarm.compiler.errors import BuildError, ScheduleError
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.dialects import NVPTX
from tunefarm.compiler.gpu.intrinsics import WARP_REDUCTIONS
from tunefarm.compiler.gpu.mma import ELEMENTS, MMAS, Mma
from tunefarm.compiler.gpu.threads import ThreadEmitter
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.ir import Const, Expr, Intrinsic, Load

LOG2_E = 1.4426950408889634
ROW_BYTES = 16  # of a row of the 8 × 8 matrices that are loaded as fragments


class WarpEmitter(ThreadEmitter):
    """Writes what a thread does, and what its warp does with it."""

    def value(self, expr: Expr) -> Val:
        if isinstance(expr, Intrinsic) and expr.name in WARP_REDUCTIONS:
            return self._warp_reduced(expr)
        if isinstance(expr, Intrinsic) and expr.name in MMAS:
            return self._product(expr, MMAS[expr.name])
        return super().value(expr)

    # --- shuffles ------------------------------------------------------------------------------

    def _warp_reduced(self, expr: Intrinsic) -> Val:
        """The butterfly of shuffles that gives every thread the combined value."""
        wanted, width = expr.args
        assert isinstance(width, Const)
        if self.lanes != 1 or self.dialect is not NVPTX:
            raise ScheduleError(f"{expr.name} has no code here")
        value = self.value(wanted)
        kind = value.dtype
        value = self.cast(value, _shuffled_as(kind))
        step = int(width.value) // 2
        while step:
            value = self.arithmetic(WARP_REDUCTIONS[expr.name], value, self._from_lane(value, step))
            step //= 2
        return self.cast(value, kind)

    def _from_lane(self, value: Val, step: int) -> Val:
        """The value of the thread whose number differs by the bit ``step``."""
        b, kind = self.builder, scalar_type(value.dtype)
        suffix = "f32" if kind == "float" else "i32"
        name = f"llvm.nvvm.shfl.sync.bfly.{suffix}"
        self.module.declares.add(f"declare {kind} @{name}(i32, {kind}, i32, i32)")
        text = f"call {kind} @{name}(i32 -1, {kind} {value.text}, i32 {step}, i32 {WARP - 1})"
        return Val(b.now(text), value.dtype)

    def intrinsic(self, name: str, args: Sequence[Val], dtype: str) -> Val:
        if name == "exp" and dtype == "float32" and self.dialect is NVPTX:
            return self._exp(args[0])
        return super().intrinsic(name, args, dtype)

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

    def _product(self, expr: Intrinsic, m: Mma) -> Val:
        """The four elements of the result that this thread holds, with a product added to them."""
        if not (self.target.kind == "cuda" and self.target.gpu.has_tensor_cores):
            raise ScheduleError(f"{m.name} needs sm_80 or later, not {self.target}")
        if self.lanes != ELEMENTS or self.mask is not None:
            raise ScheduleError(f"{m.name} computes {ELEMENTS} whole elements of a thread")
        b = self.builder
        total = self.splat(self.value(expr.args[0]))
        factors = expr.args[1 : 1 + m.depth], expr.args[1 + m.depth :]
        words = [*self._fragment(factors[0], 4), *self._fragment(factors[1], 2)]
        if m.operand != "i32":
            words = [b.pure(f"bitcast i32 {w} to {m.operand}", [w]) for w in words]
        kind = scalar_type(m.accumulator)
        full, result = f"<{ELEMENTS} x {kind}>", f"{{ {', '.join([kind] * ELEMENTS)} }}"
        sums = [
            b.pure(f"extractelement {full} {total.text}, i64 {n}", [total.text])
            for n in range(ELEMENTS)
        ]
        given = [f"{m.operand} {w}" for w in words] + [f"{kind} {x}" for x in sums]
        kinds = [m.operand] * len(words) + [kind] * ELEMENTS
        self.module.declares.add(f"declare {result} @{m.instruction}({', '.join(kinds)})")
        made = b.now(f"call {result} @{m.instruction}({', '.join(given)})")
        text = "poison"
        for n in range(ELEMENTS):
            one = b.pure(f"extractvalue {result} {made}, {n}", [made])
            text = b.pure(f"insertelement {full} {text}, {kind} {one}, i64 {n}", [text, one])
        return Val(text, m.accumulator, ELEMENTS)

    def _fragment(self, terms: Sequence[Expr], count: int) -> list[str]:
        """``count`` words of 32 bits of an operand, as the instruction takes them.

        Four of A: rows 0 to 7 and 8 to 15, then both in the next 16 bytes. Two of B: columns 0 to 7
        in the first and the next 16 bytes along k, or its rows, transposed, if n is contiguous.
        """
        first, second = terms[0], terms[1]
        assert isinstance(first, Load)
        assert isinstance(second, Load)
        buffer = first.buffer
        start, step = self._corner(first), self._corner(second)
        pitch = buffer.shape[-1]
        size, along = dtype_bytes(buffer.dtype), ROW_BYTES // dtype_bytes(buffer.dtype)
        by_row = step.const - start.const == 1
        if buffer.scope != "shared" or step.terms != start.terms or pitch * size % ROW_BYTES:
            raise ScheduleError(f"{buffer.name} is not in shared memory as fragments are loaded")
        if not by_row and (step.const - start.const != pitch or size != 2):
            raise ScheduleError(
                f"{buffer.name} has its terms {step.const - start.const} elements apart; a "
                f"fragment of {buffer.dtype} needs them side by side"
            )
        row, column = self._own_row(count, by_row, along)
        at = Lin(start.const, start.terms).plus(Lin(0, ((row, pitch), *column)))
        return self._matrices(first, at, count, transposed=not by_row)

    def _corner(self, load: Expr) -> Lin:
        """Where the warp's tile of an operand begins: the element of thread 0, number 0."""
        assert isinstance(load, Load)
        env, lanes = self.env, self.lanes
        self.env = {
            v: Lin(0) if v in self.warp_lanes else Lin(at.const, at.terms) for v, at in env.items()
        }
        self.lanes = 1
        place = self.flat_index(load.buffer, load.indices)
        self.env, self.lanes = env, lanes
        if not isinstance(place, Lin):
            raise ScheduleError(f"{load.buffer.name} is read at no linear place")
        return place

    def _own_row(
        self, count: int, by_row: bool, along: int
    ) -> tuple[str, tuple[tuple[str, int], ...]]:
        """The row that this thread gives the address of, and its step along the rows."""
        b, lane = self.builder, self.number_of("threadIdx.x", self.part.block[0])
        if not by_row:  # 16 rows of B, one 8 × 8 matrix below the other
            return b.pure(f"and i64 {lane}, 15", [lane]), ()
        rows = 8 * count // 2
        row = b.pure(f"and i64 {lane}, {rows - 1}", [lane])
        half = b.pure(f"lshr i64 {lane}, {rows.bit_length() - 1}", [lane])
        half = b.pure(f"and i64 {half}, 1", [half])
        return row, ((half, along),)

    def _matrices(self, load: Load, at: Lin, count: int, transposed: bool) -> list[str]:
        b = self.builder
        pointer = self.in_space(self.address(load.buffer, at), 3)
        name = f"llvm.nvvm.ldmatrix.sync.aligned.m8n8.x{count}{'.trans' if transposed else ''}"
        kind = f"{{ {', '.join(['i32'] * count)} }}"
        self.module.declares.add(f"declare {kind} @{name}.b16.p3(ptr addrspace(3))")
        text = f"call {kind} @{name}.b16.p3(ptr addrspace(3) {pointer})"
        made = b.load(text, load.buffer)
        return [b.pure(f"extractvalue {kind} {made}, {n}", [made]) for n in range(count)]


def _shuffled_as(dtype: str) -> str:
    """The dtype of 32 bits in which a value is combined; BuildError if there is none."""
    if is_float(dtype) and dtype != "float64":
        return "float32"
    if dtype in ("int32", "uint32", "int16", "int8", "uint8", "uint16"):
        return "int32" if dtype != "uint32" else dtype
    raise BuildError(f"threads of a warp cannot combine {dtype}; use float32")

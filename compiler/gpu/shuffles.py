"""What the threads of a warp tell each other, in LLVM text: shuffles."""

from __future__ import annotations

from tunefarm.compiler.codegen.types import is_float, scalar_type, vector_of
from tunefarm.compiler.codegen.values import Lin, Val
from tunefarm.compiler.errors import BuildError, ScheduleError
from tunefarm.compiler.gpu.intrinsics import TURNED, WARP_REDUCTIONS
from tunefarm.compiler.gpu.threads import ThreadEmitter
from tunefarm.compiler.tir.ir import BinaryOp, Const, Expr, Intrinsic


class ShuffleEmitter(ThreadEmitter):
    """Writes what a thread does, and what it gets of the others of its warp."""

    def value(self, expr: Expr) -> Val:
        if isinstance(expr, Intrinsic) and expr.name in WARP_REDUCTIONS:
            return self._warp_reduced(expr)
        if isinstance(expr, Intrinsic) and expr.name == TURNED:
            return self._turned(expr)
        return super().value(expr)

    def _warp_reduced(self, expr: Intrinsic) -> Val:
        """The butterfly of shuffles that gives every thread the combined value."""
        wanted, width = expr.args
        assert isinstance(width, Const)
        if self.lanes != 1:
            raise ScheduleError(f"{expr.name} has no code here")
        value = self.value(wanted)
        kind = value.dtype
        value = self.cast(value, shuffled_as(kind))
        value = self.butterfly(WARP_REDUCTIONS[expr.name], value, int(width.value))
        return self.cast(value, kind)

    def butterfly(self, op: BinaryOp, value: Val, width: int) -> Val:
        """The values of threads that stand side by side, combined."""
        step = width // 2
        while step:
            value = self.arithmetic(op, value, self._from_lane(value, step))
            step //= 2
        return value

    def _from_lane(self, value: Val, step: int) -> Val:
        """The value of the thread whose number differs by the bit ``step``."""
        b, kind = self.builder, scalar_type(value.dtype)
        exchange, text = self.dialect.exchanges.get(kind), value.text
        as_bits = exchange is None
        if exchange is None:
            exchange, text = self.dialect.exchanges["i32"], b.here(f"bitcast {kind} {text} to i32")
        call, declared = exchange(text, step)
        self.module.declares.add(declared)
        text = b.now(call)
        return Val(b.here(f"bitcast i32 {text} to {kind}") if as_bits else text, value.dtype)

    def _turned(self, expr: Intrinsic) -> Val:
        """A column of the square whose rows the threads hold, in all lanes: number parts · k + c of
        them is part c of what thread k has.

        By halves: threads whose numbers differ by a bit exchange what the other is to have. Source:
        Eklundh, "A fast computer method for matrix transposing", 1972.
        """
        *held, _, k = expr.args
        count, parts = len(held), self.lanes // len(held)
        numbers = [self._of_lane(k, lane).text for lane in range(self.lanes)]
        if numbers != [str(n // parts) for n in range(self.lanes)] or self.mask is not None:
            raise ScheduleError(f"{expr.name} gives a thread all that {count} threads hold for it")
        columns = [self._turned_part([self._of_lane(x, c) for x in held]) for c in range(parts)]
        b, kind, text = self.builder, scalar_type(expr.dtype), "poison"
        for lane in range(self.lanes):
            one = columns[lane % parts][lane // parts].text
            put = f"insertelement {vector_of(kind, self.lanes)} {text}, {kind} {one}, i64 {lane}"
            text = b.pure(put, [text, one])
        return Val(text, expr.dtype, self.lanes)

    def _turned_part(self, row: list[Val]) -> list[Val]:
        """The column that this thread gets for its row."""
        b, lane = self.builder, self.number_of("threadIdx.x", self.part.block[0])
        step = 1
        while step < len(row):
            bit = b.pure(f"and i64 {lane}, {step}", [lane])
            upper = Val(b.pure(f"icmp ne i64 {bit}, 0", [bit]), "bool")
            for low in (n for n in range(len(row)) if not n & step):
                high = low + step
                got = self._from_lane(self.choose(upper, row[low], row[high]), step)
                row[low], row[high] = (
                    self.choose(upper, got, row[low]), self.choose(upper, row[high], got)
                )  # fmt: skip
            step *= 2
        return row

    def _of_lane(self, expr: Expr, lane: int) -> Val:
        """The value of one lane of the current vector."""
        env, lanes = self.env, self.lanes
        self.env = {v: Lin(at.const + lane * at.lane, at.terms) for v, at in env.items()}
        self.lanes = 1
        value = self.value(expr)
        self.env, self.lanes = env, lanes
        return value


def shuffled_as(dtype: str) -> str:
    """The dtype of 32 bits in which a value is combined; BuildError if there is none."""
    if is_float(dtype) and dtype != "float64":
        return "float32"
    if dtype in ("int32", "uint32", "int16", "int8", "uint8", "uint16"):
        return "int32" if dtype != "uint32" else dtype
    raise BuildError(f"threads of a warp cannot combine {dtype}; use float32")

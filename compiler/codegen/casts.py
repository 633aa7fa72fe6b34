"""Values of one dtype as another."""

from __future__ import annotations

from tunefarm.compiler.codegen.lanes import Lanes
from tunefarm.compiler.codegen.types import (
    constant,
    is_float,
    is_narrow_float,
    is_unsigned,
    scalar_type,
    suffix,
    vector_of,
)
from tunefarm.compiler.codegen.values import Val
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.target import dtype_bytes

BF16_LANES = 16
_FLOAT16_REMEDIES = {
    "x86_64": "x86-64-v3 has it",
    "riscv64": "processors with zvfhmin have it",
    "wasm32": "cast to float32 in the model",
}

SMALL = 128  # what every integer type has


class Casts(Lanes):
    """Conversions; float16 and bfloat16 are computed with as float32."""

    def cast(self, a: Val, dtype: str) -> Val:
        """The value as another dtype; BuildError where the processor has no float16."""
        if a.dtype == dtype:
            return a
        source, target = a.dtype, dtype
        if "float16" in (source, target) and not self.target.has_float16:
            remedy = _FLOAT16_REMEDIES[self.target.isa.name]
            raise BuildError(f"float16 has no code for {self.target.mcpu}; {remedy}")
        if target == "bool":
            return self._is_not_zero(a)
        if a.text.isdigit() and int(a.text) < SMALL and not is_float(target):
            return Val(a.text, dtype, a.lanes)
        if is_narrow_float(source) and (is_narrow_float(target) or not is_float(target)):
            return self.cast(self.cast(a, "float32"), target)
        if is_narrow_float(target) and not is_float(source):
            return self.cast(self.cast(a, "float32"), target)
        if source == "float64" and is_narrow_float(target):
            # The processor has no such conversion. NumPy's bfloat16 is rounded twice, too.
            odd = target == "float16"
            return self.cast(self._round_to_odd(a) if odd else self.cast(a, "float32"), target)
        if target == "bfloat16":
            return self._to_bfloat16(a)
        if source == "bfloat16":
            return self.cast(self._from_bfloat16(a), target)
        instruction = _cast_instruction(source, target)
        if instruction is None:
            return Val(a.text, dtype, a.lanes)
        here = vector_of(scalar_type(source), a.lanes)
        there = vector_of(scalar_type(target), a.lanes)
        text = self.builder.pure(f"{instruction} {here} {a.text} to {there}", [a.text])
        return Val(text, dtype, a.lanes)

    def _is_not_zero(self, a: Val) -> Val:
        zero = self.number(constant(0, a.dtype), a)
        if is_narrow_float(a.dtype):
            a, zero = self.cast(a, "float32"), self.cast(zero, "float32")
        return self.compare("ne", a, zero)

    def nearest(self, a: Val) -> Val:
        """float32 rounded to even as int32 by one instruction, in the processor's usual mode."""
        kinds = f"{suffix('int32', a.lanes)}.{suffix('float32', a.lanes)}"
        return self.call(f"llvm.lrint.{kinds}", [a], "int32")

    def _to_bfloat16(self, a: Val) -> Val:
        """float32 rounded to even: by the instruction, which takes denormals for zero, unless the
        target is strict or has none."""
        vectors, rest = divmod(a.lanes, BF16_LANES)
        whole = not rest and vectors in (1, 2)
        if whole and self.target.has("avx512bf16") and not self.target.strict:
            return self._by_instruction(a, vectors)
        return self._in_integers(a)

    def _in_integers(self, a: Val) -> Val:
        """float32 rounded to bfloat16 without an instruction for it."""
        b, lanes = self.builder, a.lanes

        def literal(value: int) -> Val:
            return Val(str(value) if lanes == 1 else f"splat (i32 {value})", "uint32", lanes)

        kind, whole, short = (vector_of(t, lanes) for t in ("float", "i32", "i16"))
        bits = Val(b.pure(f"bitcast {kind} {a.text} to {whole}", [a.text]), "uint32", lanes)
        odd = self.emit("and", self.emit("lshr", bits, literal(16)), literal(1))
        rounded = self.emit("add", self.emit("add", bits, literal(0x7FFF)), odd)
        high = self.emit("lshr", rounded, literal(16))
        nan = self.emit("fcmp uno", a, a, "bool")
        high = self.choose(nan, literal(0x7FC0), high)
        text = b.pure(f"trunc {whole} {high.text} to {short}", [high.text])
        return Val(text, "bfloat16", lanes)

    def _by_instruction(self, a: Val, vectors: int) -> Val:
        """One or two vectors of float32 as bfloat16: two at once take less time than each alone."""
        b, kind, made = self.builder, "<16 x float>", f"<{a.lanes} x bfloat>"
        # The instruction for two has the lower lanes in its second operand.
        halves = [a.text] if vectors == 1 else [self._half_of(a, 1), self._half_of(a, 0)]
        name = f"llvm.x86.avx512bf16.cvtne{'2' if vectors == 2 else ''}ps2bf16.512"
        self.declares.add(f"declare {made} @{name}({', '.join([kind] * vectors)})")
        operands = ", ".join(f"{kind} {half}" for half in halves)
        near = b.pure(f"call {made} @{name}({operands})", halves)
        text = b.pure(f"bitcast {made} {near} to {vector_of('i16', a.lanes)}", [near])
        return Val(text, "bfloat16", a.lanes)

    def _half_of(self, a: Val, number: int) -> str:
        """The lower half of a vector of float32, number 0, or the upper one."""
        kind, half = vector_of("float", a.lanes), a.lanes // 2
        lanes = ", ".join(f"i32 {number * half + n}" for n in range(half))
        shuffle = f"shufflevector {kind} {a.text}, {kind} poison, <{half} x i32> <{lanes}>"
        return self.builder.pure(shuffle, [a.text])

    def _from_bfloat16(self, a: Val) -> Val:
        """Its 16 bits are the upper ones of a float32."""
        b = self.builder
        short, whole, kind = (vector_of(t, a.lanes) for t in ("i16", "i32", "float"))
        wide = b.pure(f"zext {short} {a.text} to {whole}", [a.text])
        sixteen = "16" if a.lanes == 1 else "splat (i32 16)"
        bits = b.pure(f"shl {whole} {wide}, {sixteen}", [wide])
        return Val(b.pure(f"bitcast {whole} {bits} to {kind}", [bits]), "float32", a.lanes)

    def _round_to_odd(self, a: Val) -> Val:
        """float64 → float32 such that rounding once more to a narrow float is rounding once.

        What is not exact is cut towards zero, and its last bit set (Boldo & Melquiond, 2008).
        """
        near = self.cast(Val(a.text, "float64", a.lanes), "float32")
        back = self.cast(near, "float64")
        inexact = self.emit("fcmp one", back, a, "bool")
        absolute = f"llvm.fabs.{suffix('float64', a.lanes)}"
        size = [self.call(absolute, [v], "float64") for v in (back, a)]
        above = self.emit("fcmp ogt", size[0], size[1], "bool")
        bits = self.bitcast(near, "int32")
        one = self.number("1", bits)
        cut = self.choose(above, self.emit("sub", bits, one), bits)
        odd = self.choose(inexact, self.emit("or", cut, one), bits)
        return self.bitcast(odd, "float32")


def _cast_instruction(source: str, target: str) -> str | None:
    wide = {"float64": 64, "float32": 32, "float16": 16, "bfloat16": 16}
    if is_float(source) and is_float(target):
        return "fpext" if wide[target] > wide[source] else "fptrunc"
    if is_float(source):
        return "fptoui" if is_unsigned(target) else "fptosi"
    if is_float(target):
        return "uitofp" if is_unsigned(source) else "sitofp"
    bits_from = 1 if source == "bool" else 8 * dtype_bytes(source)
    bits_to = 8 * dtype_bytes(target)
    if bits_from == bits_to:
        return None
    if bits_to < bits_from:
        return "trunc"
    return "zext" if is_unsigned(source) else "sext"

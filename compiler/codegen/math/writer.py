"""Instructions of one dtype and lane count, as text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from tunefarm.compiler.codegen.types import constant, suffix, vector_of

Fresh = Callable[[], str]
LN2_HIGH = 0.693145751953125
LN2_LOW = 1.4286068203094172321e-06


@dataclass
class Writer:
    """Appends instructions of one dtype and lane count; values are strings."""

    lanes: int
    dtype: str
    fresh: Fresh
    scalef: bool = False
    fused: bool = True
    tables: Collection[str] = ()
    lines: list[str] = field(default_factory=list)
    declares: set[str] = field(default_factory=set)

    def wide(self) -> Writer:
        """One of float64, which appends to the same instructions."""
        return replace(self, dtype="float64")

    @property
    def single(self) -> bool:
        return self.dtype == "float32"

    @property
    def scalar(self) -> str:
        return "float" if self.single else "double"

    @property
    def kind(self) -> str:
        return vector_of(self.scalar, self.lanes)

    @property
    def bits(self) -> str:
        return vector_of("i32" if self.single else "i64", self.lanes)

    @property
    def test(self) -> str:
        return vector_of("i1", self.lanes)

    def put(self, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"{name} = {text}")
        return name

    def c(self, value: float) -> str:
        """A constant in every lane."""
        literal = constant(value, self.dtype)
        return literal if self.lanes == 1 else f"splat ({self.scalar} {literal})"

    def i(self, value: int) -> str:
        integer = "i32" if self.single else "i64"
        return str(value) if self.lanes == 1 else f"splat ({integer} {value})"

    def add(self, a: str, b: str) -> str:
        return self.put(f"fadd {self.kind} {a}, {b}")

    def sub(self, a: str, b: str) -> str:
        return self.put(f"fsub {self.kind} {a}, {b}")

    def mul(self, a: str, b: str) -> str:
        return self.put(f"fmul {self.kind} {a}, {b}")

    def div(self, a: str, b: str) -> str:
        return self.put(f"fdiv {self.kind} {a}, {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        return self.call("fma", a, b, c) if self.fused else self.add(self.mul(a, b), c)

    def abs(self, a: str) -> str:
        return self.call("fabs", a)

    def sqrt(self, a: str) -> str:
        return self.call("sqrt", a)

    def copysign(self, a: str, sign: str) -> str:
        return self.call("copysign", a, sign)

    def call(self, name: str, *args: str) -> str:
        full = f"llvm.{name}.{suffix(self.dtype, self.lanes)}"
        self.declares.add(f"declare {self.kind} @{full}({', '.join([self.kind] * len(args))})")
        return self.put(f"call {self.kind} @{full}({', '.join(f'{self.kind} {a}' for a in args)})")

    def compare(self, op: str, a: str, b: str) -> str:
        return self.put(f"fcmp {op} {self.kind} {a}, {b}")

    def choose(self, test: str, a: str, b: str) -> str:
        return self.put(f"select {self.test} {test}, {self.kind} {a}, {self.kind} {b}")

    def integer(self, op: str, a: str, b: str) -> str:
        return self.put(f"{op} {self.bits} {a}, {b}")

    def to_bits(self, a: str) -> str:
        return self.put(f"bitcast {self.kind} {a} to {self.bits}")

    def from_bits(self, a: str) -> str:
        return self.put(f"bitcast {self.bits} {a} to {self.kind}")

    def from_integer(self, a: str) -> str:
        return self.put(f"sitofp {self.bits} {a} to {self.kind}")

    def convert(self, a: str, dtype: str) -> str:
        to = vector_of("double" if dtype == "float64" else "float", self.lanes)
        return self.put(f"{'fpext' if dtype == 'float64' else 'fptrunc'} {self.kind} {a} to {to}")

    def polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Horner's rule, the leading coefficient first."""
        value = self.c(coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.fma(value, x, self.c(coefficient))
        return value

    def short_polynomial(self, x: str, coefficients: Sequence[float]) -> str:
        """Four of Horner's chains side by side, for long polynomials (Estrin's scheme).

        One chain of 16 multiply-adds waits longer than a core looks ahead.
        """
        square = self.mul(x, x)
        fourth = self.mul(square, square)
        p3, p2, p1, p0 = (self.polynomial(fourth, coefficients[n::4]) for n in range(4))
        return self.fma(self.fma(p3, x, p2), square, self.fma(p1, x, p0))

    def looks_up(self, function: str) -> bool:
        """Whether a function's numbers are found by ``lookup``."""
        return function in self.tables and self.single and self.lanes == 16

    def lookup(self, name: str, table: Sequence[float], index: str) -> str:
        """table[index mod 32] of 32 numbers, which registers hold; ``index`` are 16 integers."""
        numbers = ", ".join(f"float {constant(v, 'float32')}" for v in table)
        kind, words, f = f"[{len(table)} x float]", self.bits, "llvm.x86.avx512.vpermi2var.ps.512"
        self.declares.add(f"@{name} = private unnamed_addr constant {kind} [{numbers}], align 64")
        self.declares.add(f"declare {self.kind} @{f}({self.kind}, {words}, {self.kind})")
        second = f"getelementptr ({kind}, ptr @{name}, i64 0, i64 16)"
        low, high = (
            self.put(f"load {self.kind}, ptr {at}, align 64") for at in (f"@{name}", second)
        )
        operands = f"{self.kind} {low}, {words} {index}, {self.kind} {high}"
        return self.put(f"call {self.kind} @{f}({operands})")

    def scaled(self, a: str, power: str, kept: str = "") -> str:
        """a · 2^⌊power⌋ of a whole 512-bit vector, rounded once; 0 where ``kept`` is false."""
        name = f"llvm.x86.avx512.mask.scalef.{'ps' if self.single else 'pd'}.512"
        kind, mask = self.kind, "i16" if self.single else "i8"
        self.declares.add(f"declare {kind} @{name}({kind}, {kind}, {kind}, {mask}, i32)")
        lanes = self.put(f"bitcast {self.test} {kept} to {mask}") if kept else "-1"
        operands = f"{kind} {a}, {kind} {power}, {kind} zeroinitializer, {mask} {lanes}, i32 4"
        return self.put(f"call {kind} @{name}({operands})")

    def fraction(self, a: str) -> str:
        """a - ⌊a⌋ of a whole vector of float32, 0 of infinities."""
        name, kind = "llvm.x86.avx512.mask.reduce.ps.512", self.kind
        self.declares.add(f"declare {kind} @{name}({kind}, i32, {kind}, i16, i32)")
        towards_lower = 1 | 8  # and says nothing of what is inexact
        operands = f"{kind} {a}, i32 {towards_lower}, {kind} zeroinitializer, i16 -1, i32 4"
        return self.put(f"call {kind} @{name}({operands})")

    def near_inverse(self, a: str) -> str:
        """1 / a of a whole vector of float32 to 14 bits, 0 of infinity."""
        name, kind = "llvm.x86.avx512.rcp14.ps.512", self.kind
        self.declares.add(f"declare {kind} @{name}({kind}, {kind}, i16)")
        operands = f"{kind} {a}, {kind} zeroinitializer, i16 -1"
        return self.put(f"call {kind} @{name}({operands})")

    def clamp_high(self, a: str, high: float) -> str:
        """NaN stays NaN."""
        return self.choose(self.compare("ogt", a, self.c(high)), self.c(high), a)

    def clamp_low(self, a: str, low: float) -> str:
        return self.choose(self.compare("olt", a, self.c(low)), self.c(low), a)

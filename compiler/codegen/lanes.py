"""Instructions on values of one or several lanes: the ground that all other layers stand on."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.types import is_float, is_unsigned, scalar_type, vector_of
from tunefarm.compiler.codegen.values import KnownMask, Val, make
from tunefarm.compiler.target import Target

_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}


class Lanes:
    """Writes single instructions. ``lanes`` is the length of the vectorized loop around, or 1."""

    def __init__(self, target: Target, builder: FunctionBuilder, declares: set[str]) -> None:
        self.target = target
        self.builder = builder
        self.declares = declares
        self.lanes = 1
        self.spread: dict[str, Val] = {}  # scalars that a vector holds in every lane
        self.known: dict[str, KnownMask] = {}
        self.called: dict[str, tuple[str, list[str]]] = {}  # LLVM's functions: result, parameters

    def splat(self, value: Val) -> Val:
        """The value in every lane of the current vector."""
        lanes = self.lanes
        if value.lanes == lanes or lanes == 1:
            return value
        wide = self.spread.get(value.text)
        if wide is not None and wide.lanes == lanes:
            return wide
        kind, b = scalar_type(value.dtype), self.builder
        if not value.text.startswith("%"):
            return Val(f"splat ({kind} {value.text})", value.dtype, lanes)
        key = ("splat", value.text, kind, lanes)
        text = b.known.get(key)
        if text is None:
            full = f"<{lanes} x {kind}>"
            one = b.pure(f"insertelement {full} poison, {kind} {value.text}, i64 0", [value.text])
            zeros = f"<{lanes} x i32> zeroinitializer"
            text = b.pure(f"shufflevector {full} {one}, {full} poison, {zeros}", [one])
            b.remember(key, text)
        if value.dtype == "bool":
            self.known[text] = KnownMask(frozenset(range(lanes)), value.text)
        return make(Val, (text, value.dtype, lanes))

    def level(self, *values: Val) -> tuple[Val, ...]:
        """The values with equal lanes."""
        for value in values:
            if value.lanes > 1:
                return tuple(map(self.splat, values))
        return values

    def number(self, literal: str, like: Val) -> Val:
        """A number of another value's dtype and lanes."""
        return self.level(Val(literal, like.dtype), like)[0]

    def emit(self, instruction: str, a: Val, b: Val, dtype: str | None = None) -> Val:
        """One instruction on two values of equal dtype and lanes; ``dtype`` is the result's."""
        kind = vector_of(scalar_type(a.dtype), a.lanes)
        text = self.builder.pure(f"{instruction} {kind} {a.text}, {b.text}", [a.text, b.text])
        return make(Val, (text, dtype or a.dtype, a.lanes))

    def compare(self, op: str, a: Val, b: Val) -> Val:
        """``a op b`` in every lane."""
        if is_float(a.dtype):
            return self.emit(f"fcmp {_FLOAT_COMPARE[op]}", a, b, "bool")
        sign = "" if op in ("eq", "ne") else "u" if is_unsigned(a.dtype) else "s"
        return self.emit(f"icmp {sign}{op}", a, b, "bool")

    def choose(self, c: Val, a: Val, b: Val) -> Val:
        """``a`` where the condition holds, else ``b``."""
        if c.lanes == 1:
            a, b = self.level(a, b)
        else:
            a, b = self.splat(a), self.splat(b)
        kind = vector_of(scalar_type(a.dtype), a.lanes)
        test = vector_of("i1", c.lanes)
        text = self.builder.pure(
            f"select {test} {c.text}, {kind} {a.text}, {kind} {b.text}", [c.text, a.text, b.text]
        )
        return Val(text, a.dtype, a.lanes)

    def bitcast(self, a: Val, dtype: str) -> Val:
        """The same bits as another dtype of the same size."""
        here = vector_of(scalar_type(a.dtype), a.lanes)
        there = vector_of(scalar_type(dtype), a.lanes)
        return Val(
            self.builder.pure(f"bitcast {here} {a.text} to {there}", [a.text]), dtype, a.lanes
        )

    def call(self, name: str, args: Sequence[Val], dtype: str) -> Val:
        """The result of one of LLVM's functions, which has the lanes of the first argument."""
        lanes = args[0].lanes
        if name not in self.called:
            result = vector_of(scalar_type(dtype), lanes)
            kinds = [vector_of(scalar_type(a.dtype), a.lanes) for a in args]
            self.called[name] = result, kinds
            self.declares.add(f"declare {result} @{name}({', '.join(kinds)})")
        result, kinds = self.called[name]
        texts = [a.text for a in args]
        passed = ", ".join([f"{kind} {text}" for kind, text in zip(kinds, texts, strict=True)])
        text = self.builder.pure(f"call {result} @{name}({passed})", texts)
        return make(Val, (text, dtype, lanes))

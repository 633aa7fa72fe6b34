"""Arithmetic on values: operations, and functions of scalars in every lane."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.casts import Casts
from tunefarm.compiler.codegen.types import (
    constant,
    is_float,
    is_narrow_float,
    is_unsigned,
    scalar_type,
    suffix,
    vector_of,
)
from tunefarm.compiler.codegen.values import HANDED_ON, Val, make
from tunefarm.compiler.errors import BuildError
from tunefarm.compiler.processors import WASM32
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir.ir import COMPARISONS

_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_OPS = {"add": "add", "sub": "sub", "mul": "mul", "bitand": "and", "bitor": "or",
            "bitxor": "xor", "and": "and", "or": "or", "xor": "xor", "shl": "shl"}  # fmt: skip
_DIRECT = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven",
           "trunc": "trunc", "abs": "fabs"}  # fmt: skip
TAKE_NAN = 0x11  # fixupimm's table: the second operand if that is a quiet or a signalling NaN
_ROUNDING = ("floor", "ceil", "round", "trunc")


FIXUP_BITS = 128  # of the shortest vectors in which one instruction replaces NaN


class Arithmetic(Casts):
    """Operations on values of equal dtype, in the lanes that they have."""

    def __init__(self, target: Target, builder: FunctionBuilder, declares: set[str]) -> None:
        super().__init__(target, builder, declares)
        self.is_wasm = target.isa is WASM32
        self._fuses: dict[str, bool] = {}  # dtypes that are multiplied and added in one
        self.in_order = False
        self._untested: dict[str, tuple[Val, Val]] = {}  # extremum → one without a test of a term

    def arithmetic(self, op: str, a: Val, b: Val) -> Val:
        """One binary operation on values of equal dtype."""
        a, b = self.level(a, b)
        if is_narrow_float(a.dtype):
            wide = self.arithmetic(op, self.cast(a, "float32"), self.cast(b, "float32"))
            return wide if wide.dtype == "bool" else self.cast(wide, a.dtype)
        if op in COMPARISONS:
            return self.compare(op, a, b)
        if op in ("min", "max", "maxnum"):
            return self._extremum(op, a, b)
        if is_float(a.dtype):
            return self._float_op(op, a, b)
        return self._integer_op(op, a, b)

    def update(self, op: str, old: Val, term: Val) -> Val:
        """An accumulator and one further term of its reduction.

        Of two extrema the first is tested for NaN. The term is, where steps follow one another:
        a test of the accumulator would take part in their chain (pooling of stride 1 takes 0.8 ×
        the time on Zen 5). One that a loop hands on stays where it is: terms that take its
        register cost a copy an iteration.
        """
        if op in ("max", "min") and not old.text.startswith(f"%{HANDED_ON}"):
            return self.arithmetic(op, term, old)
        return self.arithmetic(op, old, term)

    def fused(self, x: Val, y: Val, a: Val) -> Val:
        """``x · y + a``, rounded once where the processor can."""
        if a.dtype not in self._fuses:
            native = a.dtype == "float16" and self.target.has("avx512fp16")
            computed = native or not is_narrow_float(a.dtype)
            self._fuses[a.dtype] = computed and self.target.has_fma
        if not self._fuses[a.dtype]:
            return self.arithmetic("add", a, self.arithmetic("mul", x, y))
        x, y, a = self.level(x, y, a)
        if not self.is_wasm:
            return self.call(f"llvm.fma.{suffix(a.dtype, a.lanes)}", (x, y, a), a.dtype)
        if a.lanes * dtype_bytes(a.dtype) != self.target.vector_bytes:
            return self.arithmetic("add", a, self.arithmetic("mul", x, y))
        return self.call(f"llvm.wasm.relaxed.madd.{suffix(a.dtype, a.lanes)}", (x, y, a), a.dtype)

    def _extremum(self, op: str, a: Val, b: Val) -> Val:
        if not is_float(a.dtype):
            name = f"llvm.{'u' if is_unsigned(a.dtype) else 's'}{op.removesuffix('num')}"
            return self.call(f"{name}.{suffix(a.dtype, a.lanes)}", [a, b], a.dtype)
        if not a.text.startswith("%"):
            a, b = b, a
        if not b.text.startswith("%"):
            # One operand is a number: a comparison that is false for NaN keeps the other one.
            test = self.emit(f"fcmp {'olt' if op == 'min' else 'ogt'}", b, a, "bool")
            return self.choose(test, b, a)
        # The processor's instruction gives b if one is NaN, so only a must be tested: two or three
        # instructions, where llvm.maximum takes six. Which zero is larger is left open.
        if b.text in self._untested and op != "maxnum":
            return self._tested_together(op, a, *self._untested[b.text])
        test = self.emit(f"fcmp {'olt' if op == 'min' else 'ogt'}", a, b, "bool")
        if op == "maxnum":
            return self.choose(test, a, b)
        greater = self.choose(test, a, b)
        if self._has_fixup(a):
            result = self._or_nan(greater, a)
            if self.in_order:
                self._untested[result.text] = greater, a
            return result
        return self.choose(self.emit("fcmp ord", a, a, "bool"), greater, a)

    def _tested_together(self, op: str, a: Val, b: Val, term: Val) -> Val:
        """The extremum of ``a`` and of ``b``, in which NaN of ``term`` is not found: one comparison
        tests both terms, where each took an instruction. Out of order its masks make LLVM spill.
        """
        ahead = self.emit(f"fcmp {'olt' if op == 'min' else 'ogt'}", a, b, "bool")
        numbers = self.emit("fcmp ord", a, term, "bool")
        missing = self.number(constant(nan, a.dtype), a)
        return self.choose(numbers, self.choose(ahead, a, b), missing)

    def _has_fixup(self, value: Val) -> bool:
        """Whether one instruction replaces what another vector says is NaN."""
        fits = value.lanes == 1 or value.lanes * dtype_bytes(value.dtype) in (16, 32, 64)
        return self.target.has_avx512 and value.dtype in ("float32", "float64") and fits

    def _or_nan(self, value: Val, a: Val) -> Val:
        """``a`` where that is NaN, else ``value``: one instruction, not a test and a choice."""
        bits = 8 * dtype_bytes(a.dtype)
        if a.lanes == 1:
            lanes = FIXUP_BITS // bits
            wide = self._or_nan(self._in_vector(value, lanes), self._in_vector(a, lanes))
            return self._first_lane(wide)
        kind, table = vector_of(scalar_type(a.dtype), a.lanes), vector_of(f"i{bits}", a.lanes)
        mask = f"i{max(8, a.lanes)}"
        name = f"llvm.x86.avx512.mask.fixupimm.p{'s' if bits == 32 else 'd'}.{a.lanes * bits}"
        rounding, as_set = (", i32", ", i32 4") if a.lanes * bits == 512 else ("", "")
        self.declares.add(f"declare {kind} @{name}({kind}, {kind}, {table}, i32, {mask}{rounding})")
        text = self.builder.pure(
            f"call {kind} @{name}({kind} {value.text}, {kind} {a.text}, "
            f"{table} splat (i{bits} {TAKE_NAN}), i32 0, {mask} -1{as_set})",
            [value.text, a.text],
        )
        return make(Val, (text, a.dtype, a.lanes))

    def _in_vector(self, value: Val, lanes: int) -> Val:
        """A vector whose first lane is the value, with others that nobody reads."""
        element = scalar_type(value.dtype)
        code = f"insertelement {vector_of(element, lanes)} poison, {element} {value.text}, i32 0"
        return make(Val, (self.builder.pure(code, [value.text]), value.dtype, lanes))

    def _first_lane(self, value: Val) -> Val:
        kind = vector_of(scalar_type(value.dtype), value.lanes)
        code = f"extractelement {kind} {value.text}, i32 0"
        return make(Val, (self.builder.pure(code, [value.text]), value.dtype, 1))

    def _float_op(self, op: str, a: Val, b: Val) -> Val:
        if op in _FLOAT_OPS:
            return self.emit(_FLOAT_OPS[op], a, b)
        if op == "floormod":
            quotient = self.intrinsic("floor", [self.emit("fdiv", a, b)], a.dtype)
            return self.emit("fsub", a, self.emit("fmul", quotient, b))
        if op == "floordiv":
            return self.intrinsic("floor", [self.emit("fdiv", a, b)], a.dtype)
        raise BuildError(f"operation {op} is not defined for {a.dtype}")

    def _integer_op(self, op: str, a: Val, b: Val) -> Val:
        unsigned = is_unsigned(a.dtype)
        if op in _INT_OPS:
            return self.emit(_INT_OPS[op], a, b)
        if op == "shr":
            return self.emit("lshr" if unsigned else "ashr", a, b)
        if op in ("floormod", "floordiv") and b.text.isdigit() and int(b.text).bit_count() == 1:
            if op == "floormod":
                return self.emit("and", a, self.number(str(int(b.text) - 1), a))
            places = self.number(str(int(b.text).bit_length() - 1), a)
            return self.emit("lshr" if unsigned else "ashr", a, places)
        if b.text.startswith("%"):
            b = self._safe_divisor(a, b)
        quotient = "udiv" if unsigned else "sdiv"
        remainder = "urem" if unsigned else "srem"
        if op == "div" or (unsigned and op == "floordiv"):
            return self.emit(quotient, a, b)
        if unsigned and op == "floormod":
            return self.emit(remainder, a, b)
        rest = self.emit(remainder, a, b)
        zero = self.number("0", a)
        differs = self.emit("icmp slt", self.emit("xor", rest, b), zero, "bool")
        nonzero = self.emit("icmp ne", rest, zero, "bool")
        fix = self.emit("and", differs, nonzero)
        if op == "floormod":
            return self.choose(fix, self.emit("add", rest, b), rest)
        whole = self.emit(quotient, a, b)
        return self.choose(fix, self.emit("sub", whole, self.number("1", a)), whole)

    def _safe_divisor(self, a: Val, b: Val) -> Val:
        """One where the processor would trap: for 0, which also stands in lanes that a mask
        excludes, and for −1 under the smallest integer, whose quotient wraps to itself."""
        bad = self.emit("icmp eq", b, self.number("0", b), "bool")
        if not is_unsigned(a.dtype):
            least = self.number(str(-(1 << (8 * dtype_bytes(a.dtype) - 1))), a)
            turns = self.emit("icmp eq", b, self.number("-1", b), "bool")
            wraps = self.emit("and", turns, self.emit("icmp eq", a, least, "bool"))
            bad = self.emit("or", bad, wraps)
        return self.choose(bad, self.number("1", b), b)

    def intrinsic(self, name: str, args: Sequence[Val], dtype: str) -> Val:
        """A function of scalars (``tir.ir.INTRINSICS``) in every lane."""
        if is_narrow_float(args[0].dtype):
            wide = [self.cast(a, "float32") for a in args]
            result = self.intrinsic(name, wide, "bool" if dtype == "bool" else "float32")
            return self.cast(result, dtype)
        args = self.level(*args)
        first = args[0]
        if name == "not":
            return self.emit("xor", first, self.number("true", first))
        if name == "bitnot":
            return self.emit("xor", first, self.number("-1", first))
        if name == "isnan":
            return self.emit("fcmp uno", first, first, "bool")
        if name == "isinf":
            size = self.intrinsic("abs", [first], first.dtype)
            infinity = self.number(constant(float("inf"), first.dtype), first)
            return self.emit("fcmp oeq", size, infinity, "bool")
        if name == "fma":
            return self.fused(args[0], args[1], args[2])
        if name == "popcount":
            return self.call(f"llvm.ctpop.{suffix(first.dtype, first.lanes)}", args, dtype)
        if name == "abs" and not is_float(first.dtype):
            return self._extremum("max", first, self.emit("sub", self.number("0", first), first))
        if name in _ROUNDING and is_float(first.dtype) and not self.target.has_rounding:
            return self._elementary(name, args, dtype)
        if name in _DIRECT and is_float(first.dtype):
            return self.call(
                f"llvm.{_DIRECT[name]}.{suffix(first.dtype, first.lanes)}", args, dtype
            )
        if name == "rsqrt":
            root = self.intrinsic("sqrt", args, dtype)
            return self.emit("fdiv", self.number(constant(1.0, dtype), root), root)
        if name in _DIRECT and not is_float(first.dtype):
            return first
        return self._elementary(name, args, dtype)

    def _elementary(self, name: str, args: Sequence[Val], dtype: str) -> Val:
        """A function made of many instructions, all at the outermost place of its operands."""
        from tunefarm.compiler.codegen.math import emit_math

        b, first = self.builder, args[0]
        texts = [a.text for a in args]
        key = ("math", name, *texts)
        if key in b.known:
            return Val(b.known[key], dtype, first.lanes)
        t = self.target
        fused = t.has_fma and not self.is_wasm
        lines, result, declares = emit_math(
            name, first.lanes, first.dtype, texts, b.fresh, t.has_avx512, fused, t.quick_tables
        )
        self.declares.update(declares)
        b.hoist(map(str.strip, lines), result, key, texts)
        return Val(result, dtype, first.lanes)

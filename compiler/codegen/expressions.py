"""Expressions: indices stay linear forms as long as they can, values become SSA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.types import (
    constant,
    is_float,
    is_narrow_float,
    is_unsigned,
    memory_type,
    scalar_type,
    suffix,
    vector_of,
)
from tunefarm.compiler.errors import BuildError, ScheduleError
from tunefarm.compiler.processors import WASM32, X86_64
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir.affine import Affine, affine, conjuncts
from tunefarm.compiler.tir.ir import (
    COMPARISONS,
    Binary,
    Buffer,
    Cast,
    Const,
    Expr,
    Intrinsic,
    Load,
    Prefetch,
    Select,
    Var,
)
from tunefarm.compiler.tir.tensor_intrinsics import TENSOR_INTRINSICS
from tunefarm.compiler.tir.visit import walk_expr

LINE_BYTES = 64  # of a cache


@dataclass(frozen=True, slots=True)
class Lin:
    """``const + Σ coefficient · ssa + lane · lane_number``: an int64 that needs no code yet."""

    const: int
    terms: tuple[tuple[str, int], ...] = ()
    lane: int = 0

    def plus(self, other: Lin, factor: int = 1) -> Lin:
        total = dict(self.terms)
        for name, coefficient in other.terms:
            total[name] = total.get(name, 0) + factor * coefficient
        terms = tuple((n, c) for n, c in total.items() if c)
        return Lin(self.const + factor * other.const, terms, self.lane + factor * other.lane)

    def scaled(self, factor: int) -> Lin:
        if factor == 0:
            return Lin(0)
        terms = tuple((n, c * factor) for n, c in self.terms)
        return Lin(self.const * factor, terms, self.lane * factor)


@dataclass(frozen=True, slots=True)
class Val:
    """An SSA value or literal of a dtype, scalar or with ``lanes`` lanes."""

    text: str
    dtype: str
    lanes: int = 1


@dataclass(frozen=True, slots=True)
class Slot:
    """One element (or vector) of a register buffer, named by its flat offset."""

    buffer: Buffer
    offset: int


@dataclass(frozen=True, slots=True)
class KnownMask:
    """What is known of a mask when code is made: it has these lanes if a scalar condition holds
    (an SSA value; always, if there is none)."""

    lanes: frozenset[int]
    condition: str = ""


_Plan: TypeAlias = "tuple[int, tuple[tuple[Expr, int], ...]]"
_FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_INT_OPS = {"add": "add", "sub": "sub", "mul": "mul", "bitand": "and", "bitor": "or",
            "bitxor": "xor", "and": "and", "or": "or", "xor": "xor", "shl": "shl"}  # fmt: skip
_FLOAT_COMPARE = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
_DIRECT = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "roundeven",
           "trunc": "trunc", "abs": "fabs"}  # fmt: skip
_FLOAT16_REMEDIES = {
    "x86_64": "x86-64-v3 has it",
    "riscv64": "processors with zvfhmin have it",
    "wasm32": "cast to float32 in the model",
}
_ROUNDING = ("floor", "ceil", "round", "trunc")
_HORIZONTAL = {"add": "add", "mul": "mul", "max": "max", "min": "min"}
_HORIZONTAL_INT = {
    "add": "add",
    "mul": "mul",
    "max": "smax",
    "min": "smin",
    "or": "or",
    "and": "and",
}


class ExpressionEmitter:
    """Evaluates expressions in an environment of loop variables."""

    def __init__(self, target: Target, builder: FunctionBuilder, declares: set[str]) -> None:
        self.target = target
        self.builder = builder
        self.declares = declares
        self.env: dict[Var, Lin] = {}
        self.pointers: dict[Buffer, str] = {}
        self.constants: set[Buffer] = set()
        self.read_only: set[Buffer] = set()
        self.slots: dict[Slot, Val] = {}
        # Register buffer → element → (first element, lanes) of the slot that holds it.
        self.owners: dict[Buffer, dict[int, tuple[int, int]]] = {}
        self.spread: dict[str, Val] = {}  # scalars that a vector holds in every lane
        self.known: dict[str, KnownMask] = {}
        self.lanes = 1
        self.mask: str | None = None
        self._plans: dict[tuple[Buffer, int], tuple[Sequence[Expr], _Plan]] = {}
        self._inputs: dict[int, tuple[Expr, tuple[Var, ...] | None]] = {}
        self._quotients: dict[tuple[int, int, tuple[Lin, ...]], Lin] = {}

    # --- integers in index positions -----------------------------------------------------------

    def index(self, expr: Expr) -> Lin | Val:
        """An int64 expression as a linear form; a vector of integers only where it must be."""
        match expr:
            case Const(value):
                return Lin(int(value))
            case Var():
                return self.env[expr]
            case Binary("add" | "sub", a, b, _):
                x, y = self.index(a), self.index(b)
                if isinstance(x, Lin) and isinstance(y, Lin):
                    return x.plus(y, 1 if expr.op == "add" else -1)
                return self._int_op(expr.op, x, y)
            case Binary("mul", a, b, _):
                x, y = self.index(a), self.index(b)
                if isinstance(x, Lin) and isinstance(y, Lin):
                    if not y.terms and not y.lane:
                        return x.scaled(y.const)
                    if not x.terms and not x.lane:
                        return y.scaled(x.const)
                return self._int_op("mul", x, y)
            case Binary("floordiv" | "floormod" | "min" | "max" | "div"):
                return self._quotient(expr)
            case _:
                result = self.value(expr)
                return Lin(0, ((result.text, 1),)) if result.lanes == 1 else result

    def _quotient(self, expr: Binary) -> Lin | Val:
        """What is not linear, evaluated once for all elements of a tile."""
        if id(expr) not in self._inputs:
            nodes = list(walk_expr(expr))
            pure = not any(isinstance(n, (Load, Intrinsic)) for n in nodes)
            found = tuple({n: None for n in nodes if isinstance(n, Var)})
            # The expression is kept so that its identity is not given to another one.
            self._inputs[id(expr)] = (expr, found if pure else None)
        names = self._inputs[id(expr)][1]
        key = None
        if names is not None:
            key = (id(expr), self.lanes, tuple(self.env[v] for v in names))
            if key in self._quotients:
                return self._quotients[key]
        x, y = self.index(expr.a), self.index(expr.b)
        folded = _fold(expr.op, x, y)
        result = folded if folded is not None else self._int_op(expr.op, x, y)
        if key is not None and isinstance(result, Lin):
            self._quotients[key] = result
        return result

    def _int_op(self, op: str, x: Lin | Val, y: Lin | Val) -> Lin | Val:
        varying = any(isinstance(v, Val) or v.lane for v in (x, y))
        a, b = self.int_value(x, varying), self.int_value(y, varying)
        result = self.arithmetic(op, a, b)
        return result if varying else Lin(0, ((result.text, 1),))

    def scalar_int(self, lin: Lin) -> str:
        """A linear form without lanes as an i64, its terms added from the outermost inwards."""
        b = self.builder
        text = str(lin.const)
        ordered = sorted(lin.terms, key=lambda t: b.depth_of.get(t[0], 0))
        total = "" if lin.const == 0 and ordered else text
        for name, coefficient in ordered:
            term = name
            if coefficient != 1:
                term = b.pure(f"mul nsw i64 {name}, {coefficient}", [name])
            total = b.pure(f"add nsw i64 {total}, {term}", [total, term]) if total else term
        return total

    def int_value(self, value: Lin | Val, as_vector: bool = False) -> Val:
        if isinstance(value, Val):
            return value
        scalar = Lin(value.const, value.terms)
        if not as_vector and value.lane == 0:
            return Val(self.scalar_int(scalar), "int64")
        base = self.splat(Val(self.scalar_int(scalar), "int64"))
        if value.lane == 0:
            return base
        steps = ", ".join(f"i64 {value.lane * n}" for n in range(self.lanes))
        text = self.builder.pure(f"add <{self.lanes} x i64> {base.text}, <{steps}>", [base.text])
        return Val(text, "int64", self.lanes)

    def decide(self, condition: Expr) -> bool | None:
        """The condition's value if it is the same for all lanes and known now."""
        match condition:
            case Const(value):
                return bool(value)
            case Binary("and", a, b, _):
                x, y = self.decide(a), self.decide(b)
                return False if x is False or y is False else True if x and y else None
            case Binary("or", a, b, _):
                x, y = self.decide(a), self.decide(b)
                return True if x or y else False if x is False and y is False else None
            case Binary(op, a, b, _) if op in COMPARISONS and a.dtype == "int64":
                if not (_is_index(a) and _is_index(b)):
                    return None
                left, right = self.index(a), self.index(b)
                if not (isinstance(left, Lin) and isinstance(right, Lin)):
                    return None
                difference = left.plus(right, -1)
                if difference.terms:
                    return None
                ends = (difference.const, difference.const + difference.lane * (self.lanes - 1))
                return _compare_range(op, min(ends), max(ends))
            case _:
                return None

    def depends_on_lane(self, expr: Expr) -> bool:
        if self.lanes == 1:
            return False
        for node in walk_expr(expr):
            if isinstance(node, Var) and self.env[node].lane:
                return True
            if isinstance(node, Load) and node.buffer.scope == "register":
                place = self.flat_index(node.buffer, node.indices)
                if isinstance(place, Val) or place.lane:
                    return True
        return False

    # --- addresses -----------------------------------------------------------------------------

    def flat_index(self, buffer: Buffer, indices: Sequence[Expr]) -> Lin | Val:
        const, atoms = self._plan(buffer, indices)
        lane = 0
        terms: dict[str, int] = {}
        varying: list[tuple[Val, int]] = []
        for atom, coefficient in atoms:
            bound = self.env[atom] if isinstance(atom, Var) else self.index(atom)
            if isinstance(bound, Val):
                varying.append((bound, coefficient))
                continue
            const += coefficient * bound.const
            lane += coefficient * bound.lane
            for name, factor in bound.terms:
                terms[name] = terms.get(name, 0) + coefficient * factor
        total: Lin | Val = Lin(const, tuple((n, c) for n, c in terms.items() if c), lane)
        for value, coefficient in varying:
            scaled = self._int_op("mul", value, Lin(coefficient)) if coefficient != 1 else value
            total = self._int_op("add", total, scaled)
        return total

    def _plan(self, buffer: Buffer, indices: Sequence[Expr]) -> _Plan:
        """The flat index as ``const + Σ coefficient · atom``; an atom is what is not linear."""
        key = (buffer, id(indices))
        if key not in self._plans:
            stride, total = 1, Affine(0, {})
            for expr, extent in zip(reversed(indices), reversed(buffer.shape), strict=True):
                total = total.plus(affine(expr), stride)
                stride *= extent
            total = _joined(total)
            atoms = tuple((atom, c) for c, atom in total.terms.values())
            # The indices are kept so that their identity is not given to another tuple.
            self._plans[key] = (indices, (total.const, atoms))
        return self._plans[key][1]

    def address(self, buffer: Buffer, place: Lin) -> str:
        """The pointer to an element (to lane 0): outer terms first, the constant last."""
        b = self.builder
        element = memory_type(buffer.dtype)
        pointer = self.pointers[buffer]
        for name, coefficient in sorted(place.terms, key=lambda t: b.depth_of.get(t[0], 0)):
            offset = name
            if coefficient != 1:
                offset = b.pure(f"mul nsw i64 {name}, {coefficient}", [name])
            pointer = b.pure(
                f"getelementptr inbounds {element}, ptr {pointer}, i64 {offset}", [pointer, offset]
            )
        if place.const:
            pointer = b.here(f"getelementptr inbounds {element}, ptr {pointer}, i64 {place.const}")
        return pointer

    def slot(self, buffer: Buffer, place: Lin | Val) -> Slot:
        if isinstance(place, Val) or place.terms or place.lane not in (0, 1):
            raise ScheduleError(
                f"register buffer {buffer.name} is indexed by what is not constant: "
                "unroll or vectorize the loops of its tile"
            )
        return Slot(buffer, place.const)

    # --- values --------------------------------------------------------------------------------

    def value(self, expr: Expr) -> Val:
        """The expression as an SSA value; scalar if all lanes agree."""
        match expr:
            case Const(value, dtype):
                return Val(constant(value, dtype), dtype)
            case Load(buffer, indices):
                return self.load(buffer, indices)
            case Cast(Intrinsic("round", (x,), "float32"), "int32") if self.target.isa is X86_64:
                return self._nearest(self.value(x))
            case Cast(value, dtype):
                return self.cast(self.value(value), dtype)
            case Select():
                return self._select(expr)
            case Intrinsic(name) if name in TENSOR_INTRINSICS:
                return self._tensor(expr)
            case Intrinsic(name, args, dtype):
                return self.intrinsic(name, [self.value(a) for a in args], dtype)
            case Binary("add", a, Binary("mul", x, y, _), dtype) if is_float(dtype):
                return self._fused(self.value(x), self.value(y), self.value(a))
            case Binary("add", Binary("mul", x, y, _), a, dtype) if is_float(dtype):
                return self._fused(self.value(x), self.value(y), self.value(a))
            case Var():
                return self.int_value(self.index(expr))
            case Binary(op, a, b, dtype):
                if dtype == "int64" and _is_index(expr):
                    return self.int_value(self.index(expr))
                return self.arithmetic(op, self.value(a), self.value(b))

    def splat(self, value: Val) -> Val:
        """The value in every lane of the current vector."""
        if value.lanes == self.lanes or self.lanes == 1:
            return value
        if value.text in self.spread and self.spread[value.text].lanes == self.lanes:
            return self.spread[value.text]
        kind = scalar_type(value.dtype)
        full = f"<{self.lanes} x {kind}>"
        if not value.text.startswith("%"):
            return Val(f"splat ({kind} {value.text})", value.dtype, self.lanes)
        b = self.builder
        one = b.pure(f"insertelement {full} poison, {kind} {value.text}, i64 0", [value.text])
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        text = b.pure(f"shufflevector {full} {one}, {full} poison, {zeros}", [one])
        if value.dtype == "bool":
            self.known[text] = KnownMask(frozenset(range(self.lanes)), value.text)
        return Val(text, value.dtype, self.lanes)

    def level(self, *values: Val) -> tuple[Val, ...]:
        """The values with equal lanes."""
        if any(v.lanes > 1 for v in values):
            return tuple(self.splat(v) for v in values)
        return values

    def load(self, buffer: Buffer, indices: Sequence[Expr]) -> Val:
        place = self.flat_index(buffer, indices)
        if buffer.scope == "register":
            slot = self.slot(buffer, place)
            assert isinstance(place, Lin)
            return self._register(slot, self.lanes if place.lane else 1)
        if isinstance(place, Val):
            return self._repeated(buffer, indices) or self._gather(buffer, place)
        if place.lane == 0:
            return self._load_at(buffer, place, 1)
        if place.lane == 1:
            return self._load_at(buffer, place, self.lanes)
        return self._strided(buffer, place)

    def _register(self, slot: Slot, lanes: int) -> Val:
        """``lanes`` elements of a register buffer from the slot's offset on.

        As they were stored, if that was together; else taken from the slots that hold them. What
        is not stored is padding, of whatever value.
        """
        buffer, owners = slot.buffer, self.owners.get(slot.buffer)
        if owners is None:
            raise ScheduleError(f"register {buffer.name}[{slot.offset}] is read before stored")
        places = range(slot.offset, slot.offset + lanes)
        if owners.get(slot.offset) == (slot.offset, lanes) or not any(e in owners for e in places):
            return self.slots.get(slot) or self.unstored(slot, buffer.dtype, lanes)
        elements = [self._element(buffer, e) for e in places]
        if lanes == 1:
            return elements[0]
        kind, text = scalar_type(buffer.dtype), "poison"
        for lane, element in enumerate(elements):
            text = self.builder.pure(
                f"insertelement <{lanes} x {kind}> {text}, {kind} {element.text}, i64 {lane}",
                [text, element.text],
            )
        return Val(text, buffer.dtype, lanes)

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

    def claim(self, slot: Slot, lanes: int) -> None:
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
        """An element that is not stored where it is read."""
        raise NotImplementedError

    def _load_at(self, buffer: Buffer, place: Lin, lanes: int) -> Val:
        element = memory_type(buffer.dtype)
        kind = vector_of(element, lanes)
        pointer = self.address(buffer, place)
        align = dtype_bytes(buffer.dtype)
        if lanes > 1 and self.mask is not None and not self._moves_by_mask(buffer, lanes):
            result = self._load_without_mask(buffer, pointer, lanes)
        elif lanes > 1 and self.mask is not None:
            name = f"llvm.masked.load.{_mem_suffix(buffer.dtype, lanes)}.p0"
            self.declares.add(f"declare {kind} @{name}(ptr captures(none), <{lanes} x i1>, {kind})")
            text = (
                f"call {kind} @{name}(ptr align {align} {pointer}, "
                f"<{lanes} x i1> {self.mask}, {kind} zeroinitializer)"
            )
            result = self.builder.load(text, buffer)
        else:
            result = self._load_whole(buffer, pointer, lanes)
        return self._from_memory(result, buffer.dtype, lanes)

    def _load_whole(self, buffer: Buffer, pointer: str, lanes: int) -> str:
        invariant = ", !invariant.load !0" if buffer in self.constants else ""
        kind, align = vector_of(memory_type(buffer.dtype), lanes), dtype_bytes(buffer.dtype)
        return self.builder.load(f"load {kind}, ptr {pointer}, align {align}{invariant}", buffer)

    def _moves_by_mask(self, buffer: Buffer, lanes: int) -> bool:
        """True if the current mask stays one: the processor has such moves, or which lanes it has
        is known only when the code runs."""
        assert self.mask is not None
        if self.target.has_masks(dtype_bytes(buffer.dtype)):
            return True
        known = self.known.get(self.mask)
        return known is None or (known.condition != "" and prod(buffer.shape) < lanes)

    def _load_without_mask(self, buffer: Buffer, pointer: str, lanes: int) -> str:
        """Lanes under a mask, for a processor that would load them one by one: a piece for each
        run of them, from the buffer's beginning where the condition on all of them does not hold.
        """
        assert self.mask is not None
        known, element = self.known[self.mask], memory_type(buffer.dtype)
        if known.condition:
            choice = f"i1 {known.condition}, ptr {pointer}, ptr {self.pointers[buffer]}"
            pointer = self.builder.here(f"select {choice}")
        if len(known.lanes) == lanes:
            return self._load_whole(buffer, pointer, lanes)
        result = "zeroinitializer"
        for first, count in pieces(known.lanes):
            part = self._load_whole(buffer, self._ahead(element, pointer, first), count)
            result = self._placed(result, element, part, first, count, lanes)
        return result

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

    def prefetch(self, hint: Prefetch) -> None:
        """Ask for cache lines; nothing is read."""
        place = self.index(hint.offset)
        if not isinstance(place, Lin) or place.lane:
            return
        self.declares.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        elements = LINE_BYTES // dtype_bytes(hint.buffer.dtype)
        for line in range(hint.lines):
            ahead = Lin(place.const + line * elements, place.terms)
            pointer = self.address(hint.buffer, ahead)
            level = f"i32 0, i32 {4 - hint.level}, i32 1"
            self.builder.line(f"call void @llvm.prefetch.p0(ptr {pointer}, {level})")

    def _from_memory(self, text: str, dtype: str, lanes: int) -> Val:
        if dtype == "bool":
            kind = vector_of("i8", lanes)
            zero = "0" if lanes == 1 else "zeroinitializer"
            text = self.builder.here(f"icmp ne {kind} {text}, {zero}")
        return Val(text, dtype, lanes)

    def _repeated(self, buffer: Buffer, indices: Sequence[Expr]) -> Val | None:
        """x[i + lane % n]: n elements in all lanes, loaded and spread as one word; None if the
        lanes are otherwise."""
        const, atoms = self._plan(buffer, indices)
        rests = [(a, c) for a, c in atoms if self.depends_on_lane(a)]
        if len(rests) != 1 or self.mask is not None:
            return None
        (atom, factor), kind = rests[0], memory_type(buffer.dtype)
        if not isinstance(atom, Binary) or atom.op != "floormod" or factor != 1:
            return None
        count = int(atom.b.value) if isinstance(atom.b, Const) else 1
        inside = self.index(atom.a)
        bits = 8 * dtype_bytes(buffer.dtype) * count
        if not isinstance(inside, Lin) or inside.lane != 1 or bits not in (16, 32, 64):
            return None
        if any(c % count for c in (inside.const, self.lanes, *(c for _, c in inside.terms))):
            return None
        place = Lin(const)
        for other, coefficient in atoms:
            if other is not atom:
                bound = self.env[other] if isinstance(other, Var) else self.index(other)
                assert isinstance(bound, Lin)
                place = place.plus(bound, coefficient)
        b, words = self.builder, self.lanes // count
        pointer, align = self.address(buffer, place), dtype_bytes(buffer.dtype)
        word = b.load(f"load i{bits}, ptr {pointer}, align {align}", buffer)
        one = b.here(f"insertelement <{words} x i{bits}> poison, i{bits} {word}, i64 0")
        full = b.here(
            f"shufflevector <{words} x i{bits}> {one}, <{words} x i{bits}> poison, "
            f"<{words} x i32> zeroinitializer"
        )
        text = b.here(f"bitcast <{words} x i{bits}> {full} to <{self.lanes} x {kind}>")
        return self._from_memory(text, buffer.dtype, self.lanes)

    def _every_other(self, buffer: Buffer, place: Lin) -> Val:
        """Lanes two elements apart, from two loads that end with the last one."""
        n, element = self.lanes, memory_type(buffer.dtype)
        first = self._load_whole(buffer, self.address(buffer, place.plus(Lin(0, (), -2), 1)), n)
        end = Lin(place.const + n - 1, place.terms)
        second = self._load_whole(buffer, self.address(buffer, end), n)
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
        name = f"llvm.masked.gather.{_mem_suffix(buffer.dtype, n)}.v{n}p0"
        self.declares.add(f"declare {kind} @{name}(<{n} x ptr>, <{n} x i1>, {kind})")
        align = dtype_bytes(buffer.dtype)
        text = (
            f"call {kind} @{name}(<{n} x ptr> align {align} {pointers}, "
            f"<{n} x i1> {mask}, {kind} zeroinitializer)"
        )
        return self._from_memory(self.builder.load(text, buffer), buffer.dtype, n)

    def scatter(self, buffer: Buffer, place: Lin | Val, text: str) -> None:
        n, element = self.lanes, memory_type(buffer.dtype)
        pointers = self._pointers(buffer, self.int_value(place, True))
        mask = self.mask or "splat (i1 true)"
        kind = f"<{n} x {element}>"
        name = f"llvm.masked.scatter.{_mem_suffix(buffer.dtype, n)}.v{n}p0"
        self.declares.add(f"declare void @{name}({kind}, <{n} x ptr>, <{n} x i1>)")
        align = dtype_bytes(buffer.dtype)
        self.builder.line(
            f"call void @{name}({kind} {text}, <{n} x ptr> align {align} {pointers}, "
            f"<{n} x i1> {mask})"
        )

    def masked_store(self, element: str, text: str, pointer: str, align: int) -> None:
        n = self.lanes
        kind = f"<{n} x {element}>"
        active = self.active_lanes
        # LLVM 22 stores a truncated value too wide where a constant mask has one lane.
        if active is not None and (len(active) == 1 or not self.target.has_masks(align)):
            for first, count in pieces(active):
                self._store_piece(element, text, pointer, align, first, count)
            return
        name = f"llvm.masked.store.v{n}{_element_suffix(element)}.p0"
        self.declares.add(f"declare void @{name}({kind}, ptr captures(none), <{n} x i1>)")
        self.builder.line(
            f"call void @{name}({kind} {text}, ptr align {align} {pointer}, <{n} x i1> {self.mask})"
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
        lanes = ", ".join(f"i32 {first + n}" for n in range(count))
        part = b.here(f"shufflevector {full} {text}, {full} poison, <{count} x i32> <{lanes}>")
        b.line(f"store <{count} x {element}> {part}, ptr {at}, align {align}")

    def lane_mask(self, condition: Expr) -> str:
        text = self.splat(self.value(condition)).text
        self._know_lanes(text, condition)
        return text

    def both_masks(self, a: str | None, b: str) -> str:
        """The lanes of both; ``None`` has all of them."""
        if a is None:
            return b
        kind = f"<{self.lanes} x i1>"
        text = self.builder.pure(f"and {kind} {a}, {b}", [a, b])
        x, y = self.known.get(a), self.known.get(b)
        if x is not None and y is not None:
            conditions = [k.condition for k in (x, y) if k.condition]
            both = conditions[0] if conditions else ""
            if len(conditions) == 2:
                both = self.builder.pure(f"and i1 {', '.join(conditions)}", conditions)
            self.known[text] = KnownMask(x.lanes & y.lanes, both)
        return text

    @property
    def active_lanes(self) -> frozenset[int] | None:
        """The lanes of the current mask, if they are known when code is made."""
        known = self.known.get(self.mask) if self.mask is not None else None
        return None if known is None or known.condition else known.lanes

    def _know_lanes(self, mask: str, condition: Expr) -> None:
        """Remember in which lanes a condition holds, if all of that is known now."""
        lanes, env = self.lanes, self.env
        self.lanes = 1
        found: list[bool | None] = []
        while len(found) < lanes and None not in found:
            lane = len(found)
            self.env = {v: Lin(b.const + lane * b.lane, b.terms) for v, b in env.items()}
            found.append(self.decide(condition))
        self.lanes, self.env = lanes, env
        if None not in found:
            holds = frozenset(lane for lane, holds in enumerate(found) if holds)
            self.known[mask] = KnownMask(holds)

    def _know_inverse(self, mask: str, inverse: str, condition: Val) -> None:
        known = self.known.get(mask)
        if known is None:
            return
        everything = frozenset(range(self.lanes))
        if not known.condition:
            self.known[inverse] = KnownMask(everything - known.lanes)
        elif condition.lanes == 1:
            opposite = self.builder.pure(f"xor i1 {condition.text}, true", [condition.text])
            self.known[inverse] = KnownMask(everything, opposite)

    # --- operations ----------------------------------------------------------------------------

    def _select(self, expr: Select) -> Val:
        known = self.decide(expr.condition)
        if known is not None:
            return self.value(expr.a if known else expr.b)
        loads = [n for e in (expr.a, expr.b) for n in walk_expr(e) if isinstance(n, Load)]
        if loads:
            return self._guarded_select(expr)
        c, a, b = self.value(expr.condition), self.value(expr.a), self.value(expr.b)
        return self._choose(c, a, b)

    def _choose(self, c: Val, a: Val, b: Val) -> Val:
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

    def _guarded_select(self, expr: Select) -> Val:
        """A select whose loads must not be made where they are not taken."""
        if self.lanes > 1 and not self.depends_on_lane(expr):
            lanes, self.lanes, mask, self.mask = self.lanes, 1, self.mask, None
            value = self._guarded_select(expr)
            self.lanes, self.mask = lanes, mask
            return value
        c = self.value(expr.condition)
        if self.lanes > 1:
            chosen = self.splat(c)
            self._know_lanes(chosen.text, expr.condition)
            saved = self.mask
            kind = f"<{self.lanes} x i1>"
            partly_uniform = not all(map(self.depends_on_lane, conjuncts(expr.condition)))
            inverse = self.builder.pure(f"xor {kind} {chosen.text}, splat (i1 true)", [chosen.text])
            self._know_inverse(chosen.text, inverse, c)
            arms = []
            for text, arm in ((chosen.text, expr.a), (inverse, expr.b)):
                self.mask = self.both_masks(saved, text)
                needs_branch = partly_uniform and any(
                    isinstance(n, Load) and not self.depends_on_lane(n) for n in walk_expr(arm)
                )
                value = self._uniform_arm(arm, text) if needs_branch else self.value(arm)
                arms.append(self.splat(value))
            self.mask = saved
            return self._choose(chosen, arms[0], arms[1])
        return self._branching_select(c.text, expr.a, expr.b)

    def _uniform_arm(self, arm: Expr, mask: str) -> Val:
        """A lane-invariant load under a uniform condition: made only if any lane wants it."""
        n, known = self.lanes, self.known.get(mask)
        if known is not None and known.condition and len(known.lanes) == n:
            return self._branching_select(known.condition, arm, None)
        bits = self.builder.here(f"bitcast <{n} x i1> {mask} to i{n}")
        test = self.builder.here(f"icmp ne i{n} {bits}, 0")
        return self._branching_select(test, arm, None)

    def _branching_select(self, test: str, a: Expr, b: Expr | None) -> Val:
        builder = self.builder
        then, other, end = (builder.new_label(x) for x in ("take", "skip", "join"))
        outer = builder.frames[-1]
        builder.line(f"br i1 {test}, label %{then}, label %{other}")
        branch_at = len(outer.lines) - 1
        results: list[tuple[Val | None, str, list[str]]] = []
        for label, arm in ((then, a), (other, b)):
            frame = builder.open_frame(label)
            value = None
            if arm is not None:
                value = self.value(arm)
                if (self.lanes > 1 and value.lanes > 1) or b is None:
                    value = self.splat(value)
            frame.lines.append(f"  br label %{end}")
            builder.close_frame()
            results.append((value, frame.label, [f"{label}:", *frame.lines]))
        first = results[0][0]
        assert first is not None
        lanes = max(v.lanes for v, _, _ in results if v is not None)
        outer.lines.append(outer.lines.pop(branch_at))
        kind = vector_of(scalar_type(first.dtype), lanes)
        for _, _, lines in results:
            outer.lines += lines
        outer.lines.append(f"{end}:")
        outer.label = end
        texts = []
        for value, label, _ in results:
            text = "zeroinitializer" if value is None else value.text
            texts.append(f"[ {text}, %{label} ]")
        return Val(builder.now(f"phi {kind} {', '.join(texts)}"), first.dtype, lanes)

    def _fused(self, x: Val, y: Val, a: Val) -> Val:
        native = a.dtype == "float16" and self.target.has("avx512fp16")
        if (is_narrow_float(a.dtype) and not native) or not self.target.has_fma:
            return self.arithmetic("add", a, self.arithmetic("mul", x, y))
        x, y, a = self.level(x, y, a)
        if self.target.isa is WASM32:
            if a.lanes * dtype_bytes(a.dtype) != self.target.vector_bytes:
                return self.arithmetic("add", a, self.arithmetic("mul", x, y))
            name = f"llvm.wasm.relaxed.madd.{suffix(a.dtype, a.lanes)}"
            return self._call(name, [x, y, a], a.dtype)
        return self._call(f"llvm.fma.{suffix(a.dtype, a.lanes)}", [x, y, a], a.dtype)

    def _call(self, name: str, args: Sequence[Val], dtype: str) -> Val:
        lanes = args[0].lanes
        result = vector_of(scalar_type(dtype), lanes)
        kinds = [vector_of(scalar_type(a.dtype), a.lanes) for a in args]
        self.declares.add(f"declare {result} @{name}({', '.join(kinds)})")
        passed = ", ".join(f"{k} {a.text}" for k, a in zip(kinds, args, strict=True))
        text = self.builder.pure(f"call {result} @{name}({passed})", [a.text for a in args])
        return Val(text, dtype, lanes)

    def arithmetic(self, op: str, a: Val, b: Val) -> Val:
        """One binary operation on values of equal dtype."""
        a, b = self.level(a, b)
        if is_narrow_float(a.dtype):
            wide = self.arithmetic(op, self.cast(a, "float32"), self.cast(b, "float32"))
            return wide if wide.dtype == "bool" else self.cast(wide, a.dtype)
        if op in COMPARISONS:
            return self._compare(op, a, b)
        if op in ("min", "max"):
            return self._extremum(op, a, b)
        if is_float(a.dtype):
            return self._float_op(op, a, b)
        return self._integer_op(op, a, b)

    def _emit(self, instruction: str, a: Val, b: Val, dtype: str | None = None) -> Val:
        kind = vector_of(scalar_type(a.dtype), a.lanes)
        text = self.builder.pure(f"{instruction} {kind} {a.text}, {b.text}", [a.text, b.text])
        return Val(text, dtype or a.dtype, a.lanes)

    def _compare(self, op: str, a: Val, b: Val) -> Val:
        if is_float(a.dtype):
            return self._emit(f"fcmp {_FLOAT_COMPARE[op]}", a, b, "bool")
        sign = "" if op in ("eq", "ne") else "u" if is_unsigned(a.dtype) else "s"
        return self._emit(f"icmp {sign}{op}", a, b, "bool")

    def _extremum(self, op: str, a: Val, b: Val) -> Val:
        if not is_float(a.dtype):
            name = f"llvm.{'u' if is_unsigned(a.dtype) else 's'}{op}"
            return self._call(f"{name}.{suffix(a.dtype, a.lanes)}", [a, b], a.dtype)
        if not a.text.startswith("%"):
            a, b = b, a
        if not b.text.startswith("%"):
            # One operand is a number: a comparison that is false for NaN keeps the other one.
            test = self._emit(f"fcmp {'ogt' if op == 'max' else 'olt'}", b, a, "bool")
            return self._choose(test, b, a)
        # The processor's instruction gives b if one is NaN, so only a must be tested: two
        # instructions, where llvm.maximum takes six. Which zero is larger is left open.
        test = self._emit(f"fcmp {'ogt' if op == 'max' else 'olt'}", a, b, "bool")
        return self._choose(self._emit("fcmp ord", a, a, "bool"), self._choose(test, a, b), a)

    def _float_op(self, op: str, a: Val, b: Val) -> Val:
        if op in _FLOAT_OPS:
            return self._emit(_FLOAT_OPS[op], a, b)
        if op == "floormod":
            quotient = self.intrinsic("floor", [self._emit("fdiv", a, b)], a.dtype)
            return self._emit("fsub", a, self._emit("fmul", quotient, b))
        if op == "floordiv":
            return self.intrinsic("floor", [self._emit("fdiv", a, b)], a.dtype)
        raise BuildError(f"operation {op} is not defined for {a.dtype}")

    def _integer_op(self, op: str, a: Val, b: Val) -> Val:
        unsigned = is_unsigned(a.dtype)
        if op in _INT_OPS:
            return self._emit(_INT_OPS[op], a, b)
        if op == "shr":
            return self._emit("lshr" if unsigned else "ashr", a, b)
        if b.text.startswith("%"):
            b = self._safe_divisor(a, b)
        quotient = "udiv" if unsigned else "sdiv"
        remainder = "urem" if unsigned else "srem"
        if op == "div" or (unsigned and op == "floordiv"):
            return self._emit(quotient, a, b)
        if unsigned and op == "floormod":
            return self._emit(remainder, a, b)
        rest = self._emit(remainder, a, b)
        zero = self.level(Val("0", a.dtype), a)[0]
        differs = self._emit("icmp slt", self._emit("xor", rest, b), zero, "bool")
        nonzero = self._emit("icmp ne", rest, zero, "bool")
        fix = self._emit("and", differs, nonzero)
        if op == "floormod":
            return self._choose(fix, self._emit("add", rest, b), rest)
        whole = self._emit(quotient, a, b)
        one = self.level(Val("1", a.dtype), a)[0]
        return self._choose(fix, self._emit("sub", whole, one), whole)

    def _safe_divisor(self, a: Val, b: Val) -> Val:
        """One where the processor would trap: for 0, which also stands in lanes that a mask
        excludes, and for −1 under the smallest integer, whose quotient wraps to itself."""

        def number(value: int, like: Val) -> Val:
            return self.level(Val(str(value), like.dtype), like)[0]

        bad = self._emit("icmp eq", b, number(0, b), "bool")
        if not is_unsigned(a.dtype):
            least = number(-(1 << (8 * dtype_bytes(a.dtype) - 1)), a)
            wraps = self._emit(
                "and",
                self._emit("icmp eq", b, number(-1, b), "bool"),
                self._emit("icmp eq", a, least, "bool"),
            )
            bad = self._emit("or", bad, wraps)
        return self._choose(bad, number(1, b), b)

    def cast(self, a: Val, dtype: str) -> Val:
        if a.dtype == dtype:
            return a
        source, target = a.dtype, dtype
        if "float16" in (source, target) and not self.target.has_float16:
            remedy = _FLOAT16_REMEDIES[self.target.isa.name]
            raise BuildError(f"float16 has no code for {self.target.mcpu}; {remedy}")
        if target == "bool":
            zero = Val(constant(0, source), source, 1)
            return self.arithmetic("ne", a, zero)
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

    def _nearest(self, a: Val) -> Val:
        """float32 rounded to even as int32 by one instruction, in the processor's usual mode."""
        kinds = f"{suffix('int32', a.lanes)}.{suffix('float32', a.lanes)}"
        return self._call(f"llvm.lrint.{kinds}", [a], "int32")

    def _to_bfloat16(self, a: Val) -> Val:
        """float32 rounded to even in integers: few processors have the instruction, a library
        call elsewhere, and it takes denormals for zero."""
        b, lanes = self.builder, a.lanes

        def literal(value: int) -> Val:
            return Val(str(value) if lanes == 1 else f"splat (i32 {value})", "uint32", lanes)

        kind, whole, short = (vector_of(t, lanes) for t in ("float", "i32", "i16"))
        bits = Val(b.pure(f"bitcast {kind} {a.text} to {whole}", [a.text]), "uint32", lanes)
        odd = self._emit("and", self._emit("lshr", bits, literal(16)), literal(1))
        rounded = self._emit("add", self._emit("add", bits, literal(0x7FFF)), odd)
        high = self._emit("lshr", rounded, literal(16))
        nan = self._emit("fcmp uno", a, a, "bool")
        high = self._choose(nan, literal(0x7FC0), high)
        text = b.pure(f"trunc {whole} {high.text} to {short}", [high.text])
        return Val(text, "bfloat16", lanes)

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
        inexact = self._emit("fcmp one", back, a, "bool")
        size = [self.intrinsic("abs", [v], "float64") for v in (back, a)]
        above = self._emit("fcmp ogt", size[0], size[1], "bool")
        bits = self._bitcast(near, "int32")
        one = self.level(Val("1", "int32"), bits)[0]
        cut = self._choose(above, self._emit("sub", bits, one), bits)
        odd = self._choose(inexact, self._emit("or", cut, one), bits)
        return self._bitcast(odd, "float32")

    def _bitcast(self, a: Val, dtype: str) -> Val:
        here = vector_of(scalar_type(a.dtype), a.lanes)
        there = vector_of(scalar_type(dtype), a.lanes)
        return Val(
            self.builder.pure(f"bitcast {here} {a.text} to {there}", [a.text]), dtype, a.lanes
        )

    def intrinsic(self, name: str, args: Sequence[Val], dtype: str) -> Val:
        if is_narrow_float(args[0].dtype):
            wide = [self.cast(a, "float32") for a in args]
            result = self.intrinsic(name, wide, "bool" if dtype == "bool" else "float32")
            return self.cast(result, dtype)
        args = self.level(*args)
        first = args[0]
        if name == "not":
            ones = self.level(Val("true", "bool"), first)[0]
            return self._emit("xor", first, ones)
        if name == "bitnot":
            return self._emit("xor", first, self.level(Val("-1", first.dtype), first)[0])
        if name == "isnan":
            return self._emit("fcmp uno", first, first, "bool")
        if name == "isinf":
            infinity = self.level(Val(constant(float("inf"), first.dtype), first.dtype), first)[0]
            return self._emit("fcmp oeq", self.intrinsic("abs", [first], dtype=first.dtype),
                              infinity, "bool")  # fmt: skip
        if name == "fma":
            return self._fused(args[0], args[1], args[2])
        if name == "popcount":
            return self._call(f"llvm.ctpop.{suffix(first.dtype, first.lanes)}", args, dtype)
        if name == "abs" and not is_float(first.dtype):
            zero = self.level(Val("0", first.dtype), first)[0]
            return self._extremum("max", first, self._emit("sub", zero, first))
        if name in _ROUNDING and is_float(first.dtype) and not self.target.has_rounding:
            return self._elementary(name, args, dtype)
        if name in _DIRECT and is_float(first.dtype):
            return self._call(
                f"llvm.{_DIRECT[name]}.{suffix(first.dtype, first.lanes)}", args, dtype
            )
        if name == "rsqrt":
            root = self.intrinsic("sqrt", args, dtype)
            one = self.level(Val(constant(1.0, dtype), dtype), root)[0]
            return self._emit("fdiv", one, root)
        if name in _DIRECT and not is_float(first.dtype):
            return first
        return self._elementary(name, args, dtype)

    def _tensor(self, expr: Intrinsic) -> Val:
        """One instruction for all lanes: the terms of a in every lane, those of b side by side."""
        t = TENSOR_INTRINSICS[expr.name]
        if not self.target.has(t.feature):
            raise ScheduleError(f"{t.name} needs {t.feature}, which {self.target.mcpu} lacks")
        if self.lanes != t.lanes or self.mask is not None:
            raise ScheduleError(f"{t.name} computes {t.lanes} whole lanes, no more and no fewer")
        first, *factors = expr.args
        total = self.splat(self.value(first))
        word = f"i{8 * dtype_bytes(t.a) * t.terms}"
        elements = ["bfloat" if d == "bfloat16" else scalar_type(d) for d in (t.a, t.b)]
        kinds = [f"<{t.lanes * t.terms} x {e}>" for e in elements]
        b = self.builder
        shared = self.splat(Val(self._together(factors[0], word, 0), word.replace("i", "int")))
        spread = b.here(f"bitcast <{t.lanes} x {word}> {shared.text} to {kinds[0]}")
        packed = self._together(factors[t.terms], kinds[1], t.terms)
        sums = vector_of(scalar_type(t.accumulator), t.lanes)
        self.declares.add(f"declare {sums} @{t.instruction}({sums}, {kinds[0]}, {kinds[1]})")
        operands = f"{sums} {total.text}, {kinds[0]} {spread}, {kinds[1]} {packed}"
        return Val(b.here(f"call {sums} @{t.instruction}({operands})"), t.accumulator, t.lanes)

    def _together(self, load: Expr, kind: str, step: int) -> str:
        """One load of ``kind`` from the element of lane 0 on, of which lanes are ``step`` apart."""
        assert isinstance(load, Load)
        place = self.flat_index(load.buffer, load.indices)
        if load.buffer.scope == "register" or not isinstance(place, Lin) or place.lane != step:
            raise ScheduleError(f"{load.buffer.name} is not in memory as an instruction reads it")
        pointer = self.address(load.buffer, place)
        align = dtype_bytes(load.buffer.dtype)
        return self.builder.load(f"load {kind}, ptr {pointer}, align {align}", load.buffer)

    def _elementary(self, name: str, args: Sequence[Val], dtype: str) -> Val:
        """A function made of many instructions, all at the outermost place of its operands."""
        from tunefarm.compiler.codegen.math import emit_math

        b, first = self.builder, args[0]
        texts = [a.text for a in args]
        key = ("math", name, *texts)
        for frame in reversed(b.frames):
            if key in frame.values:
                return Val(frame.values[key], dtype, first.lanes)
        t = self.target
        fused = t.has_fma and t.isa is not WASM32
        lines, result, declares = emit_math(
            name, first.lanes, first.dtype, texts, b.fresh, t.has_avx512, fused
        )
        self.declares.update(declares)
        depth = b.depth_needed(texts)
        b.frames[depth].lines += [f"  {line.strip()}" for line in lines]
        b.frames[depth].values[key] = result
        b.depth_of[result] = depth
        return Val(result, dtype, first.lanes)

    def horizontal(self, op: str, value: Val, mask: str | None) -> Val:
        """All lanes combined to one scalar; lanes that the mask excludes do not count."""
        if is_narrow_float(value.dtype):
            # Rounded once.
            wide = self.horizontal(op, self.cast(value, "float32"), mask)
            return self.cast(wide, value.dtype)
        floating = is_float(value.dtype)
        table = _HORIZONTAL if floating else _HORIZONTAL_INT
        if op not in table:
            raise ScheduleError(f"lanes of a vectorized loop cannot be combined by {op}")
        n, kind = value.lanes, scalar_type(value.dtype)
        if mask is not None:
            from tunefarm.compiler.te import identity

            neutral = constant(identity(op, value.dtype).value, value.dtype)
            text = self.builder.here(
                f"select <{n} x i1> {mask}, <{n} x {kind}> {value.text}, "
                f"<{n} x {kind}> splat ({kind} {neutral})"
            )
            value = Val(text, value.dtype, n)
        if floating:
            return self._shuffled_together(op, value)
        name = table[op]
        if is_unsigned(value.dtype) and op in ("max", "min"):
            name = f"u{op}"
        full = f"llvm.vector.reduce.{name}.{suffix(value.dtype, n)}"
        vector = f"<{n} x {kind}>"
        self.declares.add(f"declare {kind} @{full}({vector})")
        return Val(self.builder.here(f"call {kind} @{full}({vector} {value.text})"), value.dtype)

    def _shuffled_together(self, op: str, value: Val) -> Val:
        """Combine each lane with the one half, a quarter, … away: all lanes get the result, and
        whoever wants it in all lanes again takes the vector."""
        count = value.lanes
        value = self._to_power_of_two(op, value)
        lanes_around, self.lanes = self.lanes, value.lanes
        b, kind = self.builder, f"<{value.lanes} x {scalar_type(value.dtype)}>"
        step = value.lanes // 2
        while step:
            lanes = ", ".join(f"i32 {n ^ step}" for n in range(value.lanes))
            mask = f"<{value.lanes} x i32> <{lanes}>"
            text = b.pure(f"shufflevector {kind} {value.text}, {kind} poison, {mask}", [value.text])
            value = self.arithmetic(op, value, Val(text, value.dtype, value.lanes))
            step //= 2
        self.lanes = lanes_around
        scalar = b.pure(f"extractelement {kind} {value.text}, i64 0", [value.text])
        if value.lanes == count:
            self.spread[scalar] = value
        return Val(scalar, value.dtype)

    def _to_power_of_two(self, op: str, value: Val) -> Val:
        """The lanes and as many neutral elements as make their number a power of two."""
        from tunefarm.compiler.te import identity

        count = value.lanes
        width = 1 << (count - 1).bit_length()
        if width == count:
            return value
        element = scalar_type(value.dtype)
        neutral = constant(identity(op, value.dtype).value, value.dtype)
        kind = f"<{count} x {element}>"
        lanes = ", ".join(f"i32 {min(n, count)}" for n in range(width))
        text = self.builder.pure(
            f"shufflevector {kind} {value.text}, {kind} splat ({element} {neutral}), "
            f"<{width} x i32> <{lanes}>",
            [value.text],
        )
        return Val(text, value.dtype, width)


def _is_index(expr: Expr) -> bool:
    """True for int64 arithmetic that loads nothing: it can stay a linear form."""
    return not any(isinstance(n, (Load, Cast, Select, Intrinsic)) for n in walk_expr(expr))


def _fold(op: str, x: Lin | Val, y: Lin | Val) -> Lin | None:
    if not (isinstance(x, Lin) and isinstance(y, Lin)) or x.terms or y.terms or x.lane or y.lane:
        return None
    a, b = x.const, y.const
    match op:
        case "floordiv" if b:
            return Lin(a // b)
        case "floormod" if b:
            return Lin(a % b)
        case "div" if b:
            return Lin(int(a / b))
        case "min":
            return Lin(min(a, b))
        case "max":
            return Lin(max(a, b))
        case _:
            return None


def _compare_range(op: str, low: int, high: int) -> bool | None:
    """``d op 0`` for every d in [low, high]."""
    outcomes = {
        "lt": (high < 0, low >= 0),
        "le": (high <= 0, low > 0),
        "gt": (low > 0, high <= 0),
        "ge": (low >= 0, high < 0),
        "eq": (low == high == 0, low > 0 or high < 0),
        "ne": (low > 0 or high < 0, low == high == 0),
    }
    yes, no = outcomes[op]
    return True if yes else False if no else None


def _joined(form: Affine) -> Affine:
    """d·(x // d) + x % d  ->  x, as fused loops index what stands side by side."""
    for key, (factor, atom) in form.terms.items():
        if not isinstance(atom, Binary) or atom.op != "floormod":
            continue
        quotient = affine(Binary("floordiv", atom.a, atom.b, "int64"))
        (other, (one, _)), *more = quotient.terms.items() or [(None, (0, atom))]
        divisor = atom.b.value if isinstance(atom.b, Const) else 0
        if more or one != 1 or quotient.const or form.terms.get(other, (0,))[0] != factor * divisor:
            continue
        rest = {k: t for k, t in form.terms.items() if k not in (key, other)}
        return Affine(form.const, rest).plus(affine(atom.a), factor)
    return form


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


def pieces(lanes: frozenset[int]) -> Iterator[tuple[int, int]]:
    """The runs of lanes, cut into powers of two: (first, count)."""
    lane, end = 0, max(lanes, default=-1) + 1
    while lane < end:
        count = next(n for n in range(end - lane + 1) if lane + n not in lanes)
        count = 1 << (count.bit_length() - 1) if count else 0
        if count:
            yield lane, count
        lane += count or 1


def _mem_suffix(dtype: str, lanes: int) -> str:
    return f"v{lanes}i8" if dtype == "bool" else suffix(dtype, lanes)


def _element_suffix(element: str) -> str:
    return {"float": "f32", "double": "f64", "half": "f16"}.get(element, element)

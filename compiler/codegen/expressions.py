"""Expressions become SSA values."""

from __future__ import annotations

from functools import lru_cache

from tunefarm.compiler.codegen.forms import is_index
from tunefarm.compiler.codegen.registers import Registers
from tunefarm.compiler.codegen.types import constant, is_float, scalar_type, vector_of
from tunefarm.compiler.codegen.values import Lin, Val
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.processors import X86_64
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.te import identity
from tunefarm.compiler.tir.affine import conjuncts
from tunefarm.compiler.tir.facts import KEPT, buffers_read, variables
from tunefarm.compiler.tir.ir import Binary, Cast, Const, Expr, Intrinsic, Load, Select, Var
from tunefarm.compiler.tir.tensor_intrinsics import TENSOR_INTRINSICS
from tunefarm.compiler.tir.visit import loads_of, transform_expr


class Expressions(Registers):
    """Evaluates expressions; what all lanes share stays scalar."""

    def value(self, expr: Expr) -> Val:
        """The expression as an SSA value; scalar if all lanes agree."""
        match expr:
            case Load():
                if expr.buffer.scope == "register":
                    return self.load_register(expr)
                return self.load_memory(expr)
            case Binary():
                return self._binary(expr)
            case Const():
                return literal(expr)
            case Var():
                return self.int_value(self.index(expr))
            case Select():
                return self._select(expr)
            case Cast(Intrinsic("round", (x,), "float32"), "int32") if self.target.isa is X86_64:
                return self.nearest(self.value(x))
            case Cast():
                return self.cast(self.value(expr.value), expr.dtype)
            case Intrinsic(name) if name in TENSOR_INTRINSICS:
                return self._tensor(expr)
            case Intrinsic():
                return self.intrinsic(expr.name, [self.value(a) for a in expr.args], expr.dtype)

    def _binary(self, expr: Binary) -> Val:
        updates = is_update(expr)
        if updates and self.is_neutral(self.value(expr.a), expr.op):
            return self.value(expr.b)
        terms = fusible(expr)
        if terms is not None:
            x, y, a = terms
            return self.fused(self.value(x), self.value(y), self.value(a))
        if expr.dtype == "int64" and is_index(expr):
            return self.int_value(self.index(expr))
        operation = self.update if updates else self.arithmetic
        return operation(expr.op, self.value(expr.a), self.value(expr.b))

    def is_neutral(self, value: Val, op: str) -> bool:
        """Whether an accumulator is still the number that its reduction begins with.

        A sum then begins with its first term, like NumPy's: that of negative zeros is one.
        """
        if value.text.startswith("%"):
            return False
        kind, neutral = scalar_type(value.dtype), literal(identity(op, value.dtype)).text
        return value.text in (neutral, f"splat ({kind} {neutral})")

    # --- choices -------------------------------------------------------------------------------

    def _select(self, expr: Select) -> Val:
        condition = self.left_open(expr.condition)
        if isinstance(condition, bool):
            return self.value(expr.a if condition else expr.b)
        if buffers_read(expr.a) or buffers_read(expr.b):
            return self._guarded_select(expr, condition)
        c, a, b = self.value(condition), self.value(expr.a), self.value(expr.b)
        return self.choose(c, a, b)

    def _guarded_select(self, expr: Select, condition: Expr) -> Val:
        """A select whose loads must not be made where they are not taken: by ``condition``, what
        is open of its own."""
        if self.lanes > 1 and not self.depends_on_lane(expr):
            lanes, self.lanes, mask, self.mask = self.lanes, 1, self.mask, None
            value = self._guarded_select(expr, condition)
            self.lanes, self.mask = lanes, mask
            return value
        of_rows = self._select_of_two_rows(expr)
        if of_rows is not None:
            return of_rows
        short = self.short_comparison(condition) if self.lanes > 1 else None
        c = self.value(condition) if short is None else Val(short, "bool", self.lanes)
        if self.lanes > 1 and not reads_memory(expr):
            return self.choose(self.splat(c), self.value(expr.a), self.value(expr.b))
        if c.lanes == 1 and _is_zero(expr.b) and self._is_zero_elsewhere(expr.a):
            assert isinstance(expr.a, Load)
            return self.load_if(c.text, expr.a)
        if self.lanes == 1:
            return self._branching_select(c.text, expr.a, expr.b)
        chosen = self.splat(c)
        self.know_lanes(chosen.text, condition)
        if not buffers_read(expr.b):
            value = self._under(chosen.text, condition, expr.a)
            other = self.value(expr.b)
            if self._is_zero_elsewhere(expr.a) and other == literal(Const(0, expr.dtype)):
                return value
            return self.choose(chosen, value, other)
        kind = f"<{self.lanes} x i1>"
        inverse = self.builder.pure(f"xor {kind} {chosen.text}, splat (i1 true)", [chosen.text])
        self.know_inverse(chosen.text, inverse, c)
        a = self._under(chosen.text, condition, expr.a)
        return self.choose(chosen, a, self._under(inverse, condition, expr.b))

    def _select_of_two_rows(self, expr: Select) -> Val | None:
        """A select whose even and odd lanes read two rows: chosen in each row by itself, whose
        lanes are side by side; None for another one, and under a mask."""
        load: Expr = expr
        while isinstance(load, Select):
            load = load.a
        turns = self.each_in_turn(load) if isinstance(load, Load) else None
        if turns is None:
            return None
        number, columns = turns
        column, rows = _in_rows(expr, number)
        others = {v for row in rows for v in variables(row)} - {column}
        if any(self.env[v].lane for v in others):
            return None
        self.env[column] = columns
        lanes, self.lanes = self.lanes, self.lanes // 2
        with self.nest(None):
            even, odd = (self.splat(self.value(row)) for row in rows)
        self.lanes = lanes
        del self.env[column]
        return self.in_turn(even, odd)

    def _under(self, mask: str, condition: Expr, arm: Expr) -> Val:
        """One arm of a select, in the lanes of a mask that is made of its condition."""
        saved = self.mask
        self.mask = self.both_masks(saved, mask)
        partly_uniform = not all(map(self.depends_on_lane, conjuncts(condition)))
        needs_branch = partly_uniform and not all(map(self.depends_on_lane, loads_of(arm)))
        value = self.splat(self._uniform_arm(arm, mask) if needs_branch else self.value(arm))
        self.mask = saved
        return value

    def _is_zero_elsewhere(self, arm: Expr) -> bool:
        """True if an arm is a load of lanes side by side, which gives zeros in those that are not
        taken; or of elements that lanes share, or one float, which may come from zeros instead."""
        if not isinstance(arm, Load) or arm.buffer.scope == "register" or self.mask is not None:
            return False
        beside = self.shared_of(arm) is not None
        if not beside:
            place = self.flat_index(arm.buffer, arm.indices)
            beside = isinstance(place, Lin) and (place.lane == 1 or self.lanes == 1)
        alone = is_float(arm.dtype) and self.target.has_masks(dtype_bytes(arm.buffer.dtype))
        return beside and (alone or (self.lanes > 1 and self.target.has_one_memory))

    def _uniform_arm(self, arm: Expr, mask: str) -> Val:
        """A lane-invariant load under a uniform condition: made only if any lane wants it."""
        n, known = self.lanes, self.known.get(mask)
        if known is not None and known.condition and len(known.lanes) == n:
            return self._branching_select(known.condition, arm, None)
        bits = self.builder.here(f"bitcast <{n} x i1> {mask} to i{n}")
        test = self.builder.here(f"icmp ne i{n} {bits}, 0")
        return self._branching_select(test, arm, None)

    def _branching_select(self, test: str, a: Expr, b: Expr | None) -> Val:
        """``a`` where a scalar test holds, else ``b`` (0 for None), each in code of its own."""
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

    # --- instructions of several terms a lane --------------------------------------------------

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
        packed = self._bits_together(factors[t.terms], kinds[1], t.terms)
        if dtype_bytes(t.b) < dtype_bytes(t.a):
            packed = b.pure(f"sext {kinds[1]} {packed} to {kinds[0]}", [packed])
            kinds[1] = kinds[0]
        sums = vector_of(scalar_type(t.accumulator), t.lanes)
        operands = [(kinds[0], spread), (kinds[1], packed)]
        if t.turned:
            operands.reverse()
        if t.accumulates:
            operands.insert(0, (sums, total.text))
        taken = ", ".join(kind for kind, _ in operands)
        self.declares.add(f"declare {sums} @{t.instruction}({taken})")
        passed = ", ".join(f"{kind} {text}" for kind, text in operands)
        result = Val(b.here(f"call {sums} @{t.instruction}({passed})"), t.accumulator, t.lanes)
        return result if t.accumulates else self.emit("add", total, result)

    def _bits_together(self, factor: Expr, kind: str, step: int) -> str:
        """``_together`` of elements, or of bits of them, shifted and masked by what all share."""
        if not isinstance(factor, Binary):
            return self._together(factor, kind, step)
        bytes_ = self._bits_together(factor.a, kind, step)
        count = self.value(factor.b).text
        if count == "0" and factor.op == "shr":
            return bytes_
        op, element = {"shr": "lshr", "bitand": "and"}[factor.op], scalar_type(factor.dtype)
        return self.builder.pure(f"{op} {kind} {bytes_}, splat ({element} {count})", [bytes_])

    def _together(self, load: Expr, kind: str, step: int) -> str:
        """One load of ``kind`` from the element of lane 0 on, of which lanes are ``step`` apart."""
        assert isinstance(load, Load)
        place = self.flat_index(load.buffer, load.indices)
        if load.buffer.scope == "register" or not isinstance(place, Lin) or place.lane != step:
            raise ScheduleError(f"{load.buffer.name} is not in memory as an instruction reads it")
        pointer = self.address(load.buffer, place)
        align = dtype_bytes(load.buffer.dtype)
        return self.builder.load(f"load {kind}, ptr {pointer}, align {align}", load.buffer)


@lru_cache(KEPT)
def literal(const: Const) -> Val:
    """A number as it is written."""
    return Val(constant(const.value, const.dtype), const.dtype)


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and literal(expr) == literal(Const(0, expr.dtype))


@lru_cache(KEPT)
def reads_memory(choice: Select) -> bool:
    """True if an arm of a select loads from anything but registers."""
    arms = (choice.a, choice.b)
    return any(b.scope != "register" for arm in arms for b in buffers_read(arm))


@lru_cache(KEPT)
def _in_rows(expr: Expr, number: Expr) -> tuple[Var, tuple[Expr, Expr]]:
    """What stands for half of a number, and an expression where the number is even and odd."""
    half = Var("half")

    def in_row(row: int) -> Expr:
        def rule(e: Expr) -> Expr | None:
            match e:
                case Binary("floordiv", a, Const(value=2)) if a is number:
                    return half
                case Binary("floormod", a, Const(value=2)) if a is number:
                    return Const(row)
                case _:
                    return None

        return transform_expr(expr, rule)

    return half, (in_row(0), in_row(1))


@lru_cache(KEPT)
def is_update(expr: Binary) -> bool:
    """True if an operation brings an accumulator in registers a further term."""
    accumulates = expr.op in ("add", "mul", "min", "max", "maxnum") and is_float(expr.dtype)
    return accumulates and isinstance(expr.a, Load) and expr.a.buffer.scope == "register"


@lru_cache(KEPT)
def fusible(expr: Binary) -> tuple[Expr, Expr, Expr] | None:
    """(x, y, a) of a sum ``x · y + a`` of floats."""
    if expr.op != "add" or not is_float(expr.dtype):
        return None
    match expr:
        case Binary(a=a, b=Binary("mul", x, y)) | Binary(a=Binary("mul", x, y), b=a):
            return x, y, a
        case _:
            return None

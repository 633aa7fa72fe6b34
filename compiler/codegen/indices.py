"""Indices stay linear forms as long as they can."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.forms import (
    Atoms,
    Form,
    compare_with_zero,
    difference_of,
    flat_form,
    form_of,
    is_index,
    is_repeatable,
)
from tunefarm.compiler.codegen.reductions import Reductions
from tunefarm.compiler.codegen.values import Lin, Val, make
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.affine import decide
from tunefarm.compiler.tir.facts import buffers_read, variables
from tunefarm.compiler.tir.ir import (
    Binary,
    Buffer,
    Const,
    Expr,
    Select,
    Store,
    Var,
)
from tunefarm.compiler.tir.visit import loads_of

_LINEAR = frozenset(("add", "sub", "mul"))
_QUOTIENTS = frozenset(("floordiv", "floormod", "min", "max", "div"))
Steps: TypeAlias = tuple[tuple[Var, int], ...]
"""Variables and their coefficients."""


@dataclass(frozen=True, slots=True, eq=False)
class UnrolledNest:
    """Unrolled loops that are being written: the variables ``moving`` that change, and what is
    known meanwhile.

    ``sums`` are indices and differences, with the nest's variables apart; ``stores`` write a
    statement again and ``evaluations`` evaluate an expression for so many lanes (``repeated.py``).
    """

    moving: frozenset[Var]
    sums: dict[Hashable, tuple[Lin, Steps] | None] = field(default_factory=dict)
    stores: dict[Store, Callable[[], bool] | None] = field(default_factory=dict)
    evaluations: dict[tuple[Expr, int], Callable[[], Val]] = field(default_factory=dict)


class Indices(Reductions, ABC):
    """Integers in index positions, in an environment of loop variables."""

    def __init__(self, target: Target, builder: FunctionBuilder, declares: set[str]) -> None:
        super().__init__(target, builder, declares)
        self.env: dict[Var, Lin] = {}
        self.ranges: dict[Var, tuple[int, int]] = {}  # of loop variables, where that is known
        self._quotients: dict[tuple[Expr, int, tuple[Lin, ...]], Lin] = {}
        self.reached: dict[str, tuple[int, int]] = {}  # names of remainders and counters: bounds
        self.current_nest: UnrolledNest | None = None

    @abstractmethod
    def value(self, expr: Expr) -> Val:
        """Any expression as an SSA value."""

    @contextmanager
    def nest(self, moving: frozenset[Var] | None) -> Iterator[None]:
        """Code in which no other variables change than these, whose values are numbers; None for
        code of which that is not known."""
        saved = self.current_nest
        self.current_nest = None if moving is None else UnrolledNest(moving)
        try:
            yield
        finally:
            self.current_nest = saved

    def index(self, expr: Expr) -> Lin | Val:
        """An int64 expression as a linear form; a vector of integers only where it must be."""
        match expr:
            case Var():
                return self.env[expr]
            case Const():
                return Lin(int(expr.value))
            case Binary() if expr.op in _LINEAR:
                return self._linear(expr)
            case Binary() if expr.op in _QUOTIENTS:
                return self._quotient(expr)
            case Select() if (known := self.decide(expr.condition)) is not None:
                return self._of_nest(expr.a if known else expr.b)
            case _:
                result = self.value(expr)
                return Lin(0, ((result.text, 1),)) if result.lanes == 1 else result

    def _linear(self, expr: Binary) -> Lin | Val:
        x, y = self.index(expr.a), self.index(expr.b)
        if isinstance(x, Lin) and isinstance(y, Lin):
            if expr.op != "mul":
                return x.plus(y, 1 if expr.op == "add" else -1)
            if y.is_constant:
                return x.scaled(y.const)
            if x.is_constant:
                return y.scaled(x.const)
        return self.int_op(expr.op, x, y)

    def _quotient(self, expr: Binary) -> Lin | Val:
        """What is not linear, evaluated once for all elements of a tile."""
        key = None
        if is_repeatable(expr):
            key = (expr, self.lanes, tuple([self.env[v] for v in variables(expr)]))
            if key in self._quotients:
                return self._quotients[key]
        x, y = self.index(expr.a), self.index(expr.b)
        folded = _fold(expr.op, x, y)
        result = folded if folded is not None else self.divided(expr, x, y)
        if expr.op == "floormod" and folded is None and isinstance(result, Lin):
            self._remember_remainder(result, y)
        if key is not None and isinstance(result, Lin):
            self._quotients[key] = result
        return result

    def divided(self, expr: Binary, x: Lin | Val, y: Lin | Val) -> Lin | Val:
        """What an expression that is not linear is of its operands."""
        return self.int_op(expr.op, x, y)

    def _remember_remainder(self, result: Lin, divisor: Lin | Val) -> None:
        if isinstance(divisor, Lin) and divisor.is_constant and divisor.const > 0:
            ((name, _),) = result.terms
            self.reached[name] = 0, divisor.const - 1

    def int_op(self, op: str, x: Lin | Val, y: Lin | Val) -> Lin | Val:
        """``x op y`` by an instruction: a scalar if all lanes agree."""
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
        """An index as an SSA value; a vector where the lanes differ, or if one is asked for."""
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

    def left_open(self, condition: Expr) -> Expr | bool:
        """The parts of a condition that are not known now, or its value."""
        if not isinstance(condition, Binary) or condition.op != "and":
            known = self.decide(condition)
            return condition if known is None else known
        a = self.left_open(condition.a)
        if a is False:
            return False
        b = self.left_open(condition.b)
        if a is True or b is False:
            return b
        if b is True:
            return a
        if a is condition.a and b is condition.b:
            return condition
        return Binary("and", a, b, "bool")

    def decide(self, condition: Expr) -> bool | None:
        """The condition's value if it is the same for all lanes and known now."""
        if isinstance(condition, Const):
            return bool(condition.value)
        if not isinstance(condition, Binary):
            return None
        op, nest = condition.op, self.current_nest
        here = None if nest is None else nest.sums.get(condition)
        if here is not None and not here[0].terms and not here[0].lane:
            number = self.offset(here[0].const, here[1])
            return compare_with_zero(op, number, number)
        if op == "and":
            x, y = self.decide(condition.a), self.decide(condition.b)
            return False if x is False or y is False else True if x and y else None
        if op == "or":
            x, y = self.decide(condition.a), self.decide(condition.b)
            return True if x or y else False if x is False and y is False else None
        found = self.compared(condition)
        if found is None:
            return None
        _, difference = found
        reach = self.reach(difference)
        known = None if reach is None else compare_with_zero(op, *reach)
        if known is None and difference.terms and not difference.lane:
            return decide(condition, self.ranges)
        return known

    def compared(self, condition: Expr) -> tuple[str, Lin] | None:
        """A comparison of indices as one of their difference with 0; None for other conditions."""
        if not isinstance(condition, Binary):
            return None
        form = difference_of(condition)
        difference = None if form is None else self._sum(condition, form)
        return (condition.op, difference) if isinstance(difference, Lin) else None

    def reach(self, value: Lin) -> tuple[int, int] | None:
        """The least and the greatest that an index is in any lane; None if that is not known."""
        ends: tuple[int, ...] = (value.const, value.const + value.lane * (self.lanes - 1))
        low, high = min(ends), max(ends)
        for name, coefficient in value.terms:
            if name not in self.reached:
                return None
            ends = tuple(coefficient * end for end in self.reached[name])
            low, high = low + min(ends), high + max(ends)
        return low, high

    def depends_on_lane(self, expr: Expr) -> bool:
        """True if an expression may differ between the lanes of the current vector."""
        if self.lanes == 1:
            return False
        if any(self.env[v].lane for v in variables(expr)):
            return True
        if all(b.scope != "register" for b in buffers_read(expr)):
            return False
        places = (
            self.flat_index(load.buffer, load.indices)
            for load in loads_of(expr)
            if load.buffer.scope == "register"
        )
        return any(isinstance(place, Val) or place.lane for place in places)

    def flat_index(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Lin | Val:
        """The number of an element in its buffer, row by row."""
        return self._sum((buffer, indices), flat_form(buffer, indices))

    def _sum(self, key: Hashable, form: Form) -> Lin | Val:
        """A sum for the current values of the variables. In a nest, what all of its elements have
        in common is evaluated once; ``key`` stands for the sum."""
        nest = self.current_nest
        if nest is None:
            return self._evaluated(*form)
        if key not in nest.sums:
            nest.sums[key] = self._without_moving(nest.moving, *form)
        found = nest.sums[key]
        if found is None:
            return self._evaluated(*form)
        (const, terms, lane), steps = found
        return make(Lin, (self.offset(const, steps), terms, lane))

    def offset(self, const: int, steps: Steps) -> int:
        """A sum's constant for the current values of the nest's variables."""
        env = self.env
        for var, coefficient in steps:
            const += coefficient * env[var][0]
        return const

    def _of_nest(self, expr: Expr) -> Lin | Val:
        """An index, evaluated once in a nest if it is a sum that the nest's variables can move."""
        if self.current_nest is None or not is_index(expr):
            return self.index(expr)
        return self._sum(expr, form_of(expr))

    def _without_moving(
        self, moving: frozenset[Var], const: int, atoms: Atoms
    ) -> tuple[Lin, Steps] | None:
        """A sum without the variables ``moving``, and these with their coefficients; None if an
        atom holds one of them, or must be evaluated where it stands."""
        steps: list[tuple[Var, int]] = []
        fixed: list[tuple[Expr, int, bool]] = []
        for atom, coefficient, is_variable in atoms:
            if isinstance(atom, Var) and atom in moving:
                steps.append((atom, coefficient))
            elif is_variable or (is_index(atom) and variables(atom).isdisjoint(moving)):
                fixed.append((atom, coefficient, is_variable))
            else:
                return None
        base = self._evaluated(const, tuple(fixed))
        return (base, tuple(steps)) if isinstance(base, Lin) else None

    def _evaluated(self, const: int, atoms: Atoms) -> Lin | Val:
        """``const + Σ coefficient · atom``, for the current values of the variables."""
        lane, env = 0, self.env
        terms: dict[str, int] = {}
        varying: list[tuple[Val, int]] = []
        for atom, coefficient, is_variable in atoms:
            bound = env[atom] if is_variable else self.index(atom)  # type: ignore[index]
            if isinstance(bound, Val):
                varying.append((bound, coefficient))
                continue
            start, factors, step = bound
            const += coefficient * start
            lane += coefficient * step
            for name, factor in factors:
                terms[name] = terms.get(name, 0) + coefficient * factor
        kept = tuple([(n, c) for n, c in terms.items() if c]) if terms else ()
        total: Lin | Val = make(Lin, (const, kept, lane))
        for value, coefficient in varying:
            scaled = self.int_op("mul", value, Lin(coefficient)) if coefficient != 1 else value
            total = self.int_op("add", total, scaled)
        return total


def _fold(op: str, x: Lin | Val, y: Lin | Val) -> Lin | None:
    if not (isinstance(x, Lin) and x.is_constant and isinstance(y, Lin) and y.is_constant):
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

"""A debug lowering: every access that may miss its buffer is tested before it is made.

The program gets one more output, int64[accesses, 2]: for each tested access and dimension whether
it missed, and the last index that did. A statement with an access that misses is skipped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tunefarm.compiler.tir.affine import interval
from tunefarm.compiler.tir.ir import (
    Allocate,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Intrinsic,
    Load,
    LoopKind,
    PrimFunc,
    Select,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.transform.blocks import blocks_to_loops
from tunefarm.compiler.tir.visit import map_children, operands, seq, transform_expr, transform_stmt

_TRUE = Const(True, "bool")


@dataclass(frozen=True, slots=True)
class Access:
    """One dimension of a load or store that is tested as the program runs."""

    buffer: str
    dimension: int
    extent: int
    writes: bool


def add_bounds_checks(program: PrimFunc) -> tuple[PrimFunc, tuple[Access, ...]]:
    """The program with a report of its accesses out of range as last output, and what its rows
    stand for. Loops become serial and registers local.

    C[i] = A[i + 1]
    ->  if i + 1 in [0, n): C[i] = A[i + 1]   else: report[0] = (1, i + 1)
    """
    plain = _serial(blocks_to_loops(program, keep=frozenset(program.buffers)))
    checker = _Checker()
    body = checker.stmt(plain.body, {})
    report = replace(checker.report, shape=(max(1, len(checker.accesses)), 2))
    row, column = Var("row"), Var("column")
    zero = Store(report, (row, column), Const(0))
    clear = For(row, Const(report.shape[0]), For(column, Const(2), zero))

    def final(stmt: Stmt) -> Stmt | None:
        if isinstance(stmt, Store) and stmt.buffer is checker.report:
            return replace(stmt, buffer=report)
        return None

    checked = replace(
        plain,
        params=(*plain.params, report),
        outputs=plain.outputs + 1,
        body=seq(clear, transform_stmt(body, final)),
    )
    return checked, tuple(checker.accesses)


def _serial(program: PrimFunc) -> PrimFunc:
    """Plain loops without hints, over buffers in memory."""
    places: dict[Buffer, Buffer] = {}

    def place(buffer: Buffer) -> Buffer:
        scope = "global" if buffer.scope == "global" else "local"
        return places.setdefault(buffer, replace(buffer, scope=scope, copies=1))

    places.update((p, p) for p in program.params)

    def load(expr: Expr) -> Expr | None:
        return Load(place(expr.buffer), expr.indices) if isinstance(expr, Load) else None

    def rule(stmt: Stmt) -> Stmt | None:
        match stmt:
            case For():
                return replace(stmt, kind=LoopKind.SERIAL, axis="", prefetch=())
            case Store() | Allocate():
                return replace(stmt, buffer=place(stmt.buffer))
            case _:
                return None

    body = transform_stmt(program.body, rule, lambda e: transform_expr(e, load))
    return replace(program, body=body, buffers=tuple(map(place, program.buffers)))


class _Checker:
    """Tests around statements; the rows of the report so far."""

    def __init__(self) -> None:
        self.report = Buffer("bounds_report", (1, 2), "int64")
        self.accesses: list[Access] = []

    def stmt(self, stmt: Stmt, ranges: dict[Var, tuple[int, int]]) -> Stmt:
        inside, roots = ranges, list[Expr]()
        tests: list[tuple[Expr, int, Expr]] = []
        match stmt:
            case For():
                low, _ = interval(stmt.start, ranges)
                _, end = interval(stmt.start + stmt.extent, ranges)
                inside = {**ranges, stmt.var: (low, end - 1)}
                roots = [stmt.start, stmt.extent]
            case If():
                roots = [stmt.condition]
            case Store():
                roots = [*stmt.indices, stmt.value]
            case _:
                pass
        for root in roots:
            tests += self.loads(root, ranges, _TRUE)
        if isinstance(stmt, Store):
            tests += self.access(stmt.buffer, stmt.indices, ranges, _TRUE, writes=True)
        return self.tested(tests, map_children(stmt, lambda s: self.stmt(s, inside)))

    def tested(self, tests: Iterable[tuple[Expr, int, Expr]], stmt: Stmt) -> Stmt:
        """The statement if all tests hold, made in order; else the report of the first miss."""
        for holds, row, index in reversed(list(tests)):
            miss = seq(
                Store(self.report, (Const(row), Const(0)), Const(1)),
                Store(self.report, (Const(row), Const(1)), index),
            )
            stmt = If(holds, stmt, miss)
        return stmt

    def loads(
        self, expr: Expr, ranges: dict[Var, tuple[int, int]], when: Expr
    ) -> list[tuple[Expr, int, Expr]]:
        """Tests of the loads in an expression, inner ones first; ``when`` it is evaluated."""
        if isinstance(expr, Select):
            no = Intrinsic("not", (expr.condition,), "bool")
            return [
                *self.loads(expr.condition, ranges, when),
                *self.loads(expr.a, ranges, _both(when, expr.condition)),
                *self.loads(expr.b, ranges, _both(when, no)),
            ]
        tests = [t for part in operands(expr) for t in self.loads(part, ranges, when)]
        if isinstance(expr, Load):
            tests += self.access(expr.buffer, expr.indices, ranges, when, writes=False)
        return tests

    def access(
        self,
        buffer: Buffer,
        indices: tuple[Expr, ...],
        ranges: dict[Var, tuple[int, int]],
        when: Expr,
        writes: bool,
    ) -> list[tuple[Expr, int, Expr]]:
        tests: list[tuple[Expr, int, Expr]] = []
        for dimension, (index, extent) in enumerate(zip(indices, buffer.shape, strict=True)):
            low, high = interval(index, ranges)
            if low >= 0 and high < extent:
                continue
            holds: Expr = (index >= 0) & (index < extent)
            if when is not _TRUE:
                holds = Select(when, holds, _TRUE, "bool")
            tests.append((holds, len(self.accesses), index))
            self.accesses.append(Access(buffer.name, dimension, extent, writes))
        return tests


def _both(a: Expr, b: Expr) -> Expr:
    """``b`` where ``a`` holds: a load in ``b`` is made only there."""
    return b if a is _TRUE else Select(a, b, Const(False, "bool"), "bool")

"""Statements that run in shares beside the products of a matrix unit."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.tir.facts import buffers_read_below, buffers_stored
from tunefarm.compiler.tir.ir import (
    Allocate,
    Const,
    Expr,
    For,
    If,
    LoopKind,
    Seq,
    Stmt,
    Var,
)
from tunefarm.compiler.tir.visit import seq, substitute, substitute_stmt

ALWAYS = Const(True, "bool")


def uses_tiles(stmt: Stmt) -> bool:
    return any(b.scope == "tile" for b in buffers_read_below(stmt) | buffers_stored(stmt))


def is_sum(stmt: Stmt) -> bool:
    """Whether a loop runs over the products of tiles."""
    return isinstance(stmt, For) and stmt.kind is LoopKind.SERIAL and uses_tiles(stmt)


def has_sum(stmt: Stmt) -> bool:
    """Whether a statement is such a loop, or has one between others."""
    match stmt:
        case Allocate(body=body):
            return has_sum(body)
        case Seq(stmts):
            return any(map(is_sum, stmts))
        case _:
            return is_sum(stmt)


@dataclass(frozen=True, slots=True)
class Beside:
    """A statement that runs in shares beside a sum, where it ``exists``: a share behind each step,
    or, if they are ``fine``, behind each iteration of a step's outermost unrolled loop."""

    exists: Expr
    body: Stmt
    fine: bool = False

    def share_out(self, sum_loop: Stmt, here: Expr = ALWAYS) -> Stmt:
        """The loops of a sum, run only ``here``, with the shares."""
        return self._beside(sum_loop, here, Const(0), 1)

    def _beside(self, stmt: Stmt, here: Expr, visit: Expr, visits: int) -> Stmt:
        """``visit`` counts the steps of the loops around a statement: there are ``visits``."""
        match stmt:
            case Allocate():
                return replace(stmt, body=self._beside(stmt.body, here, visit, visits))
            case For(extent=Const(value=int() as extent)) if is_sum(stmt) and extent > 0:
                number = visit * extent + (stmt.var - stmt.start)
                return replace(stmt, body=self._beside(stmt.body, here, number, visits * extent))
            case Seq(stmts) if any(is_sum(s) for s in stmts):
                first = next(s for s in stmts if is_sum(s))
                inner = (
                    self._beside(s, here, visit, visits) if s is first else If(here, s)
                    for s in stmts
                )  # fmt: skip
                return seq(*inner)
            case For(kind=LoopKind.UNROLLED, extent=Const(value=int() as extent)) if self.fine:
                number = visit * extent + (stmt.var - stmt.start)
                part = seq(If(here, stmt.body), self._share(number, visits * extent))
                return replace(stmt, body=part)
            case _:
                return seq(If(here, stmt), self._share(visit, visits))

    def _share(self, visit: Expr, visits: int) -> Stmt:
        return If(self.exists, _share_of(self.body, visit, visits))


def _share_of(stmt: Stmt, visit: Expr, visits: int) -> Stmt:
    """The iterations of a statement's outermost loops that one of ``visits`` runs."""
    match stmt:
        case Seq(stmts):
            return seq(*(_share_of(s, visit, visits) for s in stmts))
        case If(condition, then, orelse):
            other = None if orelse is None else _share_of(orelse, visit, visits)
            return If(condition, _share_of(then, visit, visits), other)
        case For(kind=LoopKind.SERIAL):
            loop = _joined(stmt)
            begin = loop.extent * visit // visits
            end = loop.extent * (visit + 1) // visits
            return replace(loop, start=loop.start + begin, extent=end - begin)
        case _:
            return If(visit.equal(0), stmt) if visits > 1 else stmt


def _joined(loop: For) -> For:
    """Two loops, one in the other, as one."""
    match loop.body:
        case For(kind=LoopKind.SERIAL, extent=Const(value=int() as extent)) as inner if extent > 0:
            if loop.prefetch or inner.prefetch:
                return loop
            both = Var(f"{loop.var.name}_{inner.var.name}")
            outer = loop.start + both // extent
            start = substitute(inner.start, {loop.var: outer})
            body = substitute_stmt(inner.body, {loop.var: outer, inner.var: start + both % extent})
            return _joined(For(both, loop.extent * extent, body))
        case _:
            return loop

"""Virtual threads: the bodies of a loop's iterations, interleaved statement by statement.

The design is that of TVM's InjectVirtualThread (Chen et al., "TVM", 2018, section 4.3).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tunefarm.compiler.tir.ir import (
    Allocate,
    Buffer,
    Const,
    Expr,
    For,
    If,
    Load,
    LoopKind,
    PrimFunc,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.schedule.tree import constant_extent
from tunefarm.compiler.tir.visit import (
    map_children,
    seq,
    transform_expr,
    transform_stmt,
    walk_expr,
    walk_stmt,
)


def interleave_virtual_threads(program: PrimFunc) -> PrimFunc:
    """Expand loops over virtual threads, each with its copy of the local buffers that differ.

    for v in vthread(2): allocate T: T[0] = f(v); out[v] = T[0]
    ->  allocate T[2]: T[0] = f(0); T[1] = f(1); out[0] = T[0]; out[1] = T[1]
    """

    def rule(stmt: Stmt) -> Stmt | None:
        if not isinstance(stmt, For) or stmt.kind is not LoopKind.VIRTUAL:
            return None
        start = stmt.start.value if isinstance(stmt.start, Const) else 0
        count = constant_extent(stmt)
        own, once = _buffers(stmt)
        return _Interleaver(stmt.var, int(start), count, own, once).stmt(stmt.body)

    if not any(isinstance(s, For) and s.kind is LoopKind.VIRTUAL for s in walk_stmt(program.body)):
        return program
    return replace(program, body=transform_stmt(program.body, rule))


def _buffers(loop: For) -> tuple[dict[Buffer, Buffer], frozenset[Buffer]]:
    """The buffers inside the loop that get a copy a thread, with their new forms, and those
    whose contents are the same for all threads."""
    inside = {s.buffer for s in walk_stmt(loop.body) if isinstance(s, Allocate)}
    differ: set[Buffer] = set()
    while True:
        found = differ | (_written_apart(loop.body, loop.var, differ, False) & inside)
        if found == differ:
            break
        differ = found
    count = constant_extent(loop)
    own = {b: replace(b, shape=(count, *b.shape)) for b in inside if b in differ}
    return own, frozenset(inside - differ)


def _written_apart(stmt: Stmt, var: Var, differ: set[Buffer], apart: bool) -> set[Buffer]:
    """Buffers that are stored to where the place, value or condition differs between threads."""
    match stmt:
        case Store():
            mine = any(_differs(e, var, differ) for e in (*stmt.indices, stmt.value))
            return {stmt.buffer} if apart or mine else set()
        case For():
            apart = apart or any(_differs(e, var, differ) for e in (stmt.start, stmt.extent))
        case If():
            apart = apart or _differs(stmt.condition, var, differ)
        case _:
            pass
    return {b for s in _children(stmt) for b in _written_apart(s, var, differ, apart)}


def _children(stmt: Stmt) -> list[Stmt]:
    found: list[Stmt] = []
    map_children(stmt, lambda s: found.append(s) or s)  # type: ignore[func-returns-value]
    return found


def _differs(expr: Expr, var: Var, differ: set[Buffer]) -> bool:
    return any(e is var or (isinstance(e, Load) and e.buffer in differ) for e in walk_expr(expr))


@dataclass(frozen=True, slots=True, eq=False)
class _Interleaver:
    """Writes the body of ``count`` threads, whose numbers ``var`` has from ``start`` on."""

    var: Var
    start: int
    count: int
    own: dict[Buffer, Buffer]
    once: frozenset[Buffer]

    def stmt(self, stmt: Stmt) -> Stmt:
        match stmt:
            case Seq(stmts):
                return seq(*(self.stmt(s) for s in stmts))
            case Allocate(buffer, body):
                return Allocate(self.own.get(buffer, buffer), self.stmt(body))
            case For() if not self.apart(stmt.start, stmt.extent):
                hints = tuple(
                    replace(p, offset=self.expr(p.offset, t))
                    for p in stmt.prefetch
                    for t in range(self.count if self.apart(p.offset) else 1)
                )
                return replace(stmt, body=self.stmt(stmt.body), prefetch=hints)
            case If() if not self.apart(stmt.condition):
                return map_children(stmt, self.stmt)
            case Store() if stmt.buffer in self.once:
                return stmt
            case Store() | For() | If():
                return seq(*(self.copy(stmt, t) for t in range(self.count)))
            case _:
                return stmt

    def apart(self, *exprs: Expr) -> bool:
        return any(_differs(e, self.var, set(self.own)) for e in exprs)

    def copy(self, stmt: Stmt, thread: int) -> Stmt:
        """The statement as one thread runs it."""

        def rule(s: Stmt) -> Stmt | None:
            if isinstance(s, (Store, Allocate)) and s.buffer in self.own:
                new = self.own[s.buffer]
                if isinstance(s, Allocate):
                    return replace(s, buffer=new)
                return Store(new, (Const(thread), *s.indices), s.value)
            return None

        return transform_stmt(stmt, rule, lambda e: self.expr(e, thread))

    def expr(self, expr: Expr, thread: int) -> Expr:
        def rule(e: Expr) -> Expr | None:
            if e is self.var:
                return Const(self.start + thread)
            if isinstance(e, Load) and e.buffer in self.own:
                return Load(self.own[e.buffer], (Const(thread), *e.indices))
            return None

        return transform_expr(expr, rule)

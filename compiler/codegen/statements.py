"""Statements: what a kernel's functions are made of.

The emitter is a tower of layers, each in a module of its own that knows those below it:

    lanes         single instructions, on one or several lanes
    casts         values of one dtype as another
    arithmetic    operations, and functions of scalars
    reductions    all lanes combined
    indices       integers that stay linear forms
    masks         lanes that take part
    memory        loads and stores
    registers     tiles whose elements are SSA values
    expressions   any expression as a value
    branches      two ways through the code
    stores        elements side by side, lanes that update one element
    loops         vectorized, unrolled, serial
    statements    any statement; allocations, bodies of parallel loops
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.loops import Loops
from tunefarm.compiler.codegen.values import Lin
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir.facts import buffers_stored
from tunefarm.compiler.tir.ir import (
    Allocate,
    Barrier,
    Block,
    Buffer,
    For,
    If,
    LoopKind,
    Seq,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.visit import expressions, loads_of, walk_expr, walk_stmt

MAX_STACK_BYTES = 1 << 20
ALIGN = 64


@dataclass(slots=True)
class Module:
    """What the functions of one kernel share."""

    name: str
    target: Target
    functions: list[str] = field(default_factory=list)
    declares: set[str] = field(default_factory=set)
    workspace_bytes: int = 0
    parallel: bool = False


class Emitter(Loops):
    """Writes statements into one function of a kernel."""

    def __init__(self, module: Module, builder: FunctionBuilder, in_parallel: bool = False) -> None:
        super().__init__(module.target, builder, module.declares)
        self.module = module
        self.in_parallel = in_parallel
        self.stack_bytes = 0
        self.free_stack: list[tuple[int, str]] = []

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Store():
                self.store(stmt)
            case For():
                self._loop(stmt)
            case Seq(stmts):
                for part in stmts:
                    self.statement(part)
            case If():
                self.branch(stmt)
            case Allocate():
                self._allocate(stmt)
            case Barrier():
                raise ScheduleError(f"a barrier in {self.module.name}: a CPU has no thread blocks")
            case Block():
                raise AssertionError(f"block {stmt.name} reached the code generator")

    def _loop(self, loop: For) -> None:
        match loop.kind:
            case LoopKind.UNROLLED:
                self.unrolled_loop(loop)
            case LoopKind.VECTORIZED:
                self.vector_loop(loop)
            case LoopKind.PARALLEL if not self.in_parallel and self.lanes == 1:
                self._parallel_loop(loop)
            case LoopKind.THREAD | LoopKind.VIRTUAL:
                raise ScheduleError(
                    f"loop {loop.var.name} is bound to {loop.axis or loop.kind}, which a CPU does "
                    "not have; make it parallel instead"
                )
            case _:
                self.serial_loop(loop)

    # --- allocations ---------------------------------------------------------------------------

    def _allocate(self, node: Allocate) -> None:
        buffer = node.buffer
        if buffer.scope == "register":
            self.homes[buffer] = len(self.loops)
        else:
            size = -(-prod(buffer.shape) * dtype_bytes(buffer.dtype) // ALIGN) * ALIGN
            if buffer.scope == "global" and not self.in_parallel and self.builder.depth == 0:
                offset = self.module.workspace_bytes
                self.module.workspace_bytes += size
                self.pointers[buffer] = self.builder.pure(
                    f"getelementptr inbounds i8, ptr %workspace, i64 {offset}"
                )
            else:
                self.pointers[buffer] = self._take_stack(size)
        self.statement(node.body)
        if buffer.scope != "register" and self.pointers[buffer].startswith("%stack"):
            self.free_stack.append((size, self.pointers[buffer]))
        self.slots = {s: v for s, v in self.slots.items() if s.buffer is not buffer}
        self.owners.pop(buffer, None)

    def _take_stack(self, size: int) -> str:
        """A tile on the stack; one whose scope has ended is used again."""
        fitting = [tile for tile in self.free_stack if tile[0] >= size]
        if fitting:
            tile = min(fitting)
            self.free_stack.remove(tile)
            return tile[1]
        self.stack_bytes += size
        if self.stack_bytes > MAX_STACK_BYTES:
            raise ScheduleError(
                f"tiles take {self.stack_bytes} bytes of stack; at most {MAX_STACK_BYTES}"
            )
        return self.builder.alloca(f"[{size} x i8], align {ALIGN}")

    # --- parallel loops ------------------------------------------------------------------------

    def _parallel_loop(self, loop: For) -> None:
        """Outline the body; the closure holds the pointers and outer indices that it uses."""
        start, extent = self.index(loop.start), self.index(loop.extent)
        assert isinstance(start, Lin)
        assert isinstance(extent, Lin)
        b = self.builder
        used = _buffers_used(loop.body)
        inside = {s.buffer for s in walk_stmt(loop.body) if isinstance(s, Allocate)}
        shared = [u.name for u in used if u.scope == "register" and u not in inside]
        if shared:
            raise ScheduleError(
                f"registers of {shared[0]} are not shared by the threads of loop {loop.var.name}"
            )
        buffers = [u for u in used if u in self.pointers]
        outer = [v for v in _variables_used(loop) if v in self.env and v is not loop.var]
        slots = [("ptr", self.pointers[u]) for u in buffers]
        for var in outer:
            lin = self.env[var]
            slots.append(("i64", self.scalar_int(lin)))
        closure = b.alloca(f"[{max(1, len(slots))} x i64], align 8")
        for position, (kind, text) in enumerate(slots):
            place = b.pure(f"getelementptr inbounds i64, ptr {closure}, i64 {position}", [closure])
            b.line(f"store {kind} {text}, ptr {place}, align 8")
        name = f"{self.module.name}_body{len(self.module.functions)}"
        self._outline(name, loop, start, buffers, outer, slots)
        self.module.parallel = True
        self.module.declares.add("declare void @tunefarm_parallel(ptr, ptr, ptr, i64)")
        count = self.scalar_int(extent)
        b.line(f"call void @tunefarm_parallel(ptr %pool, ptr @{name}, ptr {closure}, i64 {count})")
        for buffer in buffers_stored(loop.body):
            b.forget(buffer)

    def _outline(
        self,
        name: str,
        loop: For,
        start: Lin,
        buffers: list[Buffer],
        outer: list[Var],
        slots: list[tuple[str, str]],
    ) -> None:
        builder = FunctionBuilder()
        inner = Emitter(self.module, builder, in_parallel=True)
        inner.constants = self.constants
        loaded = []
        for position, (kind, _) in enumerate(slots):
            place = builder.pure(f"getelementptr inbounds i64, ptr %closure, i64 {position}")
            loaded.append(builder.now(f"load {kind}, ptr {place}, align 8"))
        for buffer, text in zip(buffers, loaded, strict=False):
            inner.pointers[buffer] = text
        for var, text in zip(outer, loaded[len(buffers) :], strict=True):
            inner.env[var] = Lin(0, ((text, 1),))
        if start.terms:
            raise ScheduleError(f"parallel loop {loop.var.name} does not start at a constant")
        inner.env[loop.var] = Lin(start.const, (("%index", 1),))
        self.module.functions.append("")
        place_of_text = len(self.module.functions) - 1
        inner.iteration(loop)
        builder.line("ret void")
        body = "\n".join(builder.body())
        self.module.functions[place_of_text] = (
            f"define internal void @{name}(ptr noalias %closure, i64 %index) #0 {{\n{body}\n}}\n"
        )


def _buffers_used(stmt: Stmt) -> list[Buffer]:
    found: dict[Buffer, None] = {}
    for node in walk_stmt(stmt):
        if isinstance(node, Store):
            found[node.buffer] = None
    for load in loads_of(stmt):
        found[load.buffer] = None
    return list(found)


def _variables_used(stmt: Stmt) -> list[Var]:
    found: dict[Var, None] = {}
    for root in expressions(stmt):
        for node in walk_expr(root):
            if isinstance(node, Var):
                found[node] = None
    return list(found)

"""Statements: what a kernel's functions are made of.

The emitter is a tower of layers, each in a module of its own that knows those below it:

    lanes         single instructions, on one or several lanes
    casts         values of one dtype as another
    arithmetic    operations, and functions of scalars
    reductions    all lanes combined
    indices       integers that stay linear forms
    masks         lanes that take part
    masked_moves  vectors in memory of which a mask takes some lanes
    lane_patterns lanes that repeat elements, or share them
    memory        loads and stores
    registers     tiles whose elements are SSA values
    expressions   any expression as a value
    repeated      stores that unrolled loops repeat
    branches      two ways through the code
    stores        elements side by side, lanes that update one element
    loops         vectorized, unrolled, serial
    tiles         nests that a matrix unit runs
    statements    any statement; allocations, bodies of parallel loops
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.tiles import TileFile, Tiles
from tunefarm.compiler.codegen.values import Lin
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.tir.affine import range_of
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
STACK_TILE_BYTES = 1 << 14  # the largest tile on a stack
ALIGN = 64
ANY_THREAD = -1  # as the number of threads that may take part


@dataclass(slots=True)
class Module:
    """What the functions of one kernel share; ``in_order`` if one of its buffers is ordered."""

    name: str
    target: Target
    in_order: bool = False
    functions: list[str] = field(default_factory=list)
    declares: set[str] = field(default_factory=set)
    parallel: bool = False


class Emitter(Tiles):
    """Writes statements into one function of a kernel.

    ``scratch`` points to memory of the thread that runs it, of which ``scratch_bytes`` are used.
    """

    def __init__(
        self, module: Module, builder: FunctionBuilder, scratch: str, in_parallel: bool = False
    ) -> None:
        super().__init__(module.target, builder, module.declares)
        self.module = module
        self.in_order = module.in_order
        self.in_parallel = in_parallel
        self.tiles = TileFile()
        self.stack_bytes = 0
        self.free_stack: list[tuple[int, str]] = []
        self.scratch = scratch
        self.scratch_bytes = 0
        self._scratch_taken = 0

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
        kind = loop.kind
        if kind is LoopKind.VECTORIZED:
            self.vector_loop(loop)
        elif kind is LoopKind.UNROLLED:
            self.unrolled_loop(loop)
        elif kind is LoopKind.TILED:
            self.tiled_nest(loop)
        elif kind is LoopKind.PARALLEL and not self.in_parallel and self.lanes == 1:
            self._parallel_loop(loop)
        elif kind is LoopKind.THREAD or kind is LoopKind.VIRTUAL:
            raise ScheduleError(
                f"loop {loop.var.name} is bound to {loop.axis or loop.kind}, which a CPU does "
                "not have; make it parallel instead"
            )
        else:
            self.serial_loop(loop)

    # --- allocations ---------------------------------------------------------------------------

    def _allocate(self, node: Allocate) -> None:
        buffer = node.buffer
        if buffer.scope == "tile":
            self.statement(node.body)
        elif buffer.scope == "register":
            self.homes[buffer] = len(self.loops)
            self.statement(node.body)
        else:
            size = -(-prod(buffer.shape) * dtype_bytes(buffer.dtype) // ALIGN) * ALIGN
            if size > STACK_TILE_BYTES or (buffer.scope == "global" and not self.in_parallel):
                self.pointers[buffer] = self._take_scratch(size)
                self.statement(node.body)
                self._scratch_taken -= size
            else:
                tile = self._take_stack(size)
                self.pointers[buffer] = tile[1]
                self.statement(node.body)
                self.free_stack.append(tile)
        self.slots = {s: v for s, v in self.slots.items() if s.buffer is not buffer}
        self.owners.pop(buffer, None)

    def _take_stack(self, size: int) -> tuple[int, str]:
        """The bytes of a tile on the stack, and its pointer; one whose scope has ended is used
        again."""
        fitting = [tile for tile in self.free_stack if tile[0] >= size]
        if fitting:
            tile = min(fitting)
            self.free_stack.remove(tile)
            return tile
        self.stack_bytes += size
        if self.stack_bytes > MAX_STACK_BYTES:
            raise ScheduleError(
                f"tiles take {self.stack_bytes} bytes of stack; at most {MAX_STACK_BYTES}"
            )
        return size, self.builder.alloca(f"[{size} x i8], align {ALIGN}")

    def _take_scratch(self, size: int) -> str:
        """The next bytes of the scratch memory; scopes nest, so it is a stack."""
        offset = self._scratch_taken
        self._scratch_taken += size
        self.scratch_bytes = max(self.scratch_bytes, self._scratch_taken)
        return self.builder.pure(f"getelementptr inbounds i8, ptr {self.scratch}, i64 {offset}")

    # --- parallel loops ------------------------------------------------------------------------

    def _parallel_loop(self, loop: For) -> None:
        """Outline the body, and have it called for every iteration."""
        start, extent = self.index(loop.start), self.index(loop.extent)
        assert isinstance(start, Lin)
        assert isinstance(extent, Lin)
        if start.terms:
            raise ScheduleError(f"parallel loop {loop.var.name} does not start at a constant")
        if self.tiles.shapes:
            raise ScheduleError(f"loop {loop.var.name} is parallel beside tiles of a matrix unit")
        b, members = self.builder, self._members_of_closure(loop)
        closure = self._write_closure(members)
        name = f"{self.module.name}_body{len(self.module.functions)}"
        tile_bytes = self._outline(name, loop, start.const, members)
        self.module.parallel = True
        self.module.declares.add(
            "declare void @tunefarm_parallel(ptr, ptr, ptr, i64, ptr, i64, i64)"
        )
        scratch = self._scratch_of_threads(tile_bytes, extent)
        passed = f"ptr %pool, ptr @{name}, ptr {closure}, i64 {self.scalar_int(extent)}, {scratch}"
        b.line(f"call void @tunefarm_parallel({passed})")
        for buffer in buffers_stored(loop.body):
            b.forget(buffer)

    def _members_of_closure(self, loop: For) -> list[Buffer | Var]:
        """The buffers in memory and the outer variables that the body uses."""
        used = _buffers_used(loop.body)
        inside = {s.buffer for s in walk_stmt(loop.body) if isinstance(s, Allocate)}
        shared = [u.name for u in used if u.scope == "register" and u not in inside]
        if shared:
            raise ScheduleError(
                f"registers of {shared[0]} are not shared by the threads of loop {loop.var.name}"
            )
        outer = (v for v in _variables_used(loop) if v in self.env and v is not loop.var)
        return [*(u for u in used if u in self.pointers), *outer]

    def _write_closure(self, members: list[Buffer | Var]) -> str:
        """The pointer to an array on the stack: a pointer or a number of 8 bytes each."""
        b = self.builder
        texts = [
            self.pointers[m] if isinstance(m, Buffer) else self.scalar_int(self.env[m])
            for m in members
        ]
        closure = b.alloca(f"[{max(1, len(members))} x i64], align 8")
        for position, (member, text) in enumerate(zip(members, texts, strict=True)):
            place = b.pure(f"getelementptr inbounds i64, ptr {closure}, i64 {position}", [closure])
            b.line(f"store {_type_in_closure(member)} {text}, ptr {place}, align 8")
        return closure

    def _read_closure(self, members: list[Buffer | Var]) -> None:
        """The members as an iteration finds them."""
        b = self.builder
        for position, member in enumerate(members):
            place = b.pure(f"getelementptr inbounds i64, ptr %closure, i64 {position}")
            text = b.now(f"load {_type_in_closure(member)}, ptr {place}, align 8")
            if isinstance(member, Buffer):
                self.pointers[member] = text
            else:
                self.env[member] = Lin(0, ((text, 1),))

    def _scratch_of_threads(self, tile_bytes: int, extent: Lin) -> str:
        """Where the threads' scratch memory begins, how far apart it is, and for how many."""
        if not tile_bytes:
            return f"ptr null, i64 0, i64 {ANY_THREAD}"
        threads = self.target.num_cores
        if not extent.terms:
            threads = max(1, min(threads, extent.const))
        stride = _apart(tile_bytes)
        pointer = self._take_scratch(threads * stride)
        self._scratch_taken -= threads * stride
        return f"ptr {pointer}, i64 {stride}, i64 {threads}"

    def _outline(self, name: str, loop: For, start: int, members: list[Buffer | Var]) -> int:
        """Write the function of an iteration; return the bytes that it needs of ``%scratch``."""
        builder = FunctionBuilder()
        inner = Emitter(self.module, builder, "%scratch", in_parallel=True)
        inner.constants = self.constants
        inner._read_closure(members)
        inner.env[loop.var] = Lin(start, (("%index", 1),))
        inner.ranges = {**self.ranges, loop.var: range_of(loop, self.ranges)}
        self.module.functions.append("")
        place_of_text = len(self.module.functions) - 1
        inner.iteration(loop)
        inner.configured()
        builder.line("ret void")
        body = "\n".join(builder.body())
        arguments = f"ptr noalias %closure, i64 %index, ptr noalias align {ALIGN} %scratch"
        self.module.functions[place_of_text] = (
            f"define internal void @{name}({arguments}) #0 {{\n{body}\n}}\n"
        )
        return inner.scratch_bytes


def _type_in_closure(member: Buffer | Var) -> str:
    return "ptr" if isinstance(member, Buffer) else "i64"


def _apart(tile_bytes: int) -> int:
    """Bytes from one thread's tiles to the next's: whole pairs of cache lines, which are fetched
    together, and no multiple of 4096, where stores would seem to meet loads."""
    stride = -(-tile_bytes // (2 * ALIGN)) * 2 * ALIGN
    return stride if stride % 4096 else stride + 2 * ALIGN


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

"""Statements: loops, branches, stores, allocations, parallel bodies."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.expressions import ExpressionEmitter, Lin, Slot, Val
from tunefarm.compiler.codegen.types import constant, memory_type, scalar_type, vector_of
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.target import Target, dtype_bytes
from tunefarm.compiler.te import identity
from tunefarm.compiler.tir.affine import conjunction, conjuncts
from tunefarm.compiler.tir.ir import (
    Allocate,
    Barrier,
    Binary,
    Block,
    Buffer,
    Expr,
    For,
    If,
    Load,
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


@dataclass(frozen=True, slots=True)
class _Arm:
    """One way through a branch: the label it comes from, its register elements, its code."""

    label: str
    slots: dict[Slot, Val]
    lines: list[str]


@dataclass(frozen=True, slots=True)
class _OpenLoop:
    """A serial loop that is being written: its depth, the buffers that it stores to, and the
    elements that an iteration may read before it stores them (a phi and its first value)."""

    depth: int
    stored: frozenset[Buffer]
    late: dict[Slot, tuple[Val, Val]] = field(default_factory=dict)


class Emitter(ExpressionEmitter):
    """Writes statements into one function of a kernel."""

    def __init__(self, module: Module, builder: FunctionBuilder, in_parallel: bool = False) -> None:
        super().__init__(module.target, builder, module.declares)
        self.module = module
        self.in_parallel = in_parallel
        self.stack_bytes = 0
        self.free_stack: list[tuple[int, str]] = []
        self.loops: list[_OpenLoop] = []
        self.homes: dict[Buffer, int] = {}  # register buffer → loops open where it was allocated

    def statement(self, stmt: Stmt) -> None:
        match stmt:
            case Seq(stmts):
                for part in stmts:
                    self.statement(part)
            case Store():
                self.store(stmt)
            case For():
                self.loop(stmt)
            case If():
                self.branch(stmt)
            case Allocate():
                self.allocate(stmt)
            case Barrier():
                raise ScheduleError(f"a barrier in {self.module.name}: a CPU has no thread blocks")
            case Block():
                raise AssertionError(f"block {stmt.name} reached the code generator")

    # --- loops ---------------------------------------------------------------------------------

    def loop(self, loop: For) -> None:
        match loop.kind:
            case LoopKind.THREAD | LoopKind.VIRTUAL:
                raise ScheduleError(
                    f"loop {loop.var.name} is bound to {loop.axis or loop.kind}, which a CPU does "
                    "not have; make it parallel instead"
                )
            case LoopKind.UNROLLED:
                start, extent = self._constant_bounds(loop)
                for value in range(start, start + extent):
                    self.env[loop.var] = Lin(value)
                    self.statement(loop.body)
            case LoopKind.VECTORIZED:
                self._vector_loop(loop)
            case LoopKind.PARALLEL if not self.in_parallel and self.lanes == 1:
                self._parallel_loop(loop)
            case _:
                self._serial_loop(loop)

    def _constant_bounds(self, loop: For) -> tuple[int, int]:
        start, extent = self.index(loop.start), self.index(loop.extent)
        if not (isinstance(start, Lin) and isinstance(extent, Lin)) or start.terms or extent.terms:
            raise ScheduleError(f"{loop.kind} loop {loop.var.name} has no constant bounds")
        return start.const, extent.const

    def _iteration(self, loop: For) -> None:
        for hint in loop.prefetch:
            self.prefetch(hint)
        self.statement(loop.body)

    def _vector_loop(self, loop: For) -> None:
        start, extent = self._constant_bounds(loop)
        if self.lanes != 1:
            raise ScheduleError(f"loop {loop.var.name} is vectorized inside a vectorized loop")
        if extent == 1:
            self.env[loop.var] = Lin(start)
            self.statement(loop.body)
            return
        self.lanes = extent
        self.env[loop.var] = Lin(start, (), 1)
        self.statement(loop.body)
        self.lanes = 1

    def _serial_loop(self, loop: For) -> None:
        b = self.builder
        start, extent = self.index(loop.start), self.index(loop.extent)
        if any(isinstance(bound, Val) or bound.lane for bound in (start, extent)):
            raise ScheduleError(f"loop {loop.var.name} has other bounds in each lane")
        assert isinstance(start, Lin)
        assert isinstance(extent, Lin)
        if not extent.terms and extent.const <= 1:
            if extent.const == 1:
                self.env[loop.var] = start
                self._iteration(loop)
            return
        first = self.scalar_int(start)
        end = self.scalar_int(start.plus(extent))
        stored = frozenset(s.buffer for s in walk_stmt(loop.body) if isinstance(s, Store))
        for buffer in stored:
            b.forget(buffer)
        carried = [slot for slot in self.slots if slot.buffer in stored]
        before = {slot: self.slots[slot] for slot in carried}
        guarded = bool(extent.terms)
        head, exit_label = b.new_label("loop"), b.new_label("exit")
        outer = b.frames[-1]
        if guarded:
            enter = b.pure(f"icmp slt i64 {first}, {end}", [first, end])
            b.line(f"br i1 {enter}, label %{head}, label %{exit_label}")
        else:
            b.line(f"br label %{head}")
        pre = outer.label
        branch_at = len(outer.lines) - 1
        frame = b.open_frame(head)
        counter = b.fresh("i")
        b.define(counter)
        phis: dict[Slot, str] = {}
        for slot in carried:
            phis[slot] = b.fresh("acc")
            b.define(phis[slot])
            self.slots[slot] = Val(phis[slot], before[slot].dtype, before[slot].lanes)
        known = set(self.slots)
        self.env[loop.var] = Lin(0, ((counter, 1),))
        opened = _OpenLoop(b.depth, stored)
        self.loops.append(opened)
        self._iteration(loop)
        self.loops.pop()
        following = b.now(f"add nsw i64 {counter}, 1")
        again = b.now(f"icmp slt i64 {following}, {end}")
        frame.lines.append(f"  br i1 {again}, label %{head}, label %{exit_label}")
        b.close_frame()
        # What was hoisted into the outer frame meanwhile must stand before its branch.
        branch = outer.lines.pop(branch_at)
        outer.lines.append(branch)
        outer.lines.append(f"{head}:")
        latch = frame.label
        outer.lines.append(f"  {counter} = phi i64 [ {first}, %{pre} ], [ {following}, %{latch} ]")
        for slot in carried:
            a, z = before[slot], self.slots[slot]
            kind = vector_of(scalar_type(a.dtype), a.lanes)
            outer.lines.append(
                f"  {phis[slot]} = phi {kind} [ {a.text}, %{pre} ], [ {z.text}, %{latch} ]"
            )
        for slot, (phi, first_value) in opened.late.items():
            last = self.slots.setdefault(slot, phi)
            kind = vector_of(scalar_type(phi.dtype), phi.lanes)
            outer.lines.append(
                f"  {phi.text} = phi {kind} [ {first_value.text}, %{pre} ], "
                f"[ {last.text}, %{latch} ]"
            )
            before[slot] = first_value
        outer.lines += frame.lines
        outer.lines.append(f"{exit_label}:")
        outer.label = exit_label
        for slot in list(self.slots):
            if slot in known or slot in opened.late:
                continue
            if self.homes[slot.buffer] > len(self.loops):
                del self.slots[slot]
            else:
                before[slot] = _zero(self.slots[slot].dtype, self.slots[slot].lanes)
        for slot in before:
            a, z = before[slot], self.slots[slot]
            text = z.text
            if guarded:
                kind = vector_of(scalar_type(a.dtype), a.lanes)
                text = b.now(f"phi {kind} [ {a.text}, %{pre} ], [ {z.text}, %{latch} ]")
            elif text.startswith("%"):
                b.define(text)
            self.slots[slot] = Val(text, a.dtype, a.lanes)
        for buffer in stored:
            b.forget(buffer)

    def unstored(self, slot: Slot, dtype: str, lanes: int) -> Val:
        """An element that this iteration has not stored: what an earlier one left, else zero
        (what follows reads it under the condition of its store, or as padding)."""
        value = _zero(dtype, lanes)
        for loop in self.loops[self.homes[slot.buffer] :]:
            if slot.buffer not in loop.stored:
                continue
            if slot not in loop.late:
                phi = Val(self.builder.fresh("acc"), value.dtype, value.lanes)
                self.builder.depth_of[phi.text] = loop.depth
                loop.late[slot] = (phi, value)
            value = loop.late[slot][0]
        return value

    # --- branches ------------------------------------------------------------------------------

    def branch(self, node: If) -> None:
        uniform: list[Expr] = []
        varying: list[Expr] = []
        for part in conjuncts(node.condition):
            known = self.decide(part)
            if known is False:
                if node.orelse is not None:
                    self.statement(node.orelse)
                return
            if known is None:
                (varying if self.depends_on_lane(part) else uniform).append(part)
        if not uniform and not varying:
            self.statement(node.then)
        elif varying:
            if uniform or node.orelse is not None:
                inner = If(conjunction(varying), node.then)
                if node.orelse is not None:
                    raise ScheduleError("a vectorized condition cannot have an else branch")
                self._dynamic_branch(conjunction(uniform), inner, None)
            else:
                self._masked(conjunction(varying), node.then)
        else:
            self._dynamic_branch(conjunction(uniform), node.then, node.orelse)

    def _masked(self, condition: Expr, body: Stmt) -> None:
        saved = self.mask
        self.mask = self.both_masks(saved, self.lane_mask(condition))
        self.statement(body)
        self.mask = saved

    def _dynamic_branch(self, condition: Expr, then: Stmt, orelse: Stmt | None) -> None:
        self._branch_on(self.value(condition).text, then, orelse)

    def _branch_on(self, test: str, then: Stmt, orelse: Stmt | None) -> None:
        b = self.builder
        label_then, label_else = b.new_label("then"), b.new_label("else")
        label_end = b.new_label("end") if orelse is not None else label_else
        outer = b.frames[-1]
        pre = outer.label
        b.line(f"br i1 {test}, label %{label_then}, label %{label_else}")
        branch_at = len(outer.lines) - 1
        before = dict(self.slots)
        stored = [s.buffer for s in walk_stmt(then) if isinstance(s, Store)]
        stored += [s.buffer for s in walk_stmt(orelse or Seq(())) if isinstance(s, Store)]
        arms = []
        for label, stmt in ((label_then, then), (label_else, orelse)):
            self.slots = dict(before)
            if stmt is None:
                arms.append(_Arm(pre, self.slots, []))
                continue
            frame = b.open_frame(label)
            self.statement(stmt)
            frame.lines.append(f"  br label %{label_end}")
            b.close_frame()
            arms.append(_Arm(frame.label, self.slots, [f"{label}:", *frame.lines]))
        outer.lines.append(outer.lines.pop(branch_at))
        for arm in arms:
            outer.lines += arm.lines
        outer.lines.append(f"{label_end}:")
        outer.label = label_end
        self.slots = self._joined(*arms)
        for buffer in stored:
            b.forget(buffer)

    def _joined(self, first: _Arm, second: _Arm) -> dict[Slot, Val]:
        """The elements that either arm has: a phi where they differ."""
        slots: dict[Slot, Val] = {}
        for slot in first.slots | second.slots:
            given = first.slots.get(slot) or second.slots[slot]
            x = first.slots.get(slot) or self.unstored(slot, given.dtype, given.lanes)
            y = second.slots.get(slot) or self.unstored(slot, given.dtype, given.lanes)
            if x.text == y.text:
                slots[slot] = x
                continue
            kind = vector_of(scalar_type(x.dtype), x.lanes)
            text = self.builder.now(
                f"phi {kind} [ {x.text}, %{first.label} ], [ {y.text}, %{second.label} ]"
            )
            slots[slot] = Val(text, x.dtype, x.lanes)
        return slots

    # --- memory --------------------------------------------------------------------------------

    def allocate(self, node: Allocate) -> None:
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

    def store(self, stmt: Store) -> None:
        place = self.flat_index(stmt.buffer, stmt.indices)
        if self.lanes > 1 and isinstance(place, Lin) and place.lane == 0:
            self._reduce_lanes(stmt)
            return
        value = self.value(stmt.value)
        if stmt.buffer.scope == "register":
            self._store_slot(stmt.buffer, place, value)
        else:
            self._store_memory(stmt.buffer, place, value)

    def _reduce_lanes(self, stmt: Store) -> None:
        """Every lane updates one element: combine the lanes, then update once.

        for l in vectorized(16): S[0] = S[0] + x[l]   ->   S[0] = S[0] + reduce_add(x[0:16])
        """
        value = stmt.value
        accumulates = self._accumulates(stmt)
        if not accumulates and not self.depends_on_lane(value):
            self._store_agreed(stmt)
            return
        if not accumulates:
            raise ScheduleError(f"lanes of a vectorized loop all store one {stmt.buffer.name}")
        assert isinstance(value, Binary)
        term = self.value(value.b)
        combined = self.horizontal(value.op, self.splat(term), self.mask)
        lanes, self.lanes, mask, self.mask = self.lanes, 1, self.mask, None
        old = self.value(value.a)
        neutral = constant(identity(value.op, value.dtype).value, value.dtype)
        result = combined if old.text == neutral else self.arithmetic(value.op, old, combined)
        place = self.flat_index(stmt.buffer, stmt.indices)
        if stmt.buffer.scope == "register":
            self._store_slot(stmt.buffer, place, result)
        else:
            self._store_memory(stmt.buffer, place, result)
        self.lanes, self.mask = lanes, mask

    def _store_agreed(self, stmt: Store) -> None:
        """Every lane stores the same value: one store, made if the mask has a lane.

        for l in vectorized(16): if l < n: S[0] = x   ->   if any(l < n): S[0] = x
        """
        lanes, mask, active = self.lanes, self.mask, self.active_lanes
        self.lanes, self.mask = 1, None
        if mask is None or active:
            self.store(stmt)
        elif active is None:
            bits = self.builder.here(f"bitcast <{lanes} x i1> {mask} to i{lanes}")
            self._branch_on(self.builder.here(f"icmp ne i{lanes} {bits}, 0"), stmt, None)
        self.lanes, self.mask = lanes, mask

    def _accumulates(self, stmt: Store) -> bool:
        """True if the value is the old one at the same place, combined with something."""
        if not isinstance(stmt.value, Binary) or not isinstance(stmt.value.a, Load):
            return False
        old = stmt.value.a
        if old.buffer is not stmt.buffer:
            return False
        return self.flat_index(old.buffer, old.indices) == self.flat_index(
            stmt.buffer, stmt.indices
        )

    def _store_slot(self, buffer: Buffer, place: Lin | Val, value: Val) -> None:
        slot = self.slot(buffer, place)
        if self.lanes > 1:
            value = self.splat(value)
        self.claim(slot, value.lanes)
        if self.mask is not None:
            kind = vector_of(scalar_type(value.dtype), value.lanes)
            other = (self.slots.get(slot) or self.unstored(slot, value.dtype, value.lanes)).text
            text = self.builder.here(
                f"select <{self.lanes} x i1> {self.mask}, {kind} {value.text}, {kind} {other}"
            )
            value = Val(text, value.dtype, value.lanes)
        self.slots[slot] = value

    def _store_memory(self, buffer: Buffer, place: Lin | Val, value: Val) -> None:
        b = self.builder
        if self.lanes > 1:
            value = self.splat(value)
        element = memory_type(buffer.dtype)
        kind = vector_of(element, self.lanes)
        text = value.text
        if buffer.dtype == "bool":
            text = b.here(f"zext {vector_of('i1', self.lanes)} {text} to {kind}")
        align = dtype_bytes(buffer.dtype)
        b.forget(buffer)
        if self.lanes == 1:
            assert isinstance(place, Lin)
            b.line(f"store {kind} {text}, ptr {self.address(buffer, place)}, align {align}")
        elif isinstance(place, Lin) and place.lane == 1:
            pointer = self.address(buffer, place)
            if self.mask is None:
                b.line(f"store {kind} {text}, ptr {pointer}, align {align}")
            else:
                self.masked_store(element, text, pointer, align)
        else:
            self.scatter(buffer, place, text)

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
        for statement in walk_stmt(loop.body):
            if isinstance(statement, Store):
                b.forget(statement.buffer)

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
        inner.constants, inner.read_only = self.constants, self.read_only
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
        inner._iteration(loop)
        builder.line("ret void")
        body = "\n".join(builder.body())
        self.module.functions[place_of_text] = (
            f"define internal void @{name}(ptr noalias %closure, i64 %index) #0 {{\n{body}\n}}\n"
        )


def _zero(dtype: str, lanes: int) -> Val:
    return Val("zeroinitializer" if lanes > 1 else constant(0, dtype), dtype, lanes)


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

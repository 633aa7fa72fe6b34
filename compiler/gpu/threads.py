"""What one thread of a kernel does, in LLVM text: the emitter of CPUs, with threads for loops.

Loops over blocks and threads become the numbers of the block and the thread, shared arrays one
array a block, and an aligned vector a load or store of 16 bytes. What is only copied to a shared
array in its order is copied asynchronously, where the GPU can; threads wait for their own copies at
each barrier, before they wait for one another.
"""

from __future__ import annotations

import re
from math import gcd

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.statements import Module
from tunefarm.compiler.codegen.types import memory_type, scalar_type, vector_of
from tunefarm.compiler.codegen.values import Lin, Slot, Val
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.dialects import NVPTX, Dialect
from tunefarm.compiler.gpu.launches import Part, shared_size
from tunefarm.compiler.gpu.narrow_indices import NarrowIndexEmitter
from tunefarm.compiler.gpu.swizzle import SwizzleEmitter
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.facts import buffers_read
from tunefarm.compiler.tir.ir import (
    THREAD_AXES,
    Allocate,
    Barrier,
    Buffer,
    Const,
    Expr,
    For,
    Load,
    LoopKind,
    Select,
    Stmt,
    Store,
    Var,
)
from tunefarm.compiler.tir.visit import walk_stmt

VECTOR_BYTES = 16  # of the widest load or store
ASYNC_BYTES = (4, 8, 16)  # of a copy that runs on beside its thread
BASE_ALIGN = {"global": 16, "shared": 128, "local": 16}  # of whole arrays


class ThreadEmitter(SwizzleEmitter, NarrowIndexEmitter):
    """Writes what one thread of a kernel does."""

    def __init__(
        self, module: Module, builder: FunctionBuilder, dialect: Dialect, part: Part, name: str
    ) -> None:
        super().__init__(module, builder, "%workspace")
        self.dialect = dialect
        self.part = part
        self.kernel = name
        self.shared_taken = 0
        self.shared_align = BASE_ALIGN["shared"]
        self.warp_lanes: set[Var] = set()  # the threads' numbers along x
        self.group_threads: set[Var] = set()  # along x and y
        self.align = 0  # of the access that is being written, in bytes
        self.copies_ahead = self._can_copy_ahead() and any(
            isinstance(s, Store) and copied_from(s) for s in walk_stmt(part.body)
        )
        barriers = [s for s in walk_stmt(part.body) if isinstance(s, Barrier)]
        self.in_groups = any(barrier.pending for barrier in barriers)

    def shared_array(self) -> str:
        """The declaration of the kernel's shared memory, if it has any."""
        if not self.part.shared_bytes:
            return ""
        dynamic = self.part.dynamic_bytes > 0 and not self.dialect.shared_bytes
        linkage, size = ("external", 0) if dynamic else ("internal", self.part.shared_bytes)
        value = "" if dynamic else " undef"
        return (
            f"@{self.kernel}_shared = {linkage} addrspace(3) global [{size} x i8]{value}, "
            f"align {self.shared_align}\n\n"
        )

    # --- statements ----------------------------------------------------------------------------

    def moving_in(self, loop: For) -> None:
        """Unknown: copies and products look at addresses for other values of the variables."""

    def statement(self, stmt: Stmt) -> None:
        if isinstance(stmt, Barrier):
            self._barrier(stmt.pending)
        else:
            super().statement(stmt)

    def _loop(self, loop: For) -> None:
        if loop.kind is LoopKind.THREAD:
            self._number(loop)
        elif loop.kind in (LoopKind.PARALLEL, LoopKind.VIRTUAL):
            raise ScheduleError(
                f"loop {loop.var.name} is {loop.kind}, which a GPU does not have; bind it to "
                "blockIdx.x or threadIdx.x"
            )
        else:
            super()._loop(loop)

    def _number(self, loop: For) -> None:
        """The body for the number that this block or thread has along the loop's axis."""
        start, extent = self.constant_bounds(loop)
        self.ranges[loop.var] = (start, start + extent - 1)
        self.env[loop.var] = Lin(start)
        if loop.axis == "threadIdx.x":
            self.warp_lanes.add(loop.var)
        if loop.axis in THREAD_AXES[:2]:
            self.group_threads.add(loop.var)
        if extent > 1:
            self.env[loop.var] = Lin(start, ((self.number_of(loop.axis, extent), 1),))
        self.statement(loop.body)

    def number_of(self, axis: str, extent: int) -> str:
        """The number of this block or thread along an axis, as an i64."""
        function = self.dialect.indices[axis]
        declared = re.sub(r"i32 \d", "i32", function.removeprefix("call "))
        self.module.declares.add(f"declare {declared}")
        kind = "i64" if " i64 @" in function else "i32"
        number = self.builder.pure(f"{function}, !range !{{{kind} 0, {kind} {extent}}}")
        if kind == "i64":
            return number
        return self.builder.pure(f"zext nneg i32 {number} to i64", [number])

    def _barrier(self, pending: int) -> None:
        b = self.builder
        if self.copies_ahead and self.in_groups:
            commit, wait = "llvm.nvvm.cp.async.commit.group", "llvm.nvvm.cp.async.wait.group"
            self.module.declares.update((f"declare void @{commit}()", f"declare void @{wait}(i32)"))
            b.line(f"call void @{commit}()")
            b.line(f"call void @{wait}(i32 {pending})")
        elif self.copies_ahead:
            self.module.declares.add("declare void @llvm.nvvm.cp.async.wait.all()")
            b.line("call void @llvm.nvvm.cp.async.wait.all()")
        self.before_barrier()
        self.module.declares.add(self.dialect.declare_barrier)
        for line in self.dialect.barrier:
            b.line(line)
        for buffer in self.pointers:
            if buffer.scope == "shared":
                b.forget(buffer)

    def before_barrier(self) -> None:
        """Write what threads do on their way to a barrier, beside waiting for their copies."""

    def _allocate(self, node: Allocate) -> None:
        buffer = node.buffer
        if buffer.scope == "global":
            raise ScheduleError(
                f"{buffer.name} lives in global memory inside a kernel; let it be in local or "
                "shared memory, or a kernel of its own"
            )
        if buffer.scope != "shared":
            super()._allocate(node)
            return
        offset = self.shared_taken
        self.shared_taken += shared_size(buffer)
        whole = f"ptr addrspacecast (ptr addrspace(3) @{self.kernel}_shared to ptr)"
        self.pointers[buffer] = self.builder.pure(
            f"getelementptr inbounds i8, {whole}, i64 {offset}"
        )
        self.statement(node.body)

    def _take_scratch(self, size: int) -> str:
        raise ScheduleError(f"a thread's own array takes {size} bytes; at most 16384")

    # --- memory --------------------------------------------------------------------------------

    def alignment(self, buffer: Buffer, place: Lin) -> int:
        """Bytes that an element's address is certainly a multiple of, at most 16."""
        size = dtype_bytes(buffer.dtype)
        steps = gcd(place.const, *(c for _, c in place.terms)) * size
        base = BASE_ALIGN[buffer.scope]
        steps = gcd(steps, base) if steps else base
        return min(steps & -steps, VECTOR_BYTES)

    def _load_at(self, buffer: Buffer, place: Lin, lanes: int) -> Val:
        known = self.known.get(self.mask) if self.mask is not None else None
        whole = self.mask is None or (known is not None and len(known.lanes) == lanes)
        self.align = self.alignment(buffer, place) if whole else 0
        value = super()._load_at(buffer, place, lanes)
        self.align = 0
        return value

    def load_whole(self, buffer: Buffer, pointer: str, lanes: int) -> str:
        size = dtype_bytes(buffer.dtype)
        align, self.align = max(self.align, size), 0
        invariant = ", !invariant.load !0" if buffer in self.constants else ""
        kind = vector_of(memory_type(buffer.dtype), lanes)
        return self.builder.load(f"load {kind}, ptr {pointer}, align {align}{invariant}", buffer)

    def store_memory(self, buffer: Buffer, place: Lin | Val, value: Val) -> None:
        whole = isinstance(place, Lin) and place.lane == 1 and self.mask is None
        if self.lanes == 1 or not isinstance(place, Lin) or self.mask is not None:
            super().store_memory(buffer, place, value)
        elif not whole:
            self._store_apart(buffer, place, self.splat(value))
        else:
            self._store_aligned(buffer, place, self.splat(value))

    def _store_aligned(self, buffer: Buffer, place: Lin, value: Val) -> None:
        """Lanes that stand side by side, by one store."""
        b, kind, text = self.builder, vector_of(memory_type(buffer.dtype), self.lanes), value.text
        if buffer.dtype == "bool":
            text = b.here(f"zext {vector_of('i1', self.lanes)} {text} to {kind}")
        b.forget(buffer)
        align = max(self.alignment(buffer, place), dtype_bytes(buffer.dtype))
        b.line(f"store {kind} {text}, ptr {self.address(buffer, place)}, align {align}")

    def _store_apart(self, buffer: Buffer, place: Lin, value: Val) -> None:
        """Lanes at a constant distance, one store each."""
        b, lanes = self.builder, self.lanes
        full = vector_of(scalar_type(value.dtype), lanes)
        parts = [
            Val(b.pure(f"extractelement {full} {value.text}, i64 {n}", [value.text]), value.dtype)
            for n in range(lanes)
        ]
        self.lanes = 1
        for lane, part in enumerate(parts):
            at = Lin(place.const + lane * place.lane, place.terms)
            super().store_memory(buffer, at, part)
        self.lanes = lanes

    # --- registers -----------------------------------------------------------------------------

    def store_register(self, buffer: Buffer, place: Lin | Val, value: Val) -> None:
        """Elements of a tile, also of one that is held in other vectors: a GPU's registers are
        scalars, and which of them are named together costs nothing."""
        slot, owners = self._slot(buffer, place), self.owners.get(buffer, {})
        lanes = range(self.lanes)
        held = [owners.get(slot.offset + n) for n in lanes]
        together = (slot.offset, self.lanes)
        if self.mask is not None or all(h is None or h == together for h in held):
            super().store_register(buffer, place, value)
            return
        value = self.splat(value) if self.lanes > 1 else value
        for n in lanes:
            self.store_element(buffer, slot.offset + n, self._lane_of(value, n))

    def store_element(self, buffer: Buffer, place: int, value: Val) -> None:
        """One element, in the vector that holds it."""
        start, lanes = self.owners[buffer].setdefault(place, (place, 1))
        slot = Slot(buffer, start)
        if lanes > 1:
            old = self.slots.get(slot) or self.unstored(slot, buffer.dtype, lanes)
            kind = scalar_type(buffer.dtype)
            put = f"insertelement {vector_of(kind, lanes)} {old.text}, {kind} {value.text}"
            text = self.builder.pure(f"{put}, i64 {place - start}", [old.text, value.text])
            value = Val(text, buffer.dtype, lanes)
        self.slots[slot] = value

    def _lane_of(self, value: Val, lane: int) -> Val:
        if value.lanes == 1:
            return value
        kind = vector_of(scalar_type(value.dtype), value.lanes)
        text = f"extractelement {kind} {value.text}, i64 {lane}"
        return Val(self.builder.pure(text, [value.text]), value.dtype)

    # --- copies that run on --------------------------------------------------------------------

    def _can_copy_ahead(self) -> bool:
        target = self.target
        return self.dialect is NVPTX and target.kind == "cuda" and target.gpu.has_async_copies

    def store(self, stmt: Store) -> None:
        if not (self.copies_ahead and self._copy_ahead(stmt)):
            super().store(stmt)

    def _copy_ahead(self, stmt: Store) -> bool:
        """Copy 4, 8 or 16 bytes without waiting for them; False if it cannot be done so."""
        copied = copied_from(stmt)
        if copied is None or self.mask is not None:
            return False
        load, condition = copied
        if condition is not None and any(buffers_read(index) for index in load.indices):
            return False  # the condition guards the reads of its place, too
        size = dtype_bytes(load.dtype) * self.lanes
        source = self.flat_index(load.buffer, load.indices)
        place = self.flat_index(stmt.buffer, stmt.indices)
        if not isinstance(source, Lin) or not isinstance(place, Lin) or size not in ASYNC_BYTES:
            return False
        side_by_side = self.lanes == 1 or source.lane == place.lane == 1
        aligned = min(self.alignment(load.buffer, source), self.alignment(stmt.buffer, place))
        if not side_by_side or aligned < size:
            return False
        if condition is not None and self.depends_on_lane(condition):
            return False
        self._copy_async(load.buffer, source, stmt.buffer, place, size, condition)
        return True

    def _copy_async(
        self,
        source: Buffer,
        at: Lin,
        target: Buffer,
        place: Lin,
        size: int,
        condition: Expr | None,
    ) -> None:
        b = self.builder
        lanes, self.lanes = self.lanes, 1
        known = None if condition is None else self.decide(condition)
        there = self.in_space(self.address(target, Lin(place.const, place.terms)), 3)
        here = self.in_space(self.address(source, Lin(at.const, at.terms)), 1)
        name = f"llvm.nvvm.cp.async.{'cg' if size == 16 else 'ca'}.shared.global.{size}"
        kinds, passed = "ptr addrspace(3), ptr addrspace(1)", f"ptr addrspace(3) {there}, "
        passed += f"ptr addrspace(1) {here}"
        if condition is not None and known is not True:
            # Nothing is read beyond the bytes that are asked for, and the others become zeros.
            count = "0"
            if known is None:
                test = self.value(condition).text
                count = b.here(f"select i1 {test}, i32 {size}, i32 0")
            name, kinds, passed = f"{name}.s", f"{kinds}, i32", f"{passed}, i32 {count}"
        self.module.declares.add(f"declare void @{name}({kinds})")
        b.forget(target)
        b.line(f"call void @{name}({passed})")
        self.lanes = lanes

    def in_space(self, pointer: str, space: int) -> str:
        return self.builder.here(f"addrspacecast ptr {pointer} to ptr addrspace({space})")


def copied_from(stmt: Store) -> tuple[Load, Expr | None] | None:
    """What a store copies from global to shared memory, and under which condition (else zeros)."""
    if stmt.buffer.scope != "shared" or stmt.buffer.dtype == "bool":
        return None
    match stmt.value:
        case Load(buffer) as load if buffer.scope == "global":
            return load, None
        case Select(condition, Load(buffer) as load, Const(0), _) if buffer.scope == "global":
            return load, condition
        case _:
            return None

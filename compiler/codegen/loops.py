"""Loops: vectorized and unrolled ones are expanded, of serial ones the elements of registers that
an iteration leaves to the next become phis."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache

from tunefarm.compiler.codegen.builder import Frame
from tunefarm.compiler.codegen.registers import OpenLoop
from tunefarm.compiler.codegen.stores import Stores, combines_lanes
from tunefarm.compiler.codegen.types import scalar_type, vector_of
from tunefarm.compiler.codegen.values import HANDED_ON, Lin, Slot, Val, make, zero_of
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.processors import X86_64
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.affine import interval, range_of
from tunefarm.compiler.tir.facts import KEPT, buffers_stored, kinds_below, loops_below
from tunefarm.compiler.tir.ir import Allocate, Buffer, Const, For, LoopKind, Var
from tunefarm.compiler.tir.visit import walk_stmt

FULL_SHARE = 0.7  # of the registers, in sums: loops of 24 of 32 have lost them


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head(OpenLoop):
    """How a serial loop begins: its bounds, labels, counter, and the frame that it stands in.

    The branch into the loop is line ``branch_at`` of that frame, in its block ``before``; a
    ``guarded`` loop may have no iteration. ``carried`` are the elements that the loop finds and
    may change: what they are before it, and their phis.
    """

    first: str
    end: str
    guarded: bool
    label: str
    exit_label: str
    counter: str
    outer: Frame
    before: str
    branch_at: int
    carried: dict[Slot, tuple[Val, Val]]


class Loops(Stores):
    """Writes the loops that run in one thread."""

    def constant_bounds(self, loop: For) -> tuple[int, int]:
        """Start and extent; ScheduleError if one is not known when code is made."""
        if isinstance(loop.start, Const) and isinstance(loop.extent, Const):
            return int(loop.start.value), int(loop.extent.value)
        start, extent = self.index(loop.start), self.index(loop.extent)
        if not (isinstance(start, Lin) and isinstance(extent, Lin)) or start.terms or extent.terms:
            raise ScheduleError(f"{loop.kind} loop {loop.var.name} has no constant bounds")
        return start.const, extent.const

    def iteration(self, loop: For) -> None:
        """Write the loop's body once."""
        self._ask_ahead(loop)
        self.statement(loop.body)

    def _ask_ahead(self, loop: For) -> None:
        for hint in loop.prefetch:
            self.prefetch(hint)

    def unrolled_loop(self, loop: For) -> None:
        """Write the body for every value of the variable; sums of lanes are combined together."""
        gathers = self.waiting is None and combines_lanes(loop)
        if gathers:
            self.waiting = []
        moving = self.moving_in(loop) if self.current_nest is None else None
        with nullcontext() if moving is None else self.nest(moving):
            self._repeat(loop)
        if gathers:
            self.store_waiting()

    def moving_in(self, loop: For) -> frozenset[Var] | None:
        """The variables that change while an unrolled loop is written, if all are numbers."""
        return _unrolled_only(loop)

    def _repeat(self, loop: For) -> None:
        var, (start, extent) = loop.var, self.constant_bounds(loop)
        for value in range(start, start + extent):
            self.env[var] = make(Lin, (value, (), 0))
            self.ranges[var] = (value, value)
            self._ask_ahead(loop)
            self.statement(loop.body)

    def vector_loop(self, loop: For) -> None:
        """Write the body once, its iterations side by side in lanes."""
        start, extent = self.constant_bounds(loop)
        if self.lanes != 1:
            raise ScheduleError(f"loop {loop.var.name} is vectorized inside a vectorized loop")
        self.lanes = extent
        self.env[loop.var] = make(Lin, (start, (), 0 if extent == 1 else 1))
        self.statement(loop.body)
        self.lanes = 1

    def serial_loop(self, loop: For) -> None:
        """Write a loop that tests at its end; one that runs once is its body."""
        start, extent = self.index(loop.start), self.index(loop.extent)
        if any(isinstance(bound, Val) or bound.lane for bound in (start, extent)):
            raise ScheduleError(f"loop {loop.var.name} has other bounds in each lane")
        assert isinstance(start, Lin)
        assert isinstance(extent, Lin)
        self.ranges[loop.var] = range_of(loop, self.ranges)
        if extent.terms or extent.const > 1:
            self._write_loop(loop, start, extent)
        elif extent.const == 1:
            self.env[loop.var] = start
            self.iteration(loop)

    def _write_loop(self, loop: For, start: Lin, extent: Lin) -> None:
        b = self.builder
        bounds = self.scalar_int(start), self.scalar_int(start.plus(extent))
        stored = buffers_stored(loop.body)
        for buffer in stored:
            b.forget(buffer)
        least, _ = interval(loop.extent, self.ranges)
        head = self._enter(bounds, stored, guarded=least < 1)
        frame = b.open_frame(head.label)
        for name in (head.counter, *(phi.text for _, phi in head.carried.values())):
            b.define(name)
        self.slots |= {slot: phi for slot, (_, phi) in head.carried.items()}
        found = set(self.slots)
        self.env[loop.var] = Lin(0, ((head.counter, 1),))
        self.reached[head.counter] = self.ranges[loop.var]
        self.loops.append(head)
        self.iteration(loop)
        self.loops.pop()
        self._close(head, frame)
        self._leave(head, frame.label, found)
        for buffer in stored:
            b.forget(buffer)

    def _enter(self, bounds: tuple[str, str], stored: frozenset[Buffer], guarded: bool) -> _Head:
        """Branch into a loop."""
        b = self.builder
        before = {slot: value for slot, value in self.slots.items() if slot.buffer in stored}
        label, exit_label = b.new_label("loop"), b.new_label("exit")
        outer = b.frames[-1]
        if guarded:
            first, end = bounds
            enter = b.pure(f"icmp slt i64 {first}, {end}", bounds)
            b.line(f"br i1 {enter}, label %{label}, label %{exit_label}")
        else:
            b.line(f"br label %{label}")
        return _Head(
            depth=b.depth + 1,
            stored=stored,
            first=bounds[0],
            end=bounds[1],
            guarded=guarded,
            label=label,
            exit_label=exit_label,
            outer=outer,
            before=outer.label,
            branch_at=len(outer.lines) - 1,
            counter=b.fresh("i"),
            carried={s: (v, Val(b.fresh(HANDED_ON), v.dtype, v.lanes)) for s, v in before.items()},
        )

    def _close(self, head: _Head, frame: Frame) -> None:
        """Count on, branch back, and put the finished loop into the frame around it."""
        b, lines = self.builder, head.outer.lines
        following = b.now(f"add nsw i64 {head.counter}, 1")
        again = b.now(f"icmp slt i64 {following}, {head.end}")
        b.line(f"br i1 {again}, label %{head.label}, label %{head.exit_label}")
        b.close_frame()
        # What was hoisted into the outer frame meanwhile must stand before its branch.
        branch = lines.pop(head.branch_at)
        if self._fills_registers(head):
            lines.append(f"  {_every_register(self.target.vector_registers)}")
        lines.append(branch)
        lines.append(f"{head.label}:")
        ways = f"[ {head.first}, %{head.before} ], [ {following}, %{frame.label} ]"
        lines.append(f"  {head.counter} = phi i64 {ways}")
        for slot, (value, phi) in head.carried.items():
            lines.append(self._phi(head, frame.label, phi, value, self.slots[slot]))
        for slot, (phi, value) in head.late.items():
            last = self.slots.setdefault(slot, phi)
            lines.append(self._phi(head, frame.label, phi, value, last))
        lines += [*frame.lines, f"{head.exit_label}:"]
        head.outer.label = head.exit_label

    def _fills_registers(self, head: _Head) -> bool:
        """Whether a loop's sums, which begin with it, leave few of AVX-512's registers: in 16 of
        them LLVM kept the 12 sums of all 288 tasks that were looked at."""
        if self.target.isa is not X86_64 or self.target.has_few_registers:
            return False
        begin = [value for value, _ in (*head.carried.values(), *head.late.values())]
        wide = sum(v.lanes * dtype_bytes(v.dtype) for v in begin) // self.target.vector_bytes
        full = wide > FULL_SHARE * self.target.vector_registers
        return full and not any(value.text.startswith("%") for value in begin)

    def _phi(self, head: _Head, latch: str, phi: Val, value: Val, last: Val) -> str:
        kind = vector_of(scalar_type(phi.dtype), phi.lanes)
        ways = f"[ {value.text}, %{head.before} ], [ {last.text}, %{latch} ]"
        return f"  {phi.text} = phi {kind} {ways}"

    def _leave(self, head: _Head, latch: str, found: set[Slot]) -> None:
        """Let the elements have the values that the last iteration left; those of buffers that
        end with an iteration are forgotten."""
        b = self.builder
        before = {slot: value for slot, (value, _) in head.carried.items()}
        before |= {slot: value for slot, (_, value) in head.late.items()}
        for slot in [s for s in self.slots if s not in found and s not in head.late]:
            if self.homes[slot.buffer] > len(self.loops):
                del self.slots[slot]
            else:
                before[slot] = zero_of(self.slots[slot].dtype, self.slots[slot].lanes)
        for slot, value in before.items():
            text = self.slots[slot].text
            if head.guarded:
                kind = vector_of(scalar_type(value.dtype), value.lanes)
                ways = f"[ {value.text}, %{head.before} ], [ {text}, %{latch} ]"
                text = b.now(f"phi {kind} {ways}")
            elif text.startswith("%"):
                b.define(text)
            self.slots[slot] = Val(text, value.dtype, value.lanes)


@lru_cache(KEPT)
def _every_register(count: int) -> str:
    """Code that does nothing, and that nothing in a vector register survives.

    In front of a loop whose sums fill the registers: LLVM hoists the constants of what follows
    such a loop out of the loops around both, and has moved all sums to the stack, in every step,
    for one zero in a register (28² × 256→256 by Strassen's method 791 → 370 µs, Zen 5).
    """
    registers = ",".join(f"~{{xmm{i}}}" for i in range(count))
    return f'call void asm sideeffect "", "{registers}"()'


@lru_cache(KEPT)
def _unrolled_only(loop: For) -> frozenset[Var] | None:
    """The variables of unrolled loops in code that has none but these and vectorized ones, with
    numbers as bounds, and no tiles in memory; None for other code."""
    loops = loops_below(loop)
    bounds = (type(b) for each in loops for b in (each.start, each.extent))
    if not all(each.is_expanded for each in loops) or any(b is not Const for b in bounds):
        return None
    if Allocate in kinds_below(loop) and not _allocates_registers(loop):
        return None
    return frozenset(each.var for each in loops if each.kind is LoopKind.UNROLLED)


def _allocates_registers(loop: For) -> bool:
    tiles = (s.buffer for s in walk_stmt(loop) if isinstance(s, Allocate))
    return all(buffer.scope == "register" for buffer in tiles)

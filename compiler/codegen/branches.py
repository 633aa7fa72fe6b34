"""Branches: conditions that are known, masks, and two ways through the code."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from tunefarm.compiler.codegen.repeated import Repeated
from tunefarm.compiler.codegen.types import scalar_type, vector_of
from tunefarm.compiler.codegen.values import Slot, Val
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.tir.affine import conjunction, conjuncts
from tunefarm.compiler.tir.facts import buffers_stored
from tunefarm.compiler.tir.ir import Expr, If, Stmt


@dataclass(frozen=True, slots=True)
class _Arm:
    """One way through a branch: the label it comes from, its register elements, its code."""

    label: str
    slots: dict[Slot, Val]
    lines: list[str]


class Branches(Repeated):
    """Statements under a condition."""

    @abstractmethod
    def statement(self, stmt: Stmt) -> None:
        """Write any statement."""

    def branch(self, node: If) -> None:
        """Write the statements whose condition may hold, under what is not known of it."""
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
                self._branch_if(conjunction(uniform), inner, None)
            else:
                self._masked(conjunction(varying), node.then)
        else:
            self._branch_if(conjunction(uniform), node.then, node.orelse)

    def _masked(self, condition: Expr, body: Stmt) -> None:
        saved = self.mask
        self.mask = self.both_masks(saved, self.lane_mask(condition))
        self.statement(body)
        self.mask = saved

    def _branch_if(self, condition: Expr, then: Stmt, orelse: Stmt | None) -> None:
        self.branch_on(self.value(condition).text, then, orelse)

    def branch_on(self, test: str, then: Stmt, orelse: Stmt | None = None) -> None:
        """Write two ways through the code by a scalar test."""
        b = self.builder
        label_then, label_else = b.new_label("then"), b.new_label("else")
        label_end = b.new_label("end") if orelse is not None else label_else
        outer = b.frames[-1]
        pre = outer.label
        b.line(f"br i1 {test}, label %{label_then}, label %{label_else}")
        branch_at = len(outer.lines) - 1
        before = dict(self.slots)
        ways = [way for way in (then, orelse) if way is not None]
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
        stored = [buffer for way in ways for buffer in buffers_stored(way)]
        changes = any(buffer.scope == "register" for buffer in stored)
        self.slots = self._joined(*arms) if changes else before
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

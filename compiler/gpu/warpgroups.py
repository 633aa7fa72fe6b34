"""What four warps do together, in LLVM text: asynchronous products."""

from __future__ import annotations

from collections.abc import Sequence

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.statements import Module
from tunefarm.compiler.codegen.values import Lin, Slot, Val
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.dialects import Dialect
from tunefarm.compiler.gpu.launches import Part
from tunefarm.compiler.gpu.warps import WarpEmitter
from tunefarm.compiler.gpu.wgmma import (
    ADDRESSES,
    ALIGN,
    CHUNK_BYTES,
    SWIZZLES,
    WGMMAS,
    Wgmma,
    descriptor_of,
    next_row,
    text_of,
    wgmmas_of,
)
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.ir import Binary, Expr, For, Intrinsic, Load, Stmt, Store

CONVERGENT = "convergent"
"""What keeps LLVM from putting an instruction of several threads where fewer of them come: what its
own intrinsics say of themselves, and assembly has to be told of."""


class WarpgroupEmitter(WarpEmitter):
    """Writes what a warp does, and what four of them do together.

    Products run on beside the threads until ``wait``: their results, ``under_way``, are touched by
    no other instruction before. Those that overlap run on beyond an iteration of their loop: at its
    end the threads wait for the ones of the iteration before.
    """

    def __init__(
        self, module: Module, builder: FunctionBuilder, dialect: Dialect, part: Part, name: str
    ) -> None:
        super().__init__(module, builder, dialect, part, name)
        self.multiplies = issues(part.body)
        self.under_way: list[Slot] = []
        self.held = False  # A, by the products that are under way
        self.loads_fragments = False
        if self.multiplies:
            self.shared_align = ALIGN

    def index(self, expr: Expr) -> Lin | Val:
        if isinstance(expr, Binary) and expr.op == "bitxor":
            x, y = self.index(expr.a), self.index(expr.b)
            if isinstance(x, Lin) and isinstance(y, Lin) and x.is_constant and y.is_constant:
                return Lin(x.const ^ y.const)
            return self.int_op("bitxor", x, y)
        return super().index(expr)

    def statement(self, stmt: Stmt) -> None:
        if self.under_way and not issues(stmt):
            self.wait()
        super().statement(stmt)

    def iteration(self, loop: For) -> None:
        super().iteration(loop)
        if self.under_way and any(w.overlaps for w in wgmmas_of(loop)):
            if not self.held:  # else each of the next iteration waits for its own registers
                self._warpwide(_let_run(1), "~{memory}")
        else:
            self.wait()

    def before_barrier(self) -> None:
        """Let what threads wrote to shared memory be seen by the products' way to it."""
        if self.multiplies:
            self._warpwide("fence.proxy.async.shared::cta;")

    def store(self, stmt: Store) -> None:
        if isinstance(stmt.value, Intrinsic) and stmt.value.name in WGMMAS:
            self._issue(stmt, WGMMAS[stmt.value.name])
        else:
            super().store(stmt)

    def _issue(self, stmt: Store, w: Wgmma) -> None:
        """Start one product, whose results are registers of their own."""
        if not self.target.takes_wgmma:
            raise ScheduleError(f"{w.name} needs -arch=sm_90a, not {self.target}")
        assert isinstance(stmt.value, Intrinsic)
        place = self.flat_index(stmt.buffer, stmt.indices)
        if self.lanes != w.elements or not isinstance(place, Lin) or place.lane != 1:
            raise ScheduleError(f"{w.name} computes {w.elements} whole elements of a thread")
        slots = [Slot(stmt.buffer, place.const + n) for n in range(w.elements)]
        self.lanes = 1
        terms = stmt.value.args[1 + w.depth :]
        right, columns_first = self._descriptor(terms[0], terms[1])
        left, turned = self._descriptor(stmt.value.args[1], stmt.value.args[2])
        if not w.turns and columns_first:
            raise ScheduleError(f"{w.name} reads the terms of B side by side")
        self.held = turned and not w.turns
        if self.held:
            self._issue_held(w, slots, stmt.value.args[1], right)
        else:
            text = text_of(w, columns_first, 0, fenced=not self.under_way)
            self._rename(slots, text, [left, right])
        self.under_way += [s for s in slots if s not in self.under_way]
        self.lanes = w.elements

    def _issue_held(self, w: Wgmma, slots: list[Slot], first: Expr, right: str) -> None:
        """Start a product of A in registers: a group of its own, if it overlaps, which ends before
        they are loaded again."""
        assert isinstance(first, Load)
        self.loads_fragments = True
        if w.overlaps:
            others = first.buffer.shape[-2] // w.depth - 1
            self._warpwide(f"wgmma.wait_group.sync.aligned {others};", "~{memory}")
        words = self._turned_fragment(first)
        self._rename(slots, text_of(w, False, len(words), fenced=True), [right], words)
        if w.overlaps:
            self._warpwide("wgmma.commit_group.sync.aligned;", "~{memory}")

    def _turned_fragment(self, first: Load) -> list[str]:
        """What a thread holds of 64 rows of A that stand side by side in shared memory, as words:
        terms t and t + 4 of rows 16·w + 2·g and the one after.

        Two rows by a load. Those threads whose chunks would meet others' in a bank load the later
        term first: at rows of 128 bytes those of odd t, at 64 bytes the last two of four.
        """
        b, buffer, start = self.builder, first.buffer, self._group_corner(first)
        length, size = buffer.shape[-1], dtype_bytes(buffer.dtype)
        chunk, in_line = CHUNK_BYTES // size, max(SWIZZLES) // (length * size)

        def op(name: str, x: str, y: str | int) -> str:
            return b.pure(f"{name} i64 {x}, {y}", [x, *([y] if isinstance(y, str) else [])])

        lane = self.number_of("threadIdx.x", self.part.block[0])
        warp = self.number_of("threadIdx.y", self.part.block[1])
        t, pair = op("and", lane, 3), op("shl", op("lshr", lane, 2), 1)
        row = op("add", op("shl", warp, 4), pair)
        block, inside = op("udiv", row, length), op("urem", row, length)
        late = op("and", op("lshr", t, in_line - 1), 1) if in_line < 4 else "0"
        loaded = []
        for number in range(2):
            term = op("xor", t, op("shl", op("xor", late, number), 2))
            moved = op("xor", op("udiv", inside, chunk), op("udiv", term, in_line))
            there = op("add", op("mul", moved, chunk), op("urem", inside, chunk))
            own = Lin(0, ((block, buffer.shape[-2] * length), (term, length), (there, 1)))
            pointer = self.address(buffer, start.plus(own))
            pair_of = b.now(f"load <2 x i32>, ptr {pointer}, align {2 * size}")
            loaded.append([b.now(f"extractelement <2 x i32> {pair_of}, i64 {n}") for n in range(2)])
        if in_line == 4:
            return [*loaded[0], *loaded[1]]
        swaps = b.pure(f"icmp ne i64 {late}, 0", [late])
        now, then = loaded
        return [
            b.now(f"select i1 {swaps}, i32 {two[n]}, i32 {one[n]}")
            for one, two in ((now, then), (then, now))
            for n in range(2)
        ]

    def _descriptor(self, first: Expr, second: Expr) -> tuple[str, bool]:
        """The descriptor of an operand whose first two terms are given, and whether its columns
        stand side by side."""
        assert isinstance(first, Load)
        assert isinstance(second, Load)
        buffer = first.buffer
        start, step = self._group_corner(first), self._group_corner(second)
        apart = step.const - start.const
        length, size = buffer.shape[-1], dtype_bytes(buffer.dtype)
        row_bytes, turned = length * size, next_row(length, size)
        if buffer.scope != "shared" or row_bytes not in SWIZZLES or apart not in (1, turned):
            raise ScheduleError(f"{buffer.name} is not in shared memory as warpgroups read it")
        b = self.builder
        pointer = self.in_space(self.address(buffer, Lin(0, start.terms)), 3)
        address = b.here(f"ptrtoint ptr addrspace(3) {pointer} to i32")
        number = b.here(f"lshr i32 {address}, 4")
        number = b.here(f"and i32 {number}, {ADDRESSES - 1}")  # not the block's in its cluster
        columns_first = apart == turned
        leading = buffer.shape[-2] * row_bytes if columns_first else 16
        described = descriptor_of(leading, row_bytes)
        described -= (described >> 63) << 64  # LLVM's numbers have signs
        low = (described & 0xFFFFFFFF) + start.const * size // 16
        number = b.here(f"add i32 {number}, {low}")
        wide = b.here(f"zext i32 {number} to i64")
        return b.here(f"or i64 {wide}, {described >> 32 << 32}"), columns_first

    def _group_corner(self, load: Load) -> Lin:
        """Where an operand begins for the warpgroup: the element of its thread 0, number 0."""
        env = self.env
        self.env = {v: Lin(0) if v in self.group_threads else at for v, at in env.items()}
        place = self._corner(load, 0)
        self.env = env
        return place

    def wait(self) -> None:
        """Let all products end."""
        if not self.under_way:
            return
        slots, self.under_way = self.under_way, []
        self._rename(slots, _let_run(0), [])
        self.held = False

    def _warpwide(self, text: str, changes: str = "") -> None:
        """Instructions that all threads of a warp come to together."""
        self.builder.line(f'call void asm sideeffect "{text}", "{changes}"() {CONVERGENT}')

    def _rename(
        self, slots: list[Slot], text: str, given: list[str], words: Sequence[str] = ()
    ) -> None:
        """Assembly that changes registers in place, after operands of 32 and of 64 bits."""
        b, count = self.builder, len(slots)
        old = [self._element(s.buffer, s.offset).text for s in slots]
        kind = f"{{ {', '.join(['float'] * count)} }}"
        kinds = [*["r"] * len(words), *["l"] * len(given)]
        ties = [*["=f"] * count, *kinds, *map(str, range(count)), "~{memory}"]
        operands = [f"i32 {word}" for word in words] + [f"i64 {g}" for g in given]
        operands += [f"float {v}" for v in old]
        call = f'call {kind} asm sideeffect "{text}", "{",".join(ties)}"({", ".join(operands)})'
        made = b.now(f"{call} {CONVERGENT}")
        for n, slot in enumerate(slots):
            value = Val(b.now(f"extractvalue {kind} {made}, {n}"), "float32")
            self.store_element(slot.buffer, slot.offset, value)


def issues(stmt: Stmt) -> bool:
    """True if a statement starts products of warpgroups."""
    return bool(wgmmas_of(stmt))


def _let_run(groups: int) -> str:
    """Make a group of the products that were begun, and wait for all but so many groups."""
    return f"wgmma.commit_group.sync.aligned;\\0Awgmma.wait_group.sync.aligned {groups};"

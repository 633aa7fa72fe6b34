"""Blocks of a cluster, in LLVM text: their numbers, and what they combine.

    cluster_add(x, blocks)      each warp writes its x to the memory of every block
                                the threads of all blocks wait for one another
                                each warp reads what came, and combines it by shuffles

    joined(x0, x1, …)           the threads of all blocks wait until all are done with tiles
                                each tells other blocks their shares, in place of tiles, 16 bytes a
                                thread side by side, of which an mbarrier counts the bytes
                                each waits for that of its block, reads what came, and adds

Every exchange of the first kind has memory of its own, so that nobody waits for those who still
read. Memory of a block may be written when it has begun: all threads say so first of all, and wait
for that before the first exchange. Behind the last one no block reaches another, so that each may
end. Source: NVIDIA, "PTX ISA", ``mapa``, ``st.shared::cluster``, ``st.async``,
``barrier.cluster``.
"""

from __future__ import annotations

from math import gcd

from tunefarm.compiler.codegen.types import scalar_type
from tunefarm.compiler.codegen.values import Lin, Val
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.box_copies import BoxEmitter
from tunefarm.compiler.gpu.intrinsics import CLUSTER_REDUCTIONS, JOINED
from tunefarm.compiler.gpu.shuffles import shuffled_as
from tunefarm.compiler.gpu.warpgroups import CONVERGENT
from tunefarm.compiler.tir.ir import (
    CLUSTER_AXIS,
    GRID_AXES,
    THREAD_AXES,
    Const,
    Expr,
    For,
    Intrinsic,
    Store,
)

ARRIVE, WAIT = "barrier.cluster.arrive.release", "barrier.cluster.wait.acquire"
PASS = "barrier.cluster.arrive.relaxed"  # for who wrote nothing that others read: no fence
TELL = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
MARKS_MADE = "fence.mbarrier_init.release.cluster;"
_WORD_BYTES = 4
_MOST_WORDS = 4  # of a load


class ClusterEmitter(BoxEmitter):
    """Writes what the threads of a block do, and what they get of other blocks of their cluster."""

    combined = 0  # exchanges that are written

    def begin(self) -> None:
        """Write what comes before all else."""
        if self.part.combined_bytes:
            self._assembly(f"{ARRIVE}.aligned;", [])
        elif self.part.joined is not None:
            self.expect_sums(self.first_thread())
            self._assembly(MARKS_MADE, [])
        elif self.part.cluster > 1:
            raise ScheduleError("blocks are a cluster where they combine values or share boxes")

    def first_thread(self) -> str:
        """1 in the first thread of a block, else 0."""
        b, number = self.builder, "0"
        for axis, extent in zip(THREAD_AXES, self.part.block, strict=True):
            if extent > 1:
                own = self.number_of(axis, extent)
                number = b.pure(f"or i64 {number}, {own}", [number, own])
        first = b.pure(f"icmp eq i64 {number}, 0", [number])
        return b.pure(f"zext i1 {first} to i32", [first])

    def number_of(self, axis: str, extent: int) -> str:
        cluster = self.part.cluster
        if cluster == 1 or axis not in (GRID_AXES[0], CLUSTER_AXIS):
            return super().number_of(axis, extent)
        whole = super().number_of(GRID_AXES[0], self.part.grid[0])
        operation = "urem" if axis == CLUSTER_AXIS else "udiv"
        return self.builder.pure(f"{operation} i64 {whole}, {cluster}", [whole])

    def _number(self, loop: For) -> None:
        if loop.axis == CLUSTER_AXIS:
            self._member = loop.var
        super()._number(loop)

    def meet_cluster(self, aligned: str = "") -> None:
        """The threads of all blocks of the cluster wait for one another."""
        self._assembly(f"{ARRIVE}{aligned};\\0A{WAIT}{aligned};", [])

    def value(self, expr: Expr) -> Val:
        if isinstance(expr, Intrinsic) and expr.name in CLUSTER_REDUCTIONS:
            return self._cluster_reduced(expr)
        return super().value(expr)

    def _cluster_reduced(self, expr: Intrinsic) -> Val:
        """What the warps of all blocks give, combined."""
        wanted, blocks = expr.args
        part, b = self.part, self.builder
        assert isinstance(blocks, Const)
        threads, *others = part.block
        warps = threads // WARP
        count = warps * part.cluster
        whole = blocks.value == part.cluster > 1 and others == [1, 1] and count & (count - 1) == 0
        if self.lanes != 1 or not whole or self.combined == part.combined:
            raise ScheduleError(f"{expr.name} has no code here")
        value = self.value(wanted)
        kind = value.dtype
        value = self.cast(value, shuffled_as(kind))
        if not self.combined:  # all blocks have begun
            self._assembly(f"{WAIT}.aligned;", [])
        start = part.arrays_bytes + self.combined * part.slots_bytes
        self.combined += 1
        thread = self.number_of("threadIdx.x", threads)
        warp = b.pure(f"lshr i64 {thread}, 5", [thread])
        lane = b.pure(f"and i64 {thread}, {WARP - 1}", [thread])
        member = self.number_of(CLUSTER_AXIS, part.cluster)
        mine = Lin(start, ((member, warps * _WORD_BYTES), (warp, _WORD_BYTES)))
        self._tell(self._inbox(mine), self._narrow(Lin(0, ((lane, 1),))), value)
        self.meet_cluster(".aligned")
        each = max(count // WARP, 1)
        lanes = count // each
        if lanes < WARP:
            lane = b.pure(f"and i64 {thread}, {lanes - 1}", [thread])
        told: Val | None = None
        for first in range(0, each, _MOST_WORDS):
            at = Lin(start + first * _WORD_BYTES, ((lane, each * _WORD_BYTES),))
            for word in self._words(self._inbox(at), value.dtype, min(each, _MOST_WORDS)):
                told = word if told is None else self._both(expr, told, word)
        assert told is not None
        return self.cast(self.butterfly(CLUSTER_REDUCTIONS[expr.name], told, lanes), kind)

    def _both(self, expr: Intrinsic, a: Val, b: Val) -> Val:
        return self.arithmetic(CLUSTER_REDUCTIONS[expr.name], a, b)

    # --- sums of blocks that share terms out ---------------------------------------------------

    def store(self, stmt: Store) -> None:
        if isinstance(stmt.value, Intrinsic) and stmt.value.name == JOINED:
            self._join(stmt, stmt.value)
        else:
            super().store(stmt)

    def expect_sums(self, first: str) -> None:
        """Make the mbarrier that is told of the sums of other blocks, which come once."""
        lines = (
            "mbarrier.init.shared::cta.b64 [$0], 1;",
            f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], {self.part.joined_bytes};",
        )
        for line in lines:
            self._assembly(if_one("$1", f"@p {line}"), [("r", self._sums_mark()), ("r", first)])

    def _sums_mark(self) -> str:
        return self._inbox(Lin(self.part.shared_bytes - self.part.join_bytes))

    def pass_join(self) -> None:
        """What threads do that have no sums, where the others join theirs."""
        self._assembly(f"{PASS};\\0A{WAIT};", [])

    def _join(self, stmt: Store, value: Intrinsic) -> None:
        """This block's share of what all blocks have, in all elements of the buffer."""
        part, b = self.part, self.builder
        count, blocks = self.lanes, len(value.args)
        place = self.flat_index(stmt.buffer, stmt.indices)
        fits = (count,) == stmt.buffer.shape and blocks == part.cluster > 1
        if not fits or place != Lin(0, (), 1) or self.mask is not None:
            raise ScheduleError(f"{JOINED} gives a thread whole elements, of as many blocks")
        shares = [[self._of_lane(arg, n).text for n in range(count)] for arg in value.args]
        each = gcd(count, _MOST_WORDS)
        thread, step = Lin(0), each * _WORD_BYTES
        for axis, extent in zip(THREAD_AXES, part.block, strict=True):
            if extent > 1:
                thread = thread.plus(Lin(0, ((self.number_of(axis, extent), step),)))
                step *= extent
        mine, mark = self._inbox(thread), self._sums_mark()
        number = self.number_of(CLUSTER_AXIS, blocks)
        member = b.pure(f"trunc i64 {number} to i32", [number])
        self._assembly(f"{PASS}.aligned;\\0A{WAIT}.aligned;", [])
        for block in range(blocks):
            self._tell_shares(block, shares, (member, mine, mark), each)
        totals = [Val(text, "float32") for text in shares[0]]
        for block in range(1, blocks):
            own = Val(b.pure(f"icmp eq i32 {member}, {block}", [member]), "bool")
            others = [Val(text, "float32") for text in shares[block]]
            totals = [self.choose(own, x, y) for x, y in zip(others, totals, strict=True)]
        self.await_phase(mark, "0", ".acquire.cluster")
        for ahead in range(1, blocks):
            told: list[Val] = []
            for first in range(0, count, each):
                offset = self._place_of_sums(ahead, count, first)
                told += self._words(mine, "float32", each, offset)
            totals = [self.arithmetic("add", x, y) for x, y in zip(totals, told, strict=True)]
        self.owners.setdefault(stmt.buffer, {})
        for n, total in enumerate(totals):
            self.store_element(stmt.buffer, n, total)

    def _place_of_sums(self, ahead: int, count: int, first: int) -> int:
        """Where a block has number ``first`` of the sums of those that stand so far before it."""
        return ((ahead - 1) * count + first) * self.part.computing * _WORD_BYTES

    def _tell_shares(
        self, block: int, shares: list[list[str]], places: tuple[str, str, str], each: int
    ) -> None:
        """What a block of a number tells the others, the one after it first: the others go on."""
        count, blocks = len(shares[0]), len(shares)
        lines = ["{", ".reg .pred p;", ".reg .b32 there, mark;", f"setp.ne.u32 p, $0, {block};",
                 "@p bra $$past_${:uid};"]  # fmt: skip
        words: list[str] = []
        wide = f".v{each}" if each > 1 else ""
        for ahead in range(1, blocks):
            other = (block + ahead) % blocks
            lines.append(f"mapa.shared::cluster.u32 there, $1, {other};")
            lines.append(f"mapa.shared::cluster.u32 mark, $2, {other};")
            for first in range(0, count, each):
                names = ", ".join(f"${3 + len(words) + n}" for n in range(each))
                listed = f"{{{names}}}" if each > 1 else names
                place = f"[there+{self._place_of_sums(ahead, count, first)}]"
                lines.append(f"{TELL}{wide}.f32 {place}, {listed}, [mark];")
                words += shares[other][first : first + each]
        lines += ["$$past_${:uid}:", "}"]
        kinds = ",".join([*["r"] * len(places), *["f"] * len(words), "~{memory}"])
        given = [*(f"i32 {place}" for place in places), *(f"float {word}" for word in words)]
        text = "\\0A".join(lines)
        call = f'call void asm sideeffect "{text}", "{kinds}"({", ".join(given)}) {CONVERGENT}'
        self.builder.line(call)

    def await_phase(self, mark: str, parity: str, scope: str = "") -> None:
        """Wait until the phase of a parity of an mbarrier has ended."""
        lines = (
            "{",
            ".reg .pred p;",
            "$$wait_${:uid}:",
            f"mbarrier.try_wait.parity{scope}.shared::cta.b64 p, [$0], $1;",
            "@!p bra $$wait_${:uid};",
            "}",
        )
        self._assembly("\\0A".join(lines), [("r", mark), ("r", parity)])

    # --- words in shared memory ----------------------------------------------------------------

    def _inbox(self, offset: Lin) -> str:
        """An address in this block's shared memory."""
        b, array = self.builder, f"ptr addrspace(3) @{self.kernel}_shared"
        place = b.here(f"getelementptr inbounds i8, {array}, i64 {self.scalar_int(offset)}")
        return b.here(f"ptrtoint ptr addrspace(3) {place} to i32")

    def _tell(self, place: str, lane: str, value: Val) -> None:
        """The first threads of a warp write its value, each to a block of its number."""
        kind = scalar_type(value.dtype)
        bits = (
            value.text
            if kind == "i32"
            else self.builder.here(f"bitcast {kind} {value.text} to i32")
        )
        lines = (
            "{",
            ".reg .pred p;",
            ".reg .b32 there;",
            f"setp.lt.u32 p, $1, {self.part.cluster};",
            "@p mapa.shared::cluster.u32 there, $0, $1;",
            "@p st.shared::cluster.b32 [there], $2;",
            "}",
        )
        self._assembly("\\0A".join(lines), [("r", place), ("r", lane), ("r", bits)])

    def _words(self, place: str, dtype: str, count: int, offset: int = 0) -> list[Val]:
        """Words that other blocks wrote, side by side."""
        b, kind = self.builder, scalar_type(dtype)
        names = ", ".join(f"${n}" for n in range(count))
        wide, listed = (f".v{count}", f"{{{names}}}") if count > 1 else ("", names)
        made = f"{{ {', '.join(['i32'] * count)} }}" if count > 1 else "i32"
        ties = ",".join([*["=r"] * count, "r", "~{memory}"])
        at = f"${count}+{offset}" if offset else f"${count}"
        text = f'asm sideeffect "ld.shared{wide}.b32 {listed}, [{at}];", "{ties}"(i32 {place})'
        found = b.now(f"call {made} {text} {CONVERGENT}")
        words = [found]
        if count > 1:
            words = [b.now(f"extractvalue {made} {found}, {n}") for n in range(count)]
        if kind != "i32":
            words = [b.here(f"bitcast i32 {word} to {kind}") for word in words]
        return [Val(word, dtype) for word in words]


def if_one(operand: str, line: str, value: str = "1") -> str:
    """A line under the predicate that an operand has a value."""
    lines = ("{", ".reg .pred p;", f"setp.eq.u32 p, {operand}, {value};", line, "}")
    return "\\0A".join(lines)

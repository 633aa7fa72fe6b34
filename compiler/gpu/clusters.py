"""Blocks of a cluster, in LLVM text: their numbers, and what they combine.

    cluster_add(x, blocks)      each warp writes its x to the memory of every block
                                the threads of all blocks wait for one another
                                each warp reads what came, and combines it by shuffles

Every such exchange has memory of its own, so that nobody waits for those who still read. Memory of
a block may be written when it has begun: all threads say so first of all, and wait for that before
the first exchange. Behind the last one no block reaches another, so that each may end. Source:
NVIDIA, "PTX ISA", ``mapa``, ``st.shared::cluster``, ``barrier.cluster``.
"""

from __future__ import annotations

from tunefarm.compiler.codegen.types import scalar_type
from tunefarm.compiler.codegen.values import Lin, Val
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import WARP
from tunefarm.compiler.gpu.box_copies import BoxEmitter
from tunefarm.compiler.gpu.intrinsics import CLUSTER_REDUCTIONS
from tunefarm.compiler.gpu.launches import shared_size
from tunefarm.compiler.gpu.shuffles import shuffled_as
from tunefarm.compiler.gpu.warpgroups import CONVERGENT
from tunefarm.compiler.tir.ir import CLUSTER_AXIS, GRID_AXES, Const, Expr, For, Intrinsic

ARRIVE, WAIT = "barrier.cluster.arrive.release", "barrier.cluster.wait.acquire"
_WORD_BYTES = 4
_MOST_WORDS = 4  # of a load


class ClusterEmitter(BoxEmitter):
    """Writes what the threads of a block do, and what they get of other blocks of their cluster."""

    combined = 0  # exchanges that are written

    def begin(self) -> None:
        """Write what comes before all else."""
        if self.part.combined_bytes:
            self._assembly(f"{ARRIVE}.aligned;", [])
        elif self.part.cluster > 1:
            raise ScheduleError("blocks are a cluster where they combine values or share boxes")

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
        start = sum(map(shared_size, part.shared)) + self.combined * part.slots_bytes
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

    def _words(self, place: str, dtype: str, count: int) -> list[Val]:
        """Words that other blocks wrote, side by side."""
        b, kind = self.builder, scalar_type(dtype)
        names = ", ".join(f"${n}" for n in range(count))
        wide, listed = (f".v{count}", f"{{{names}}}") if count > 1 else ("", names)
        made = f"{{ {', '.join(['i32'] * count)} }}" if count > 1 else "i32"
        ties = ",".join([*["=r"] * count, "r", "~{memory}"])
        text = f'asm sideeffect "ld.shared{wide}.b32 {listed}, [${count}];", "{ties}"(i32 {place})'
        found = b.now(f"call {made} {text} {CONVERGENT}")
        words = [found]
        if count > 1:
            words = [b.now(f"extractvalue {made} {found}, {n}") for n in range(count)]
        if kind != "i32":
            words = [b.here(f"bitcast i32 {word} to {kind}") for word in words]
        return [Val(word, dtype) for word in words]

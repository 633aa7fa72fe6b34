"""Tiles that boxes fill, in LLVM text: which thread asks for them, and who waits for whom.

    lowered program                             the thread that fills    threads that compute
    for k: if fills: T[k % 3] = boxes           wait until it is free
           barrier                              expect its bytes         wait until it is full
           use(T[k % 3])                        ask for the boxes        use it; say it is free

Each of the ``stages`` has two mbarriers: "full" ends a phase when the bytes of its boxes have
arrived, "free" when each warp that computes has said so. Turn n of a stage is phase n of both,
and where a block goes from tile to tile of the result, its steps are counted through all. The
barriers of the program are what the interpreter runs; here the first of a step is the wait for its
stage, and the others are nothing, since no more is shared. If threads of a number along z fill and
do no more, they and the others part at the beginning.

In a cluster of blocks a stage is free when the warps of all blocks have said so, in each block, and
no block ends before the others are through. Source: NVIDIA,
"PTX ISA", mbarrier and asynchronous copies; the roles are those of CUTLASS 3.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tunefarm.compiler.codegen.builder import FunctionBuilder
from tunefarm.compiler.codegen.statements import Module
from tunefarm.compiler.codegen.values import Lin
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import MAX_REGISTERS, REGISTERS, WARP
from tunefarm.compiler.gpu.box_copies import extent_of, nest_of
from tunefarm.compiler.gpu.boxes import MARK_BYTES, boxes_below, is_box, only_sends, ring_of
from tunefarm.compiler.gpu.clusters import ClusterEmitter
from tunefarm.compiler.gpu.dialects import Dialect
from tunefarm.compiler.gpu.launches import Part, shared_size
from tunefarm.compiler.gpu.warpgroups import issues
from tunefarm.compiler.gpu.wgmma import wgmmas_of
from tunefarm.compiler.target import dtype_bytes
from tunefarm.compiler.tir.affine import conjunction, conjuncts, decide
from tunefarm.compiler.tir.ir import (
    THREAD_AXES,
    Binary,
    Const,
    Expr,
    For,
    If,
    LoopKind,
    Seq,
    Stmt,
    Store,
    binary,
)
from tunefarm.compiler.tir.visit import walk_stmt

BOTH, FILLING, COMPUTING = "both", "filling", "computing"
FULL, FREE = 0, 1  # a stage's mbarriers
FILLING_REGISTERS = 40  # of a thread that does no more: as DeepGEMM's, whose others have 232
UNIT = 8  # registers come in so many (PTX ISA, setmaxnreg)


class RingEmitter(ClusterEmitter):
    """Writes what four warps do together, and how the tiles reach them that boxes fill."""

    def __init__(
        self, module: Module, builder: FunctionBuilder, dialect: Dialect, part: Part, name: str
    ) -> None:
        super().__init__(module, builder, dialect, part, name)
        self.ring = ring_of(part.body)
        self.role = BOTH
        self._roles: dict[For, str] = {}  # the two loops that one over groups becomes
        self._results: For | None = None  # the loop over tiles of the result, if there is one
        self._step: Expr | None = None  # the number of the step that is being written
        self._waited = False
        self.sends = False
        self._handing = False

    def begin(self) -> None:
        """Write what comes before all else: the mbarriers, of which all threads are told."""
        ring, b, cluster = self.ring, self.builder, self.part.cluster
        if ring is None:
            super().begin()
            return
        if cluster > 1 and not ring.producer:
            raise ScheduleError("blocks are a cluster where threads of their own ask for boxes")
        if not self.target.takes_wgmma:
            raise ScheduleError(f"boxes need -arch=sm_90a, not {self.target}")
        computing = prod(self.part.block[:2]) * (self.part.block[2] - (ring.producer > 0))
        number = "0"
        for axis, extent in zip("xyz", self.part.block, strict=True):
            if extent > 1:
                own = self.number_of(f"threadIdx.{axis}", extent)
                number = b.pure(f"or i64 {number}, {own}", [number, own])
        first = b.pure(f"icmp eq i64 {number}, 0", [number])
        flag = b.pure(f"zext i1 {first} to i32", [first])
        for which, count in ((FULL, 1), (FREE, cluster * computing // WARP)):
            for stage in range(ring.stages):
                place = self._mark(which, Lin(stage))
                init = f"@p mbarrier.init.shared::cta.b64 [$0], {count};"
                self._assembly(_if_one("$1", init), [("r", place), ("r", flag)])
        self._assembly("fence.mbarrier_init.release.cluster;", [])
        if cluster > 1:
            self.meet_cluster(".aligned")
        else:
            super()._barrier(0)

    def end(self) -> None:
        """Write what comes after all else: other blocks may still tell this one of what is free."""
        if self.part.cluster > 1 and self.ring is not None:
            self.meet_cluster()

    # --- roles ---------------------------------------------------------------------------------

    def _number(self, loop: For) -> None:
        ring = self.ring
        if loop in self._roles:
            self._play(loop)
        elif ring is None or not ring.producer or loop.axis != "threadIdx.z":
            super()._number(loop)
        else:
            number = self.number_of(loop.axis, self.part.block[2])
            test = self.builder.pure(f"icmp eq i64 {number}, {ring.producer}", [number])
            filling = replace(loop, start=Const(ring.producer), extent=Const(1))
            computing = replace(loop, extent=Const(ring.producer))
            self._roles = {filling: FILLING, computing: COMPUTING}
            self.branch_on(test, filling, computing)

    def _play(self, loop: For) -> None:
        """The body of the loop over groups, as far as threads of a role run it."""
        start, extent = self.constant_bounds(loop)
        self.role = self._roles[loop]
        self.ranges[loop.var] = (start, start + extent - 1)
        self.env[loop.var] = Lin(start)
        if extent > 1:
            own = self.number_of(loop.axis, self.part.block[2])
            self.env[loop.var] = Lin(0, ((own, 1),))
        given = registers_of(self.part)
        if given is not None:
            _, most = given
            change = f"dec.sync.aligned.u32 {FILLING_REGISTERS}"
            if self.role is COMPUTING:
                change = f"inc.sync.aligned.u32 {most}"
            self._assembly(f"setmaxnreg.{change};", [])
        self.statement(loop.body)
        if self.sends and self.role is COMPUTING:
            self.wait_for_sent(0)
        self.role = BOTH

    def statement(self, stmt: Stmt) -> None:
        fills = self.ring is not None and bool(boxes_below(stmt))
        if self.role is FILLING and not fills:
            return
        if only_sends(stmt):
            self._hand_over(stmt)
        elif not (fills and only_fills(stmt)):
            super().statement(stmt)
        elif self.role is COMPUTING:
            return
        elif any(isinstance(s, If) for s in walk_stmt(stmt)):
            super().statement(stmt)
        else:
            self._fill(stmt)

    def branch(self, node: If) -> None:
        if self.role is BOTH:
            super().branch(node)
            return
        known = {part: decide(part, self.ranges) for part in conjuncts(node.condition)}
        parts = [part for part, holds in known.items() if holds is None]
        if False in known.values() or parts:
            condition = conjunction(parts) if False not in known.values() else Const(False, "bool")
            super().branch(replace(node, condition=condition))
        else:
            self.statement(node.then)

    # --- who waits for whom --------------------------------------------------------------------

    def iteration(self, loop: For) -> None:
        ring = self.ring
        if ring is None or not issues(loop):
            super().iteration(loop)
            return
        if _is_of_results(loop):
            self._results = loop
            super().iteration(loop)
            self._results = None
            return
        step: Expr = loop.var
        if self._results is not None:
            step = self._results.var * extent_of(loop) + step
        self._step, self._waited = step, False
        super().iteration(loop)
        if self.role is FILLING:
            self._step = None
            return
        if any(w.overlaps for w in wgmmas_of(loop)):  # those of the step before have ended
            self._release((step + (ring.stages - 1)) % ring.stages, step)
        else:
            self._release(step % ring.stages)
        self._step = None

    def _barrier(self, pending: int) -> None:
        if self.ring is None:
            super()._barrier(pending)
        elif self._step is not None and not self._waited:
            self._waited = True
            turn = self._step // self.ring.stages
            self._wait(FULL, self._step % self.ring.stages, turn % 2)
            for buffer in self.part.shared:
                self.builder.forget(buffer)

    def _release(self, stage: Expr, unless_first: Expr | None = None) -> None:
        """A warp has no more use for a stage: its first thread says so, but not in the first step
        of those that are counted by ``unless_first``. What its threads loaded themselves all of
        them have."""
        if self.loads_fragments:
            self._warpwide("bar.warp.sync -1;", "~{memory}")
        lane = self._narrow(Lin(0, ((self.number_of("threadIdx.x", WARP), 1),)))
        if unless_first is not None:
            step = self._narrow(self._linear_index(unless_first))
            first = self.builder.here(f"icmp eq i32 {step}, 0")
            lane = self.builder.here(f"select i1 {first}, i32 1, i32 {lane}")
        place = self._mark(FREE, self._linear_index(stage))
        if self.part.cluster == 1:
            arrive = "@p mbarrier.arrive.shared::cta.b64 _, [$0];"
            self._assembly(_if_one("$1", arrive, "0"), [("r", place), ("r", lane)])
            return
        for block in range(self.part.cluster):
            lines = (
                ".reg .b32 there;",
                f"mapa.shared::cluster.u32 there, $0, {block};",
                "@p mbarrier.arrive.shared::cluster.b64 _, [there];",
            )
            self._assembly(_if_one("$1", "\\0A".join(lines), "0"), [("r", place), ("r", lane)])

    def _wait(self, which: int, stage: Expr, parity: Expr) -> None:
        """Wait until the phase of a parity has ended."""
        lines = (
            "{",
            ".reg .pred p;",
            "$$wait_${:uid}:",
            "mbarrier.try_wait.parity.shared::cta.b64 p, [$0], $1;",
            "@!p bra $$wait_${:uid};",
            "}",
        )
        place = self._mark(which, self._linear_index(stage))
        number = self._narrow(self._linear_index(parity))
        self._assembly("\\0A".join(lines), [("r", place), ("r", number)])

    def _mark(self, which: int, stage: Lin) -> str:
        """The address of a stage's mbarrier in shared memory, behind all tiles."""
        assert self.ring is not None
        b = self.builder
        start = sum(map(shared_size, self.part.shared)) + which * self.ring.stages * MARK_BYTES
        offset = self.scalar_int(stage.scaled(MARK_BYTES).plus(Lin(start)))
        array = f"ptr addrspace(3) @{self.kernel}_shared"
        place = b.here(f"getelementptr inbounds i8, {array}, i64 {offset}")
        return b.here(f"ptrtoint ptr addrspace(3) {place} to i32")

    # --- boxes ---------------------------------------------------------------------------------

    def _hand_over(self, stmt: Stmt) -> None:
        """One of a group's threads has a box copied that all of them wrote to shared memory.

        if leads: for r, c: y[…] = sent(T[…])
        ->  fence; wait for the group; if leads: { copy; wait for older ones }; wait for the group
        """
        if isinstance(stmt, For):
            self._send_box(*nest_of(stmt))
            return
        if self._handing:
            super().statement(stmt)
            return
        if self.role is not COMPUTING:
            raise ScheduleError("boxes are stored where threads of their own ask for others")
        self.sends = self._handing = True
        self._warpwide("fence.proxy.async.shared::cta;")
        self._meet_group()
        super().statement(stmt)
        self._handing = False
        self._meet_group()

    def _meet_group(self) -> None:
        """The threads of one number along z wait for one another."""
        b, count = self.builder, prod(self.part.block[:2])
        own = self.number_of(THREAD_AXES[2], self.part.block[2])
        name = b.here(f"add i64 {own}, 1")  # 0 is that of the block
        self._assembly(f"bar.sync $0, {count};", [("r", b.here(f"trunc i64 {name} to i32"))])

    def _fill(self, stmt: Stmt) -> None:
        """Ask for the boxes of a stage: it may have to be waited for, and its bytes are told."""
        assert self.ring is not None
        stage = boxes_below(stmt)[0].indices[0]
        if self.role is FILLING and self._step is not None:
            turn = self._step // self.ring.stages
            self._wait(FREE, stage, binary("sub", Const(1), turn % 2))
        elif isinstance(stage, Binary) and stage.op == "floormod":
            turn = binary("floordiv", stage.a, stage.b)
            self._wait(FREE, stage, binary("sub", Const(1), turn % 2))
        place = self._mark(FULL, self._linear_index(stage))
        expect = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;"
        self._assembly(expect, [("r", place), ("r", str(_bytes_of(stmt)))])
        self._ask(stmt, place)

    def _ask(self, stmt: Stmt, mark: str) -> None:
        match stmt:
            case Seq(stmts):
                for part in stmts:
                    self._ask(part, mark)
            case For() if stmt.kind is LoopKind.UNROLLED:
                start, extent = self.constant_bounds(stmt)
                for value in range(start, start + extent):
                    self.env[stmt.var] = Lin(value)
                    self._ask(stmt.body, mark)
            case _:
                self._box(*nest_of(stmt), mark)


def registers_of(part: Part) -> tuple[int, int] | None:
    """Registers of a thread when a kernel begins, and of those that compute once the others have
    given theirs away; None where what it begins with is enough."""
    ring = ring_of(part.body)
    if ring is None or not ring.producer:
        return None
    threads = prod(part.block)
    first = REGISTERS // threads // UNIT * UNIT
    results = max(w.elements for w in wgmmas_of(part.body))
    if first >= min(results + 64, MAX_REGISTERS):
        return None
    filling = threads // part.block[2]
    computing = threads - filling
    most = (first * threads - FILLING_REGISTERS * filling) // computing // UNIT * UNIT
    return first, min(most, MAX_REGISTERS // UNIT * UNIT)


def only_fills(stmt: Stmt) -> bool:
    """True if a statement stores boxes and nothing else."""
    stores = [s for s in walk_stmt(stmt) if isinstance(s, Store)]
    return bool(stores) and all(map(is_box, stores))


def _is_of_results(loop: For) -> bool:
    """True for a loop over tiles of the result, in which another goes over the steps of each."""
    below = (s for s in walk_stmt(loop.body) if isinstance(s, For))
    return any(s.kind is LoopKind.SERIAL and issues(s) for s in below)


def _if_one(operand: str, line: str, value: str = "1") -> str:
    """A line under the predicate that an operand has a value."""
    lines = ("{", ".reg .pred p;", f"setp.eq.u32 p, {operand}, {value};", line, "}")
    return "\\0A".join(lines)


def _bytes_of(stmt: Stmt) -> int:
    """Bytes of all boxes of a statement, those outside of the tensor too."""
    match stmt:
        case Seq(stmts):
            return sum(map(_bytes_of, stmts))
        case For():
            return extent_of(stmt) * _bytes_of(stmt.body)
        case Store():
            return dtype_bytes(stmt.buffer.dtype)
        case _:
            raise ScheduleError("a box is no nest of loops over its elements")

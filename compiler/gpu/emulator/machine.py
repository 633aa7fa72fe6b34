"""Runs the resident blocks of a launch: threads in groups, the lowest block of code first.

Groups part at branches and meet again where they come to the same block. Threads of a warp wait for
one another at instructions of the whole warp, those of a block at barriers; when nobody can go on
who has not ended, that is a fault.
"""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.gpu.emulator.blocks import (
    Barrier,
    Block,
    Branch,
    Collective,
    Jump,
    Wait,
)
from tunefarm.compiler.gpu.emulator.errors import Fault, KernelFault
from tunefarm.compiler.gpu.emulator.wave import Group, Index, Wave

_NOWHERE = 1 << 60
_MOST_NAMES = 16  # barriers of a block


class Machine:
    """One wave of blocks and the code that it runs."""

    def __init__(self, wave: Wave, code: tuple[Block, ...]) -> None:
        self.wave, self.code = wave, code
        self.ready: dict[int, Index] = {0: np.arange(wave.threads)}  # threads by block of code
        self.gathering: dict[int, Index] = {}  # at an instruction of a warp that is not complete
        self.barred: dict[int, Index] = {}  # at a barrier
        self.met: dict[int, Index] = {}  # at a barrier of clusters
        self.parted: dict[int, Index] = {}  # at a barrier of some threads of a block
        self.waiting: dict[int, Index] = {}  # at an mbarrier

    def run(self) -> None:
        """Run until all threads have ended. Raises KernelFault."""
        with np.errstate(all="ignore"):
            while True:
                while self.ready:
                    number = min(self.ready)
                    self._advance(number, self.wave.group(self.ready.pop(number)))
                if self._wake():
                    continue
                if self._pass_parts():
                    continue
                waits = self.barred or self.gathering or self.waiting or self.met or self.parted
                if not waits:
                    self._check_copies()
                    return
                if self._pass_barriers() or self._pass_clusters():
                    continue
                if not self.wave.mbarriers.land(self.wave):
                    raise self._stuck()

    def _advance(self, number: int, group: Group) -> None:
        """Run a group until it parts, waits, ends, or comes to where others are."""
        wave, code = self.wave, self.code
        limit = min(self.ready, default=_NOWHERE)
        while number < limit:
            block = code[number]
            for step in block.steps:
                step(wave, group)
            end = block.end
            if isinstance(end, Branch):
                taken = end.condition(wave)
                if not group.whole or len(taken) > 1:
                    taken = group.own(taken)
                if taken.all():
                    number = end.target
                elif not taken.any():
                    number = end.following
                else:
                    self._place(end.target, group.index[taken])
                    self._place(end.following, group.index[~taken])
                    return
            elif isinstance(end, Jump):
                number = end.target
            elif isinstance(end, Collective):
                whole = group.has_whole_warps(wave)
                if whole and end.of_warpgroup and not group.every:
                    whole = bool(wave.complete(group.index, True).all())
                if not whole:
                    self._gather(number, group)
                    return
                end.step(wave, group)
                number = end.following
            elif isinstance(end, Wait):
                self._join(self.waiting, number, group.index)
                return
            elif isinstance(end, Barrier) and end.of_cluster:
                self._join(self.met, number, group.index)
                return
            elif isinstance(end, Barrier) and end.name is not None:
                self._join(self.parted, number, group.index)
                return
            elif isinstance(end, Barrier):
                if not group.every:
                    self._join(self.barred, number, group.index)
                    return
                wave.shared.pass_barrier(np.ones(wave.blocks, np.bool_))
                number = end.following
            else:
                wave.end(group.index)
                self._check_ends(group.index)
                return
        self._place(number, group.index)

    def _place(self, number: int, index: Index) -> None:
        self._join(self.ready, number, index)

    @staticmethod
    def _join(places: dict[int, Index], number: int, index: Index) -> None:
        if number in places:
            index = np.sort(np.concatenate([places[number], index]))
        places[number] = index

    # --- waiting -------------------------------------------------------------------------------

    def _gather(self, number: int, group: Group) -> None:
        """Let complete warps go on, and the others wait for their missing threads."""
        self._join(self.gathering, number, group.index)
        index = self.gathering.pop(number)
        wave, end = self.wave, self.code[number].end
        assert isinstance(end, Collective)
        complete = wave.complete(index, end.of_warpgroup)
        if not complete.all():
            self.gathering[number] = index[~complete]
        if complete.any():
            together = wave.group(index[complete])
            end.step(wave, together)
            self._place(end.following, together.index)

    def _wake(self) -> bool:
        """Let threads go on whose phase of an mbarrier has ended; False if there are none."""
        woken = False
        for number, index in list(self.waiting.items()):
            end = self.code[number].end
            assert isinstance(end, Wait)
            ready = end.waiting.ready(self.wave, self.wave.group(index))
            if not ready.any():
                continue
            del self.waiting[number]
            if not ready.all():
                self.waiting[number] = index[~ready]
            together = self.wave.group(index[ready])
            end.waiting.step(self.wave, together)
            self._place(end.following, together.index)
            woken = True
        return woken

    def _check_copies(self) -> None:
        """A fault if copies to or from shared memory run on when all threads have ended."""
        for sent in self.wave.sent.boxes:
            problem = "still reads shared memory when its block ends: its thread does not wait"
            raise self.wave.fault(sent.instruction, sent.thread, problem)
        for box in self.wave.mbarriers.boxes:
            problem = "has not ended when its block does: nobody waits for it"
            raise self.wave.fault(box.instruction, box.thread, problem)

    def _check_ends(self, index: Index) -> None:
        """A fault if a block ended that others of its cluster may still reach."""
        wave = self.wave
        for block in np.unique(wave.block_of[index]) if wave.cluster > 1 else ():
            first = int(block) * wave.block_threads
            if not wave.live[first : first + wave.block_threads].any():
                try:
                    wave.mbarriers.check_end(wave, int(block))
                    wave.order.check_end(int(block), wave.shared.pitch)
                except Fault as fault:
                    raise KernelFault(
                        f"kernel {wave.kernel}, {wave.place(first)}: {fault.problem}"
                    ) from None

    def _pass_barriers(self) -> bool:
        """Let blocks go on all of whose threads wait at a barrier; False if there are none."""
        wave = self.wave
        waiting = np.zeros(wave.blocks, np.intp)
        for index in self.barred.values():
            waiting += np.bincount(wave.block_of[index], minlength=wave.blocks)
        complete = waiting == wave.block_threads
        if not complete.any():
            return False
        wave.shared.pass_barrier(complete)
        for number, index in list(self.barred.items()):
            del self.barred[number]
            mine = complete[wave.block_of[index]]
            if not mine.all():
                self.barred[number] = index[~mine]
            if mine.any():
                end = self.code[number].end
                assert isinstance(end, Barrier)
                together = wave.group(index[mine])
                if not together.has_whole_warps(wave):
                    first = int(together.index[0])
                    raise wave.fault(end.instruction, first, "others of its warp wait elsewhere")
                self._place(end.following, together.index)
        return True

    def _pass_parts(self) -> bool:
        """Let threads go on at barriers of a part of their block, to which all came that they are
        for; False if there are none. Those of a number come to one place in the text."""
        wave, passed = self.wave, False
        for number, index in list(self.parted.items()):
            end = self.code[number].end
            assert isinstance(end, Barrier)
            assert end.name is not None
            names = wave.group(index).own(end.name(wave)).astype(np.intp)
            keys = wave.block_of[index] * _MOST_NAMES + names
            there, counts = np.unique(keys, return_counts=True)
            complete = there[counts >= end.count]
            mine = np.isin(keys, complete)
            if not mine.any():
                continue
            passed = True
            del self.parted[number]
            if not mine.all():
                self.parted[number] = index[~mine]
            if (names >= _MOST_NAMES).any() or (counts > end.count).any():
                problem = f"is number {names.max()}, or more than {end.count} threads come to it"
                raise wave.fault(end.instruction, int(index[0]), problem)
            if not wave.group(index[mine]).has_whole_warps(wave):
                raise wave.fault(
                    end.instruction, int(index[0]), "others of its warp wait elsewhere"
                )
            for key in complete:
                wave.order.pass_part(index[keys == key])
            self._place(end.following, index[mine])
        return passed

    def _pass_clusters(self) -> bool:
        """Let clusters go on all of whose threads wait at a barrier of them; False if there are
        none."""
        wave = self.wave
        each = wave.cluster * wave.block_threads
        waiting = np.zeros(wave.threads // each, np.intp)
        for index in self.met.values():
            waiting += np.bincount(index // each, minlength=len(waiting))
        complete = waiting == each
        if not complete.any():
            return False
        wave.order.pass_cluster(complete)
        for number, index in list(self.met.items()):
            del self.met[number]
            mine = complete[index // each]
            if not mine.all():
                self.met[number] = index[~mine]
            if mine.any():
                end = self.code[number].end
                assert isinstance(end, Barrier)
                silent = np.flatnonzero(~wave.arrived[index[mine]])
                if len(silent):
                    first = int(index[mine][silent[0]])
                    raise wave.fault(end.instruction, first, "waits, and has not arrived")
                wave.arrived[index[mine]] = False
                self._place(end.following, index[mine])
        return True

    def _stuck(self) -> KernelFault:
        """Who waits for whom: at an mbarrier, the first warp that is not complete, or else the
        first block."""
        wave = self.wave
        if self.waiting:
            number, index = min(self.waiting.items(), key=lambda wait: wait[1][0])
            at = self.code[number].end
            assert isinstance(at, Wait)
            problem = at.waiting.problem(wave, wave.group(index))
            return wave.fault(at.instruction, int(index[0]), problem)
        waiting = self.gathering or self.parted or self.barred or self.met
        number, index = min(waiting.items(), key=lambda wait: (wait[1][0], wait[0]))
        end = self.code[number].end
        assert isinstance(end, Collective | Barrier)
        if isinstance(end, Barrier) and end.name is not None:
            problem = f"waits for {end.count} threads of its block, of which fewer come"
            return wave.fault(end.instruction, int(index[0]), problem)
        whole, what = wave.block_of, "block"
        if isinstance(end, Barrier) and end.of_cluster:
            whole, what = wave.block_of // wave.cluster, "cluster"
        if isinstance(end, Collective):
            whole, what = wave.team_of(end.of_warpgroup), "warp"
            what = what if whole is wave.warp_of else "warpgroup"
        mine = whole == whole[index[0]]
        here = np.zeros(wave.threads, np.bool_)
        for others in [index] if isinstance(end, Collective) else waiting.values():
            here[others] = True
        missing = int(np.flatnonzero(mine & ~here)[0])
        state = "ended" if not wave.live[missing] else "waits elsewhere"
        return wave.fault(
            end.instruction,
            int(index[0]),
            f"waits for all threads of its {what}, but {wave.place(missing)} {state}",
        )

"""The ``mbarrier`` objects of blocks, and the copies of boxes that tell them of their bytes.

A phase of one ends when as many threads have arrived as it was made for, and as many bytes as they
expect. Copies run by themselves: their bytes arrive when no thread can go on without them, the
oldest first, so that to use them without waiting is found out. Source: NVIDIA, "PTX ISA", mbarrier.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from tunefarm.compiler.gpu.emulator.errors import Fault
from tunefarm.compiler.gpu.emulator.kinds import Values
from tunefarm.compiler.gpu.emulator.order import AsyncRead, BlockOrder, Index
from tunefarm.compiler.gpu.emulator.parse import Instruction

if TYPE_CHECKING:
    from tunefarm.compiler.gpu.emulator.wave import Wave

_SPAN = 1 << 32  # more than the addresses of a block's shared memory


@dataclass(slots=True)
class Mark:
    """One mbarrier, made for ``count`` arrivals a phase. ``number`` counts those of its cluster,
    ``phases`` those that have ended; ``missing`` arrivals and ``bytes`` end the next.

    ``told`` is what those tell that arrive, ``heard`` what those hear that wait; ``made`` is who
    made it, and when.
    """

    count: int
    number: int
    missing: int
    told: Values
    heard: Values
    made: tuple[int, int]
    bytes: int = 0
    phases: int = 0
    fenced: bool = False

    def close(self) -> None:
        """End the phase if all have arrived."""
        if not self.missing and not self.bytes:
            self.phases += 1
            self.missing, self.heard = self.count, self.told.copy()


@dataclass(frozen=True, slots=True)
class Box:
    """A copy under way: chunks of up to 16 bytes for a block, and its mbarrier at ``mark``."""

    instruction: Instruction
    thread: int
    block: int
    mark: int
    targets: Values
    chunks: Values


@dataclass(frozen=True, slots=True)
class SentBox:
    """A copy from shared memory that reads it until its thread has waited for ``group``."""

    instruction: Instruction
    thread: int
    group: int
    read: AsyncRead


class Sent:
    """The copies of boxes from shared memory, and how many groups of them each thread made."""

    def __init__(self, threads: int) -> None:
        self.boxes: list[SentBox] = []
        self.committed = np.zeros(threads, np.intp)

    def wait(self, order: BlockOrder, chosen: Values, allowed: int) -> None:
        """Chosen threads (a mask) wait for all but their ``allowed`` newest groups."""
        left = []
        for box in self.boxes:
            if chosen[box.thread] and box.group < self.committed[box.thread] - allowed:
                order.end_send(box.thread, box.read)
            else:
                left.append(box)
        self.boxes = left


@dataclass(slots=True)
class Mbarriers:
    """Those of all blocks of a wave, by block and address, and the copies that they wait for."""

    marks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    boxes: list[Box] = field(default_factory=list)
    from_others: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    """By block, the threads of others in its cluster that told its mbarriers, and when."""

    def find(self, wave: Wave, position: int, thread: int, block: int, address: int) -> Mark:
        """The mbarrier of a block that a thread speaks of; Fault if it does not know of any."""
        return self._found(wave, np.array([position]), np.array([thread]), block, address)

    def find_all(self, wave: Wave, threads: Index, addresses: Values) -> tuple[list[Mark], Index]:
        """The mbarriers of their own blocks that threads speak of, and which of these each does."""
        places = wave.block_of[threads] * _SPAN + addresses.astype(np.int64)
        distinct, which = np.unique(places, return_inverse=True)
        found = []
        for number, place in enumerate(distinct.tolist()):
            positions = np.flatnonzero(which == number)
            block, address = divmod(place, _SPAN)
            found.append(self._found(wave, positions, threads[positions], block, address))
        return found, which

    def _found(
        self, wave: Wave, positions: Index, threads: Index, block: int, address: int
    ) -> Mark:
        found = self.marks.get((block, address))
        if found is None:
            raise Fault(int(positions[0]), f"there is no mbarrier at {address:#x} of shared memory")
        known = wave.order.know(threads, *found.made)
        if not known.all():
            problem = f"does not know that the mbarrier at {address:#x} is made"
            raise Fault(int(positions[np.argmin(known)]), problem)
        return found

    def check_end(self, wave: Wave, block: int) -> None:
        """A block ends: Fault unless it knows that no other tells its mbarriers any more."""
        for other, time in self.from_others.get(block, ()):
            first = block * wave.block_threads
            threads = np.arange(first, first + wave.block_threads)
            if not wave.order.know(threads, other, time).any():
                raise Fault(0, "ends, and others of its cluster may still tell its mbarriers")

    def land(self, wave: Wave) -> bool:
        """Let the bytes of the oldest copy arrive; False if there is none."""
        if not self.boxes:
            return False
        box = self.boxes.pop(0)
        first = box.block * wave.block_threads
        if not wave.live[first : first + wave.block_threads].any():
            raise wave.fault(box.instruction, box.thread, "copies to a block that has ended")
        mark = self.marks[box.block, box.mark]
        threads = np.full(len(box.targets), first)
        time = wave.shared.end_box(threads, box.targets, box.chunks)
        mark.told = np.maximum(mark.told, wave.order.told_by_copy(mark.number, time))
        mark.bytes -= box.chunks.size
        mark.close()
        return True

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
from tunefarm.compiler.gpu.emulator.parse import Instruction

if TYPE_CHECKING:
    from tunefarm.compiler.gpu.emulator.wave import Wave


@dataclass(slots=True)
class Mark:
    """One mbarrier, made for ``count`` arrivals a phase. ``number`` counts those of its block,
    ``phases`` those that have ended; ``missing`` arrivals and ``bytes`` end the next.

    ``told`` is what those tell that arrive, ``heard`` what those hear that wait.
    """

    count: int
    number: int
    missing: int
    told: Values
    heard: Values
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
    """A copy under way: chunks of 16 bytes for a thread's block, and the mbarrier at ``mark``."""

    instruction: Instruction
    thread: int
    mark: int
    targets: Values
    chunks: Values


@dataclass(slots=True)
class Mbarriers:
    """Those of all blocks of a wave, by block and address, and the copies that they wait for."""

    marks: dict[tuple[int, int], Mark] = field(default_factory=dict)
    boxes: list[Box] = field(default_factory=list)

    def find(self, wave: Wave, position: int, thread: int, address: int) -> Mark:
        found = self.marks.get((int(wave.block_of[thread]), address))
        if found is None:
            raise Fault(position, f"there is no mbarrier at {address:#x} of shared memory")
        return found

    def land(self, wave: Wave) -> bool:
        """Let the bytes of the oldest copy arrive; False if there is none."""
        if not self.boxes:
            return False
        box = self.boxes.pop(0)
        mark = self.marks[int(wave.block_of[box.thread]), box.mark]
        threads = np.full(len(box.targets), box.thread)
        time = wave.shared.end_box(threads, box.targets, box.chunks)
        mark.told = np.maximum(mark.told, wave.order.told_by_copy(mark.number, time))
        mark.bytes -= box.chunks.size
        mark.close()
        return True

"""Runs the threads of a block in lock step between barriers: the interpreter's part for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import product
from typing import TypeAlias

from tunefarm.compiler.errors import ScheduleError

Place: TypeAlias = tuple[int, str, tuple[int, ...]]  # the array's id and name, the element
Thread: TypeAlias = Generator[int, None, None]


class Accesses:
    """What the threads of a block touched of the arrays they share, since the last barrier."""

    def __init__(self) -> None:
        self.thread = 0
        self.writers: dict[Place, int] = {}
        self.readers: dict[Place, int] = {}

    def read(self, array: int, name: str, indices: tuple[int, ...]) -> None:
        """Note a read; ScheduleError if another thread wrote the element."""
        place = (array, name, indices)
        if self.writers.get(place, self.thread) != self.thread:
            self._race(place, self.writers[place], "reads what", "wrote")
        if self.readers.setdefault(place, self.thread) != self.thread:
            self.readers[place] = -1  # more than one

    def write(self, array: int, name: str, indices: tuple[int, ...]) -> None:
        """Note a write; ScheduleError if another thread touched the element."""
        place = (array, name, indices)
        if self.writers.setdefault(place, self.thread) != self.thread:
            self._race(place, self.writers[place], "writes what", "wrote")
        if self.readers.get(place, self.thread) != self.thread:
            self._race(place, self.readers[place], "writes what", "read")

    def _race(self, place: Place, other: int, does: str, did: str) -> None:
        _, name, indices = place
        who = f"thread {other}" if other >= 0 else "another thread"
        raise ScheduleError(
            f"thread {self.thread} {does} {who} {did}, {name}[{', '.join(map(str, indices))}], "
            "without a barrier between them"
        )


def run_block(thread: Callable[..., Thread], extents: Sequence[int], accesses: Accesses) -> None:
    """Run one thread for every index below ``extents`` until all have ended.

    All advance to their next barrier before one goes on. Raises ScheduleError if threads wait at
    different barriers, or some wait and others end; and at a race.
    """
    running = [thread(*reversed(index)) for index in product(*map(range, reversed(extents)))]
    while running:
        accesses.writers.clear()
        accesses.readers.clear()
        reached = []
        for accesses.thread, steps in enumerate(running):
            reached.append(next(steps, None))
        for number, barrier in enumerate(reached):
            if barrier != reached[0]:
                waits, other = (0, number) if reached[0] is not None else (number, 0)
                raise ScheduleError(
                    f"thread {waits} of {len(running)} waits at a barrier that thread {other} "
                    "does not reach"
                )
        if reached[0] is None:
            return

"""Runs the threads of a block in lock step between barriers: the interpreter's part for GPUs."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, TypeAlias

from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.gpu.archs import WARP

Place: TypeAlias = tuple[int, str, tuple[int, ...]]  # the array's id and name, the element


@dataclass(frozen=True, slots=True)
class Exchange:
    """Where a thread gives ``value`` to those beside it, and gets what ``combine`` makes of all
    in groups of ``width``; None: all of them, in the threads' order."""

    line: int
    width: int
    combine: Callable[[Any, Any], Any] | None
    value: Any


@dataclass(frozen=True, slots=True)
class Gathering:
    """Where a thread gives ``value``, and gets what ``combine`` makes of those of all warps."""

    line: int
    combine: Callable[[Any, Any], Any] = field(compare=False)
    value: Any = field(compare=False)


@dataclass(frozen=True, slots=True)
class Meeting:
    """The barrier of a line, at which the copies of the last ``pending`` stretches may be under
    way."""

    line: int
    pending: int


Thread: TypeAlias = Generator["Meeting | Exchange | Gathering", Any, None]
Stop: TypeAlias = "Meeting | Gathering | None"  # where a thread waits, None for one that has ended


class Accesses:
    """What the threads of a block touched of the arrays they share, since the last barrier, and
    which elements of shared memory they have ``filled`` at all."""

    def __init__(self) -> None:
        self.thread = 0
        self.filled: set[Place] = set()
        self.unfilled: dict[Place, int] = {}  # what was read all the same, and by whom
        self.copies: list[set[Place]] = [set()]  # under way, by stretches, the newest last
        self.early: dict[Place, int] = {}  # what was read of them, and by whom
        self.writers: dict[Place, int] = {}
        self.readers: dict[Place, int] = {}

    def read(self, array: int, name: str, indices: tuple[int, ...]) -> None:
        """Note a read; ScheduleError if another thread wrote the element."""
        place = (array, name, indices)
        if self.writers.get(place, self.thread) != self.thread:
            self._race(place, self.writers[place], "reads what", "wrote")
        if self.readers.setdefault(place, self.thread) != self.thread:
            self.readers[place] = -1  # more than one

    def read_shared(self, array: int, name: str, indices: tuple[int, ...]) -> None:
        """Note a read of shared memory, also of what nobody has written or still copies."""
        place = (array, name, indices)
        if place not in self.filled:
            self.unfilled.setdefault(place, self.thread)
        self.read(array, name, indices)
        if any(place in stretch for stretch in self.copies):
            self.early.setdefault(place, self.thread)

    def copy(self, array: int, name: str, indices: tuple[int, ...]) -> None:
        """Note a write by a copy from global to shared memory, which may run on."""
        self.write(array, name, indices)
        self.copies[-1].add((array, name, indices))

    def meet(self, pending: int) -> None:
        """Let threads go on from a barrier: all but the newest copies have arrived."""
        self.writers.clear()
        self.readers.clear()
        self.copies = [*self.copies[len(self.copies) - pending :], set()]

    def check_reads(self) -> None:
        """ScheduleError if an element of shared memory was read that no thread had written, or
        whose copy may be under way. After a stretch: a race that others find in it comes first."""
        for (_, name, indices), thread in self.unfilled.items():
            raise ScheduleError(
                f"thread {thread} reads {name}[{', '.join(map(str, indices))}] of shared "
                "memory, which no thread of its block wrote"
            )
        for (_, name, indices), thread in self.early.items():
            raise ScheduleError(
                f"thread {thread} reads {name}[{', '.join(map(str, indices))}], whose copy may be "
                "under way"
            )

    def write(self, array: int, name: str, indices: tuple[int, ...]) -> None:
        """Note a write; ScheduleError if another thread touched the element."""
        place = (array, name, indices)
        self.filled.add(place)
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
    different barriers, or some wait and others end; at a race, and at reads of what nobody wrote.
    """
    running = [thread(*reversed(index)) for index in product(*map(range, reversed(extents)))]
    accesses.filled.clear()
    accesses.unfilled.clear()
    accesses.early.clear()
    accesses.meet(0)
    answer: Any = None
    while running:
        reached: list[Stop] = []
        for first in range(0, len(running), WARP):
            reached += _run_warp(running[first : first + WARP], first, accesses, answer)
        accesses.check_reads()
        for number, barrier in enumerate(reached):
            if barrier != reached[0]:
                waits, other = (0, number) if reached[0] is not None else (number, 0)
                raise ScheduleError(
                    f"thread {waits} of {len(running)} waits at a barrier that thread {other} "
                    "does not reach"
                )
        if reached[0] is None:
            return
        gathered = [stop for stop in reached if isinstance(stop, Gathering)]
        answer = _gathered(gathered) if gathered else None
        accesses.meet(reached[0].pending if isinstance(reached[0], Meeting) else 0)


def _gathered(given: Sequence[Gathering]) -> Any:
    """What all threads get: the values of the warps, which those of each must agree on."""
    values = [each.value for each in given]
    for number, value in enumerate(values):
        first = values[number - number % WARP]
        if value != first and (value == value or first == first):
            raise ScheduleError(f"thread {number} gives another value than others of its warp")
    found = values[0]
    for value in values[WARP::WARP]:
        found = given[0].combine(found, value)
    return found


def _run_warp(warp: Sequence[Thread], first: int, accesses: Accesses, answer: Any) -> list[Stop]:
    """Advance the threads of a warp to a barrier or their end, through their exchanges, with what
    they waited for."""
    answers: list[Any] = [answer] * len(warp)
    while True:
        reached: list[Meeting | Exchange | Gathering | None] = []
        for number, steps in enumerate(warp):
            accesses.thread = first + number
            try:
                reached.append(steps.send(answers[number]))
            except StopIteration:
                reached.append(None)
        here = [r.line if isinstance(r, Exchange) else None for r in reached]
        if set(here) == {None}:
            return [r for r in reached if not isinstance(r, Exchange)]
        if len(set(here)) > 1:
            absent = first + next(n for n, line in enumerate(here) if line != max(here, key=_rank))
            raise ScheduleError(
                f"thread {absent} does not come to an exchange of values with its warp"
            )
        answers = _combined([r for r in reached if isinstance(r, Exchange)])


def _rank(line: int | None) -> int:
    return -1 if line is None else line


def _combined(given: Sequence[Exchange]) -> list[Any]:
    """What each thread gets: values combined with those half the width away, a quarter, …"""
    values, width, combine = [e.value for e in given], given[0].width, given[0].combine
    if len(values) % width:
        raise ScheduleError(f"{len(values)} threads exchange values in groups of {width}")
    if combine is None:
        return [values[n - n % width :][:width] for n in range(len(values))]
    step = width // 2
    while step:
        values = [combine(v, values[n ^ step]) for n, v in enumerate(values)]
        step //= 2
    return values

"""Whether the machine runs at its full speed right now, so that times of it can be compared.

The processors of a virtual machine share cores with each other or with neighbours for spells of 50
milliseconds to seconds, in which they multiply at half their speed; nothing but a loop of known
length tells of it.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import TracebackType

from tunefarm.texts import duration
from tunefarm.worker.beats import Beats
from tunefarm.worker.exchange import exchange_s, far_s

FULL_SHARE = 0.92  # of the best speed seen: a neighbour on the same core takes a third or more
CALIBRATIONS = 20
LOOPS = 3  # a millisecond in all; their median, as an interrupt is no neighbour
PATIENCE_S = 2.0  # of a turn, for the machine to run at its full speed
TRIES = 4
"""Slow spells that a turn is timed again for; the fastest of them stands, and the best speed of
these spells is full speed from then on: the clock itself may have become slower."""


@dataclass(slots=True)
class Turns:
    """How many turns there were, how many of them were timed again, how many stayed slow, and how
    long a line of the cache went between the cores after each of them (seconds)."""

    taken: int = 0
    repeated: int = 0
    slow: int = 0
    exchanges: list[float] = field(default_factory=list)

    def report(self) -> str:
        """Sentences on slow turns and on those of cores apart; empty if there were none."""
        return " ".join(filter(None, (self._slow_report(), self._far_report())))

    def _slow_report(self) -> str:
        if not self.repeated and not self.slow:
            return ""
        told = f"{self.repeated} of {self.taken} turns were timed again"
        kept = f", {self.slow} stayed slow" if self.slow else ""
        return f"The host slowed the processors down: {told}{kept}."

    def _far_report(self) -> str:
        far = [s for s in self.exchanges if far_s() <= s < math.inf]
        if not far:
            return ""
        near = [s for s in self.exchanges if s < far_s()]
        told = f", {duration(statistics.median(near))} in the others" if near else ""
        return (
            f"In {len(far)} of {self.taken} turns the cores had no cache in common: a line went "
            f"there and back in {duration(statistics.median(far))}{told}."
        )


@dataclass(frozen=True, slots=True)
class _Look:
    """The middle one of some looks at the loop: its seconds on the core that is slowest now, and
    how many of them all cores do in a second."""

    slowest_s: float
    rate: float


class Pace(AbstractContextManager["Pace"]):
    """The speed of multiply-adds on ``cores`` cores at once, against the best seen so far.

    ``beat`` tells the seconds of a fixed loop on the calling thread, ``exchange`` those that a line
    takes from one of the given processors to the others and back. Turns wait for full speed
    ``patience_s`` in all: where a neighbour stays, they would for minutes.
    """

    def __init__(
        self,
        cores: int,
        beat: Callable[[], float] | None = None,
        exchange: Callable[[Sequence[int]], float] = exchange_s,
        patience_s: float = math.inf,
    ) -> None:
        self.turns = Turns()
        self._exchange = exchange
        self._beats = Beats(beat or _loop_of_this_host(), cores)
        self._best_s = self._recent_s = min(self._look().slowest_s for _ in range(CALIBRATIONS))
        self._patience_s = patience_s
        self._rates: list[float] = []

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._beats.close()

    def is_full(self) -> bool:
        """Whether each of the cores multiplies at (nearly) the best speed seen."""
        return self._is_full(self._look())

    def peak_flops(self) -> float:
        """FLOP/s of independent multiply-adds of float32 on all cores, in the median of the turns
        since this was last asked, each at the time whose result stands (now, without any).

        The clock moves by some percent from one millisecond to the next: beside the best moment of
        such a loop, the median of a kernel's times would look slower than it is.
        """
        rates, self._rates = self._rates or [self._look().rate], []
        return _flops_of_the_loop() * statistics.median(rates)

    def steady(self, measure: Callable[[], float]) -> float:
        """What ``measure()`` tells, of a time with full speed before it and after it; the least of
        all tries if there is no such time."""
        self.turns.taken += 1
        seconds = self._at_full_speed(measure)
        if len(self._beats.pins) > 1:
            self.turns.exchanges.append(self._exchange(self._beats.pins))
        return seconds

    def _at_full_speed(self, measure: Callable[[], float]) -> float:
        found: list[tuple[float, float]] = []  # seconds, and the rate of the loop behind them
        self._recent_s = math.inf
        for attempt in range(TRIES):
            self.turns.repeated += attempt == 1
            waited = self._wait()
            seconds, look = measure(), self._look()
            found.append((seconds, look.rate))
            if self._is_full(look) and waited:
                return self._kept(found[-1])
            if self._patience_s <= 0:
                break
        self.turns.slow += 1
        self._best_s = self._recent_s
        return self._kept(min(found))

    def _kept(self, turn: tuple[float, float]) -> float:
        """The seconds of a turn that stands."""
        seconds, rate = turn
        self._rates.append(rate)
        return seconds

    def _wait(self) -> bool:
        begin = time.perf_counter()
        patience_s = min(PATIENCE_S, self._patience_s)
        while not (is_full := self.is_full()):
            if time.perf_counter() > begin + patience_s:
                break
        self._patience_s -= time.perf_counter() - begin
        return is_full

    def _is_full(self, look: _Look) -> bool:
        self._best_s = min(self._best_s, look.slowest_s)
        self._recent_s = min(self._recent_s, look.slowest_s)
        return look.slowest_s * FULL_SHARE <= self._best_s

    def _look(self) -> _Look:
        looks = [self._beats.seconds() for _ in range(LOOPS)]
        return _Look(
            statistics.median(map(max, looks)),
            statistics.median(sum(1 / s for s in seconds) for seconds in looks),
        )


def _loop_of_this_host() -> Callable[[], float]:
    from tunefarm.compiler.target import Target
    from tunefarm.worker.peaks import reference_s

    mcpu = Target.host().mcpu
    return lambda: reference_s(mcpu)


def _flops_of_the_loop() -> float:
    from tunefarm.compiler.target import Target
    from tunefarm.worker.peaks import reference_flops

    return reference_flops(Target.host().mcpu)

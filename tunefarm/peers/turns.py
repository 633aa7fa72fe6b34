"""Contenders timed in turn, so that whatever slows the machine down slows all of them."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tunefarm.peers.pace import Pace

Call = Callable[[], object]
Timer = Callable[[int, float], float]
"""(number, warm_s) → seconds of ``number`` calls, after others for ``warm_s`` seconds."""
Array = NDArray[Any]

BUSY_SHARE = 0.03  # of all cores: above it, pools that spin lose whole time slices
WARM_TIMES = 5  # the timed span: woken threads of a pool may share a core for milliseconds
_QUIET_SHARE = 0.1
_QUIET_TRIES = 300  # OpenMP's threads spin for 200 ms


@dataclass(frozen=True, slots=True)
class Contender:
    """A call to time, and the outputs that it left, in the workload's own order and layout.

    ``timer`` times it where it runs, if that is another process.
    """

    call: Call
    outputs: Callable[[], Sequence[Array]]
    timer: Timer | None = None


def in_turn(
    timers: Mapping[str, Timer],
    repeats: int = 15,
    minimum_s: float = 2e-3,
    pace: Pace | None = None,
    heard: Callable[[int], None] = lambda round_: None,
) -> dict[str, float]:
    """Median seconds a call; contenders run in turn, the order reversed every other round.

    A turn waits until the threads of the one before are asleep, warms up, and then calls often
    enough to fill ``minimum_s``; by a ``pace``, at a time when the machine runs at its full speed.
    ``heard`` is told the number of each round, from 1, as it begins.
    """
    warm_s = WARM_TIMES * minimum_s
    numbers = {n: max(1, int(minimum_s / max(t(1, warm_s), 1e-9))) for n, t in timers.items()}
    times: dict[str, list[float]] = {name: [] for name in timers}
    order = list(timers)
    for round_ in range(repeats):
        heard(round_ + 1)
        for name in order if round_ % 2 == 0 else reversed(order):
            wait_for_quiet()
            turn_s = partial(timers[name], numbers[name], warm_s)
            times[name].append((pace.steady(turn_s) if pace else turn_s()) / numbers[name])
    return {name: statistics.median(t) for name, t in times.items()}


def wait_for_quiet() -> None:
    """Wait until this process's other threads (a peer's pool, spinning) use no processor.

    Threads of two libraries that spin on one processor use none of it for a time slice of 4 ms in
    turn. So one that waits for the processor is not quiet either, where the system tells (Linux).
    """
    for _ in range(_QUIET_TRIES):
        start, used = time.perf_counter(), time.process_time()
        time.sleep(1e-3)
        share = (time.process_time() - used) / (time.perf_counter() - start)
        if share < _QUIET_SHARE and not _is_another_runnable():
            return


def _is_another_runnable() -> bool:
    """Whether another thread of this process runs or waits for a processor."""
    own = threading.get_native_id()
    for status in Path("/proc/self/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            state = status.read_text().rpartition(")")[2].split()[0]
            if state == "R" and int(status.parent.name) != own:
                return True
    return False


def seconds_of(call: Call, number: int, warm_s: float) -> float:
    """Seconds of ``number`` calls, after one other or as many as ``warm_s`` seconds take."""
    until = time.perf_counter() + warm_s
    call()
    while time.perf_counter() < until:
        call()
    start = time.perf_counter()
    for _ in range(number):
        call()
    return time.perf_counter() - start


def largest_error(got: Sequence[Array], want: Sequence[Array]) -> float:
    """The largest ``relative_error`` over all outputs; infinity if their numbers differ."""
    if len(got) != len(want):
        return float("inf")
    return max(map(relative_error, got, want), default=0.0)


def relative_error(got: Array, want: Array) -> float:
    """The largest difference over the largest magnitude, of what is finite.

    Infinity if the shapes differ, or NaN and infinities stand at other places.
    """
    if got.shape != want.shape:
        return float("inf")
    ours, wanted = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(wanted)
    if not np.array_equal(ours[~finite], wanted[~finite], equal_nan=True):
        return float("inf")
    difference = np.abs(ours[finite] - wanted[finite]).max(initial=0.0)
    if not difference:
        return 0.0
    magnitude = np.abs(wanted[finite]).max()
    return float(difference / magnitude) if magnitude and np.isfinite(difference) else float("inf")


class Neighbours:
    """How much of the machine other processes took since this was made."""

    def __init__(self) -> None:
        self.started = self._now()

    def share(self) -> float:
        """Their processor time (and what the host stole) over that of all cores; 0 to 1."""
        wall, busy, own = (b - a for a, b in zip(self.started, self._now(), strict=True))
        cores = os.cpu_count() or 1
        return min(1.0, max(0.0, (busy - own) / max(wall * cores, 1e-9)))

    @property
    def were_busy(self) -> bool:
        """Whether figures taken meanwhile are worth little."""
        return self.share() > BUSY_SHARE

    def report(self) -> str:
        """One line for the end of a table, which says what its figures are worth.

        Children count as this process's own once they have ended.
        """
        share = f"{100 * self.share():.0f}%"
        verdict = "run it again on a quiet machine" if self.were_busy else "quiet enough"
        return f"Other processes took {share} of the machine meanwhile: {verdict}."

    @staticmethod
    def _now() -> tuple[float, float, float]:
        import psutil

        times = psutil.cpu_times()
        busy = sum(getattr(times, n, 0.0) for n in ("user", "nice", "system", "irq", "steal"))
        return time.perf_counter(), busy, sum(os.times()[:4])

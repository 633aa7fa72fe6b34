"""A trial whose repeats are watched by NVML: what is taken while the GPU is slowed is taken again.

What the GPU suffers from (heat, its power supply) makes a repeat worthless. Its power limit is
another matter: the hottest kernels reach it by themselves, so that a repeat which is still capped
after some pauses counts, as do those after it, and the trial says so (``power_capped``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tunefarm.db.records import ErrorKind
from tunefarm.worker.backend import Problem
from tunefarm.worker.budgets import Budgets
from tunefarm.worker.cuda.nvml import Monitor, Reading
from tunefarm.worker.measure import Pace, Session, TrialFailed
from tunefarm.worker.process import Child
from tunefarm.worker.wire import Frame

PACE = Pace(
    repeat_s=0.001,
    target_s=0.006,
    paired_repeat_s=0.0005,
    max_repeats=12,
    most_calls=32,
    pauses=True,
)
EMULATED_PACE = Pace(0.0, 0.0, 0.0, min_repeats=2, max_repeats=2, most_calls=1, pauses=True)
"""An emulator tells a kernel's time apart from its own, always the same."""
_TRIES = 5
_CAPPED_TRIES = 3
_PAUSE_S = 0.05
_GROWTH = 2.0


@dataclass(slots=True)
class Watch:
    """What was seen of the GPU during one trial."""

    monitor: Monitor
    sleep: Callable[[float], None] = time.sleep
    first: Reading = field(init=False)
    least_mhz: float = float("inf")
    reasons: int = 0
    rejected: int = 0

    def __post_init__(self) -> None:
        self.first = self.monitor.read()

    def accepts(self, before: Reading, after: Reading, attempt: int) -> bool:
        """Whether a repeat between two readings counts, at its so many-th attempt from 0 on."""
        if before.fault or after.fault:
            return False
        capped = before.is_capped or after.is_capped
        by_itself = Reading(reasons=self.reasons).is_capped  # as a repeat before this one told
        if capped and not by_itself and attempt + 1 < _CAPPED_TRIES:
            return False
        self.reasons |= before.reasons | after.reasons
        if after.sm_mhz:
            self.least_mhz = min(self.least_mhz, after.sm_mhz)
        return True

    def reject(self, attempt: int) -> None:
        """Count a repeat that does not, and wait for the GPU to recover."""
        self.rejected += 1
        self.sleep(_PAUSE_S * _GROWTH**attempt)

    def state(self) -> Mapping[str, float]:
        """What is stored with the trial: clocks in MHz, degrees Celsius, watts."""
        last = self.monitor.read()
        seen = Reading(reasons=self.reasons)
        known = self.least_mhz if self.least_mhz < float("inf") else last.sm_mhz
        return {
            "sm_mhz": known,
            "memory_mhz": last.memory_mhz,
            "celsius_before": self.first.celsius,
            "celsius": last.celsius,
            "watts_before": self.first.watts,
            "watts": last.watts,
            "clock_reasons": float(self.reasons),
            "power_capped": float(seen.is_capped),
            "rejected": float(self.rejected),
        }


class WatchedSession(Session):
    """A session whose timed repeats count only if the GPU was not slowed before and after them."""

    def __init__(
        self, runner: Child, problem: Problem, budgets: Budgets, pace: Pace, watch: Watch
    ) -> None:
        super().__init__(runner, problem, budgets, pace)
        self._watch = watch

    def _repeat(
        self, slot: int, number: int, discard: bool = False, *, poison: bool, outputs: bool
    ) -> tuple[Frame, float]:
        if outputs:
            return super()._repeat(slot, number, discard, poison=poison, outputs=outputs)
        after = Reading()
        for attempt in range(_TRIES):
            before = self._watch.monitor.glance()
            told = super()._repeat(slot, number, discard, poison=poison, outputs=outputs)
            after = self._watch.monitor.glance()
            if self._watch.accepts(before, after, attempt):
                return told
            self._watch.reject(attempt)
        why = after.fault or "its clocks are held down"
        raise TrialFailed(ErrorKind.DEVICE_LOST, f"the GPU is slowed: {why}")

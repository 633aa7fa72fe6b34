"""How steady a device is: its reference loop, timed again and again beside the candidates.

A time is believed if the pulse is good before it and after it. A bad pulse is felt again for a
while: what passes costs a repetition, what stays is the device's trouble.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_DRIFT = 1.5
"""How much slower the reference loop may be than at the last check: a clock that fell by a third,
or a neighbour on the same core, which costs up to half. Pulses of a virtual machine whose host is
busy exceed it about once in a hundred, in spells of seconds."""
EVERY_S = 0.5
PATIENCE_S = 20.0
PAUSE_S = 0.1
GOOD_IN_A_ROW = 3
"""Good pulses, ``EVERY_S`` apart at the least, after which a device in trouble is well again."""


@dataclass(slots=True)
class Pulse:
    """The state of a device's pulse. ``beat()`` times the reference loop, in seconds; with a
    ``max_drift`` of 0 every pulse is good."""

    beat: Callable[[], float]
    reference_s: float
    max_drift: float = MAX_DRIFT
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    drift: float = 1.0
    before: float = 1.0
    at: float = float("-inf")
    good: int = 0

    @property
    def is_due(self) -> bool:
        """Whether the last pulse is too old to stand for now."""
        return self.clock() - self.at >= EVERY_S

    def feel(self) -> bool:
        """Time the loop; whether the pulse is good."""
        drift = self.beat() / self.reference_s
        self.before, self.drift, self.at = self.drift, drift, self.clock()
        is_good = self.max_drift <= 0 or drift <= self.max_drift
        self.good = self.good + 1 if is_good else 0
        return is_good

    def settle(self) -> bool:
        """Feel the pulse until it is good, for ``PATIENCE_S`` at most; whether it is."""
        deadline = self.clock() + PATIENCE_S
        while not self.feel():
            if self.clock() >= deadline:
                return False
            self.sleep(PAUSE_S)
        return True

    def trouble(self) -> str:
        """What is wrong with a device whose pulse stays bad, in one sentence."""
        return (
            f"its reference loop takes {self.drift:.2f} times as long as at its last check "
            f"(allowed: {self.max_drift:g} times): a slower clock, heat, or a neighbour on its "
            "cores"
        )

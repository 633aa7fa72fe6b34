"""Whether the cores of a device share physical ones now, as virtual processors do at times.

Then each of them runs alone at its full speed, and all together at half of it or less: times of
candidates on several cores are doubled for seconds, and no pulse on one core tells.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

CROWDED = 1.3
"""How much slower than at their best the cores together are crowded: two on one core take twice as
long, a clock that all cores lower together a fifth longer."""
PATIENCE_S = 2.0
PAUSE_S = 0.05
SUSTAINED = 8
"""Looks in a row that are faster than the best known before they become it: no short burst does."""


@dataclass(slots=True)
class Crowding:
    """What ``beat()`` tells of all cores at once, in seconds; 0 where there is nothing to share.

    Nobody is kept waiting for ever: cores that stay crowded are taken as they are, until one look
    finds them free.
    """

    beat: Callable[[], float]
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    best_s: float = float("inf")
    is_accepted: bool = False
    last: deque[float] = field(default_factory=lambda: deque(maxlen=SUSTAINED))

    def look(self) -> bool:
        """Whether the cores are crowded now."""
        seconds = self.beat()
        if seconds <= 0:
            return False
        self.last.append(seconds)
        if len(self.last) == SUSTAINED or self.best_s == float("inf"):
            self.best_s = min(self.best_s, max(self.last))
        is_crowded = seconds > CROWDED * self.best_s
        self.is_accepted &= is_crowded
        return is_crowded

    def wait(self) -> None:
        """Wait until the cores are free, for ``PATIENCE_S`` at most, and not at all if they have
        been crowded for so long before."""
        deadline = self.clock() + PATIENCE_S
        while self.look() and not self.is_accepted:
            self.is_accepted = self.clock() >= deadline
            self.sleep(PAUSE_S)

    def spoils(self) -> bool:
        """Whether what was timed last is worth timing again: the cores were crowded, and it has
        been waited until they are free."""
        if not self.look() or self.is_accepted:
            return False
        self.wait()
        return not self.is_accepted

"""What pages that follow a job may take of a machine that may be measuring meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

SHARE = 0.01
"""Of one core."""
SAVED_S = 30.0
"""So many seconds' share can be saved up for when somebody comes."""
OWED_S = 20.0
"""So many seconds' share are owed at the most: pages that people call for are never late, and what
follows them by itself is late by no more."""


@dataclass
class Allowance:
    """Processor time that grows by ``SHARE`` of what passes, less what this process uses.

    Whatever is sent by itself waits until there is some. So the process takes ``SHARE`` of a core
    in the long run, however many look on and however large a job is: then they follow it in longer
    steps.
    """

    now: Callable[[], float] = time.monotonic
    used: Callable[[], float] = time.process_time
    left_s: float = SHARE * SAVED_S
    _at: float = field(init=False)
    _used: float = field(init=False)

    def __post_init__(self) -> None:
        self._at, self._used = self.now(), self.used()

    @property
    def has_some(self) -> bool:
        """Whether something is left now."""
        at, used = self.now(), self.used()
        gained = SHARE * (at - self._at) - (used - self._used)
        self.left_s = min(max(self.left_s + gained, -SHARE * OWED_S), SHARE * SAVED_S)
        self._at, self._used = at, used
        return self.left_s > 0

"""Pauses between tries, so that all who lose a tracker at one moment come back at many."""

from __future__ import annotations

import random
from dataclasses import dataclass

SPREAD = (0.75, 1.0)
"""By which calls that come at intervals differ."""
FIRST_S = 0.3
GROWTH = 3.0
LEAST = 0.1
"""Of a pause's length, what is waited at least."""


@dataclass(slots=True)
class Pauses:
    """The pauses of one caller; they grow threefold with each failure in a row."""

    length_s: float = FIRST_S

    def after_failure(self, most_s: float) -> float:
        """How long to wait before the next try: a part, ``LEAST`` to all, of ``most_s`` at most."""
        length_s = min(self.length_s, most_s)
        self.length_s = min(GROWTH * self.length_s, most_s)
        return length_s * random.uniform(LEAST, 1.0)

    def after_success(self) -> None:
        self.length_s = FIRST_S

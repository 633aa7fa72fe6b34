"""What a tuner answers to probes: whether it moves, and whether the tracker hears it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tunefarm.proto.probe import Answer, Routes, health

IDLE_S = 120.0
"""After how long without asking for a job a tuner counts as stuck; a question takes a second."""
BUSY_S = 1800.0
"""The same for one with a job, which may plan a round for minutes."""
SILENT_S = 30.0


class Pulse:
    """When the tuner last moved, and when the tracker last answered it; any thread may ask.

    ``is_heard`` says whether the tracker answers what runs in the background of a job.
    """

    def __init__(self, stopped: threading.Event) -> None:
        self._stopped = stopped
        self._turned_at = time.monotonic()
        self._answered_at: float | None = None
        self._is_heard: Callable[[], bool] | None = None

    def turn(self) -> None:
        """It moves."""
        self._turned_at = time.monotonic()

    def answer(self) -> None:
        """The tracker has answered."""
        self._answered_at = time.monotonic()

    def begin(self, is_heard: Callable[[], bool]) -> None:
        """A job begins."""
        self._is_heard = is_heard

    def end(self) -> None:
        """The job is over; whether the tracker answered it counts on."""
        is_heard, self._is_heard = self._is_heard, None
        if is_heard is not None and is_heard():
            self.answer()
        self.turn()

    def probes(self) -> Routes:
        """What it answers over HTTP."""
        return {"/healthz": self._alive, "/readyz": self._reachable}

    def _alive(self) -> Answer:
        still_s = time.monotonic() - self._turned_at
        limit_s = BUSY_S if self._is_heard else IDLE_S
        if still_s > limit_s and not self._stopped.is_set():
            return health(f"the tuner has been stuck for {still_s:.0f} s")
        return health("")

    def _reachable(self) -> Answer:
        if self._stopped.is_set():
            return health("the tuner is stopping")
        if self._answered_at is None:
            return health("the tracker has not answered yet")
        is_heard = self._is_heard
        if is_heard is not None:
            return health("" if is_heard() else "the tracker does not answer the job's tuner")
        silent_s = time.monotonic() - self._answered_at
        if silent_s > SILENT_S:
            return health(f"the tracker has not answered for {silent_s:.0f} s")
        return health("")

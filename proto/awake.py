"""A clock of this process that stands still while the process does: stopped, or its machine paused.

For time limits of the kind "nothing was heard for so long": who stood still could not have heard.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LOOK_S = 0.5
LATE_S = 0.5
"""By how much a look may come late in a process that runs; what is beyond counts as a pause."""


class AwakeClock:
    """Seconds since some moment, without the pauses that ``look``, called every ``LOOK_S`` seconds,
    has seen. May be read from several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked = clock()
        self._paused_s = 0.0

    def look(self) -> None:
        """See whether there was a pause since the last look."""
        with self._lock:
            now = self._clock()
            self._paused_s += _pause_s(now - self._looked)
            self._looked = now

    def seconds(self) -> float:
        """The time now, without a pause that has just ended either."""
        with self._lock:
            now = self._clock()
            return now - self._paused_s - _pause_s(now - self._looked)


def _pause_s(since_look_s: float) -> float:
    late_s = since_look_s - LOOK_S
    return late_s if late_s > LATE_S else 0.0


_starting = threading.Lock()
_clock: AwakeClock | None = None


def awake_s() -> float:
    """Seconds in which this process ran, since some moment; counted from the first call on, by a
    thread of its own."""
    global _clock
    with _starting:
        if _clock is None:
            _clock = AwakeClock()
            threading.Thread(
                target=_look_on, args=(_clock,), name="tunefarm-awake", daemon=True
            ).start()
    return _clock.seconds()


def _look_on(clock: AwakeClock) -> None:
    while True:
        time.sleep(LOOK_S)
        clock.look()

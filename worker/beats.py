"""The reference loop on several cores at once: how slow the slowest of them is now.

One core alone does not tell: virtual processors that share a core run at full speed in turn, and
at half of it together.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class Beats:
    """The loop ``beat()``, which tells its seconds, on ``cores`` cores at once.

    Its threads, which start with the first call, have a core each if the process may use no more
    than ``cores`` (``pins``; empty else), and live until ``close``.
    """

    def __init__(self, beat: Callable[[], float], cores: int) -> None:
        self._beat = beat
        allowed = sorted(os.sched_getaffinity(0))
        self.pins = allowed if len(allowed) <= cores else []
        self._meeting = threading.Barrier(cores)
        self._threads = ThreadPoolExecutor(cores)

    def slowest(self) -> float:
        """Seconds of the loop on the core that takes longest."""
        return max(self.seconds())

    def seconds(self) -> list[float]:
        """Seconds of the loop on each core, all at once."""
        if self._meeting.parties == 1:
            return [self._beat()]
        return list(self._threads.map(self._run, range(self._meeting.parties)))

    def close(self) -> None:
        """Let the threads end."""
        self._threads.shutdown()

    def _run(self, index: int) -> float:
        if self.pins:
            os.sched_setaffinity(0, {self.pins[index % len(self.pins)]})
        self._meeting.wait()
        return self._beat()

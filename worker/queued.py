"""How long threads that could run waited for a processor, as the system counts it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

THIS_THREAD = "thread-self"


def queued_s(task: int | str = THIS_THREAD) -> float:
    """Seconds so far of a process's main thread, or of the calling one, which Linux tells
    (``/proc/PID/schedstat``); 0 where it does not. No process can make its own grow but by work
    that others do on its processor."""
    with suppress(OSError, IndexError, ValueError):
        return 1e-9 * int(Path(f"/proc/{task}/schedstat").read_text().split()[1])
    return 0.0

"""Turns: a library's threads sleep before the next one is timed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time

import pytest

from tunefarm.peers.turns import wait_for_quiet


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="pins threads to a processor")
def test_a_thread_that_waits_for_the_processor_is_not_quiet() -> None:
    """Two that spin on one processor have it for milliseconds in turn."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    rival = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for _ in range(3):
            end = time.perf_counter() + 0.1
            thread = threading.Thread(target=_work_without_the_lock, args=(end,))
            thread.start()
            wait_for_quiet()
            assert time.perf_counter() >= end
            thread.join()
    finally:
        rival.kill()
        rival.wait()
        os.sched_setaffinity(0, allowed)


def _work_without_the_lock(end: float) -> None:
    while time.perf_counter() < end:
        hashlib.pbkdf2_hmac("sha256", b"spin", b"salt", 5_000)

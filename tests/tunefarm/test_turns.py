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
            worked_s: list[float] = []
            thread = threading.Thread(target=_work, args=(0.05, worked_s))
            began = time.perf_counter()
            thread.start()
            wait_for_quiet()
            waited_s = time.perf_counter() - began
            thread.join()
            assert waited_s >= worked_s[0]
    finally:
        rival.kill()
        rival.wait()
        os.sched_setaffinity(0, allowed)


def _work(about_s: float, worked_s: list[float]) -> None:
    """Compute for about so long in one piece: who waits for the interpreter's lock is quiet."""
    began = time.thread_time()
    hashlib.pbkdf2_hmac("sha256", b"spin", b"salt", 500)
    rounds = int(500 * about_s / (time.thread_time() - began))
    began = time.thread_time()
    hashlib.pbkdf2_hmac("sha256", b"spin", b"salt", rounds)
    worked_s.append(time.thread_time() - began)

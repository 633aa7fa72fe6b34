"""A clock that stands still while its process does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

from tunefarm.proto.awake import LATE_S, LOOK_S, AwakeClock


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_pause_does_not_count_before_the_look_that_sees_it_nor_after() -> None:
    clock = Clock()
    awake = AwakeClock(clock)
    began = awake.seconds()
    for _ in range(4):
        clock.now += LOOK_S
        awake.look()
    assert awake.seconds() - began == 4 * LOOK_S
    clock.now += 20.0
    assert awake.seconds() - began == 5 * LOOK_S
    awake.look()
    assert awake.seconds() - began == 5 * LOOK_S
    clock.now += LOOK_S + LATE_S
    assert awake.seconds() - began == 6 * LOOK_S + LATE_S, "late, and yet no pause"


STOPPED = """
import time
from tunefarm.proto.awake import awake_s
began, awake = time.monotonic(), awake_s()
print("ready", flush=True)
while time.monotonic() - began < 2.0:
    time.sleep(0.1)
print(time.monotonic() - began, awake_s() - awake)
"""


def test_a_process_that_is_stopped_does_not_age() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", STOPPED], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGSTOP)
        try:
            with subprocess.Popen(["sleep", "1.8"]) as pause:
                pause.wait()
        finally:
            os.kill(child.pid, signal.SIGCONT)
        passed_s, awake_s = map(float, child.stdout.readline().split())
    assert passed_s - awake_s > 1.8 - 2 * LOOK_S

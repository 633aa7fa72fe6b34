"""What a thread waits for a processor is told, by the system, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from tunefarm.worker.queued import queued_s

from tests.patience import wait_for

pytestmark = pytest.mark.skipif(
    not Path("/proc/thread-self/schedstat").exists(), reason="the system does not tell"
)


def test_two_that_share_a_processor_wait_for_it_and_one_that_sleeps_does_not() -> None:
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    rivals = [subprocess.Popen([sys.executable, "-c", spin]) for _ in range(2)]
    sleep = [sys.executable, "-c", "print('ready', flush=True); input()"]
    sleeper = subprocess.Popen(sleep, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline()
        asleep = psutil.Process(sleeper.pid)
        wait_for(lambda: asleep.status() == psutil.STATUS_SLEEPING)
        grown = [growth(process.pid) for process in (rivals[0], sleeper)]
        wait_for(lambda: grown[0]() > 0.3)
        assert grown[1]() < 0.1
    finally:
        for process in (*rivals, sleeper):
            process.kill()
            process.communicate()


def growth(task: int) -> Callable[[], float]:
    """By how much a process has waited longer than now."""
    before = queued_s(task)
    return lambda: queued_s(task) - before


def test_a_process_that_is_none_has_waited_for_nothing() -> None:
    assert queued_s(1 << 30) == 0.0
    assert queued_s() > 0.0

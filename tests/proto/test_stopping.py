"""Signals reach a process that holds locks."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from tunefarm.proto.stopping import NUMBERS, stopping


@pytest.mark.parametrize("number", NUMBERS)
def test_stop_may_take_a_lock_that_the_main_thread_holds(number: signal.Signals) -> None:
    lock, taken, done = threading.Lock(), [], threading.Event()

    def stop() -> None:
        taken.append(lock.acquire(timeout=60.0))
        lock.release()
        done.set()

    with stopping(stop):
        with lock:
            os.kill(os.getpid(), number)
            time.sleep(0.05)
            assert not taken
        assert done.wait(60.0)
    assert taken == [True]


def test_many_signals_are_no_more_than_one_and_handlers_come_back() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    stopped = threading.Event()
    with stopping(stopped.set):
        for _ in range(100):
            signal.raise_signal(signal.SIGTERM)
        assert stopped.wait(60.0)
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_threads_leave_signals_alone() -> None:
    before, inside = signal.getsignal(signal.SIGTERM), []

    def run() -> None:
        with stopping(lambda: None):
            inside.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert inside == [before]

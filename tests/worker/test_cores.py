"""Cores that are timed on are nobody else's meanwhile: locks, builders, and what is spare."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from tunefarm.worker.building import BuildPool
from tunefarm.worker.children import Builder
from tunefarm.worker.cores import CoreLock, physical_core, spare_cores
from tunefarm.worker.process import ChildOptions

SECONDS = 60.0


def test_threads_of_one_core_are_one_core(monkeypatch, tmp_path: Path) -> None:
    for core, siblings in {0: "0,4", 1: "1-2", 2: "1-2", 4: "0,4"}.items():
        (tmp_path / str(core)).write_text(siblings)
    monkeypatch.setattr("tunefarm.worker.cores._TOPOLOGY", str(tmp_path / "{}"))
    assert [physical_core(core) for core in (0, 1, 2, 4, 9)] == [0, 1, 1, 0, 9]
    assert spare_cores((0, 1, 2, 4, 9), (0,)) == (1, 2, 9)
    assert spare_cores((0, 4), (0,)) == ()


def started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def hold(lock: CoreLock, *, alone: bool) -> tuple[threading.Event, threading.Event]:
    """Hold a lock in another thread; when it is held, and what lets it go."""
    held, done = threading.Event(), threading.Event()

    def work() -> None:
        with lock.held(alone=alone):
            held.set()
            done.wait(SECONDS)

    started(work)
    return held, done


def test_builds_share_cores_and_timing_does_not(plugins: Path) -> None:
    some, other = CoreLock((0, 1)), CoreLock((1, 2))
    first, end_first = hold(some, alone=False)
    assert first.wait(SECONDS)
    second, end_second = hold(other, alone=False)
    assert second.wait(SECONDS)  # beside the first
    timing, end_timing = hold(some, alone=True)
    assert not timing.wait(0.2)
    late, end_late = hold(some, alone=False)
    assert not late.wait(0.2)  # who waits to be alone goes before newcomers
    end_first.set()
    end_second.set()
    assert timing.wait(SECONDS)
    assert not late.is_set()
    end_timing.set()
    assert late.wait(SECONDS)
    end_late.set()


HOLDER = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from tunefarm.worker.cores import CoreLock
with CoreLock((0,)).held(alone=True):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_another_worker_holds_them_too_and_its_death_frees_them(
    plugins: Path, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"
    ours, end = hold(CoreLock((0,)), alone=False)
    assert not ours.wait(0.2)
    other.kill()
    other.communicate()
    assert ours.wait(SECONDS)
    end.set()


def builder() -> Builder:
    """One that builds nothing here: its child is not started."""
    return Builder(ChildOptions("tunefarm.worker.nothing", "sim", 1 << 30, (0,)))


def test_only_spare_cores_build_while_a_kernel_is_timed(plugins: Path) -> None:
    timed, spare = CoreLock((0,)), CoreLock((1,))
    on_timed, on_spare = builder(), builder()
    pool = BuildPool([(timed, [on_timed]), (spare, [on_spare])])
    try:
        with timed.held(alone=True):
            here: list[Future[Builder]] = [pool.submit(lambda one: one) for _ in range(20)]
            assert {future.result(SECONDS) for future in here} == {on_spare}
        gate = threading.Barrier(2)

        def meet(one: Builder) -> Builder:
            gate.wait(SECONDS)
            return one

        both = [pool.submit(meet) for _ in range(2)]
        assert {future.result(SECONDS) for future in both} == {on_timed, on_spare}
    finally:
        pool.close()


def test_a_closed_pool_leaves_nobody_waiting(plugins: Path) -> None:
    lock = CoreLock((0,))
    pool = BuildPool([(lock, [builder()])])
    with lock.held(alone=True):
        waiting = pool.submit(lambda one: one)
        started(pool.close)
        while not waiting.cancelled():
            threading.Event().wait(0.01)

"""The thread pool: every index once, whatever the threads do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import ModuleType

import numpy as np
import pytest
from tunefarm.compiler.codegen.llvm_compile import compile_llvm
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.runtime.jit import load_objects
from tunefarm.compiler.runtime.kernel import KernelFunction, load_kernel
from tunefarm.compiler.runtime.pool import shared_pool, start_pool
from tunefarm.compiler.target import Target

# counts[i] += 1 for i in [0, n[0]); with nesting, a loop of n[1] inside each iteration.
COUNT = """
declare void @tunefarm_parallel(ptr, ptr, ptr, i64, ptr, i64, i64)
define internal void @one(ptr %closure, i64 %i, ptr %scratch) {
  %counts = load ptr, ptr %closure
  %place = getelementptr i64, ptr %counts, i64 %i
  %old = atomicrmw add ptr %place, i64 1 monotonic
  ret void
}
define internal void @outer(ptr %closure, i64 %i, ptr %scratch) {
  %counts = load ptr, ptr %closure
  %p.pool = getelementptr ptr, ptr %closure, i64 1
  %pool = load ptr, ptr %p.pool
  %p.n = getelementptr ptr, ptr %closure, i64 2
  %n = load i64, ptr %p.n
  %offset = mul i64 %i, %n
  %row = getelementptr i64, ptr %counts, i64 %offset
  %inner = alloca ptr
  store ptr %row, ptr %inner
  call void @tunefarm_parallel(ptr %pool, ptr @one, ptr %inner, i64 %n,
    ptr null, i64 0, i64 -1)
  ret void
}
define void @count(ptr %pool, ptr %workspace, ptr %n, ptr %counts) {
  %closure = alloca ptr
  store ptr %counts, ptr %closure
  %limit = load i64, ptr %n
  call void @tunefarm_parallel(ptr %pool, ptr @one, ptr %closure, i64 %limit,
    ptr null, i64 0, i64 -1)
  ret void
}
define void @nested(ptr %pool, ptr %workspace, ptr %n, ptr %counts) {
  %closure = alloca [3 x ptr]
  store ptr %counts, ptr %closure
  %p.pool = getelementptr ptr, ptr %closure, i64 1
  store ptr %pool, ptr %p.pool
  %limit = load i64, ptr %n
  %p1 = getelementptr i64, ptr %n, i64 1
  %width = load i64, ptr %p1
  %p.n = getelementptr ptr, ptr %closure, i64 2
  store i64 %width, ptr %p.n
  call void @tunefarm_parallel(ptr %pool, ptr @outer, ptr %closure, i64 %limit,
    ptr null, i64 0, i64 -1)
  ret void
}
; Both iterations wait for each other: returns only if two threads run at once.
define internal void @meet(ptr %closure, i64 %i, ptr %scratch) {
entry:
  %mine = atomicrmw add ptr %closure, i64 1 seq_cst
  br label %wait
wait:
  %all = load atomic i64, ptr %closure seq_cst, align 8
  %both = icmp uge i64 %all, 2
  br i1 %both, label %exit, label %wait
exit:
  ret void
}
define void @rendezvous(ptr %pool, ptr %workspace, ptr %n, ptr %counts) {
  store i64 0, ptr %counts
  call void @tunefarm_parallel(ptr %pool, ptr @meet, ptr %counts, i64 2,
    ptr null, i64 0, i64 -1)
  ret void
}
"""
# Iteration n[0] of eight waits for iteration n[1], which must be another thread's.
WAIT = """
declare void @tunefarm_parallel(ptr, ptr, ptr, i64, ptr, i64, i64)
define internal void @one(ptr %closure, i64 %i, ptr %scratch) {
entry:
  %p.n = getelementptr ptr, ptr %closure, i64 1
  %counts = load ptr, ptr %closure
  %n = load ptr, ptr %p.n
  %waiting = load i64, ptr %n
  %p.awaited = getelementptr i64, ptr %n, i64 1
  %awaited = load i64, ptr %p.awaited
  %p.other = getelementptr i64, ptr %counts, i64 %awaited
  %waits = icmp eq i64 %i, %waiting
  br i1 %waits, label %wait, label %exit
wait:
  %other = load atomic i64, ptr %p.other seq_cst, align 8
  %done = icmp ne i64 %other, 0
  br i1 %done, label %exit, label %wait
exit:
  %place = getelementptr i64, ptr %counts, i64 %i
  %old = atomicrmw add ptr %place, i64 1 seq_cst
  ret void
}
define void @wait(ptr %pool, ptr %workspace, ptr %n, ptr %counts) {
  %closure = alloca [2 x ptr]
  store ptr %counts, ptr %closure
  %p.n = getelementptr ptr, ptr %closure, i64 1
  store ptr %n, ptr %p.n
  call void @tunefarm_parallel(ptr %pool, ptr @one, ptr %closure, i64 8,
    ptr null, i64 0, i64 -1)
  ret void
}
"""
PAIR = TensorType((2,), "int64")
SLOTS = TensorType((4096,), "int64")


def kernel(name: str, target: Target, threads: int, text: str = COUNT) -> KernelFunction:
    code = compile_llvm(text, target)
    return load_kernel([code], name, [PAIR, SLOTS], target=target, threads=threads)


def counted(function: KernelFunction, *n: int) -> np.ndarray:
    counts = np.zeros(SLOTS.size + 8, np.int64)
    start = -counts.ctypes.data % 64 // 8
    counts = counts[start : start + SLOTS.size]
    function.bind([np.array(n, np.int64)], [counts])()
    return counts


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_every_index_runs_once(target: Target, threads: int) -> None:
    count = kernel("count", target, threads)
    for n in (0, 1, 2, 3, 7, 64, 1000, 4096):
        counts = counted(count, n, 0)
        assert (counts[:n] == 1).all(), n
        assert not counts[n:].any(), n


def test_two_threads_run_at_once(target: Target) -> None:
    assert counted(kernel("rendezvous", target, 2), 0, 0)[0] == 2


@pytest.mark.parametrize(("waiting", "awaited"), [(0, 3), (0, 2), (4, 7), (4, 6)])
def test_what_a_slow_thread_has_not_claimed_is_run_by_the_other(
    target: Target, waiting: int, awaited: int
) -> None:
    wait = kernel("wait", target, 2, WAIT)
    pool = shared_pool(wait.library, 2)
    assert pool is not None
    with pool.awake():
        counted(kernel("count", target, 2), 64, 0)
        time.sleep(0.01)  # the worker spins, and will not sleep
        for _ in range(50):
            assert (counted(wait, waiting, awaited)[:8] == 1).all()


@pytest.mark.parametrize("seats", [0, 1])
def test_a_loop_for_one_thread_stays_on_the_callers(target: Target, seats: int) -> None:
    """The number of parts, which is one for each seat, divides."""
    text = COUNT.replace("i64 0, i64 -1)", f"i64 0, i64 {seats})")
    assert text != COUNT
    assert (counted(kernel("count", target, 3, text), 500, 0)[:500] == 1).all()


def test_short_loops_of_more_threads_than_there_are_cpus(target: Target) -> None:
    count = kernel("count", target, 9)
    for i in range(1000):
        n = 1 + i * 37 % 1200
        counts = counted(count, n, 0)
        assert (counts[:n] == 1).all(), n
        assert not counts[n:].any(), n


def test_a_loop_inside_a_loop_runs_every_index_once(target: Target) -> None:
    counts = counted(kernel("nested", target, 3), 60, 50)
    assert (counts[:3000] == 1).all()
    assert not counts[3000:].any()


def test_callers_on_several_threads_do_not_disturb_each_other(target: Target) -> None:
    count = kernel("count", target, 3)
    wrong: list[int] = []

    def call_often() -> None:
        for i in range(300):
            n = 1 + (i * 37) % 500
            counts = counted(count, n, 0)
            if not ((counts[:n] == 1).all() and not counts[n:].any()):
                wrong.append(n)

    threads = [threading.Thread(target=call_often) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_sleeping_workers_wake_up(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_SPIN_MICROSECONDS", "0")
    library = load_objects([compile_llvm(COUNT, target)], ["rendezvous"], target)
    pool = start_pool(library, 2)
    counts = np.zeros(64, np.int64)
    arguments = np.zeros(8, np.uintp)
    arguments[[0, 3]] = pool.address, counts.ctypes.data
    for _ in range(50):
        time.sleep(0.001)  # who falls asleep as a job is told may miss it
        library.function("tunefarm_invoke")(library["rendezvous"], arguments.ctypes.data, 8)
        assert counts[0] == 2
    pool.close()
    assert not any(worker.is_alive() for worker in pool.workers)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="there is one CPU")
def test_a_worker_leaves_the_callers_cpu(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_SPIN_MICROSECONDS", "0")
    library = load_objects([compile_llvm(COUNT, target)], ["rendezvous"], target)
    pool = start_pool(library, 2)
    worker, counts = pool.workers[0].native_id, np.zeros(64, np.int64)
    assert worker is not None
    arguments = np.zeros(8, np.uintp)
    arguments[[0, 3]] = pool.address, counts.ctypes.data
    allowed = os.sched_getaffinity(0)
    here = min(allowed)
    try:
        os.sched_setaffinity(0, {here})
        left = 0
        for _ in range(20):
            time.sleep(0.001)
            os.sched_setaffinity(worker, {here})
            os.sched_setaffinity(worker, allowed)
            library.function("tunefarm_invoke")(library["rendezvous"], arguments.ctypes.data, 8)
            left += last_cpu(worker) != here
            assert os.sched_getaffinity(worker) == allowed
        assert left >= 17, "a busy system may move one back as soon as it may be anywhere"
    finally:
        os.sched_setaffinity(0, allowed)
        pool.close()


def last_cpu(thread: int) -> int:
    """The CPU that a thread of this process ran on last: field 39 of its ``stat``."""
    with open(f"/proc/self/task/{thread}/stat") as stat:
        return int(stat.read().rpartition(")")[2].split()[36])


def test_idle_workers_sleep(target: Target) -> None:
    library = load_objects([compile_llvm(COUNT, target)], ["count"], target)
    pool = start_pool(library, 4)
    n, counts = np.array([100, 0]), np.zeros(100, np.int64)
    arguments = np.zeros(8, np.uintp)
    arguments[[0, 2, 3]] = pool.address, n.ctypes.data, counts.ctypes.data
    library.function("tunefarm_invoke")(library["count"], arguments.ctypes.data, 8)
    time.sleep(0.1)  # many times the time that they spin
    used = time.process_time()
    time.sleep(0.3)
    used = time.process_time() - used
    pool.close()
    assert (counts == 1).all()
    assert used < 0.05


def test_a_closed_pool_still_runs_loops(target: Target) -> None:
    library = load_objects([compile_llvm(COUNT, target)], ["count"], target)
    pool = start_pool(library, 3)
    pool.close()
    n, counts = np.array([100, 0]), np.zeros(100, np.int64)
    arguments = np.zeros(8, np.uintp)
    arguments[[0, 2, 3]] = pool.address, n.ctypes.data, counts.ctypes.data
    library.function("tunefarm_invoke")(library["count"], arguments.ctypes.data, 8)
    assert (counts == 1).all()


FORK = """
import os, sys, threading, numpy as np
from tunefarm.compiler.runtime.module import load_module
module = load_module(sys.argv[1]).with_threads(3)
x = np.ones((64, 16), np.float32)
before = module.run({"x": x})["y"]
child = os.fork()
after = module.run({"x": x})["y"]
assert np.array_equal(before, after)
told = f"{'parent' if child else 'child'} {threading.active_count()}\\n"
os.write(1, told.encode())  # whole, beside what the other process writes
if child:
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_starts_workers_of_its_own(
    programs: ModuleType, target: Target, tmp_path: object
) -> None:
    path = os.path.join(str(tmp_path), "model.so")
    programs.example_module(target).export_library(path)
    done = subprocess.run(
        [sys.executable, "-c", FORK, path], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == ["3", "3", "child", "parent"]

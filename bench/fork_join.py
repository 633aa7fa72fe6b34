"""What it costs to share work out: a parallel loop of our pool against its body run once.

    python bench/fork_join.py [--threads 2]

Each thread gets one iteration of the same length, a chain of dependent additions, so that without
cost the loop would take as long as one iteration. Single calls are timed by the native clock,
workers awake. The overhead is the difference of the lowest deciles: above them stand the calls in
which another process had the second core, and the caller did all the work itself (the medians show
them). ``asleep`` is an empty loop that begins with sleeping workers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import numpy as np
from rich.console import Console
from rich.table import Table
from tunefarm.compiler.codegen.llvm_compile import compile_llvm
from tunefarm.compiler.ir import TensorType
from tunefarm.compiler.runtime.kernel import KernelFunction, load_kernel
from tunefarm.compiler.runtime.pool import shared_pool
from tunefarm.compiler.runtime.timing import BoundCall
from tunefarm.compiler.target import Target

LIMIT_US = 3.0
STEPS = (0, 2_000, 20_000, 200_000)  # additions, of about a cycle each
CALLS, ROUNDS = 3000, 31
WARM_S = 0.1
SLEEP_S = 0.01  # far beyond the time that a worker spins

CODE = """
declare void @tunefarm_parallel(ptr, ptr, ptr, i64, ptr, i64, i64)
define internal void @work(ptr %closure, i64 %i, ptr %scratch) {
entry:
  %steps = load i64, ptr %closure
  %none = icmp eq i64 %steps, 0
  br i1 %none, label %exit, label %loop
loop:
  %n = phi i64 [ 0, %entry ], [ %next, %loop ]
  %next = add i64 %n, 1
  call void asm sideeffect "", "r"(i64 %next)
  %more = icmp ult i64 %next, %steps
  br i1 %more, label %loop, label %exit
exit:
  ret void
}
define void @fork_join(ptr %pool, ptr %workspace, ptr %n, ptr %out) {
  %count = load i64, ptr %n
  %steps = getelementptr i64, ptr %n, i64 1
  call void @tunefarm_parallel(ptr %pool, ptr @work, ptr %steps, i64 %count,
    ptr null, i64 0, i64 -1)
  ret void
}
"""
ARGUMENTS = TensorType((2,), "int64")


def bound(function: KernelFunction, iterations: int, steps: int) -> BoundCall:
    return function.bind([np.array([iterations, steps], np.int64)])


def kernel(threads: int) -> KernelFunction:
    target = Target.host(threads)
    types = [ARGUMENTS, ARGUMENTS]
    return load_kernel([compile_llvm(CODE, target)], "fork_join", types, target=target)


def overheads(threads: int, steps: int) -> tuple[float, float, float]:
    """Seconds of an iteration, and what a loop on all threads takes beyond it (decile, median)."""
    alone, shared = bound(kernel(1), 1, steps), bound(kernel(threads), threads, steps)
    pool = shared_pool(shared.library, threads)
    assert pool is not None
    with pool.awake():
        _warm_up(shared)
        one, all_ = (np.array([c.seconds(1) for _ in range(CALLS)]) for c in (alone, shared))
    low, middle = (np.quantile(all_, q) - np.quantile(one, q) for q in (0.1, 0.5))
    return float(np.median(one)), float(low), float(middle)


def _warm_up(call: BoundCall) -> None:
    """Woken threads may share a core for milliseconds."""
    until = time.perf_counter() + WARM_S
    while time.perf_counter() < until:
        call()


def asleep(threads: int) -> float:
    """Seconds of an empty loop whose workers sleep when it begins."""
    shared = bound(kernel(threads), threads, 0)
    times = []
    for _ in range(ROUNDS):
        time.sleep(SLEEP_S)
        start = time.perf_counter()
        shared()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def idle_share(threads: int) -> float:
    """The share of a core that the pool takes when nothing runs."""
    bound(kernel(threads), threads, 0)()
    time.sleep(SLEEP_S)
    start, used = time.perf_counter(), time.process_time()
    time.sleep(20 * SLEEP_S)
    return (time.process_time() - used) / (time.perf_counter() - start)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=2)
    threads = parser.parse_args().threads
    table = Table(title=f"fork and join, {threads} threads", title_justify="left")
    for column in ("one iteration, µs", "overhead, µs", "median"):
        table.add_column(column, justify="right")
    worst = 0.0
    for steps in STEPS:
        one, low, middle = (1e6 * s for s in overheads(threads, steps))
        worst = max(worst, low)
        table.add_row(f"{one:.2f}", f"{low:.2f}", f"{middle:.2f}")
    table.add_row("empty, asleep", "", f"{1e6 * asleep(threads):.2f}")
    Console().print(table)
    print(f"idle, the pool takes {100 * idle_share(threads):.1f}% of a core")
    return 0 if worst <= LIMIT_US else 1


if __name__ == "__main__":
    sys.exit(main())

"""Look-up of a model's tasks in a large database: the figure a build waits for.

python bench/lookup.py [--trials 1000000] [--keys 30] [--keep PATH]

Builds a database of that many trials (a few minutes for a million), then looks up all keys at
once in a fresh process as `apply_history_best` does: open, one query, close. Imports are not
counted; the file is in the page cache.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tunefarm.db.records import BestKey, TaskKey, Trial, WorkloadRecord
from tunefarm.db.store import Store

TARGET = "llvm -mcpu=znver5 -num-cores=2"
MODEL = "AMD EPYC 9V45, 2 cores"
TRIALS_A_TASK = 1000
BATCH = 5000


def workload(index: int) -> WorkloadRecord:
    text = f'{{"workload":{index}}}'.ljust(600)
    return WorkloadRecord(hashlib.sha256(text.encode()).hexdigest(), text, f"conv2d {index}", 1)


def trial(task: TaskKey, number: int) -> Trial:
    seconds = 1e-3 * (1 + (number * 7919 % 1000) / 1000)
    return Trial(
        job=f"job-{number // 500}",
        task=task,
        number=number,
        config={"sketch": "gemm", "tile_m": 8, "tile_n": 64, "tile_k": number, "unroll": 4},
        times_s=(seconds, seconds * 1.01, seconds * 1.02),
        device="device-1",
        device_model=MODEL,
        compiler_version="0.1.0",
        space_fingerprint="0123456789abcdef",
        phases_s={"queue": 0.01, "build": 0.05, "check": 0.01, "run": 0.1},
        created_at=1.7e9 + number,
    )


def fill(path: Path, trials: int) -> None:
    """A database of ``trials`` trials, a thousand to a task."""
    workloads = [workload(i) for i in range(max(1, trials // TRIALS_A_TASK))]
    with Store.open(str(path)) as store:
        store.add_workloads(workloads)
        rows: list[Trial] = []
        for number in range(min(trials, TRIALS_A_TASK)):
            for one in workloads:
                rows.append(trial(TaskKey(one.key, TARGET), number))
                if len(rows) == BATCH:
                    store.add_trials(rows)
                    rows = []
        store.add_trials(rows)


def look_up(path: Path, tasks: int, keys: int) -> float:
    """Seconds from opening the database to the last answer."""
    step = max(1, tasks // keys)
    wanted = [BestKey(workload(i * step).key, TARGET, MODEL) for i in range(keys)]
    start = time.perf_counter()
    with Store.open(str(path), readonly=True) as store:
        found = store.best(wanted)
    seconds = time.perf_counter() - start
    missing = sum(not answers for answers in found.values())
    if missing:
        raise SystemExit(f"{missing} of {keys} keys were not found")
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--keys", type=int, default=30)
    parser.add_argument("--keep", type=Path, help="use this database, made if it is missing")
    parser.add_argument("--look-up", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    tasks = max(1, options.trials // TRIALS_A_TASK)
    if options.look_up:
        print(f"{look_up(options.look_up, tasks, min(options.keys, tasks)):.6f}")
        return
    with tempfile.TemporaryDirectory() as scratch:
        path = options.keep or Path(scratch) / "million.db"
        if not path.exists():
            start = time.perf_counter()
            fill(path, options.trials)
            seconds = time.perf_counter() - start
            size_mb = path.stat().st_size / 1e6
            print(f"{options.trials} trials stored in {seconds:.0f} s, {size_mb:.0f} MB")
        command = [sys.executable, __file__, "--look-up", str(path)]
        command += ["--trials", str(options.trials), "--keys", str(options.keys)]
        runs = sorted(float(subprocess.check_output(command)) for _ in range(7))
        print(
            f"look-up of {options.keys} keys in {options.trials} trials: median "
            f"{runs[3] * 1e3:.1f} ms, worst {runs[-1] * 1e3:.1f} ms (bar: 50 ms)"
        )


if __name__ == "__main__":
    main()

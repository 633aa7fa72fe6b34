"""A large database that looks like years of tuning, for the dashboard and its measurements.

python bench/dashboard_data.py FILE [--trials 1000000] [--jobs 10000] [--seed 0]

A million trials take a minute or two and 1.2 GB. Nothing in it was measured: latencies fall as a
search would make them fall, and some candidates fail.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, insert
from tunefarm.compiler.workload import Workload
from tunefarm.db.farm_models import DEVICES, LEASES, WORKERS
from tunefarm.db.models import (
    BEST,
    FINALS,
    JOB_TASKS,
    JOBS,
    MODEL_TASKS,
    MODELS,
    TARGETS,
    TASKS,
    TRIALS,
    WORKLOADS,
)
from tunefarm.db.store import Store

CPUS = ("znver5", "emeraldrapids", "sapphirerapids", "znver4")
DEVICES_EACH = 8
MODEL_EVERY = 10
"""One job in so many tunes a model of its own, and so does the last."""
WORKLOAD_COUNT = 400
BATCH = 2_000
FAILURES = (
    ("build_error", "LLVM ERROR: out of registers in block {}"),
    ("instantiation", "tiles take {} bytes of stack; at most 1048576"),
    ("wrong_answer", "element {} is 0.5 off, 1e-05 allowed"),
    ("run_timeout", "one run took over {} ms"),
)
YEAR_S = 365 * 86400.0


@dataclass
class Sums:
    """What the tracker keeps as trials are stored."""

    tasks: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    best: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)
    finals: list[dict[str, Any]] = field(default_factory=list)


def workload(index: int) -> dict[str, Any]:
    rows, inner = 8 * (index % 20 + 1), 16 * (index // 20 % 10 + 1)
    columns = 32 * (index // 200 + 1)
    param = {"domain": "any", "dtype": "float32"}
    product = {"args": [0, 1], "attrs": {}, "op": "matmul", "type": ["float32", [rows, columns]]}
    content = {
        "nodes": [product],
        "outputs": [2],
        "params": [
            {**param, "constant": False, "shape": [rows, inner]},
            {**param, "constant": True, "shape": [inner, columns]},
        ],
        "version": 1,
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    made = Workload.from_text(text)
    return {"id": index + 1, "key": made.key, "text": text, "summary": made.summary,
            "flops": made.flops}  # fmt: skip


def device(cpu: int, number: int) -> dict[str, Any]:
    name = f"llvm-{hashlib.sha256(f'{cpu} {number}'.encode()).hexdigest()[:16]}"
    return {
        "id": name, "kind": "llvm", "model": f"{CPUS[cpu]} 16 cores",
        "target": f"llvm -mcpu={CPUS[cpu]} -num-cores=16", "worker": f"rack{cpu}-{number}",
        "attributes": {"rack": str(cpu)}, "noise": 0.01 + 0.005 * number,
        "peaks": {"flops_n": 3e12, "bandwidth_dram_n": 2e11, "bandwidth_l1_n": 6e12}, "epoch": 0,
    }  # fmt: skip


def trial(chance: random.Random, job: str, at: float, number: int, base_s: float) -> dict[str, Any]:
    """A candidate that is the faster the more were tried before."""
    true_s = base_s / (1 + 0.9 * number / (number + 60)) * (1 + abs(chance.gauss(0, 0.5)))
    error, message = chance.choice(FAILURES) if number and chance.random() < 0.06 else ("", "")
    seconds = base_s if number == 0 else true_s
    return {
        "job": job, "number": number,
        "config": {"sketch": chance.choice(("contraction", "contraction", "winograd")),
                   "mb": 2 ** chance.randrange(6), "nb": chance.randrange(1, 9),
                   "ku": 2 ** chance.randrange(4), "order": chance.choice(("nm", "mn")),
                   "prefetch": 32 * chance.randrange(4)},
        "times_s": [] if error else [seconds * (1 + 0.01 * i) for i in range(5)],
        "median_s": None if error else seconds * 1.02,
        "error": error or None, "message": message.format(chance.randrange(2000)),
        "stderr_tail": "", "device_state": {"drift": chance.gauss(1.01, 0.02), "load": 0.3},
        "protocol": "warm-activations-cold-weights-v1", "compiler_version": "0.1.0+abcdef01",
        "space_fingerprint": "0123456789abcdef", "code_hash": f"{chance.getrandbits(128):032x}",
        "predicted": -seconds / base_s + chance.gauss(0, 0.3) if number else None,
        "origin": chance.choice(("model", "model", "droplet", "hint", "random")) if number
        else "default",
        "phases_s": {"queue": 0.1, "build": 0.1, "check": 0.01, "run": 0.05},
        "paired_times_s": [], "created_at": at,
    }  # fmt: skip


def sizes(chance: random.Random, trials: int, jobs: int) -> list[int]:
    """How many trials each job has: one job has a fiftieth of all, the others are uneven."""
    big = trials // 50
    weights = [chance.lognormvariate(0, 0.8) for _ in range(jobs - 1)]
    scale = (trials - big) / sum(weights)
    return [*(max(1, int(weight * scale)) for weight in weights), big]


def fill(path: Path, trials: int, jobs: int, seed: int = 0) -> None:
    """Make the database; the newest job has most trials, and still runs."""
    chance = random.Random(seed)
    workloads = [workload(i) for i in range(WORKLOAD_COUNT + 1)]
    devices = [device(cpu, n) for cpu in range(len(CPUS)) for n in range(DEVICES_EACH)]
    sums = Sums()
    with Store.open(str(path)) as store:
        with store.writing() as db:
            _fixed(db, workloads, devices)
        waiting: list[dict[str, Any]] = []
        start, ids = time.time() - YEAR_S, iter(range(1, 10**9))
        for number, size in enumerate(sizes(chance, trials, jobs)):
            is_last = number == jobs - 1
            at = time.time() - size * 0.2 if is_last else start + YEAR_S * number / jobs
            rows = _job(chance, number, size, at, is_last, sums, ids)
            with store.writing() as db:
                _write_job(db, rows, devices, number, at, size, is_last)
            waiting += rows["trials"]
            if len(waiting) >= BATCH or is_last:
                with store.writing() as db:
                    _write(db, TRIALS, waiting)
                waiting = []
        with store.writing() as db:
            _write(db, TASKS, list(sums.tasks.values()))
            _write(db, BEST, list(sums.best.values()))
            _write(db, FINALS, sums.finals)
            db.exec_driver_sql("ANALYZE")


def _fixed(db: Connection, workloads: Sequence[Any], devices: Sequence[Any]) -> None:
    _write(db, WORKLOADS, workloads)
    targets = [f"llvm -mcpu={cpu} -num-cores=16" for cpu in CPUS]
    _write(db, TARGETS, [{"id": i + 1, "text": text} for i, text in enumerate(targets)])
    _write(db, WORKERS, [
        {"id": d["worker"], "incarnation": "1", "compiler_version": "0.1.0+abcdef01",
         "started_at": 0.0} for d in devices
    ])  # fmt: skip
    _write(db, DEVICES, devices)


def _job(
    chance: random.Random, number: int, size: int, at: float, is_last: bool, sums: Sums,
    ids: Iterator[int],
) -> dict[str, list[dict[str, Any]]]:  # fmt: skip
    """The rows of a job's trials and tasks."""
    name = hashlib.sha256(f"job {number}".encode()).hexdigest()[:32]
    target = number % len(CPUS)
    count = 40 if is_last else chance.randint(1, 8)
    chosen = chance.sample(range(WORKLOAD_COUNT), count)
    counts = Counter(chosen[i % count] for i in range(size))
    made = {
        w: [
            {**trial(chance, name, at + 0.2 * (n * count), n, 1e-5 * (1 + w % 37)),
             "workload_id": w + 1, "target_id": target + 1}
            for n in range(counts[w])
        ]
        for w in chosen
    }  # fmt: skip
    trials = sorted((t for mine in made.values() for t in mine), key=lambda t: t["created_at"])
    for one in trials:
        one["id"] = next(ids)
    tasks = [_task(name, place, w, made[w]) for place, w in enumerate(chosen)]
    for w in chosen:
        _sum(sums, made[w], tasks[chosen.index(w)], target)
    return {"trials": trials, "tasks": tasks}


def _task(job: str, position: int, w: int, trials: Sequence[dict[str, Any]]) -> dict[str, Any]:
    good = [t["median_s"] for t in trials if t["median_s"]]
    errors = Counter(t["error"] for t in trials if t["error"])
    return {
        "job": job, "position": position, "workload_id": w + 1, "weight": 1 + w % 3,
        "ok": len(good), "failed": len(trials) - len(good), "best_s": min(good, default=None),
        "default_s": good[0] if good else None, "errors": dict(errors),
    }  # fmt: skip


def _sum(sums: Sums, trials: Sequence[Any], task: dict[str, Any], target: int) -> None:
    key = (task["workload_id"], target + 1)
    ids = {"workload_id": key[0], "target_id": key[1]}
    known = sums.tasks.setdefault(key, {**ids, "ok": 0, "failed": 0, "best_s": None,
                                        "default_s": None})  # fmt: skip
    known["ok"] += task["ok"]
    known["failed"] += task["failed"]
    known["default_s"] = task["default_s"]
    good = [t for t in trials if t["median_s"]]
    if not good:
        return
    first = min(good, key=lambda t: t["median_s"])
    if known["best_s"] is not None and known["best_s"] <= first["median_s"]:
        return
    known["best_s"] = first["median_s"]
    speedup = task["default_s"] / first["median_s"]
    sums.best[key] = {
        **ids, "device_model": f"{CPUS[target]} 16 cores", "protocol": first["protocol"],
        "space_fingerprint": first["space_fingerprint"], "verdict": "better",
        "compiler_version": first["compiler_version"], "trial_id": first["id"],
        "median_s": first["median_s"], "default_s": task["default_s"], "promoted": True,
        "speedup_over_default": speedup, "model": None, "model_speedup": None,
    }  # fmt: skip
    sums.finals.append({
        "id": len(sums.finals) + 1, "request_id": f"final {len(sums.finals)}",
        "challenger_id": first["id"], "incumbent_id": None, "verdict": "better", "speedup": None,
        "speedup_over_default": speedup, "promoted": True, "created_at": first["created_at"],
        "model": None,
    })  # fmt: skip


def _write_job(
    db: Connection, rows: dict[str, list[dict[str, Any]]], devices: Sequence[dict[str, Any]],
    number: int, at: float, size: int, is_last: bool,
) -> None:  # fmt: skip
    mine = devices[(number % len(CPUS)) * DEVICES_EACH + number // len(CPUS) % DEVICES_EACH]
    name, end = rows["tasks"][0]["job"], at + 0.2 * size + 5
    for one in rows["trials"]:
        one["device"], one["device_model"] = mine["id"], mine["model"]
    model = _write_model(db, rows["tasks"], number, end) if _has_model(number, is_last) else ""
    state = "running" if is_last else "failed" if number % 50 == 7 else "succeeded"
    _write(db, JOBS, [{
        "id": name, "target_id": number % len(CPUS) + 1, "budget_trials": int(size * 1.3) + 1,
        "budget_s": None, "options": {"strategy": "xgb-genetic"}, "state": state, "priority": 0,
        "message": "its tuner went silent" if state == "failed" else "", "claimed_by": "tuner-1",
        "claim_epoch": 1, "claim_request": "", "revision": size, "created_at": at,
        "updated_at": end, "compiler_version": "0.1.0+abcdef01", "model": model,
    }])  # fmt: skip
    _write(db, JOB_TASKS, rows["tasks"])
    _write(db, LEASES, [{
        "id": f"lease{number}", "request_id": f"lease{number}", "device": mine["id"],
        "client": "tuner-1", "job": name, "epoch": number + 1, "term_s": 10.0,
        "granted_at": at + 2, "ended_at": None if is_last else end - 1,
        "ended_reason": "" if is_last else "given back",
    }])  # fmt: skip


def _has_model(number: int, is_last: bool) -> bool:
    return is_last or number % MODEL_EVERY == 0


def _write_model(db: Connection, tasks: Sequence[dict[str, Any]], number: int, at: float) -> str:
    """A model of these tasks, and one task more that was never tuned."""
    digest = hashlib.sha256(f"model {number}".encode()).hexdigest()[:16]
    _write(db, MODELS, [{
        "digest": digest, "target_id": number % len(CPUS) + 1, "name": f"net-{number}",
        "created_at": at, "seen_at": at,
    }])  # fmt: skip
    mine = {task["workload_id"]: task["weight"] for task in tasks}
    mine.setdefault(WORKLOAD_COUNT + 1, 2)
    _write(db, MODEL_TASKS, [
        {"digest": digest, "position": place, "workload_id": workload, "weight": weight}
        for place, (workload, weight) in enumerate(mine.items())
    ])  # fmt: skip
    return digest


def _write(db: Connection, table: Table, rows: Sequence[dict[str, Any]]) -> None:
    for start in range(0, len(rows), BATCH):
        db.execute(insert(table), list(rows[start : start + BATCH]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--trials", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start = time.perf_counter()
    fill(options.file, options.trials, options.jobs, options.seed)
    size = options.file.stat().st_size / 1e6
    print(f"{options.trials} trials of {options.jobs} jobs in {options.file}, {size:.0f} MB, "
          f"{time.perf_counter() - start:.0f} s")  # fmt: skip


if __name__ == "__main__":
    main()

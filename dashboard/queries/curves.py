"""How the trials of a job went: the data of its charts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select
from tunefarm.dashboard.datasets import Cell, Dataset, dataset
from tunefarm.dashboard.queries.jobs import JobLine, TaskLine
from tunefarm.dashboard.ranks import rank_correlation, top_recall
from tunefarm.db.models import LEASES, TRIALS
from tunefarm.db.records import FINAL

POINTS = 3_000
PHASES = ("build", "check", "run")
_TOP_SHARE = 0.1
_LEAST_RANKED = 8
_LEAST_FOR_GAIN = 40


def best_so_far(connection: Connection, job: JobLine, tasks: Sequence[TaskLine]) -> Dataset:
    """The trials that were faster than every one of their task before, and each task's last.

    ``trial`` counts the job's candidates; ``low_s`` and ``high_s`` are the extremes of the repeats.
    """
    by_id = {task.workload_id: task for task in tasks}
    columns = TRIALS.c
    before = func.min(columns.median_s).over(
        partition_by=columns.workload_id, order_by=columns.id, rows=(None, -1)
    )
    count = func.row_number().over(order_by=columns.id)
    seen = (
        select(
            columns.id, columns.workload_id, columns.median_s, columns.created_at,
            before.label("before"), count.label("count"),
        )
        .where(columns.job == job.id, columns.origin != FINAL)
        .subquery()
    )  # fmt: skip
    better = (seen.c.before.is_(None)) | (seen.c.median_s < seen.c.before)
    query = (
        select(seen, columns.times_s)
        .join(TRIALS, columns.id == seen.c.id)
        .where(seen.c.median_s.is_not(None), better, seen.c.workload_id.in_(list(by_id)))
        .order_by(seen.c.id)
    )
    rows = connection.execute(query).all()
    first: dict[int, float] = {}
    for row in rows:
        task = by_id[row.workload_id]
        first.setdefault(row.workload_id, task.default_s or row.median_s)
    return dataset(
        "best-so-far",
        ("id", "task", "trial", "at_s", "latency_s", "low_s", "high_s", "speedup"),
        [_step(row, by_id[row.workload_id], first[row.workload_id], job) for row in rows],
        {"trials": job.done, "seconds": max(0.0, _end(job) - job.created_at)},
    )


def _step(row: Any, task: TaskLine, first_s: float, job: JobLine) -> tuple[Cell, ...]:
    return (
        row.id, task.position, row.count, round(row.created_at - job.created_at, 3), row.median_s,
        min(row.times_s), max(row.times_s), round(first_s / row.median_s, 5),
    )  # fmt: skip


def points(connection: Connection, job: JobLine, tasks: Sequence[TaskLine]) -> Dataset:
    """Trials with their sketch, score and time, evenly chosen where there are many.

    ``speedup`` is over the default of the task; a failed trial has neither that nor a latency.
    The notes say how well scores ordered the trials of a task, the mean over its tasks.
    """
    by_id = {task.workload_id: task for task in tasks}
    total = sum(task.ok + task.failed for task in tasks)
    step = -(-total // POINTS) or 1
    columns = TRIALS.c
    query = (
        select(
            columns.id, columns.workload_id, columns.number, columns.created_at,
            columns.config["sketch"].as_string().label("sketch"), columns.origin,
            columns.predicted, columns.median_s, columns.error,
        )
        .where(columns.job == job.id, columns.workload_id.in_(list(by_id)))
        .where(columns.origin != FINAL, columns.number % step == 0)
        .order_by(columns.id)
    )  # fmt: skip
    rows = connection.execute(query).all()
    return dataset(
        "trials",
        ("id", "task", "trial", "at_s", "sketch", "origin", "predicted", "latency_s", "speedup",
         "error"),
        [_point(row, by_id[row.workload_id], job) for row in rows],
        {"sampled": len(rows), "of": total, **_ranking(rows)},
    )  # fmt: skip


def _point(row: Any, task: TaskLine, job: JobLine) -> tuple[Cell, ...]:
    speedup = task.default_s / row.median_s if task.default_s and row.median_s else None
    return (
        row.id, task.position, row.number, round(row.created_at - job.created_at, 3), row.sketch,
        row.origin, row.predicted, row.median_s, speedup and round(speedup, 5), row.error,
    )  # fmt: skip


def _ranking(rows: Sequence[Any]) -> dict[str, Cell]:
    """How well scores ordered times within tasks, weighted by their trials."""
    scored: dict[int, list[tuple[float, float]]] = {}
    for row in rows:
        if row.predicted is not None and row.median_s is not None:
            scored.setdefault(row.workload_id, []).append((row.predicted, -row.median_s))
    ranked = [pairs for pairs in scored.values() if len(pairs) >= _LEAST_RANKED]
    count = sum(map(len, ranked))
    if not count:
        return {"rank_correlation": None, "top_recall": None, "ranked": 0}
    split = [tuple(zip(*pairs, strict=True)) for pairs in ranked]
    correlation = sum(len(p) * rank_correlation(p, t) for p, t in split) / count
    recall = sum(len(p) * top_recall(p, t, _TOP_SHARE) for p, t in split) / count
    return {"rank_correlation": round(correlation, 4), "top_recall": round(recall, 4),
            "ranked": count}  # fmt: skip


# --- time ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WallTime:
    """Seconds of a job's life: without a device, and with one by what was done. Builds run beside
    each other, so their sum may be more than the time that passed."""

    total_s: float
    wait_s: float
    build_s: float
    check_s: float
    run_s: float
    rest_s: float

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        return (
            ("waiting for a device", self.wait_s),
            ("building", self.build_s),
            ("checking", self.check_s),
            ("running", self.run_s),
            ("search and the rest", self.rest_s),
        )


def wall_time(connection: Connection, job: JobLine) -> WallTime:
    """Where the time of a job went so far."""
    end = _end(job)
    total = max(0.0, end - job.created_at)
    held = _held(connection, job, end)
    sums = [func.coalesce(func.sum(_phase(name)), 0.0) for name in PHASES]
    row = connection.execute(select(*sums).where(TRIALS.c.job == job.id)).one()
    build, check, run = map(float, row)
    leased = held if held is not None else total
    return WallTime(
        total_s=total,
        wait_s=max(0.0, total - leased),
        build_s=build,
        check_s=check,
        run_s=run,
        rest_s=max(0.0, leased - build - check - run),
    )


def _phase(name: str) -> Any:
    return TRIALS.c.phases_s[name].as_float()


def _held(connection: Connection, job: JobLine, end: float) -> float | None:
    """Seconds in which the job held a device; None if the leases are not known."""
    columns = LEASES.c
    length = func.coalesce(columns.ended_at, end) - columns.granted_at
    query = select(func.sum(length)).where(
        columns.job == job.id, columns.granted_at >= job.created_at - 1, columns.granted_at <= end
    )
    found = connection.execute(query).scalar()
    return None if found is None else float(found)


def _end(job: JobLine) -> float:
    """When the job ended, or last changed."""
    return job.updated_at


def recent_gain(best: Dataset) -> float | None:
    """By how much the last quarter of the candidates made the tasks faster, the mean of the
    logarithms; None while that says nothing."""
    trials = best.notes["trials"]
    if not isinstance(trials, int) or trials < _LEAST_FOR_GAIN:
        return None
    then: dict[Cell, float] = {}
    now: dict[Cell, float] = {}
    columns = (best.columns[name] for name in ("task", "trial", "speedup"))
    for task, trial, speedup in zip(*columns, strict=True):
        now[task] = float(speedup or 1)
        if float(trial or 0) <= 0.75 * trials:
            then[task] = now[task]
    logs = [math.log(now[task] / then[task]) for task in then]
    return math.expm1(sum(logs) / len(logs)) if logs else None

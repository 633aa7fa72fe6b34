"""How the trials of a job went: the data of its charts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, func, select
from tunefarm.dashboard.datasets import Cell, Dataset, dataset
from tunefarm.dashboard.queries.followed import Phases, Point, Points, Step, Steps, phases, steps
from tunefarm.dashboard.queries.followed import points as points_of
from tunefarm.dashboard.queries.jobs import JobLine, TaskLine
from tunefarm.dashboard.ranks import rank_correlation, top_recall
from tunefarm.db.farm_models import LEASES

POINTS = 3_000
_TOP_SHARE = 0.1
_LEAST_RANKED = 8
_LEAST_FOR_GAIN = 40


def best_so_far(
    connection: Connection,
    job: JobLine,
    tasks: Sequence[TaskLine],
    *,
    known: Steps | None = None,
    after: int = 0,
) -> Dataset:
    """The trials that were faster than every one of their task before.

    ``trial`` counts the job's candidates; ``low_s`` and ``high_s`` are the extremes of the repeats.
    Those up to the trial ``after`` are left out; the notes say so.
    """
    by_id = {task.workload_id: task for task in tasks}
    found = known or steps(connection, job.id)
    first: dict[int, float] = {}
    for step in found.rows:
        if step.workload_id in by_id:
            first.setdefault(step.workload_id, by_id[step.workload_id].default_s or step.median_s)
    return dataset(
        "best-so-far",
        ("id", "task", "trial", "at_s", "latency_s", "low_s", "high_s", "speedup"),
        [
            _step(step, by_id[step.workload_id], first[step.workload_id], job)
            for step in found.rows
            if step.id > after and step.workload_id in by_id
        ],
        {"trials": job.done, "seconds": max(0.0, _end(job) - job.created_at), "after": after},
    )


def _step(step: Step, task: TaskLine, first_s: float, job: JobLine) -> tuple[Cell, ...]:
    return (
        step.id, task.position, step.place, round(step.created_at - job.created_at, 3),
        step.median_s, step.low_s, step.high_s, round(first_s / step.median_s, 5),
    )  # fmt: skip


def step_of(tasks: Sequence[TaskLine]) -> int:
    """Every how manieth candidate of tasks is drawn."""
    return -(-sum(task.ok + task.failed for task in tasks) // POINTS) or 1


def drawn(
    connection: Connection, job: JobLine, tasks: Sequence[TaskLine], known: Points | None = None
) -> Points:
    """The candidates of tasks that are drawn, evenly chosen where there are many."""
    workloads = [task.workload_id for task in tasks]
    return points_of(connection, job.id, workloads, step_of(tasks), known)


def points(
    connection: Connection,
    job: JobLine,
    tasks: Sequence[TaskLine],
    *,
    known: Points | None = None,
    order: Mapping[str, Cell] | None = None,
    after: int = 0,
) -> Dataset:
    """Trials with their sketch, score and time, evenly chosen where there are many.

    ``speedup`` is over the default of the task; a failed trial has neither that nor a latency.
    The notes say how well scores ordered the trials of a task, the mean over its tasks, which is
    ``order`` if that is known. Trials up to ``after`` are left out; the notes say so.
    """
    found = known or drawn(connection, job, tasks)
    by_id = {task.workload_id: (task.position, task.default_s) for task in tasks}
    total = sum(task.ok + task.failed for task in tasks)
    order = ranking(found) if order is None else order
    return dataset(
        "trials",
        ("id", "task", "trial", "at_s", "sketch", "origin", "predicted", "latency_s", "speedup",
         "error"),
        [
            _point(point, *by_id[point.workload_id], job.created_at)
            for point in found.rows
            if point.id > after
        ],
        {"sampled": len(found.rows), "of": total, "step": found.step, "after": after, **order},
    )  # fmt: skip


def _point(point: Point, position: int, default_s: float | None, start: float) -> tuple[Cell, ...]:
    id_, _, number, at, sketch, origin, predicted, median_s, error = point
    speedup = round(default_s / median_s, 5) if default_s and median_s else None
    return (
        id_, position, number, round(at - start, 3), sketch, origin, predicted, median_s, speedup,
        error,
    )  # fmt: skip


def ranking(found: Points) -> dict[str, Cell]:
    """How well scores ordered times within tasks, weighted by their trials."""
    scored: dict[int, list[tuple[float, float]]] = {}
    for row in found.rows:
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


def wall_time(connection: Connection, job: JobLine, known: Phases | None = None) -> WallTime:
    """Where the time of a job went so far."""
    end = _end(job)
    total = max(0.0, end - job.created_at)
    held = _held(connection, job, end)
    build, check, run = (known or phases(connection, job.id)).seconds
    leased = held if held is not None else total
    return WallTime(
        total_s=total,
        wait_s=max(0.0, total - leased),
        build_s=build,
        check_s=check,
        run_s=run,
        rest_s=max(0.0, leased - build - check - run),
    )


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

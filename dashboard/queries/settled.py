"""What a job has come to: the records of its tasks that stood at its end, as finals saw them beside
the defaults. The fastest candidate that was seen is no promise, as it was chosen for being low; of
a job that is not over there is nothing else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, and_, func, select
from tunefarm.dashboard.luck import NEAR, spread_of, without_luck
from tunefarm.dashboard.queries.jobs import JobLine, TaskLine
from tunefarm.dashboard.queries.promoted import built, device_model
from tunefarm.db.models import JOB_TASKS, JOBS, TRIALS
from tunefarm.db.records import FINAL

LEAST_GAIN = 1.005


@dataclass(frozen=True, slots=True)
class Result:
    """A task with its latencies in seconds: those of what builds use, if that is settled. Until
    then ``likely_s`` is what the fastest candidate takes without its luck, and no more than the
    default; None if that cannot be told."""

    task: TaskLine
    default_s: float | None
    best_s: float | None
    likely_s: float | None = None

    @property
    def speedup(self) -> float | None:
        """How much faster it is than its default."""
        return self.default_s / self.best_s if self.default_s and self.best_s else None

    @property
    def is_faster(self) -> bool:
        """Whether that is more than rounding."""
        return (self.speedup or 0.0) >= LEAST_GAIN

    @property
    def flops_s(self) -> float | None:
        """Nominal operations a second."""
        return self.task.flops / self.best_s if self.best_s and self.task.flops else None

    @property
    def time_s(self) -> float:
        """Seconds in a run of the model."""
        return self.task.weight * (self.best_s or 0.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The tasks of a job, those of the most time first, and sums over those that have both times,
    in seconds. ``device`` is the model of the device that measured it, empty while none did."""

    device: str
    results: tuple[Result, ...]

    @property
    def default_s(self) -> float:
        return sum((r.default_s or 0.0) * r.task.weight for r in self.results if r.speedup)

    @property
    def best_s(self) -> float:
        return sum(r.time_s for r in self.results if r.speedup)

    @property
    def speedup(self) -> float | None:
        return self.default_s / self.best_s if self.best_s else None

    @property
    def likely_speedup(self) -> float | None:
        """How much faster the tasks are without the luck of the fastest candidates."""
        both = [r for r in self.results if r.speedup]
        likely_s = sum((r.likely_s or 0.0) * r.task.weight for r in both)
        return self.default_s / likely_s if both and all(r.likely_s for r in both) else None


def outcome(connection: Connection, job: JobLine, tasks: Sequence[TaskLine]) -> Outcome:
    """What a job has come to, or, while it is open, what it has seen."""
    measured_by = connection.execute(select(device_model()).where(JOBS.c.id == job.id)).scalar()
    if job.is_open:
        likely = _likely(connection, job, tasks)
        results = [
            Result(task, task.default_s, task.best_s, likely.get(task.workload_id))
            for task in tasks
        ]
    else:
        found = {one.workload_id: one for one in built(connection, [job.id])}
        results = [
            Result(task, found[task.workload_id].default_s, found[task.workload_id].best_s)
            for task in tasks
        ]
    return Outcome(measured_by or "", tuple(sorted(results, key=lambda result: -result.time_s)))


def _likely(connection: Connection, job: JobLine, tasks: Sequence[TaskLine]) -> dict[int, float]:
    """What the fastest candidates of tasks take without their luck, by the noise of the device at
    the last trial; nothing if that is not known."""
    last = select(TRIALS.c.device_state).where(TRIALS.c.job == job.id).order_by(TRIALS.c.id.desc())
    state = connection.execute(last.limit(1)).scalar()
    noise = (state or {}).get("noise")
    if not isinstance(noise, int | float):
        return {}
    spread = spread_of(noise)
    is_task = and_(JOB_TASKS.c.job == TRIALS.c.job, JOB_TASKS.c.workload_id == TRIALS.c.workload_id)
    query = (
        select(TRIALS.c.workload_id, func.count())
        .join(JOB_TASKS, is_task)
        .where(TRIALS.c.job == job.id, TRIALS.c.origin != FINAL)
        .where(TRIALS.c.median_s <= JOB_TASKS.c.best_s * math.exp(NEAR * spread))
        .group_by(TRIALS.c.workload_id)
    )
    rivals = {row[0]: row[1] for row in connection.execute(query)}
    found = {}
    for task in tasks:
        if task.best_s:
            likely_s = without_luck(task.best_s, rivals.get(task.workload_id, 1), spread)
            found[task.workload_id] = min(likely_s, task.default_s or likely_s)
    return found

"""What builds get of the tasks of jobs that are over, as finals saw it beside the defaults."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select
from tunefarm.db.models import BEST, JOB_TASKS, JOBS, TRIALS


@dataclass(frozen=True, slots=True)
class Built:
    """A task of a job with the latencies in seconds of its default and of what builds use, None
    where that was not timed."""

    job: str
    workload_id: int
    weight: int
    default_s: float | None
    best_s: float | None


def built(connection: Connection, jobs: Sequence[str]) -> list[Built]:
    """The tasks of these jobs: each with the record that a final promoted for the model of the
    job's first device, the job's compiler and the way that its trials are timed, else with its
    default."""
    measured = _measured(jobs)
    is_of_job = or_(
        func.coalesce(measured.c.compiler_version, "") == "",
        BEST.c.compiler_version == measured.c.compiler_version,
    )
    record = and_(
        BEST.c.workload_id == JOB_TASKS.c.workload_id,
        BEST.c.target_id == measured.c.target_id,
        BEST.c.device_model == measured.c.device_model,
        BEST.c.protocol == _protocol(measured.c.target_id),
        BEST.c.promoted,
        is_of_job,
    )
    columns = (
        JOB_TASKS.c.job, JOB_TASKS.c.workload_id, JOB_TASKS.c.weight, JOB_TASKS.c.default_s,
        BEST.c.median_s, BEST.c.default_s.label("met_s"), BEST.c.speedup_over_default,
    )  # fmt: skip
    source = measured.join(JOB_TASKS, JOB_TASKS.c.job == measured.c.id).outerjoin(BEST, record)
    query = select(*columns).select_from(source).order_by(BEST.c.trial_id)
    last = {(row.job, row.workload_id): _built(row) for row in connection.execute(query)}
    return list(last.values())


def device_model() -> Any:
    """The model of the device that measured the first trial of ``JOBS``'s row, null while there is
    none."""
    first = select(TRIALS.c.device_model).where(TRIALS.c.job == JOBS.c.id)
    return first.order_by(TRIALS.c.id).limit(1).correlate(JOBS).scalar_subquery()


def _protocol(target_id: Any) -> Any:
    """What the first trial of ``JOB_TASKS``'s row was timed by; null while there is none."""
    first = select(TRIALS.c.protocol).where(
        TRIALS.c.job == JOB_TASKS.c.job,
        TRIALS.c.workload_id == JOB_TASKS.c.workload_id,
        TRIALS.c.target_id == target_id,
    )
    return first.order_by(TRIALS.c.number).limit(1).scalar_subquery()


def _measured(jobs: Sequence[str]) -> Any:
    columns = (JOBS.c.id, JOBS.c.target_id, JOBS.c.compiler_version)
    query = select(*columns, device_model().label("device_model"))
    return query.where(JOBS.c.id.in_(jobs)).subquery()


def _built(row: Any) -> Built:
    """A task with its record, beside the default that it met in its final."""
    if row.median_s is None:
        return Built(row.job, row.workload_id, row.weight, row.default_s, row.default_s)
    speedup = row.speedup_over_default or (row.met_s / row.median_s if row.met_s else None)
    default_s = row.median_s * speedup if speedup else None
    return Built(row.job, row.workload_id, row.weight, default_s, row.median_s)

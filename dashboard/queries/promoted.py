"""What the tasks of jobs had come to when these were over, as finals saw it beside the defaults:
what later jobs won is theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, func, or_, select
from tunefarm.dashboard.queries.defaults import default_met
from tunefarm.db.models import BEST, JOB_TASKS, JOBS, TRIALS
from tunefarm.db.standing import replaced


@dataclass(frozen=True, slots=True)
class Built:
    """A task of a job with the latencies in seconds of its default and of what builds used when the
    job was over, None where that was not timed."""

    job: str
    workload_id: int
    weight: int
    default_s: float | None
    best_s: float | None


def built(connection: Connection, jobs: Sequence[str]) -> list[Built]:
    """The tasks of these jobs: each with the record that stood after the job's last trial, promoted
    by a final for the model of the job's first device, the job's compiler and the way that its
    trials are timed, else with its default."""
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
        BEST.c.median_s, BEST.c.default_s.label("timed_s"), BEST.c.speedup_over_default,
        BEST.c.trial_id, TRIALS.c.number, measured.c.last_trial,
    )  # fmt: skip
    source = measured.join(JOB_TASKS, JOB_TASKS.c.job == measured.c.id).outerjoin(BEST, record)
    source = source.outerjoin(TRIALS, TRIALS.c.id == BEST.c.trial_id)
    query = select(*columns).select_from(source).order_by(BEST.c.trial_id)
    rows = connection.execute(query).all()
    later = [row for row in rows if _is_later(row)]
    since = min((row.last_trial for row in later), default=0)
    finals = replaced(connection, {row.trial_id for row in later}, since)
    last: dict[tuple[str, int], Built] = {}
    for row in rows:
        task, record = (row.job, row.workload_id), _stood(row, finals)
        if record is not None or task not in last:
            last[task] = _built(row, record)
    return list(last.values())


def _stood(row: Any, finals: Mapping[int, Sequence[Any]]) -> Any:
    """The record of a job's task when the job was over, None for its default; the one that stands
    now if no final tells how it came there, as in a copy of the job."""
    if not _is_later(row) or row.trial_id not in finals:
        return row
    return next((one for one in finals[row.trial_id] if one.trial_id <= row.last_trial), None)


def _is_later(row: Any) -> bool:
    """Whether the record of a job's task was promoted for a trial after the job's last."""
    return row.trial_id is not None and row.trial_id > row.last_trial


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
    first = first.order_by(TRIALS.c.number).limit(1)
    return first.correlate_except(TRIALS).scalar_subquery()


def _measured(jobs: Sequence[str]) -> Any:
    """These jobs with the model of what measured them, and the last trial of each."""
    columns = (JOBS.c.id, JOBS.c.target_id, JOBS.c.compiler_version)
    last = select(func.max(TRIALS.c.id)).where(TRIALS.c.job == JOBS.c.id).correlate(JOBS)
    query = select(
        *columns,
        device_model().label("device_model"),
        last.scalar_subquery().label("last_trial"),
    )
    return query.where(JOBS.c.id.in_(jobs)).subquery()


def _built(task: Any, record: Any) -> Built:
    """A task with its record, beside the default that it met in its final; None is no record."""
    if record is None or record.median_s is None:
        return Built(task.job, task.workload_id, task.weight, task.default_s, task.default_s)
    default_s = default_met(record, task.timed_s)
    return Built(task.job, task.workload_id, task.weight, default_s, record.median_s)

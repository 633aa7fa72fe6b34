"""Jobs as they stand in the database: whole, in lists, and how far each is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Connection, Select, func, select
from tunefarm.db.errors import UnknownRecord
from tunefarm.db.farm_models import REQUESTS
from tunefarm.db.models import JOB_TASKS, JOBS, MODELS, TARGETS, WORKLOADS
from tunefarm.db.records import (
    FINAL,
    IDLE,
    IDLE_PRIORITY,
    LOOK,
    OPEN,
    Budget,
    Job,
    JobState,
    JobTask,
    JobUpdate,
    Progress,
    TaskKey,
    WorkloadRecord,
)
from tunefarm.db.whole_models import NAME_OF_JOB

PREFIX_LENGTH = 4


def get(connection: Connection, job: str) -> Job:
    """The job with its tasks; UnknownRecord if there is none of this id, nor just one whose id
    begins with these four or more digits."""
    row = row_of(connection, job, PREFIX_LENGTH)
    return _job_from_row(row, _tasks(connection, row.id))


def recent(connection: Connection, states: Iterable[JobState], limit: int) -> tuple[Job, ...]:
    """Jobs in these states (all if none is named), newest first."""
    query = with_names().order_by(JOBS.c.created_at.desc(), JOBS.c.id).limit(limit)
    names = [str(state) for state in states]
    if names:
        query = query.where(JOBS.c.state.in_(names))
    rows = connection.execute(query).all()
    return tuple(_job_from_row(row, _tasks(connection, row.id)) for row in rows)


def progress(connection: Connection, job: str) -> JobUpdate:
    """The job without its tasks, where each task stands, and failed trials by error kind."""
    row = row_of(connection, job)
    pending = _pending_by_workload(connection, job)
    looks = _looks_by_workload(connection, job)
    errors: Counter[str] = Counter()
    found = []
    for task in connection.execute(_task_query(job)):
        errors.update(task.errors)
        found.append(
            Progress(
                TaskKey(task.key, row.target),
                summary=task.summary,
                flops=task.flops,
                weight=task.weight,
                ok=task.ok,
                failed=task.failed,
                pending=pending[task.workload_id],
                best_s=task.best_s,
                default_s=task.default_s,
                final_look=looks.get(task.workload_id, 0),
            )
        )
    return JobUpdate(_job_from_row(row, ()), tuple(found), dict(errors), row.revision)


def _pending_by_workload(connection: Connection, job: str) -> Counter[int]:
    query = (
        select(REQUESTS.c.workload_id, func.count())
        .where(REQUESTS.c.job == job)
        .group_by(REQUESTS.c.workload_id)
    )
    found: Counter[int] = Counter()
    for workload, number in connection.execute(query):
        found[workload] = number
    return found


def _looks_by_workload(connection: Connection, job: str) -> dict[int, int]:
    """The looks of the finals that have no result yet."""
    columns = REQUESTS.c
    query = select(columns.workload_id, columns.budgets).where(
        columns.job == job, columns.origin == FINAL
    )
    return {workload: int(budgets.get(LOOK, 1)) for workload, budgets in connection.execute(query)}


# --- lists -------------------------------------------------------------------------------------


def queued_with_selector(connection: Connection) -> tuple[Job, ...]:
    """Queued jobs that select devices, without their tasks."""
    query = with_names().where(JOBS.c.state == str(JobState.QUEUED), JOBS.c.selector != "")
    return tuple(_job_from_row(row, ()) for row in connection.execute(query))


def open_for_idle(connection: Connection) -> tuple[Job, ...]:
    """Queued and running jobs that were made for idle devices, without their tasks."""
    query = with_names().where(JOBS.c.state.in_([str(s) for s in OPEN]))
    query = query.where(JOBS.c.priority == IDLE_PRIORITY)
    found = (_job_from_row(row, ()) for row in connection.execute(query))
    return tuple(job for job in found if IDLE in job.options)


def queued_for_people(connection: Connection, limit: int) -> tuple[Job, ...]:
    """The most urgent queued jobs that somebody waits for, without their tasks."""
    order = (JOBS.c.priority.desc(), JOBS.c.created_at)
    query = with_names().where(JOBS.c.state == str(JobState.QUEUED)).order_by(*order).limit(limit)
    found = (_job_from_row(row, ()) for row in connection.execute(query))
    return tuple(job for job in found if IDLE not in job.options)


def running(connection: Connection) -> list[tuple[str, int]]:
    """(id, claim epoch) of every running job."""
    query = select(JOBS.c.id, JOBS.c.claim_epoch).where(JOBS.c.state == str(JobState.RUNNING))
    return [(id_, epoch) for id_, epoch in connection.execute(query)]


# --- rows ---------------------------------------------------------------------------------------


def with_names() -> Select[Any]:
    """A query of jobs beside their targets' texts, ``target``, and their models' names,
    ``model_name``."""
    is_model = (MODELS.c.digest == JOBS.c.model) & (MODELS.c.target_id == JOBS.c.target_id)
    source = JOBS.join(TARGETS, TARGETS.c.id == JOBS.c.target_id).outerjoin(MODELS, is_model)
    columns = (*JOBS.c, TARGETS.c.text.label("target"), NAME_OF_JOB.label("model_name"))
    return select(*columns).select_from(source)


def row_of(connection: Connection, job: str, prefix_length: int | None = None) -> Any:
    """The job's row with its target and its model's name; UnknownRecord if there is none of this
    id, nor just one that begins with ``job`` where that has ``prefix_length`` digits or more."""
    row = connection.execute(with_names().where(JOBS.c.id == job)).one_or_none()
    rows = [] if row is None else [row]
    if row is None and prefix_length is not None and len(job) >= prefix_length:
        begin_so = JOBS.c.id.startswith(job, autoescape=True)
        rows = list(connection.execute(with_names().where(begin_so).limit(2)))
    if len(rows) > 1:
        raise UnknownRecord(f"several jobs begin with {job}; give more digits of the id")
    if not rows:
        raise UnknownRecord(f"there is no job {job}; `tunefarm jobs` lists them")
    return rows[0]


def _task_query(job: str) -> Any:
    return (
        select(*JOB_TASKS.c, WORKLOADS.c.key, WORKLOADS.c.text, WORKLOADS.c.summary)
        .add_columns(WORKLOADS.c.flops)
        .select_from(JOB_TASKS.join(WORKLOADS, WORKLOADS.c.id == JOB_TASKS.c.workload_id))
        .where(JOB_TASKS.c.job == job)
        .order_by(JOB_TASKS.c.position)
    )


def _tasks(connection: Connection, job: str) -> tuple[JobTask, ...]:
    return tuple(
        JobTask(WorkloadRecord(row.key, row.text, row.summary, row.flops), row.weight, row.protocol)
        for row in connection.execute(_task_query(job))
    )


def _job_from_row(row: Any, tasks: Sequence[JobTask]) -> Job:
    return Job(
        id=row.id,
        target=row.target,
        tasks=tuple(tasks),
        budget=Budget(row.budget_trials, row.budget_s),
        options=row.options,
        state=JobState(row.state),
        priority=row.priority,
        message=row.message,
        claimed_by=row.claimed_by,
        claim_epoch=row.claim_epoch,
        created_at=row.created_at,
        updated_at=row.updated_at,
        compiler_version=row.compiler_version or "",
        selector=row.selector,
        owner=row.owner,
        model_name=row.model_name or "",
        note=row.note,
    )

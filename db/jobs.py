"""Jobs and their state machine.

queued → running (claim) → succeeded | failed (finish); running → queued (release, expired claim);
queued | running → cancelled; failed | cancelled → queued (retry). Every claim raises the epoch that
the claimant's writes must carry.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, delete, func, insert, select, update
from tunefarm.db import cordons, leases, whole_models
from tunefarm.db.errors import StaleClaim, UnknownRecord
from tunefarm.db.models import JOB_TASKS, JOBS, MODELS, REQUESTS, TARGETS, WORKLOADS
from tunefarm.db.records import (
    FINAL,
    IDLE,
    IDLE_PRIORITY,
    LOOK,
    OWNED,
    Budget,
    Job,
    JobState,
    JobTask,
    JobUpdate,
    Progress,
    TaskKey,
    WorkloadRecord,
)
from tunefarm.db.rows import add_workloads, target_ids, workload_ids

OPEN = (JobState.QUEUED, JobState.RUNNING)
PREFIX_LENGTH = 4
MAX_NOTE = 1000
"""Characters of a note on a job."""


def submit(connection: Connection, job: Job) -> Job:
    """Store a new job as queued; one whose id is known is returned as it stands.

    A workload that stands in several tasks of the job becomes one task with their weights.
    """
    known = connection.execute(select(JOBS.c.id).where(JOBS.c.id == job.id)).one_or_none()
    if known is not None:
        return get(connection, job.id)
    add_workloads(connection, (task.workload for task in job.tasks))
    weights = whole_models.weights_of(job.tasks)
    model = ""
    if job.model_name:
        model = whole_models.note(connection, job.model_name, job.target, weights)
    now = time.time()
    connection.execute(
        insert(JOBS).values(
            id=job.id,
            target_id=target_ids(connection, [job.target])[job.target],
            budget_trials=job.budget.trials,
            budget_s=job.budget.seconds,
            options=dict(job.options),
            state=str(JobState.QUEUED),
            priority=job.priority,
            message="",
            claimed_by="",
            claim_epoch=0,
            claim_request="",
            revision=1,
            created_at=now,
            updated_at=now,
            selector=job.selector,
            owner=job.owner,
            model=model,
            note=_checked_note(job.note),
            noted_by=job.owner if job.note else "",
            noted_at=now if job.note else None,
        )
    )
    asked = {t.workload.key: t.protocol for t in job.tasks if t.protocol}
    _insert_tasks(connection, job.id, weights, asked)
    return get(connection, job.id)


def _insert_tasks(
    connection: Connection, job: str, weights: Mapping[str, int], protocols: Mapping[str, str]
) -> None:
    ids = workload_ids(connection, weights)
    rows: list[dict[str, object]] = [
        {
            "job": job,
            "position": position,
            "workload_id": ids[key],
            "weight": weight,
            "ok": 0,
            "failed": 0,
            "best_s": None,
            "default_s": None,
            "errors": {},
            "protocol": protocols.get(key, ""),
        }
        for position, (key, weight) in enumerate(weights.items())
    ]
    if rows:
        connection.execute(insert(JOB_TASKS), rows)


def get(connection: Connection, job: str) -> Job:
    """The job with its tasks; UnknownRecord if there is none of this id, nor just one whose id
    begins with these four or more digits."""
    row = _row(connection, job, PREFIX_LENGTH)
    return _job_from_row(row, _tasks(connection, row.id))


def recent(connection: Connection, states: Iterable[JobState], limit: int) -> tuple[Job, ...]:
    """Jobs in these states (all if none is named), newest first."""
    query = _jobs().order_by(JOBS.c.created_at.desc(), JOBS.c.id).limit(limit)
    names = [str(state) for state in states]
    if names:
        query = query.where(JOBS.c.state.in_(names))
    rows = connection.execute(query).all()
    return tuple(_job_from_row(row, _tasks(connection, row.id)) for row in rows)


def progress(connection: Connection, job: str) -> JobUpdate:
    """The job without its tasks, where each task stands, and failed trials by error kind."""
    row = _row(connection, job)
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


# --- the state machine --------------------------------------------------------------------------


def queued_with_selector(connection: Connection) -> tuple[Job, ...]:
    """Queued jobs that select devices, without their tasks."""
    query = _jobs().where(JOBS.c.state == str(JobState.QUEUED), JOBS.c.selector != "")
    return tuple(_job_from_row(row, ()) for row in connection.execute(query))


def claim(
    connection: Connection,
    tuner: str,
    request_id: str,
    job: str = "",
    skip: Collection[str] = (),
) -> Job | None:
    """Claim the queued job named, or the most urgent one (priority, then age) but for those to
    ``skip``; None if none.

    The same ``request_id`` again returns the job it claimed. UnknownRecord if the job named does
    not exist, StaleClaim if it is over.
    """
    mine = select(JOBS.c.id).where(
        JOBS.c.claim_request == request_id, JOBS.c.state == str(JobState.RUNNING)
    )
    claimed = connection.execute(mine).scalar_one_or_none()
    if claimed is not None:
        return get(connection, claimed)
    if job and JobState(_row(connection, job).state) not in OPEN:
        raise StaleClaim(f"job {job} is over: {_row(connection, job).state}")
    query = (
        select(JOBS.c.id)
        .where(JOBS.c.state == str(JobState.QUEUED))
        .order_by(JOBS.c.priority.desc(), JOBS.c.created_at, JOBS.c.id)
        .limit(1)
        .with_for_update(skip_locked=True)
    )
    if job:
        query = query.where(JOBS.c.id == job)
    if skip:
        query = query.where(JOBS.c.id.not_in(list(skip)))
    found = connection.execute(query).scalar_one_or_none()
    if found is None:
        return None
    leases.end_of_job(connection, found, "the job was claimed again")
    _change(
        connection,
        found,
        state=str(JobState.RUNNING),
        claimed_by=tuner,
        claim_request=request_id,
        claim_epoch=JOBS.c.claim_epoch + 1,
        message="",
    )
    return get(connection, found)


def check_claim(connection: Connection, job: str, epoch: int) -> Any:
    """The job's row; StaleClaim unless it runs under this epoch."""
    row = _row(connection, job)
    if row.state != str(JobState.RUNNING):
        why = f": {row.message}" if row.message else ""
        raise StaleClaim(f"job {job} is {row.state}, not running{why}")
    if row.claim_epoch != epoch:
        raise StaleClaim(
            f"job {job} is claimed by {row.claimed_by} (epoch {row.claim_epoch}, yours {epoch})"
        )
    return row


def release(connection: Connection, job: str, epoch: int, message: str = "") -> Job:
    """Put the claimed job back into the queue; its leases end, its trials stay."""
    row = _row(connection, job)
    if row.state == str(JobState.QUEUED) and row.claim_epoch == epoch:
        return get(connection, job)
    check_claim(connection, job, epoch)
    leases.end_of_job(connection, job, message or "the job was released")
    return _queue_again(connection, job, message)


def finish(connection: Connection, job: str, epoch: int, state: JobState, message: str) -> Job:
    """End the claimed job as succeeded or failed; its leases end, its queued trials go."""
    row = _row(connection, job)
    if row.state == str(state) and row.claim_epoch == epoch:
        return get(connection, job)
    check_claim(connection, job, epoch)
    return _end(connection, job, state, message)


def cancel(connection: Connection, job: str, reason: str) -> Job:
    """End the job whoever runs it; one that is over stays as it is."""
    if JobState(_row(connection, job).state) not in OPEN:
        return get(connection, job)
    return _end(connection, job, JobState.CANCELLED, reason)


def retry(connection: Connection, job: str) -> Job:
    """Queue a job that failed or was cancelled again; its trials stay, and it goes on from them.

    One that is open stays as it is. ValueError if it has succeeded, or if it ends with the command
    that made it.
    """
    row = _row(connection, job)
    state = JobState(row.state)
    if state in OPEN:
        return get(connection, job)
    if state is JobState.SUCCEEDED:
        raise ValueError(f"job {job} has succeeded; submit the model again to tune it further")
    if row.options.get(OWNED):
        raise ValueError(f"job {job} belongs to a `tunefarm tune`; run that command again")
    return _queue_again(connection, job, "")


def note(connection: Connection, request_id: str, job: str, text: str, *, actor: str) -> Job:
    """Say this of a job in place of what was said before, which stays in the audit trail.

    ValueError if it is too long. The same ``request_id`` again changes nothing.
    """
    row = _row(connection, job)
    said = _checked_note(text)
    if cordons.note(connection, request_id, actor, "note", f"job {row.id}", said):
        values = {"note": said, "noted_by": actor if said else "", "noted_at": time.time()}
        connection.execute(
            update(JOBS).where(JOBS.c.id == row.id).values(revision=JOBS.c.revision + 1, **values)
        )
    return get(connection, row.id)


def _checked_note(text: str) -> str:
    said = text.replace("\r\n", "\n").strip()
    if len(said) > MAX_NOTE:
        raise ValueError(f"a note has {MAX_NOTE} characters at most, not {len(said)}")
    return said


def _queue_again(connection: Connection, job: str, message: str) -> Job:
    """Let whoever asks claim the job from now on."""
    _change(
        connection,
        job,
        state=str(JobState.QUEUED),
        claimed_by="",
        claim_request="",
        message=message,
    )
    return get(connection, job)


def open_for_idle(connection: Connection) -> tuple[Job, ...]:
    """Queued and running jobs that were made for idle devices, without their tasks."""
    query = _jobs().where(JOBS.c.state.in_([str(s) for s in OPEN]))
    query = query.where(JOBS.c.priority == IDLE_PRIORITY)
    found = (_job_from_row(row, ()) for row in connection.execute(query))
    return tuple(job for job in found if IDLE in job.options)


def queued_for_people(connection: Connection, limit: int) -> tuple[Job, ...]:
    """The most urgent queued jobs that somebody waits for, without their tasks."""
    order = (JOBS.c.priority.desc(), JOBS.c.created_at)
    query = _jobs().where(JOBS.c.state == str(JobState.QUEUED)).order_by(*order).limit(limit)
    found = (_job_from_row(row, ()) for row in connection.execute(query))
    return tuple(job for job in found if IDLE not in job.options)


def running(connection: Connection) -> list[tuple[str, int]]:
    """(id, claim epoch) of every running job."""
    query = select(JOBS.c.id, JOBS.c.claim_epoch).where(JOBS.c.state == str(JobState.RUNNING))
    return [(id_, epoch) for id_, epoch in connection.execute(query)]


def _end(connection: Connection, job: str, state: JobState, message: str) -> Job:
    leases.end_of_job(connection, job, f"the job {state}")
    connection.execute(delete(REQUESTS).where(REQUESTS.c.job == job))
    _change(connection, job, state=str(state), message=message)
    return get(connection, job)


def _change(connection: Connection, job: str, **values: Any) -> None:
    connection.execute(
        update(JOBS)
        .where(JOBS.c.id == job)
        .values(revision=JOBS.c.revision + 1, updated_at=time.time(), **values)
    )


# --- rows ---------------------------------------------------------------------------------------


def _jobs() -> Any:
    is_model = (MODELS.c.digest == JOBS.c.model) & (MODELS.c.target_id == JOBS.c.target_id)
    source = JOBS.join(TARGETS, TARGETS.c.id == JOBS.c.target_id).outerjoin(MODELS, is_model)
    columns = (*JOBS.c, TARGETS.c.text.label("target"), MODELS.c.name.label("model_name"))
    return select(*columns).select_from(source)


def _row(connection: Connection, job: str, prefix_length: int | None = None) -> Any:
    row = connection.execute(_jobs().where(JOBS.c.id == job)).one_or_none()
    rows = [] if row is None else [row]
    if row is None and prefix_length is not None and len(job) >= prefix_length:
        begin_so = JOBS.c.id.startswith(job, autoescape=True)
        rows = list(connection.execute(_jobs().where(begin_so).limit(2)))
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

"""Jobs and their state machine.

queued → running (claim) → succeeded | failed (finish); running → queued (release, expired claim);
queued | running → cancelled; failed | cancelled → queued (retry). Every claim raises the epoch that
the claimant's writes must carry.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update
from tunefarm.db import cordons, leases, whole_models
from tunefarm.db.errors import StaleClaim
from tunefarm.db.farm_models import REQUESTS
from tunefarm.db.models import JOB_TASKS, JOBS
from tunefarm.db.records import OPEN, OWNED, Job, JobState
from tunefarm.db.rows import add_workloads, target_ids, workload_ids
from tunefarm.db.stored_jobs import get, row_of

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
            name=job.model_name[: whole_models.MAX_NAME],
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


# --- the state machine --------------------------------------------------------------------------


def claim(
    connection: Connection,
    tuner: str,
    request_id: str,
    job: str = "",
    skip: Collection[str] = (),
    selecting: Collection[str] | None = None,
) -> Job | None:
    """Claim the queued job named, or the most urgent one (priority, then age) but for those to
    ``skip``, and of jobs that select devices only those of ``selecting``; None if none.

    The same ``request_id`` again returns the job it claimed. UnknownRecord if the job named does
    not exist, StaleClaim if it is over.
    """
    mine = select(JOBS.c.id).where(
        JOBS.c.claim_request == request_id, JOBS.c.state == str(JobState.RUNNING)
    )
    claimed = connection.execute(mine).scalar_one_or_none()
    if claimed is not None:
        return get(connection, claimed)
    if job and JobState(row_of(connection, job).state) not in OPEN:
        raise StaleClaim(f"job {job} is over: {row_of(connection, job).state}")
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
    if selecting is not None:
        query = query.where((JOBS.c.selector == "") | JOBS.c.id.in_(list(selecting)))
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
    row = row_of(connection, job)
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
    row = row_of(connection, job)
    if row.state == str(JobState.QUEUED) and row.claim_epoch == epoch:
        return get(connection, job)
    check_claim(connection, job, epoch)
    leases.end_of_job(connection, job, message or "the job was released")
    return _queue_again(connection, job, message)


def finish(connection: Connection, job: str, epoch: int, state: JobState, message: str) -> Job:
    """End the claimed job as succeeded or failed; its leases end, its queued trials go."""
    row = row_of(connection, job)
    if row.state == str(state) and row.claim_epoch == epoch:
        return get(connection, job)
    check_claim(connection, job, epoch)
    return _end(connection, job, state, message)


def cancel(connection: Connection, job: str, reason: str) -> Job:
    """End the job whoever runs it; one that is over stays as it is."""
    if JobState(row_of(connection, job).state) not in OPEN:
        return get(connection, job)
    return _end(connection, job, JobState.CANCELLED, reason)


def retry(connection: Connection, job: str) -> Job:
    """Queue a job that failed or was cancelled again; its trials stay, and it goes on from them.

    One that is open stays as it is. ValueError if it has succeeded, or if it ends with the command
    that made it.
    """
    row = row_of(connection, job)
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
    row = row_of(connection, job)
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

"""The JSON API, documented at ``/api/openapi.json``."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from tunefarm.dashboard.paging import PAGE_ROWS, Page
from tunefarm.dashboard.queries import devices, jobs, overview
from tunefarm.dashboard.requests import Cursor, Limit, Reading, Text
from tunefarm.db.records import JobState

router = APIRouter(prefix="/api/v1")


@router.get("/overview", tags=["farm"])
def get_overview(db: Reading) -> overview.Totals:
    """Counts of the database, and what failed among the newest trials."""
    return overview.totals(db)


@router.get("/wins", tags=["farm"])
def list_wins(db: Reading, limit: Limit = overview.WINS) -> tuple[overview.Win, ...]:
    """The latest records that were promoted, newest first."""
    return overview.wins(db, limit)


@router.get("/jobs", tags=["jobs"])
def list_jobs(
    db: Reading,
    q: Text = "",
    state: Annotated[list[JobState] | None, Query(description="Repeatable.")] = None,
    cursor: Cursor = "",
    limit: Limit = PAGE_ROWS,
) -> Page[jobs.JobLine]:
    """Jobs, newest first."""
    states = [str(one) for one in state or ()]
    return jobs.jobs(db, states=states, text=q, cursor=cursor, limit=limit)


@router.get("/jobs/{job}", tags=["jobs"])
def get_job(db: Reading, job: str) -> jobs.JobLine:
    """One job, by its id or the first characters of it."""
    return jobs.job(db, job)


@router.get("/jobs/{job}/tasks", tags=["jobs"])
def list_job_tasks(db: Reading, job: str) -> tuple[jobs.TaskLine, ...]:
    """The tasks of a job: weight, counts, default and best latency."""
    return jobs.tasks(db, jobs.job(db, job).id)


@router.get("/devices", tags=["farm"])
def list_devices(db: Reading, q: Text = "") -> tuple[devices.DeviceLine, ...]:
    """Every device that ever registered; ``busy`` is of the last day."""
    return devices.devices(db, text=q)

"""Server-sent events: that something changed; pages then fetch the parts that show it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from sqlalchemy import Connection, func, select
from tunefarm.dashboard.queries import jobs
from tunefarm.dashboard.watch import Mark, Subject, Watch
from tunefarm.db.farm_models import LEASES
from tunefarm.db.models import JOBS, TRIALS
from tunefarm.db.records import OPEN

ALIVE_S = 15.0

router = APIRouter(prefix="/live", include_in_schema=False)


@router.get("/overview")
async def overview(request: Request, seen: str = "") -> StreamingResponse:
    return _events(request, Subject("overview", farm_mark), seen)


@router.get("/jobs/{job}")
async def job(request: Request, job: str, seen: str = "") -> StreamingResponse:
    return _events(request, Subject(("job", job), lambda db: job_mark(db, job)), seen)


def job_mark(connection: Connection, job: str) -> Mark:
    """What differs whenever the job's page would show something else."""
    state, revision = jobs.standing(connection, job)
    begun = "begun" if jobs.is_beginning(connection, job) else ""
    return Mark(f"{revision}{begun}", state)


def farm_mark(connection: Connection) -> Mark:
    """What differs whenever the overview would show something else."""
    is_open = JOBS.c.state.in_([str(state) for state in OPEN])
    is_live = LEASES.c.ended_at.is_(None)
    open_jobs = select(func.count(), func.sum(JOBS.c.revision)).where(is_open)
    live_leases = select(func.count(), func.max(LEASES.c.epoch)).where(is_live)
    numbers = (
        connection.execute(select(func.max(TRIALS.c.id))).scalar(),
        *connection.execute(open_jobs).one(),
        *connection.execute(live_leases).one(),
    )
    return Mark("-".join(str(number or 0) for number in numbers))


def _events(request: Request, subject: Subject, seen: str) -> StreamingResponse:
    """The events since what a page shows; browsers that come back say what they heard last."""
    last = Mark.parse(request.headers.get("last-event-id") or seen)
    return StreamingResponse(
        changes(request.app.state.watch, subject, last),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def changes(watch: Watch, subject: Subject, seen: Mark | None) -> AsyncIterator[str]:
    """An event for each change that is told, and a comment now and then so that proxies keep the
    connection."""
    with watch.following(subject, seen) as viewer:
        yield ": alive\n\n"
        while True:
            try:
                mark, has_turned = await asyncio.wait_for(viewer.news.get(), ALIVE_S)
            except TimeoutError:
                yield ": alive\n\n"
                continue
            if has_turned:
                yield f"event: state\nid: {mark}\ndata: 1\n\n"
            yield f"event: change\nid: {mark}\ndata: 1\n\n"

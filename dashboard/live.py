"""Server-sent events: that something changed; pages then fetch the part that shows it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from sqlalchemy import Connection, func, select
from starlette.concurrency import run_in_threadpool
from tunefarm.dashboard.queries import jobs
from tunefarm.db.errors import StoreError
from tunefarm.db.models import JOBS, LEASES, TRIALS
from tunefarm.db.store import Store

LOOK_S = 1.0
ALIVE_S = 15.0

router = APIRouter(prefix="/live", include_in_schema=False)


@router.get("/overview")
async def overview(request: Request) -> StreamingResponse:
    return _events(request, farm_mark)


@router.get("/jobs/{job}")
async def job(request: Request, job: str) -> StreamingResponse:
    return _events(request, lambda connection: job_mark(connection, job))


def job_mark(connection: Connection, job: str) -> Mark:
    """What differs whenever the job's page would show something else."""
    state, revision = jobs.standing(connection, job)
    return Mark(revision, state)


@dataclass(frozen=True, slots=True)
class Mark:
    """What differs when a page would show something else. ``state`` changes rarely, and has an
    event of its own: what people may be typing into hangs on that alone."""

    content: object
    state: str = ""


def farm_mark(connection: Connection) -> Mark:
    """What differs whenever the overview would show something else."""
    is_open = JOBS.c.state.in_([str(state) for state in jobs.OPEN])
    is_live = LEASES.c.ended_at.is_(None)
    open_jobs = select(func.count(), func.sum(JOBS.c.revision)).where(is_open)
    live_leases = select(func.count(), func.max(LEASES.c.epoch)).where(is_live)
    return Mark(
        (
            connection.execute(select(func.max(TRIALS.c.id))).scalar(),
            tuple(connection.execute(open_jobs).one()),
            tuple(connection.execute(live_leases).one()),
        )
    )


def _events(request: Request, mark: Callable[[Connection], Mark]) -> StreamingResponse:
    store: Store = request.app.state.store
    return StreamingResponse(
        changes(request, store, mark),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},
    )


async def changes(
    request: Request, store: Store, mark: Callable[[Connection], Mark]
) -> AsyncIterator[str]:
    """An event each time the mark differs, and a comment now and then so that proxies keep the
    connection; ends with the client."""
    last = await run_in_threadpool(_read, store, mark)
    quiet_s = ALIVE_S
    while not await request.is_disconnected():
        if quiet_s >= ALIVE_S:
            yield ": alive\n\n"
            quiet_s = 0.0
        await asyncio.sleep(LOOK_S)
        quiet_s += LOOK_S
        found = await run_in_threadpool(_read, store, mark)
        if found is not None and found != last:
            if last is not None and found.state != last.state:
                yield "event: state\ndata: 1\n\n"
            last, quiet_s = found, 0.0
            yield "event: change\ndata: 1\n\n"


def _read(store: Store, mark: Callable[[Connection], Mark]) -> Mark | None:
    """The mark; None while the database does not answer."""
    try:
        with store.reading() as connection:
            return mark(connection)
    except StoreError:
        return None

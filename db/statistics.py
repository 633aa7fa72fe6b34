"""Counts over the whole database, for those that watch a farm."""

from __future__ import annotations

from collections import Counter

from sqlalchemy import Connection, func, select
from tunefarm.db.farm_models import REQUESTS
from tunefarm.db.models import JOBS, TRIALS
from tunefarm.db.records import JobState

OK = "ok"
"""The outcome of a trial that has a time; the others' is their error kind."""


def jobs_by_state(connection: Connection) -> Counter[JobState]:
    query = select(JOBS.c.state, func.count()).group_by(JOBS.c.state)
    return Counter({JobState(state): n for state, n in connection.execute(query)})


def queued_by_priority(connection: Connection) -> Counter[int]:
    """Jobs that wait for a tuner."""
    query = select(JOBS.c.priority, func.count()).where(JOBS.c.state == str(JobState.QUEUED))
    rows = connection.execute(query.group_by(JOBS.c.priority))
    return Counter(dict(row.tuple() for row in rows))


def pending(connection: Connection) -> int:
    """Candidates that are submitted and have no result."""
    return connection.execute(select(func.count()).select_from(REQUESTS)).scalar_one()


def last_trial(connection: Connection) -> int:
    """The highest id of a trial; 0 if there is none."""
    return connection.execute(select(func.max(TRIALS.c.id))).scalar_one() or 0


def outcomes(connection: Connection, after: int, until: int | None) -> Counter[str]:
    """Trials stored with ids in (after, until], by outcome; finals too."""
    query = select(TRIALS.c.error, func.count()).where(TRIALS.c.id > after)
    if until is not None:
        query = query.where(TRIALS.c.id <= until)
    rows = connection.execute(query.group_by(TRIALS.c.error))
    return Counter({error or OK: n for error, n in rows})

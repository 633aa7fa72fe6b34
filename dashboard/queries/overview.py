"""What the first page shows of the whole farm."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select
from tunefarm.db.models import FINALS, JOBS, TARGETS, TASKS, TRIALS, WORKLOADS

RECENT_TRIALS = 5_000
"""The newest trials are where pages look for what fails and how fast measuring goes."""
WINS = 8


@dataclass(frozen=True, slots=True)
class Win:
    """A final that put its challenger into the key; ``speedup`` is over the default where it met
    it, over the incumbent else."""

    trial_id: int
    workload: str
    workload_id: int
    target_id: int
    summary: str
    target: str
    median_s: float
    speedup: float | None
    at: float


@dataclass(frozen=True, slots=True)
class Totals:
    """Counts of the database; ``hour`` counts trials of the last hour, among the newest
    ``RECENT_TRIALS``, and ``errors`` failed ones of these by cause, out of ``seen``."""

    candidates: int
    failed: int
    tasks: int
    jobs: Mapping[str, int]
    hour: int
    seen: int
    errors: Mapping[str, int]

    @property
    def is_hour_cut(self) -> bool:
        """Whether there may have been more trials in the hour than were looked at."""
        return self.hour == self.seen == RECENT_TRIALS


def totals(connection: Connection) -> Totals:
    counts = connection.execute(
        select(func.count(), func.sum(TASKS.c.ok), func.sum(TASKS.c.failed)).select_from(TASKS)
    ).one()
    by_state = connection.execute(select(JOBS.c.state, func.count()).group_by(JOBS.c.state))
    jobs = {row[0]: row[1] for row in by_state}
    newest = (
        select(TRIALS.c.error, TRIALS.c.created_at)
        .order_by(TRIALS.c.id.desc())
        .limit(RECENT_TRIALS)
        .subquery()
    )
    young = newest.c.created_at > time.time() - 3600
    grouped = select(newest.c.error, func.count(), func.count().filter(young))
    rows = connection.execute(grouped.group_by(newest.c.error)).all()
    errors = {error: number for error, number, _ in rows if error}
    return Totals(
        candidates=(counts[1] or 0) + (counts[2] or 0),
        failed=counts[2] or 0,
        tasks=counts[0],
        jobs=jobs,
        hour=sum(hour for *_, hour in rows),
        seen=sum(number for _, number, _ in rows),
        errors=dict(sorted(errors.items(), key=lambda item: -item[1])),
    )


def wins(connection: Connection, limit: int = WINS) -> tuple[Win, ...]:
    """The latest promotions, newest first."""
    query = (
        select(
            FINALS.c.challenger_id,
            FINALS.c.speedup,
            FINALS.c.speedup_over_default,
            FINALS.c.created_at,
            func.coalesce(FINALS.c.latency_s, TRIALS.c.median_s).label("median_s"),
            TRIALS.c.workload_id,
            TRIALS.c.target_id,
            WORKLOADS.c.key,
            WORKLOADS.c.summary,
            TARGETS.c.text,
        )
        .join(TRIALS, TRIALS.c.id == FINALS.c.challenger_id)
        .join(WORKLOADS, WORKLOADS.c.id == TRIALS.c.workload_id)
        .join(TARGETS, TARGETS.c.id == TRIALS.c.target_id)
        .where(FINALS.c.promoted.is_(True), TRIALS.c.number > 0)
        .order_by(FINALS.c.id.desc())
        .limit(limit)
    )
    return tuple(_win(row) for row in connection.execute(query))


def _win(row: Any) -> Win:
    return Win(
        trial_id=row.challenger_id,
        workload=row.key,
        workload_id=row.workload_id,
        target_id=row.target_id,
        summary=row.summary or row.key[:12],
        target=row.text,
        median_s=row.median_s,
        speedup=row.speedup_over_default or row.speedup,
        at=row.created_at,
    )

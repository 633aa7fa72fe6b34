"""Trials as lists show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, String, cast, or_, select
from tunefarm.dashboard.paging import PAGE_ROWS, Page, page_of, parse_cursor
from tunefarm.db.models import TARGETS, TRIALS, WORKLOADS

LOOKED_AT = 10_000
"""A search reads so many of the newest trials at most."""


@dataclass(frozen=True, slots=True)
class TrialLine:
    """A trial; ``latency_s`` is the median of its repeats, None if it failed."""

    id: int
    job: str
    workload_id: int
    target_id: int
    summary: str
    target: str
    number: int
    config: Mapping[str, Any]
    latency_s: float | None
    error: str | None
    message: str
    origin: str
    predicted: float | None
    device: str
    created_at: float


def trials(
    connection: Connection,
    *,
    job: str = "",
    task: tuple[int, int] | None = None,
    outcome: str = "",
    text: str = "",
    cursor: str = "",
    limit: int = PAGE_ROWS,
) -> Page[TrialLine]:
    """Trials, newest first: of a job, of a task (workload and target id), ``ok``, ``failed`` or of
    one error kind, and with ``text`` in config, message, origin or device.

    A search of ``outcome`` or ``text`` looks at ``LOOKED_AT`` trials before the cursor.
    """
    columns = TRIALS.c
    chosen = select(columns.id).order_by(columns.id.desc())
    if job:
        chosen = chosen.where(columns.job == job)
    if task is not None:
        chosen = chosen.where(columns.workload_id == task[0], columns.target_id == task[1])
    after = parse_cursor(cursor, int)
    if after is not None:
        chosen = chosen.where(columns.id < after[0])
    looked = LOOKED_AT if outcome or text else limit + 1
    query = _lines().where(columns.id.in_(chosen.limit(looked).scalar_subquery()))
    if outcome == "ok":
        query = query.where(columns.error.is_(None))
    elif outcome:
        is_failed = columns.error.is_not(None)
        query = query.where(is_failed if outcome == "failed" else columns.error == outcome)
    if text:
        places = (cast(columns.config, String), columns.message, columns.origin, columns.device)
        query = query.where(or_(*(one.icontains(text, autoescape=True) for one in places)))
    rows = connection.execute(query.order_by(columns.id.desc()).limit(limit + 1)).all()
    return page_of([_line(row) for row in rows], limit, lambda line: (line.id,))


def _lines() -> Any:
    source = TRIALS.join(WORKLOADS, WORKLOADS.c.id == TRIALS.c.workload_id).join(
        TARGETS, TARGETS.c.id == TRIALS.c.target_id
    )
    columns = TRIALS.c
    return select(
        columns.id, columns.job, columns.workload_id, columns.target_id, WORKLOADS.c.summary,
        WORKLOADS.c.key, TARGETS.c.text, columns.number, columns.config, columns.median_s,
        columns.error, columns.message, columns.origin, columns.predicted, columns.device,
        columns.created_at,
    ).select_from(source)  # fmt: skip


def _line(row: Any) -> TrialLine:
    return TrialLine(
        id=row.id,
        job=row.job,
        workload_id=row.workload_id,
        target_id=row.target_id,
        summary=row.summary or row.key[:12],
        target=row.text,
        number=row.number,
        config=row.config,
        latency_s=row.median_s,
        error=row.error,
        message=row.message,
        origin=row.origin,
        predicted=row.predicted,
        device=row.device,
        created_at=row.created_at,
    )

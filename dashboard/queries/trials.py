"""Trials as lists show them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, String, cast, or_, select, tuple_
from tunefarm.dashboard.datasets import Dataset, dataset
from tunefarm.dashboard.paging import PAGE_ROWS, Page, page_of, parse_cursor
from tunefarm.db.models import TARGETS, TRIALS, WORKLOADS

LOOKED_AT = 10_000
"""A search reads so many of the newest trials at most."""
WHOLE = 100_000
"""So many trials are downloaded at most."""


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
    fastest: bool = False,
    cursor: str = "",
    limit: int = PAGE_ROWS,
) -> Page[TrialLine]:
    """Trials, newest first: of a job, of a task (workload and target id), ``ok``, ``failed`` or of
    one error kind, and with ``text`` in config, message, origin or device.

    A search of ``outcome`` or ``text`` looks at ``LOOKED_AT`` trials before the cursor. Those of a
    job or task may also come with the ``fastest`` first; failed ones do not.
    """
    columns = TRIALS.c
    if fastest and (job or task is not None):
        return _fastest(connection, job, task, outcome, text, cursor, limit)
    chosen = _of(job, task).order_by(columns.id.desc())
    after = parse_cursor(cursor, int)
    if after is not None:
        chosen = chosen.where(columns.id < after[0])
    looked = LOOKED_AT if outcome or text else limit + 1
    query = _lines().where(columns.id.in_(chosen.limit(looked).scalar_subquery()))
    query = _matching(query, outcome, text)
    rows = connection.execute(query.order_by(columns.id.desc()).limit(limit + 1)).all()
    return page_of([_line(row) for row in rows], limit, lambda line: (line.id,))


def _fastest(
    connection: Connection,
    job: str,
    task: tuple[int, int] | None,
    outcome: str,
    text: str,
    cursor: str,
    limit: int,
) -> Page[TrialLine]:
    """``trials`` by their latency."""
    columns = TRIALS.c
    chosen = _of(job, task).where(columns.median_s.is_not(None))
    after = parse_cursor(cursor, float, int)
    if after is not None:
        chosen = chosen.where(tuple_(columns.median_s, columns.id) > after)
    query = _matching(_lines().where(columns.id.in_(chosen)), outcome, text)
    rows = connection.execute(query.order_by(columns.median_s, columns.id).limit(limit + 1)).all()
    return page_of([_line(row) for row in rows], limit, lambda line: (line.latency_s, line.id))


def _of(job: str, task: tuple[int, int] | None) -> Select[Any]:
    """The ids of trials of a job, of a task, or of all."""
    chosen = select(TRIALS.c.id)
    if job:
        chosen = chosen.where(TRIALS.c.job == job)
    if task is not None:
        chosen = chosen.where(TRIALS.c.workload_id == task[0], TRIALS.c.target_id == task[1])
    return chosen


def _matching(query: Select[Any], outcome: str, text: str) -> Select[Any]:
    """Those with an outcome, and that mention a text."""
    columns = TRIALS.c
    if outcome == "ok":
        query = query.where(columns.error.is_(None))
    elif outcome:
        is_failed = columns.error.is_not(None)
        query = query.where(is_failed if outcome == "failed" else columns.error == outcome)
    if text:
        places = (cast(columns.config, String), columns.message, columns.origin, columns.device)
        query = query.where(or_(*(one.icontains(text, autoescape=True) for one in places)))
    return query


def whole(connection: Connection, *, job: str, task: tuple[int, int] | None = None) -> Dataset:
    """Every trial of a job or a task, of the newest ``WHOLE``, with a column for each knob."""
    columns = TRIALS.c
    newest = _of(job, task).order_by(columns.id.desc()).limit(WHOLE)
    query = (
        select(
            columns.id, columns.job, WORKLOADS.c.summary, columns.number, columns.origin,
            columns.created_at, columns.device, columns.predicted, columns.median_s,
            columns.error, columns.message, columns.config,
        )
        .join(WORKLOADS, WORKLOADS.c.id == columns.workload_id)
        .where(columns.id.in_(newest.scalar_subquery()))
        .order_by(columns.id)
    )  # fmt: skip
    rows = connection.execute(query).all()
    knobs = sorted({name for row in rows for name in row.config})
    return dataset(
        "trials",
        ("id", "job", "task", "number", "origin", "at_s", "device", "predicted", "latency_s",
         "error", "message", *(f"knob_{name}" for name in knobs)),
        [(*row[:-1], *(row.config.get(name) for name in knobs)) for row in rows],
    )  # fmt: skip


def _lines() -> Select[Any]:
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

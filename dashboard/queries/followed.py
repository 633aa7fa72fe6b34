"""Trials of a job that its charts draw, read once: what was read grows by what came since.

Trials are never changed, and those of an open job never deleted; their ids are in the order in
which readers come to see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, func, select
from tunefarm.db.models import TRIALS
from tunefarm.db.records import FINAL

PHASES = ("build", "check", "run")


class Step(NamedTuple):
    """A candidate that was faster than all of its task before, the ``place``-th of its job."""

    id: int
    workload_id: int
    place: int
    created_at: float
    median_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a job; ``last`` is the newest candidate that was read, the ``count``-th."""

    rows: tuple[Step, ...] = ()
    last: int = 0
    count: int = 0


def steps(connection: Connection, job: str, known: Steps | None = None) -> Steps:
    """The steps of a job, of which some are known."""
    return _more_steps(connection, job, known) if known else _all_steps(connection, job)


def _more_steps(connection: Connection, job: str, known: Steps) -> Steps:
    columns = TRIALS.c
    query = _candidates(
        job, columns.id, columns.workload_id, columns.created_at, columns.median_s, columns.times_s
    )
    best = {step.workload_id: step.median_s for step in known.rows}
    found, last, count = list(known.rows), known.last, known.count
    for id_, workload, at, median_s, times_s in connection.execute(query.where(columns.id > last)):
        last, count = id_, count + 1
        if median_s is not None and median_s < best.get(workload, float("inf")):
            best[workload] = median_s
            found.append(Step(id_, workload, count, at, median_s, min(times_s), max(times_s)))
    return Steps(tuple(found), last, count)


def _all_steps(connection: Connection, job: str) -> Steps:
    """``_more_steps`` of nothing, left to the database."""
    columns = TRIALS.c
    newest = _candidates(job, func.max(columns.id)).order_by(None)
    last = connection.execute(newest).scalar() or 0
    before = func.min(columns.median_s).over(
        partition_by=columns.workload_id, order_by=columns.id, rows=(None, -1)
    )
    count = func.row_number().over(order_by=columns.id)
    seen = (
        _candidates(
            job, columns.id, columns.workload_id, count.label("count"), columns.created_at,
            columns.median_s, before.label("before"),
        )
        .where(columns.id <= last)
        .subquery()
    )  # fmt: skip
    is_step = seen.c.before.is_(None) | (seen.c.median_s < seen.c.before)
    query = (
        select(
            seen.c.id, seen.c.workload_id, seen.c.count, seen.c.created_at, seen.c.median_s,
            columns.times_s,
        )
        .join(TRIALS, columns.id == seen.c.id)
        .where((seen.c.median_s.is_not(None) & is_step) | (seen.c.id == last))
        .order_by(seen.c.id)
    )  # fmt: skip
    found: list[Step] = []
    best: dict[int, float] = {}
    total = 0
    for id_, workload, number, at, median_s, times_s in connection.execute(query):
        total = number
        if median_s is not None and median_s < best.get(workload, float("inf")):
            best[workload] = median_s
            found.append(Step(id_, workload, number, at, median_s, min(times_s), max(times_s)))
    return Steps(tuple(found), last, total)


class Point(NamedTuple):
    """A candidate as it is drawn."""

    id: int
    workload_id: int
    number: int
    created_at: float
    sketch: str | None
    origin: str
    predicted: float | None
    median_s: float | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Points:
    """Candidates of a job whose number is a multiple of ``step``."""

    rows: tuple[Point, ...]
    step: int


def points(
    connection: Connection,
    job: str,
    workloads: Sequence[int],
    step: int,
    known: Points | None = None,
) -> Points:
    """Each ``step``-th candidate of some tasks of a job; what is known with another step is read
    anew."""
    columns = TRIALS.c
    query = _candidates(
        job, columns.id, columns.workload_id, columns.number, columns.created_at,
        columns.config["sketch"].as_string(), columns.origin, columns.predicted, columns.median_s,
        columns.error,
    ).where(columns.workload_id.in_(workloads), columns.number % step == 0)  # fmt: skip
    before = known.rows if known is not None and known.step == step else ()
    if before:
        query = query.where(columns.id > before[-1].id)
    return Points((*before, *(Point(*row) for row in connection.execute(query))), step)


class Phases(NamedTuple):
    """Seconds that trials of a job spent in each of ``PHASES``, up to the trial ``last``."""

    last: int
    seconds: tuple[float, ...]


def phases(connection: Connection, job: str, known: Phases | None = None) -> Phases:
    """The seconds of a job, of which some are known."""
    last, before = known or Phases(0, (0.0,) * len(PHASES))
    sums = [func.coalesce(func.sum(TRIALS.c.phases_s[name].as_float()), 0.0) for name in PHASES]
    query = select(func.max(TRIALS.c.id), *sums).where(TRIALS.c.job == job, TRIALS.c.id > last)
    newest, *more = connection.execute(query).one()
    seconds = tuple(old + float(new) for old, new in zip(before, more, strict=True))
    return Phases(newest or last, seconds)


def _candidates(job: str, *columns: Any) -> Select[Any]:
    """Of the candidates of a job, in their order."""
    return (
        select(*columns).where(TRIALS.c.job == job, TRIALS.c.origin != FINAL).order_by(TRIALS.c.id)
    )

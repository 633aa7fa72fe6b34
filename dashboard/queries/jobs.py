"""Jobs and their tasks, as lists and pages show them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, exists, func, not_, or_, select, tuple_
from tunefarm.dashboard.paging import PAGE_ROWS, Page, page_of, parse_cursor
from tunefarm.dashboard.queries.promoted import Built, built
from tunefarm.db import stored_jobs
from tunefarm.db.errors import UnknownRecord
from tunefarm.db.farm_models import REQUESTS
from tunefarm.db.models import JOB_TASKS, JOBS, TARGETS, TRIALS, WORKLOADS
from tunefarm.db.records import OPEN, JobState
from tunefarm.db.whole_models import NAME_OF_JOB

from tunefarm.texts import beginning

_WORKLOADS = 500
_ID_DIGITS = 4


@dataclass(frozen=True, slots=True)
class JobLine:
    """A job with the counts of its candidates; latencies in seconds, weighted over its tasks that
    have both a default and a best, None while none has: the fastest candidates seen of a job that
    is open, what builds got at the end of one that is over. ``under_way`` candidates were submitted
    and have no result. ``main`` is the task of the most time; ``model`` is the digest of the model
    that it tunes, empty if it was submitted without."""

    id: str
    state: str
    target: str
    main: str
    tasks: int
    done: int
    failed: int
    under_way: int
    budget: int
    default_s: float | None
    best_s: float | None
    priority: int
    owner: str
    message: str
    created_at: float
    updated_at: float
    revision: int
    budget_s: float | None
    options: Mapping[str, Any]
    selector: str
    compiler_version: str
    claimed_by: str
    target_id: int
    model: str
    model_name: str
    note: str
    noted_by: str
    noted_at: float | None

    @property
    def speedup(self) -> float | None:
        """How much faster the tuned tasks are than their defaults."""
        return self.default_s / self.best_s if self.default_s and self.best_s else None

    @property
    def earlier(self) -> int:
        """Candidates of before that count towards the budget."""
        word = str(self.options.get("earlier", "0"))
        return int(word) if word.isdecimal() else 0

    @property
    def share(self) -> float:
        """The share of the budget that is used."""
        return min(1.0, (self.done + self.earlier) / max(1, self.budget))

    @property
    def is_open(self) -> bool:
        return self.state in OPEN

    @property
    def beginning(self) -> str:
        """What an open job without a candidate does, empty of others."""
        if self.done or not self.is_open:
            return ""
        return beginning(self.state, self.under_way, bool(self.compiler_version))

    @property
    def left_s(self) -> float | None:
        """Seconds to go at the rate so far, None if that says nothing."""
        passed = self.updated_at - self.created_at
        todo = self.budget - self.done - self.earlier
        if self.state != JobState.RUNNING or not self.done or passed <= 0:
            return None
        left = max(0.0, todo * passed / self.done)
        if self.budget_s is not None:
            left = min(left, max(0.0, self.created_at + self.budget_s - time.time()))
        return left


@dataclass(frozen=True, slots=True)
class TaskLine:
    """A task within a job; latencies in seconds."""

    position: int
    workload_id: int
    target_id: int
    workload: str
    summary: str
    flops: int
    weight: int
    ok: int
    failed: int
    best_s: float | None
    default_s: float | None
    errors: Mapping[str, int]

    @property
    def speedup(self) -> float | None:
        return self.default_s / self.best_s if self.default_s and self.best_s else None

    @property
    def flops_s(self) -> float | None:
        """Nominal operations a second of the best."""
        return self.flops / self.best_s if self.best_s and self.flops else None

    @property
    def time_s(self) -> float | None:
        """Seconds in a run of the model."""
        return self.weight * self.best_s if self.best_s else None


def jobs(
    connection: Connection,
    *,
    states: Sequence[str] = (),
    text: str = "",
    model: tuple[str, int] | None = None,
    cursor: str = "",
    limit: int = PAGE_ROWS,
) -> Page[JobLine]:
    """Jobs, newest first: in these states (all if none is named), with ``text`` at the start of the
    id, or in the target, the owner, the message, the note, the model's name or a task's summary,
    and of a model (digest and target id) if one is named."""
    query = (
        stored_jobs.with_names()
        .order_by(JOBS.c.created_at.desc(), JOBS.c.id.desc())
        .limit(limit + 1)
    )
    if states:
        query = query.where(JOBS.c.state.in_(states))
    if text:
        query = query.where(_mentions(connection, text))
    if model is not None:
        query = query.where(JOBS.c.model == model[0], JOBS.c.target_id == model[1])
    after = parse_cursor(cursor, float, str)
    if after is not None:
        query = query.where(tuple_(JOBS.c.created_at, JOBS.c.id) < after)
    rows = connection.execute(query).all()
    found = page_of(rows, limit, lambda row: (repr(row.created_at), row.id))
    return Page(_lines(connection, found.rows), found.next)


def job(connection: Connection, name: str) -> JobLine:
    """The job of this id, or of the only one that begins so; UnknownRecord if there is none."""
    rows = connection.execute(stored_jobs.with_names().where(JOBS.c.id == name)).all()
    if not rows and len(name) >= _ID_DIGITS:
        starts = JOBS.c.id.startswith(name, autoescape=True)
        rows = connection.execute(stored_jobs.with_names().where(starts).limit(2)).all()
    if len(rows) != 1:
        many = "several jobs begin" if rows else "no job begins"
        raise UnknownRecord(f"{many} with {name!r}; the list of jobs has all ids")
    return _lines(connection, rows)[0]


def standing(connection: Connection, job: str) -> tuple[str, int]:
    """The job's state, and what rises with each change of it; empty and 0 if there is none."""
    query = select(JOBS.c.state, JOBS.c.revision).where(JOBS.c.id == job)
    row = connection.execute(query).one_or_none()
    return (row.state, row.revision) if row is not None else ("", 0)


def is_beginning(connection: Connection, job: str) -> bool:
    """Whether candidates of a job were submitted and none has ended."""
    has_request = exists().where(REQUESTS.c.job == job)
    has_trial = exists().where(TRIALS.c.job == job)
    return bool(connection.execute(select(and_(has_request, not_(has_trial)))).scalar())


def tasks(connection: Connection, job: str) -> tuple[TaskLine, ...]:
    """The tasks of a job in its order."""
    query = (
        select(JOB_TASKS, WORKLOADS.c.key, WORKLOADS.c.summary, WORKLOADS.c.flops, JOBS.c.target_id)
        .join(WORKLOADS, WORKLOADS.c.id == JOB_TASKS.c.workload_id)
        .join(JOBS, JOBS.c.id == JOB_TASKS.c.job)
        .where(JOB_TASKS.c.job == job)
        .order_by(JOB_TASKS.c.position)
    )
    return tuple(_task(row) for row in connection.execute(query))


def pace(connection: Connection, job: str) -> float | None:
    """Candidates an hour over the job's last hundred, None if there are fewer than two."""
    query = (
        select(TRIALS.c.created_at)
        .where(TRIALS.c.job == job)
        .order_by(TRIALS.c.id.desc())
        .limit(100)
    )
    times = [float(at) for at in connection.execute(query).scalars()]
    passed = max(times) - min(times) if times else 0.0
    return 3600 * (len(times) - 1) / passed if passed > 0 else None


def _mentions(connection: Connection, text: str) -> Any:
    """Whether a job mentions the text, itself or by one of the newest ``_WORKLOADS`` that do; asked
    job by job, so that the newest matches are found without reading all."""
    summary = WORKLOADS.c.summary.icontains(text, autoescape=True)
    newest = select(WORKLOADS.c.id).where(summary).order_by(WORKLOADS.c.id.desc()).limit(_WORKLOADS)
    ids = list(connection.execute(newest).scalars())
    has_task = exists().where(JOB_TASKS.c.job == JOBS.c.id, JOB_TASKS.c.workload_id.in_(ids))
    said = (TARGETS.c.text, JOBS.c.owner, JOBS.c.message, JOBS.c.note, NAME_OF_JOB)
    return or_(
        JOBS.c.id.startswith(text, autoescape=True),
        *(column.icontains(text, autoescape=True) for column in said),
        has_task.correlate(JOBS),
    )


def _lines(connection: Connection, rows: Iterable[Any]) -> tuple[JobLine, ...]:
    found = list(rows)
    sums = _sums(connection, [row.id for row in found])
    for name, latencies in _built(connection, [r.id for r in found if r.state not in OPEN]).items():
        sums[name] |= latencies
    return tuple(_line(row, sums.get(row.id)) for row in found)


def _sums(connection: Connection, ids: Sequence[str]) -> dict[str, Any]:
    """Counts and weighted latencies of jobs."""
    columns = JOB_TASKS.c
    both = and_(columns.best_s.is_not(None), columns.default_s.is_not(None))
    query = (
        select(
            columns.job,
            func.count().label("tasks"),
            func.sum(columns.ok + columns.failed).label("done"),
            func.sum(columns.failed).label("failed"),
            func.sum(columns.weight * columns.best_s).filter(both).label("best_s"),
            func.sum(columns.weight * columns.default_s).filter(both).label("default_s"),
        )
        .where(columns.job.in_(ids))
        .group_by(columns.job)
    )
    found = {row.job: {**row._mapping, "main": ""} for row in connection.execute(query)}
    for name, under_way in connection.execute(_under_way(ids)):
        found[name]["under_way"] = under_way
    for name, summary in _main_tasks(connection, ids):
        found[name]["main"] = summary
    return found


def _under_way(ids: Sequence[str]) -> Select[Any]:
    """The jobs that have candidates without results, and how many."""
    query = select(REQUESTS.c.job, func.count()).where(REQUESTS.c.job.in_(ids))
    return query.group_by(REQUESTS.c.job)


def _built(connection: Connection, ids: Sequence[str]) -> dict[str, dict[str, float | None]]:
    """Weighted latencies of jobs that are over, as builds got them then."""
    both: dict[str, list[Built]] = {name: [] for name in ids}
    for task in built(connection, ids):
        if task.default_s and task.best_s:
            both[task.job].append(task)
    return {
        name: {
            "default_s": sum(one.weight * (one.default_s or 0.0) for one in tasks) or None,
            "best_s": sum(one.weight * (one.best_s or 0.0) for one in tasks) or None,
        }
        for name, tasks in both.items()
    }


def _main_tasks(connection: Connection, ids: Sequence[str]) -> Iterable[Any]:
    """The summary of each job's task that takes, or computes, the most."""
    columns = JOB_TASKS.c
    cost = columns.weight * func.coalesce(columns.default_s, columns.best_s, 0.0)
    order = func.row_number().over(
        partition_by=columns.job,
        order_by=(cost.desc(), (columns.weight * WORKLOADS.c.flops).desc()),
    )
    ranked = (
        select(columns.job, WORKLOADS.c.summary, order.label("place"))
        .join(WORKLOADS, WORKLOADS.c.id == columns.workload_id)
        .where(columns.job.in_(ids))
        .subquery()
    )
    query = select(ranked.c.job, ranked.c.summary).where(ranked.c.place == 1)
    return (tuple(row) for row in connection.execute(query))


def _line(row: Any, sums: Mapping[str, Any] | None) -> JobLine:
    counts = sums or {}
    return JobLine(
        id=row.id,
        state=row.state,
        target=row.target,
        main=counts.get("main", ""),
        tasks=counts.get("tasks", 0),
        done=counts.get("done", 0),
        failed=counts.get("failed", 0),
        under_way=counts.get("under_way", 0),
        budget=row.budget_trials,
        default_s=counts.get("default_s"),
        best_s=counts.get("best_s"),
        priority=row.priority,
        owner=row.owner,
        message=row.message,
        created_at=row.created_at,
        updated_at=row.updated_at,
        revision=row.revision,
        budget_s=row.budget_s,
        options=row.options,
        selector=row.selector,
        compiler_version=row.compiler_version or "",
        claimed_by=row.claimed_by,
        target_id=row.target_id,
        model=row.model if row.model_name else "",
        model_name=row.model_name or "",
        note=row.note,
        noted_by=row.noted_by,
        noted_at=row.noted_at,
    )


def _task(row: Any) -> TaskLine:
    return TaskLine(
        position=row.position,
        workload_id=row.workload_id,
        target_id=row.target_id,
        workload=row.key,
        summary=row.summary or row.key[:12],
        flops=row.flops,
        weight=row.weight,
        ok=row.ok,
        failed=row.failed,
        best_s=row.best_s,
        default_s=row.default_s,
        errors=row.errors,
    )

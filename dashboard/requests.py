"""What handlers of pages and of the API ask for alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, TypeVar
from urllib.parse import parse_qs

from fastapi import Depends, HTTPException, Query, Request
from fastapi.responses import JSONResponse, Response
from sqlalchemy import Connection
from tunefarm.dashboard.datasets import Cell, Dataset, to_csv
from tunefarm.dashboard.memo import Memo
from tunefarm.dashboard.queries import curves, models, records, settled
from tunefarm.dashboard.queries import jobs as job_queries
from tunefarm.dashboard.queries.followed import Points, Steps, phases, steps
from tunefarm.dashboard.queries.jobs import JobLine, TaskLine
from tunefarm.dashboard.queries.several import MOST, Course, shared
from tunefarm.db.errors import UnknownRecord
from tunefarm.db.store import Store


def _reading(request: Request) -> Iterator[Connection]:
    store: Store = request.app.state.store
    with store.reading() as connection:
        yield connection


def record_of(request: Request, id: int) -> records.Record:
    """A trial, read at once: no connection is kept while its code is made."""
    store: Store = request.app.state.store
    with store.reading() as connection:
        return records.record(connection, id)


def model_of(request: Request, digest: str, target_id: int) -> tuple[models.Model, dict[int, str]]:
    """A model and the texts of its workloads by number, read at once like ``record_of``."""
    store: Store = request.app.state.store
    with store.reading() as connection:
        found = models.model(connection, digest, target_id)
        return found, models.texts(connection, found)


Reading = Annotated[Connection, Depends(_reading)]
"""A consistent view of the database, for as long as the request is answered."""
Text = Annotated[str, Query(max_length=200, description="What rows have to mention.")]
Cursor = Annotated[str, Query(max_length=200, description="`next` of the page before.")]
Hours = Annotated[int, Query(ge=1, le=24 * 31, description="Length of the window.")]
After = Annotated[int, Query(ge=0, description="Rows after this trial alone.")]
Limit = Annotated[int, Query(ge=1, le=500, description="Rows of a page.")]


MAX_FORM_BYTES = 16 << 10


async def form_of(request: Request) -> dict[str, str]:
    """The fields of a form that was sent; 413 if it is too long."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_FORM_BYTES:
            raise HTTPException(413, f"a form is {MAX_FORM_BYTES} bytes long at most")
    return {name: values[0] for name, values in parse_qs(body.decode("utf-8", "replace")).items()}


Shown = TypeVar("Shown")
LARGE = 2_000
LARGE_EVERY_S = 10.0
"""So often the outcome of running jobs of ``LARGE`` candidates is read anew, in seconds."""


@dataclass(frozen=True, slots=True)
class Curves:
    """The charts of a job as it stands, or of some of its tasks."""

    memo: Memo
    db: Connection
    job: JobLine
    tasks: tuple[TaskLine, ...]

    def best_so_far(self, after: int = 0) -> Dataset:
        """The steps after a trial."""
        return curves.best_so_far(self.db, self.job, self.tasks, known=self.steps, after=after)

    @property
    def steps(self) -> Steps:
        """The steps of all tasks of the job."""
        return self._grown("steps", lambda seen: steps(self.db, self.job.id, seen))

    def points(self, after: int = 0, step: int = 0) -> Dataset:
        """The candidates after a trial for whoever has each ``step``-th of those before; all if
        others are drawn now."""
        known = self._drawn
        after = after if step == known.step else 0
        order = {} if after else self._order(known)
        return curves.points(self.db, self.job, self.tasks, known=known, order=order, after=after)

    @property
    def ranking(self) -> dict[str, Cell]:
        """The notes of all points."""
        known = self._drawn
        total = sum(task.ok + task.failed for task in self.tasks)
        return {"sampled": len(known.rows), "of": total, **self._order(known)}

    def _order(self, known: Points) -> dict[str, Cell]:
        """How well scores ordered the trials."""
        last = known.rows[-1].id if known.rows else 0
        key = ("order", self.job.id, self._positions, known.step, last)
        return self.memo.get(key, lambda: curves.ranking(known))

    @property
    def wall_time(self) -> curves.WallTime:
        known = self._grown("phases", lambda seen: phases(self.db, self.job.id, seen))
        return curves.wall_time(self.db, self.job, known)

    @property
    def outcome(self) -> settled.Outcome:
        """What the job has come to; records of one that is over may change."""
        if not self.job.is_open:
            return settled.outcome(self.db, self.job, self.tasks)
        key = ("outcome", self.job.id, self._mark, self._positions)
        return self.memo.get(key, lambda: settled.outcome(self.db, self.job, self.tasks))

    @property
    def _drawn(self) -> Points:
        return self._grown(
            f"points of {self._positions}",
            lambda seen: curves.drawn(self.db, self.job, self.tasks, seen),
        )

    def _grown(self, name: str, grow: Callable[[Shown | None], Shown]) -> Shown:
        """What is known of the job by this name, with what came since; of a job that is over trials
        may be deleted."""
        revision = -1 if self.job.is_open else self.job.revision
        return self.memo.grown((name, self.job.id, revision), grow)

    @property
    def _positions(self) -> tuple[int, ...]:
        return tuple(task.position for task in self.tasks)

    @property
    def _mark(self) -> float:
        """What differs when the job does; of large jobs that run, only now and then."""
        if self.job.is_open and self.job.done >= LARGE:
            return -(time.monotonic() // LARGE_EVERY_S)
        return self.job.revision


def curves_of(request: Request, db: Connection, job: JobLine, tasks: Sequence[TaskLine]) -> Curves:
    return Curves(request.app.state.memo, db, job, tuple(tasks))


Chosen = Annotated[
    list[str], Query(alias="job", description="Ids of jobs, or their first characters.")
]


def courses_of(
    request: Request, db: Connection, names: Sequence[str], workload: str
) -> tuple[list[Course], tuple[TaskLine, ...]]:
    """The jobs of one chart, by all their tasks or by the one whose workload's key begins so, and
    the tasks that they share.

    UnknownRecord for a job that is not there, or a task that they do not share.
    """
    chosen = list({job.id: job for job in (job_queries.job(db, name) for name in names)}.values())
    if not 1 <= len(chosen) <= MOST:
        raise HTTPException(422, f"{len(chosen)} jobs are chosen; a chart takes 1 to {MOST}")
    tasks = [job_queries.tasks(db, job.id) for job in chosen]
    common = shared(tasks)
    if workload and not any(task.workload.startswith(workload) for task in common):
        raise UnknownRecord(f"the jobs share no task whose key begins with {workload!r}")
    courses = []
    for job, own in zip(chosen, tasks, strict=True):
        looked_at = tuple(task for task in own if task.workload.startswith(workload))
        courses.append(Course(job, looked_at, curves_of(request, db, job, own).steps))
    return courses, common


class Order(StrEnum):
    """How a list of trials begins."""

    NEWEST = "newest"
    FASTEST = "fastest"


class Format(StrEnum):
    """How a dataset is sent."""

    JSON = "json"
    CSV = "csv"


def sent(data: Dataset, form: Format) -> Response:
    """The dataset as an answer; a CSV has a file name."""
    if form is Format.CSV:
        headers = {"Content-Disposition": f'attachment; filename="{data.name}.csv"'}
        return Response(to_csv(data), media_type="text/csv; charset=utf-8", headers=headers)
    content = {"name": data.name, "columns": dict(data.columns), "notes": dict(data.notes)}
    return JSONResponse(content)


def chosen_tasks(tasks: Sequence[TaskLine], position: int | None) -> tuple[TaskLine, ...]:
    """The task at a position of the job, all if none is named; UnknownRecord if there is none."""
    if position is None:
        return tuple(tasks)
    found = tuple(task for task in tasks if task.position == position)
    if not found:
        raise UnknownRecord(f"the job has no task {position}; it has {len(tasks)}, from 0")
    return found

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
from tunefarm.dashboard.datasets import Dataset, to_csv
from tunefarm.dashboard.memo import Memo
from tunefarm.dashboard.queries import curves, models, records, settled
from tunefarm.dashboard.queries.jobs import JobLine, TaskLine
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
Limit = Annotated[int, Query(ge=1, le=500, description="Rows of a page.")]


MAX_FORM_BYTES = 4096


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
"""So often the charts of running jobs of ``LARGE`` candidates are read anew, in seconds."""


@dataclass(frozen=True, slots=True)
class Curves:
    """The charts of a job as it stands, or of one of its tasks."""

    memo: Memo
    db: Connection
    job: JobLine
    tasks: tuple[TaskLine, ...]

    @property
    def best_so_far(self) -> Dataset:
        return self._kept(curves.best_so_far)

    @property
    def points(self) -> Dataset:
        return self._kept(curves.points)

    @property
    def wall_time(self) -> curves.WallTime:
        key = ("wall_time", self.job.id, self._mark)
        return self.memo.get(key, lambda: curves.wall_time(self.db, self.job))

    @property
    def outcome(self) -> settled.Outcome:
        """What the job has come to; records of one that is over may change."""
        if not self.job.is_open:
            return settled.outcome(self.db, self.job, self.tasks)
        return self._kept(settled.outcome)

    def _kept(self, read: Callable[[Connection, JobLine, Sequence[TaskLine]], Shown]) -> Shown:
        positions = tuple(task.position for task in self.tasks)
        key = (read.__name__, self.job.id, self._mark, positions)
        return self.memo.get(key, lambda: read(self.db, self.job, self.tasks))

    @property
    def _mark(self) -> float:
        """What differs when the job does; of large jobs that run, only now and then."""
        if self.job.is_open and self.job.done >= LARGE:
            return -(time.monotonic() // LARGE_EVERY_S)
        return self.job.revision


def curves_of(request: Request, db: Connection, job: JobLine, tasks: Sequence[TaskLine]) -> Curves:
    return Curves(request.app.state.memo, db, job, tuple(tasks))


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

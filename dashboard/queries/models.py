"""Models: their tasks, what is known of each, and what a run takes by that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, Select, Subquery, and_, or_, select, tuple_
from tunefarm.dashboard.datasets import Dataset, dataset
from tunefarm.dashboard.paging import PAGE_ROWS, Page, page_of, parse_cursor
from tunefarm.dashboard.queries import roofs
from tunefarm.dashboard.queries.defaults import default_beside, first_records
from tunefarm.db.errors import UnknownRecord
from tunefarm.db.lookup import is_gain
from tunefarm.db.models import MODEL_TASKS, MODELS, TARGETS, TASKS, TRIALS, WORKLOADS


class TaskStanding(StrEnum):
    """What the records of a task on a target give to a build."""

    PROMOTED = "promoted"  # a record won a final against the default
    CONFIRMED = "confirmed"  # the default itself stands: nothing faster was found
    PROVISIONAL = "provisional"  # the lowest median, faster than the default by more than noise
    NO_GAIN = "no gain"  # measured, and not faster than the default by more than noise
    UNTUNED = "untuned"  # no record


@dataclass(frozen=True, slots=True)
class ModelTask:
    """A task of a model on a target, with the record that builds look at first; in seconds."""

    position: int
    workload_id: int
    target_id: int
    workload: str
    summary: str
    flops: int
    weight: int
    ok: int
    failed: int
    standing: TaskStanding
    default_s: float | None
    best_s: float | None
    trial_id: int | None
    device_model: str
    compiler_version: str
    space_fingerprint: str
    in_model: float | None

    @property
    def is_tuned(self) -> bool:
        """Whether tuning has an answer for it, the default too."""
        return self.standing in (
            TaskStanding.PROMOTED,
            TaskStanding.CONFIRMED,
            TaskStanding.PROVISIONAL,
        )

    @property
    def used_s(self) -> float | None:
        """What a build's kernel takes; None if nothing was measured."""
        return self.best_s if self.is_tuned else self.default_s or self.best_s

    @property
    def speedup(self) -> float | None:
        return self.default_s / self.used_s if self.default_s and self.used_s else None

    @property
    def flops_s(self) -> float | None:
        """Nominal operations a second."""
        return self.flops / self.used_s if self.used_s and self.flops else None

    @property
    def time_s(self) -> float | None:
        """Seconds in a run of the model."""
        return self.weight * self.used_s if self.used_s else None


@dataclass(frozen=True, slots=True)
class Model:
    """A model on a target; its tasks in the order of their first use."""

    digest: str
    target_id: int
    name: str
    target: str
    created_at: float
    seen_at: float
    tasks: tuple[ModelTask, ...]

    @property
    def tuned(self) -> int:
        return sum(task.is_tuned for task in self.tasks)

    @property
    def candidates(self) -> int:
        return sum(task.ok + task.failed for task in self.tasks)

    @property
    def used_s(self) -> float | None:
        """Seconds of all tasks in a run, those that were never measured left out."""
        return sum(task.time_s or 0.0 for task in self.tasks) or None

    @property
    def default_s(self) -> float | None:
        """The same with defaults, for tasks that have one."""
        return sum(t.weight * (t.default_s or t.used_s or 0.0) for t in self.tasks) or None

    @property
    def speedup(self) -> float | None:
        return self.default_s / self.used_s if self.default_s and self.used_s else None

    @property
    def flops(self) -> int:
        """Nominal operations of a run, in its tasks that were measured."""
        return sum(task.weight * task.flops for task in self.tasks if task.used_s)

    @property
    def flops_s(self) -> float | None:
        return self.flops / self.used_s if self.used_s and self.flops else None

    @property
    def device_models(self) -> tuple[str, ...]:
        """What its records were measured on."""
        return tuple(sorted({task.device_model for task in self.tasks if task.device_model}))


def models(
    connection: Connection, *, text: str = "", cursor: str = "", limit: int = PAGE_ROWS
) -> Page[Model]:
    """Models, those seen last first, with ``text`` in name or target, or at the start of the
    digest."""
    place = (MODELS.c.seen_at, MODELS.c.digest, MODELS.c.target_id)
    query = _models().order_by(*(column.desc() for column in place)).limit(limit + 1)
    if text:
        places = (MODELS.c.name, TARGETS.c.text)
        found = [column.icontains(text, autoescape=True) for column in places]
        query = query.where(or_(*found, MODELS.c.digest.startswith(text, autoescape=True)))
    after = parse_cursor(cursor, float, str, int)
    if after is not None:
        query = query.where(tuple_(*place) < after)
    rows = connection.execute(query).all()
    page = page_of(rows, limit, lambda row: (repr(row.seen_at), row.digest, row.target_id))
    return Page(_with_tasks(connection, page.rows), page.next)


def model(connection: Connection, digest: str, target_id: int) -> Model:
    """One model; UnknownRecord if there is none."""
    query = _models().where(MODELS.c.digest == digest, MODELS.c.target_id == target_id)
    rows = connection.execute(query).all()
    if not rows:
        raise UnknownRecord(f"there is no model {digest!r} of target {target_id}; see the list")
    return _with_tasks(connection, rows)[0]


def relatives(connection: Connection, mine: Model) -> tuple[Model, ...]:
    """Models of the same name: other targets, shapes or versions, those seen last first; without
    their tasks."""
    query = _models().where(MODELS.c.name == mine.name).order_by(MODELS.c.seen_at.desc())
    rows = connection.execute(query.limit(PAGE_ROWS)).all()
    me = (mine.digest, mine.target_id)
    return tuple(_model(row, ()) for row in rows if (row.digest, row.target_id) != me)


def users(connection: Connection, workload: int, target: int) -> tuple[tuple[Model, int], ...]:
    """The models on a target that have a workload, without their tasks, and how often each runs
    it; those seen last first."""
    query = (
        _models()
        .add_columns(MODEL_TASKS.c.weight)
        .join(MODEL_TASKS, MODEL_TASKS.c.digest == MODELS.c.digest)
        .where(MODEL_TASKS.c.workload_id == workload, MODELS.c.target_id == target)
        .order_by(MODELS.c.seen_at.desc())
        .limit(PAGE_ROWS)
    )
    return tuple((_model(row, ()), row.weight) for row in connection.execute(query))


def peaks(connection: Connection, mine: Model) -> Mapping[str, Any]:
    """The measured peaks of a device that measured its records; empty if none is known."""
    trials = [task.trial_id for task in mine.tasks if task.trial_id is not None]
    latest = select(TRIALS.c.device).where(TRIALS.c.id == max(trials, default=0))
    return roofs.peaks_of(connection, latest)


def texts(connection: Connection, mine: Model) -> dict[int, str]:
    """The texts of its workloads by their numbers."""
    ids = [task.workload_id for task in mine.tasks]
    query = select(WORKLOADS.c.id, WORKLOADS.c.text).where(WORKLOADS.c.id.in_(ids))
    return {row.id: row.text for row in connection.execute(query)}


def tasks_data(mine: Model) -> Dataset:
    """A row a task, for downloads."""
    columns = ("task", "summary", "weight", "standing", "default_s", "latency_s", "speedup",
               "time_s", "flops", "flops_s", "candidates", "failed", "trial")  # fmt: skip
    rows = [
        (t.position, t.summary, t.weight, str(t.standing), t.default_s, t.used_s, t.speedup,
         t.time_s, t.flops, t.flops_s, t.ok + t.failed, t.failed, t.trial_id)
        for t in mine.tasks
    ]  # fmt: skip
    return dataset("model", columns, rows, {"default_s": mine.default_s, "run_s": mine.used_s})


# --- rows ---------------------------------------------------------------------------------------


def _models() -> Select[Any]:
    source = MODELS.join(TARGETS, TARGETS.c.id == MODELS.c.target_id)
    return select(*MODELS.c, TARGETS.c.text.label("target")).select_from(source)


def _model(row: Any, tasks: tuple[ModelTask, ...]) -> Model:
    return Model(
        digest=row.digest,
        target_id=row.target_id,
        name=row.name,
        target=row.target,
        created_at=row.created_at,
        seen_at=row.seen_at,
        tasks=tasks,
    )


def _with_tasks(connection: Connection, rows: Sequence[Any]) -> tuple[Model, ...]:
    """Models with their tasks, from three queries for all of them."""
    pairs = [(row.digest, row.target_id) for row in rows]
    if not pairs:
        return ()
    records = first_records(connection, _tasks_of(pairs))
    found: dict[tuple[str, int], list[ModelTask]] = {}
    for row in connection.execute(_task_rows(pairs)):
        record = records.get((row.workload_id, row.target_id))
        found.setdefault((row.digest, row.target_id), []).append(_task(row, record))
    return tuple(_model(row, tuple(found.get((row.digest, row.target_id), ()))) for row in rows)


def _task_rows(pairs: Sequence[tuple[str, int]]) -> Select[Any]:
    """The tasks of models, with their counts over all jobs."""
    is_counted = and_(
        TASKS.c.workload_id == MODEL_TASKS.c.workload_id, TASKS.c.target_id == MODELS.c.target_id
    )
    source = (
        MODELS.join(MODEL_TASKS, MODEL_TASKS.c.digest == MODELS.c.digest)
        .join(WORKLOADS, WORKLOADS.c.id == MODEL_TASKS.c.workload_id)
        .outerjoin(TASKS, is_counted)
    )
    return (
        select(
            *MODEL_TASKS.c, MODELS.c.target_id, WORKLOADS.c.key, WORKLOADS.c.summary,
            WORKLOADS.c.flops, TASKS.c.ok, TASKS.c.failed, TASKS.c.default_s,
        )
        .select_from(source)
        .where(tuple_(MODELS.c.digest, MODELS.c.target_id).in_(pairs))
        .order_by(MODEL_TASKS.c.digest, MODEL_TASKS.c.position)
    )  # fmt: skip


def _tasks_of(pairs: Iterable[tuple[str, int]]) -> Subquery:
    """The workloads and targets of models."""
    return (
        select(MODEL_TASKS.c.workload_id, MODELS.c.target_id)
        .join(MODELS, MODELS.c.digest == MODEL_TASKS.c.digest)
        .where(tuple_(MODELS.c.digest, MODELS.c.target_id).in_(list(pairs)))
        .distinct()
        .subquery()
    )


def _task(row: Any, record: Any) -> ModelTask:
    return ModelTask(
        position=row.position,
        workload_id=row.workload_id,
        target_id=row.target_id,
        workload=row.key,
        summary=row.summary or row.key[:12],
        flops=row.flops,
        weight=row.weight,
        ok=row.ok or 0,
        failed=row.failed or 0,
        standing=_standing(record),
        default_s=default_beside(record) or row.default_s,
        best_s=record.median_s if record is not None else None,
        trial_id=record.trial_id if record is not None else None,
        device_model=record.device_model if record is not None else "",
        compiler_version=record.compiler_version if record is not None else "",
        space_fingerprint=record.space_fingerprint if record is not None else "",
        in_model=record.model_speedup
        if record is not None and record.model == row.digest
        else None,
    )


def _standing(record: Any) -> TaskStanding:
    if record is None:
        return TaskStanding.UNTUNED
    if record.promoted:
        return TaskStanding.PROMOTED if record.number else TaskStanding.CONFIRMED
    if record.default_s is None:
        return TaskStanding.PROVISIONAL
    gains = is_gain(record.default_s / record.median_s, record.device_state)
    return TaskStanding.PROVISIONAL if gains else TaskStanding.NO_GAIN

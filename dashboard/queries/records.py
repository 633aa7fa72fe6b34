"""Tasks over all jobs, and single trials with all that is known of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Select, or_, select, tuple_
from tunefarm.dashboard.datasets import Dataset, dataset
from tunefarm.dashboard.paging import PAGE_ROWS, Page, page_of, parse_cursor
from tunefarm.dashboard.queries.defaults import default_beside, first_records
from tunefarm.dashboard.ranks import importance
from tunefarm.db.errors import UnknownRecord
from tunefarm.db.farm_models import DEVICES
from tunefarm.db.models import BEST, FINALS, JOB_TASKS, JOBS, TARGETS, TASKS, TRIALS, WORKLOADS
from tunefarm.db.records import FINAL, Trial
from tunefarm.db.rows import TRIAL_COLUMNS, TRIAL_SOURCE, trial_from_row

POINTS = 3_000
BEST_CONFIGS = 40
_KEY_DIGITS = 8
_AFTER_DIGITS = "g"  # which no digit of a key follows


@dataclass(frozen=True, slots=True)
class Task:
    """A workload on a target, over all jobs; latencies in seconds. ``speedup`` is over the default,
    of the record that a final promoted last, None while none did; ``default_s`` is what that
    final, or else the last trial of the default, took."""

    workload_id: int
    target_id: int
    workload: str
    summary: str
    target: str
    flops: int
    ok: int
    failed: int
    best_s: float | None
    default_s: float | None
    speedup: float | None

    @property
    def flops_s(self) -> float | None:
        return self.flops / self.best_s if self.best_s and self.flops else None


@dataclass(frozen=True, slots=True)
class Workload:
    """What is computed, whatever the target."""

    id: int
    key: str
    summary: str
    flops: int
    text: str


@dataclass(frozen=True, slots=True)
class Standing:
    """A record that builds may use: the best of a target, device model, space and compiler."""

    trial_id: int
    number: int
    target_id: int
    target: str
    device_model: str
    protocol: str
    compiler_version: str
    space_fingerprint: str
    median_s: float
    default_s: float | None
    promoted: bool
    verdict: str | None
    speedup: float | None
    model: str | None
    model_speedup: float | None
    created_at: float
    job: str
    config: Mapping[str, Any]

    @property
    def is_confirmed(self) -> bool:
        """Whether it is the default, which nothing beat in a final."""
        return self.promoted and self.number == 0


@dataclass(frozen=True, slots=True)
class JobResult:
    """What a job made of a workload; latencies in seconds."""

    job: str
    state: str
    target: str
    ok: int
    failed: int
    best_s: float | None
    default_s: float | None
    created_at: float


@dataclass(frozen=True, slots=True)
class Knob:
    """How much of the variance of log latency a knob explains alone, within its sketch."""

    sketch: str
    name: str
    share: float
    values: int


@dataclass(frozen=True, slots=True)
class Record:
    """A trial with its workload, and what finals said of it."""

    id: int
    trial: Trial
    workload_id: int
    target_id: int
    workload_text: str
    summary: str
    flops: int
    noise: float | None
    finals: tuple[Mapping[str, Any], ...]


def tasks(
    connection: Connection, *, text: str = "", cursor: str = "", limit: int = PAGE_ROWS
) -> Page[Task]:
    """Tasks, those of the newest workloads first, with ``text`` in summary or target, or at the
    start of the key."""
    place = (TASKS.c.workload_id, TASKS.c.target_id)
    query = _tasks().order_by(*(column.desc() for column in place)).limit(limit + 1)
    if text:
        found = [
            column.icontains(text, autoescape=True)
            for column in (WORKLOADS.c.summary, TARGETS.c.text)
        ]
        starts = WORKLOADS.c.key.startswith(text, autoescape=True)
        query = query.where(or_(*found, starts))
    after = parse_cursor(cursor, int, int)
    if after is not None:
        query = query.where(tuple_(*place) < after)
    rows = _with_records(connection, query)
    return page_of(rows, limit, lambda task: (task.workload_id, task.target_id))


def task(connection: Connection, workload: str, target_id: int) -> Task:
    """The task of a workload (the first digits of its key) on a target; UnknownRecord if none."""
    query = _tasks().where(TASKS.c.workload_id == workload_id(connection, workload))
    found = _with_records(connection, query.where(TASKS.c.target_id == target_id))
    if not found:
        raise UnknownRecord(f"nothing was measured of {workload} on target {target_id}")
    return found[0]


def workload_id(connection: Connection, key: str) -> int:
    """The number of the only workload whose key begins so; UnknownRecord if there is none."""
    starts = WORKLOADS.c.key.between(key, key + _AFTER_DIGITS)  # by its index
    found = connection.execute(select(WORKLOADS.c.id).where(starts).limit(2)).scalars().all()
    if len(found) != 1 or len(key) < _KEY_DIGITS:
        raise UnknownRecord(f"no workload, or more than one, has a key that begins with {key!r}")
    return int(found[0])


def workload(connection: Connection, id_: int) -> Workload:
    """A workload by its number."""
    columns = WORKLOADS.c
    query = select(columns.id, columns.key, columns.summary, columns.flops, columns.text)
    row = connection.execute(query.where(columns.id == id_)).one()
    return Workload(row.id, row.key, row.summary or row.key[:12], row.flops, row.text)


def standings(
    connection: Connection, workload: int, target: int | None = None
) -> tuple[Standing, ...]:
    """Records of a workload (on a target, if one is named), promoted ones first, then newest."""
    source = BEST.join(TRIALS, TRIALS.c.id == BEST.c.trial_id).join(
        TARGETS, TARGETS.c.id == BEST.c.target_id
    )
    query = (
        select(
            BEST,
            TARGETS.c.text,
            TRIALS.c.created_at,
            TRIALS.c.job,
            TRIALS.c.config,
            TRIALS.c.number,
        )
        .select_from(source)
        .where(BEST.c.workload_id == workload)
        .order_by(BEST.c.promoted.desc(), BEST.c.trial_id.desc())
    )
    if target is not None:
        query = query.where(BEST.c.target_id == target)
    return tuple(_standing(row) for row in connection.execute(query))


def results(connection: Connection, workload: int, limit: int = PAGE_ROWS) -> tuple[JobResult, ...]:
    """What the latest jobs made of a workload, on any target, newest first."""
    columns = JOB_TASKS.c
    query = (
        select(
            JOBS.c.id, JOBS.c.state, TARGETS.c.text, columns.ok, columns.failed, columns.best_s,
            columns.default_s, JOBS.c.created_at,
        )
        .join(JOBS, JOBS.c.id == columns.job)
        .join(TARGETS, TARGETS.c.id == JOBS.c.target_id)
        .where(columns.workload_id == workload)
        .order_by(JOBS.c.created_at.desc())
        .limit(limit)
    )  # fmt: skip
    return tuple(JobResult(*row) for row in connection.execute(query))


def history(connection: Connection, task: Task) -> Dataset:
    """Measured candidates of all jobs, evenly chosen where there are many."""
    columns = TRIALS.c
    rows = connection.execute(sample(task, columns.id, columns.created_at, columns.config["sketch"]
        .as_string().label("sketch"), columns.compiler_version, columns.device_model, columns.job,
        columns.median_s)).all()  # fmt: skip
    return dataset(
        "history",
        ("id", "at_s", "sketch", "compiler", "device_model", "job", "latency_s"),
        [tuple(row) for row in rows],
        {"of": task.ok + task.failed},
    )


def knobs(connection: Connection, task: Task) -> tuple[Knob, ...]:
    """The knobs of each sketch by how much they explain, the most first."""
    rows = connection.execute(sample(task, TRIALS.c.config, TRIALS.c.median_s)).all()
    sketches: dict[str, list[Any]] = {}
    for row in rows:
        sketches.setdefault(str(row.config.get("sketch", "")), []).append(row)
    found = [knob for sketch, mine in sketches.items() for knob in _knobs(sketch, mine)]
    return tuple(sorted(found, key=lambda knob: -knob.share))


def best_configs(connection: Connection, task: Task) -> tuple[dict[str, Any], ...]:
    """The fastest distinct configs of the fastest sketch, fastest first."""
    columns = TRIALS.c
    query = (
        select(columns.config)
        .where(*_of(task), columns.median_s.is_not(None))
        .order_by(columns.median_s)
        .limit(4 * BEST_CONFIGS)
    )
    found: dict[str, dict[str, Any]] = {}
    for config in connection.execute(query).scalars():
        found.setdefault(str(sorted(config.items())), dict(config))
    configs = list(found.values())
    sketch = configs[0].get("sketch") if configs else None
    return tuple(c for c in configs if c.get("sketch") == sketch)[:BEST_CONFIGS]


def record(connection: Connection, id_: int) -> Record:
    """A trial by its number; UnknownRecord if there is none."""
    query = (
        select(
            *TRIAL_COLUMNS, WORKLOADS.c.text.label("workload_text"), WORKLOADS.c.summary,
            WORKLOADS.c.flops, DEVICES.c.noise,
        )
        .select_from(TRIAL_SOURCE.outerjoin(DEVICES, DEVICES.c.id == TRIALS.c.device))
        .where(TRIALS.c.id == id_)
    )  # fmt: skip
    row = connection.execute(query).one_or_none()
    if row is None:
        raise UnknownRecord(f"there is no trial {id_}; it may have been pruned")
    return Record(
        id=id_,
        trial=trial_from_row(row),
        workload_id=row.workload_id,
        target_id=row.target_id,
        workload_text=row.workload_text,
        summary=row.summary or row.workload[:12],
        flops=row.flops,
        noise=row.noise,
        finals=_finals(connection, id_) if row.origin == FINAL else (),
    )


def _finals(connection: Connection, id_: int) -> tuple[Mapping[str, Any], ...]:
    """The finals in which a trial was the challenger."""
    query = select(FINALS).where(FINALS.c.challenger_id == id_).order_by(FINALS.c.id)
    return tuple(dict(found._mapping) for found in connection.execute(query))


def _of(task: Task) -> tuple[Any, Any]:
    return TRIALS.c.workload_id == task.workload_id, TRIALS.c.target_id == task.target_id


def sample(task: Task, *columns: Any) -> Select[Any]:
    """Columns of measured candidates, ``POINTS`` of them or so."""
    step = -(-(task.ok + task.failed) // POINTS) or 1
    return (
        select(*columns)
        .where(*_of(task), TRIALS.c.median_s.is_not(None), TRIALS.c.id % step == 0)
        .order_by(TRIALS.c.id)
    )


def _knobs(sketch: str, rows: Sequence[Any]) -> list[Knob]:
    outcomes = np.log(np.array([row.median_s for row in rows], dtype=np.float64))
    names = sorted({name for row in rows for name in row.config if name != "sketch"})
    columns = {name: [row.config.get(name) for row in rows] for name in names}
    return [
        Knob(sketch, name, importance(values, outcomes), len(set(map(str, values))))
        for name, values in columns.items()
        if len(set(map(str, values))) > 1
    ]


def _tasks() -> Any:
    source = TASKS.join(WORKLOADS, WORKLOADS.c.id == TASKS.c.workload_id).join(
        TARGETS, TARGETS.c.id == TASKS.c.target_id
    )
    named = (WORKLOADS.c.key, WORKLOADS.c.summary, WORKLOADS.c.flops, TARGETS.c.text)
    return select(TASKS, *named).select_from(source)


def _with_records(connection: Connection, query: Select[Any]) -> list[Task]:
    """The tasks of a query, each beside the record that builds look at first."""
    rows = connection.execute(query).all()
    place = (TASKS.c.workload_id, TASKS.c.target_id)
    wanted = [(row.workload_id, row.target_id) for row in rows]
    records = first_records(connection, select(*place).where(tuple_(*place).in_(wanted)).subquery())
    return [_task(row, records.get((row.workload_id, row.target_id))) for row in rows]


def _task(row: Any, record: Any) -> Task:
    default_s = default_beside(record) or row.default_s
    is_promoted = record is not None and record.promoted and default_s is not None
    return Task(
        workload_id=row.workload_id,
        target_id=row.target_id,
        workload=row.key,
        summary=row.summary or row.key[:12],
        target=row.text,
        flops=row.flops,
        ok=row.ok,
        failed=row.failed,
        best_s=row.best_s,
        default_s=default_s,
        speedup=default_s / record.median_s if is_promoted else None,
    )


def _standing(row: Any) -> Standing:
    default_s = default_beside(row)
    return Standing(
        trial_id=row.trial_id,
        number=row.number,
        target_id=row.target_id,
        target=row.text,
        device_model=row.device_model,
        protocol=row.protocol,
        compiler_version=row.compiler_version,
        space_fingerprint=row.space_fingerprint,
        median_s=row.median_s,
        default_s=default_s,
        promoted=row.promoted,
        verdict=row.verdict,
        speedup=default_s / row.median_s if default_s else None,
        model=row.model,
        model_speedup=row.model_speedup,
        created_at=row.created_at,
        job=row.job,
        config=row.config,
    )


# --- as datasets ---------------------------------------------------------------------------------


def knob_data(connection: Connection, task: Task) -> Dataset:
    rows = [(k.sketch, k.name, round(k.share, 5), k.values) for k in knobs(connection, task)]
    return dataset("knobs", ("sketch", "knob", "share", "values"), rows)


def config_data(connection: Connection, task: Task) -> Dataset:
    """A column a knob, a row a config, the fastest first."""
    configs = best_configs(connection, task)
    names = sorted({name for config in configs for name in config})
    return dataset("best-configs", names, [[c.get(name) for name in names] for c in configs])


def comparison(connection: Connection, workload: int) -> Dataset:
    """The records of a workload, wherever and by whatever they were made."""
    rows = [
        (one.trial_id, one.target, one.device_model, one.compiler_version, one.median_s,
         one.default_s, one.speedup, int(one.promoted), one.job)
        for one in standings(connection, workload)
    ]  # fmt: skip
    names = ("id", "target", "device_model", "compiler", "latency_s", "default_s", "speedup",
             "promoted", "job")  # fmt: skip
    return dataset("comparison", names, rows)

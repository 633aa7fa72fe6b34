"""Jobs and their trials in Python: to look at in a notebook, or as a frame of pandas or polars.

job = tunefarm.load_job("4f2a")
frame = job.trials().to_pandas()
frame.groupby("sketch").latency_s.min()
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, overload

from tunefarm.compiler.errors import TunefarmError
from tunefarm.db.records import OPEN, Job, JobState, JobUpdate, Trial
from tunefarm.outcome import Outcome, outcome, tasks_of, trials_of
from tunefarm.texts import counted, latency, times
from tunefarm.updates import ALL, gain_text, seen_text

if TYPE_CHECKING:
    import pandas
    import polars

    from tunefarm.compiler.workload import Task
    from tunefarm.proto.client import FarmClient
    from tunefarm.stored import StoredJobs

PHASES = ("queue", "build", "check", "run")


def list_jobs(
    *, db: str | None = None, tracker: str | None = None, limit: int = 20
) -> list[TuningJob]:
    """The latest jobs, newest first: of a database (a URL or a path; by default your own), or of
    the farm of a ``tracker`` (HOST:PORT).

    TunefarmError if both are given; StoreError or FarmError if it cannot be read.
    """
    with _source(db, tracker) as source:
        return [TuningJob(job, db, tracker) for job in source.jobs(limit=limit)]


def load_job(name: str, *, db: str | None = None, tracker: str | None = None) -> TuningJob:
    """The job of this id, or of the only one that begins so; where from, as for ``list_jobs``.

    UnknownRecord or NotFound if there is none.
    """
    with _source(db, tracker) as source:
        return TuningJob(source.job(name), db, tracker)


@dataclass(frozen=True, slots=True)
class TuningJob:
    """A job, and where it is kept; what it has come to is read when it is asked for."""

    record: Job
    db: str | None = None
    tracker: str | None = None

    @property
    def id(self) -> str:
        """The whole id."""
        return self.record.id

    @property
    def tasks(self) -> list[Task]:
        """What it tunes; WorkloadError for a task that this version cannot read."""
        return tasks_of(self.record)

    @property
    def state(self) -> JobState:
        """The state as it is now."""
        return self.update().job.state

    def update(self) -> JobUpdate:
        """Where it stands: counts, latencies and errors of each task, as the search saw them."""
        with _source(self.db, self.tracker) as source:
            return next(iter(source.watch(self.id)))

    def outcome(self) -> Outcome:
        """What builds get of its tasks now: records that finals timed beside their defaults."""
        with _source(self.db, self.tracker) as source:
            return outcome(source, next(iter(source.watch(self.id))), self.tasks)

    def trials(self) -> Trials:
        """All its trials in the order in which they were stored, finals too."""
        summaries = {t.workload.key: t.workload.summary for t in self.record.tasks}
        with _source(self.db, self.tracker) as source:
            return Trials(tuple(trials_of(source, self.id)), summaries)

    def __repr__(self) -> str:
        return f"Tuning{self.record!r}"

    def _repr_html_(self) -> str:
        from tunefarm.notebook import page

        update = self.update()
        is_over = update.job.state not in OPEN
        found = self.outcome() if is_over else Outcome(update.progress, (), 0)
        facts = {
            "state": update.job.state,
            "target": update.job.target,
            "budget": counted(update.job.budget.trials, "trial"),
            "trials": found.counts,
            "all tasks": (gain_text if is_over else seen_text)(found.rows).removeprefix(ALL),
            "message": update.job.unmet or update.job.message,
        }
        return page(f"Job {self.id}", facts, outcome_table(found, is_over))


def outcome_table(found: Outcome, is_over: bool = True) -> Any:
    """The tasks of a job for a notebook: what builds get or, while it runs, the fastest trials."""
    from tunefarm.notebook import Table

    head = ["task", "weight", "trials", "failed", "default", "tuned", "gain"]
    rows = []
    for row in sorted(found.rows, key=lambda row: -((row.best_s or 0) * row.weight)):
        gain = row.speedup if is_over else None
        counts = (row.ok + row.failed, row.failed or "")
        both = (latency(row.default_s), latency(row.best_s))
        rows.append((row.summary, row.weight, *counts, *both, times(gain)))
    if not is_over:
        head[5] = "fastest trial"
    return Table(head, rows)


# --- trials ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Trials(Sequence[Trial]):
    """Trials, with what their workloads compute; as columns, and as frames where there are any."""

    trials: tuple[Trial, ...]
    summaries: Mapping[str, str] = field(default_factory=dict)

    @overload
    def __getitem__(self, index: int) -> Trial: ...
    @overload
    def __getitem__(self, index: slice) -> Trials: ...
    def __getitem__(self, index: int | slice) -> Trial | Trials:
        """A trial, or the trials of a slice."""
        found = self.trials[index]
        return Trials(found, self.summaries) if isinstance(found, tuple) else found

    def __len__(self) -> int:
        return len(self.trials)

    def columns(self) -> dict[str, list[Any]]:
        """A list for each column, a row a trial; ``knob_NAME`` has the values of a knob.

        Times are in seconds; None stands where a trial has nothing. ``latency_s`` is the median of
        the repeats, ``low_s`` and ``high_s`` are their extremes, ``at`` is when it was stored.
        """
        made: dict[str, list[Any]] = {
            "job": [t.job for t in self],
            "task": [self.summaries.get(t.task.workload, "") for t in self],
            "workload": [t.task.workload for t in self],
            "target": [t.task.target for t in self],
            "number": [t.number for t in self],
            "origin": [t.origin for t in self],
            "sketch": [t.config.get("sketch") for t in self],
            "latency_s": [t.median_s if t.ok else None for t in self],
            "low_s": [min(t.times_s) if t.ok else None for t in self],
            "high_s": [max(t.times_s) if t.ok else None for t in self],
            "repeats": [len(t.times_s) for t in self],
            "error": [str(t.error) if t.error else None for t in self],
            "message": [t.message for t in self],
            "predicted": [t.predicted for t in self],
            "device": [t.device for t in self],
            "device_model": [t.device_model for t in self],
            "compiler": [t.compiler_version for t in self],
            **{f"{name}_s": [t.phases_s.get(name) for t in self] for name in PHASES},
            "at": [datetime.fromtimestamp(t.created_at, UTC) for t in self],
        }
        return made | {f"knob_{name}": self._knob(name) for name in self._knobs()}

    def to_pandas(self) -> pandas.DataFrame:
        """The columns as a pandas frame; TunefarmError if pandas is not installed."""
        return _installed("pandas").DataFrame(self.columns())

    def to_polars(self) -> polars.DataFrame:
        """The columns as a polars frame; TunefarmError if polars is not installed."""
        frame: polars.DataFrame = _installed("polars").DataFrame(
            self.columns(), infer_schema_length=None
        )
        return frame

    def _knobs(self) -> list[str]:
        """Names of knobs, in the order in which they come up."""
        names = dict.fromkeys(name for t in self for name in t.config)
        return [name for name in names if name != "sketch"]

    def _knob(self, name: str) -> list[Any]:
        """The values of a knob: words if one sketch has words for what are numbers in another."""
        values = [t.config.get(name) for t in self]
        if len({type(value) for value in values if value is not None}) > 1:
            return [None if value is None else str(value) for value in values]
        return values

    def __repr__(self) -> str:
        failed = sum(not t.ok for t in self)
        return f"Trials({counted(len(self), 'trial')}, {failed} failed)"

    def _repr_html_(self) -> str:
        from tunefarm.notebook import Table, page

        rows = [
            (self.summaries.get(t.task.workload, ""), t.knobs, t.origin, t.told, t.number)
            for t in self
        ]
        table = Table(("task", "config", "origin", "outcome", "number"), rows, 4)
        failed = sum(not t.ok for t in self)
        note = "to_pandas() and to_polars() give a frame"
        return page(counted(len(self), "trial"), {"failed": failed or ""}, table, note)


def _installed(package: str) -> Any:
    """The package; TunefarmError says how to get it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError:
        raise TunefarmError(
            f"a frame of {package} needs {package}, which is not installed; "
            f"pip install 'tunefarm[frames]', or take columns(), which needs nothing"
        ) from None


@contextmanager
def _source(db: str | None, tracker: str | None) -> Iterator[FarmClient | StoredJobs]:
    """The farm of the tracker, else the database; TunefarmError if both are named."""
    if db is not None and tracker is not None:
        raise TunefarmError("give db (a database) or tracker (a running farm), not both")
    if tracker is not None:
        from tunefarm.farm import connect

        with connect(tracker) as client:
            yield client
        return
    from tunefarm.api import default_database
    from tunefarm.db.store import Store
    from tunefarm.stored import StoredJobs

    with Store.open(db or default_database(), readonly=True) as store:
        yield StoredJobs(store, "its farm alone can change it")

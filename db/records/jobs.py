"""Tuning jobs, their tasks and progress, and the misses that become jobs."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tunefarm.db.records.keys import TaskKey, WorkloadRecord
from tunefarm.db.records.plugins import plugins_in

OWNED = "owned"
"""Option of a job that ends with the command that made it: no other command waits for it."""
IDLE = "idle"
"""Option of a job that the tracker made for idle devices: it yields to any other."""
IDLE_PRIORITY = -1_000_000
UNREGISTERED = "no device is registered; `tunefarm worker` offers one"
"""Why a job waits on a farm that never had a device."""
UNNAMED = "unnamed"
"""Name of a model for which nobody has one; it does not take the place of another."""
TRIALS_A_TASK = 64
"""The usual budget of a job, for each of its tasks."""


class JobState(StrEnum):
    """Where a job stands: waiting for a tuner, run by one, or over."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    def because(self, message: str) -> str:
        """The state and, if anything is said of it, why: ``failed: no task has a time``."""
        return f"{self}: {message}" if message else str(self)


OPEN = (JobState.QUEUED, JobState.RUNNING)
"""The states of jobs that are not over."""


@dataclass(frozen=True, slots=True)
class JobTask:
    """One task of a job; ``weight`` counts how often the model runs it. It is timed by
    ``protocol``, where that is empty as its target's tasks usually are."""

    workload: WorkloadRecord
    weight: int = 1
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class Budget:
    """When a job ends: trials over all its tasks (earlier ones count), and wall-clock seconds."""

    trials: int = 1000
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A tuning job. ``claimed_by`` is the tuner process that runs it; each claim raises
    ``claim_epoch`` and lasts ``claim_term_s`` unless it is renewed. The first device granted
    decides ``compiler_version``; all its trials are made by that compiler. ``selector`` says which
    devices may measure it (``arch>=sm_90 host!=lab3``); ``unmet`` is the tracker's word on why no
    registered device may, or why nothing can be stored, empty if neither is so. ``owner`` is the
    name of the token that submitted it, empty for the farm's own. ``recall`` says why its tuner is
    asked to put it back into the queue, empty if it is not. Its selector also names the ``plugins``
    that its tasks are made with. ``model_name`` is what people call the model whose tasks these
    are, empty if they are those of none; ``note`` is what they say of the job."""

    id: str
    target: str
    tasks: tuple[JobTask, ...]
    budget: Budget
    options: Mapping[str, str] = field(default_factory=dict)
    state: JobState = JobState.QUEUED
    priority: int = 0
    message: str = ""
    claimed_by: str = ""
    claim_epoch: int = 0
    created_at: float = 0.0
    updated_at: float = 0.0
    claim_term_s: float = 0.0
    compiler_version: str = ""
    selector: str = ""
    unmet: str = ""
    owner: str = ""
    recall: str = ""
    model_name: str = ""
    note: str = ""

    @property
    def plugins(self) -> tuple[str, ...]:
        """The plug-ins (``package==version``) that its tasks are made with."""
        return plugins_in(self.selector)

    def __repr__(self) -> str:
        """One line, without the texts of its workloads."""
        budget = f"{self.budget.trials} trials"
        return f"Job({self.id!r}, {self.state}, {len(self.tasks)} tasks, {budget}, {self.target!r})"

    def _repr_html_(self) -> str:
        from tunefarm.notebook import Table, page
        from tunefarm.texts import stamp

        seconds = "" if self.budget.seconds is None else f", {self.budget.seconds:.0f} s"
        facts = {
            "state": self.state,
            "model": self.model_name,
            "target": self.target,
            "devices": self.selector,
            "budget": f"{self.budget.trials} trials{seconds}",
            "created": stamp(self.created_at),
            "compiler": self.compiler_version,
            "owner": self.owner,
            "message": self.unmet or self.message,
            "note": self.note,
        }
        rows = [
            (t.workload.summary or t.workload.key[:12], t.weight, f"{t.workload.flops / 1e6:.1f}")
            for t in self.tasks
        ]
        return page(f"Job {self.id}", facts, Table(("task", "weight", "MFLOP"), rows))


def model_digest(weights: Iterable[tuple[str, int]]) -> str:
    """What a model is called in verdicts and tables: a digest of its tasks, each a workload's key
    and how often the model runs it."""
    lines = sorted(f"{key} {weight}\n" for key, weight in weights)
    return hashlib.sha256("".join(lines).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Progress:
    """Where one task stands; latencies in seconds, None before the first successful trial.
    ``final_look`` is the look of the paired final that is under way or waits, 0 if none is."""

    task: TaskKey
    summary: str = ""
    flops: int = 0
    weight: int = 0
    ok: int = 0
    failed: int = 0
    pending: int = 0
    best_s: float | None = None
    default_s: float | None = None
    final_look: int = 0

    @property
    def speedup(self) -> float | None:
        """How much faster the best is than the default; None while one of them is not known."""
        return self.default_s / self.best_s if self.default_s and self.best_s else None


@dataclass(frozen=True, slots=True)
class Miss:
    """A task for which a build found no record. ``weight`` counts how often the model runs it;
    ``default_s`` and ``roofline_s`` are what a model of the target expects of its default config
    and of a perfect one. It was reported by so many ``builds``, at ``reported_at`` for the last
    time (seconds since the epoch), and ``job`` is the last that was made to tune it. Devices that
    ``selector`` selects may measure it: the scope of who reported it, and the plug-ins it needs."""

    workload: WorkloadRecord
    target: str
    weight: int = 1
    default_s: float = 0.0
    roofline_s: float = 0.0
    builds: int = 0
    reported_at: float = 0.0
    job: str = ""
    selector: str = ""

    @property
    def gain_s(self) -> float:
        """Seconds that tuning may save in a run of the model."""
        return self.weight * max(0.0, self.default_s - self.roofline_s)


@dataclass(frozen=True, slots=True)
class JobUpdate:
    """A job with the progress of its tasks and its failed trials by error kind."""

    job: Job
    progress: tuple[Progress, ...]
    errors: Mapping[str, int]
    cursor: int

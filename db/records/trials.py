"""Trials: asked for, finished, and read in pages."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from tunefarm.db.records.keys import DEFAULT_PROTOCOL, Config, TaskKey, TrialKey

FINAL = "final"
"""Origin of a trial that is a paired final: no candidate of the search, outside the budget."""
LOOK = "look"
"""Among the budgets of a paired final: which look at its task it is, from 1."""


class ErrorKind(StrEnum):
    """Why a trial has no time."""

    INSTANTIATION = "instantiation"
    BUILD_ERROR = "build_error"
    BUILD_TIMEOUT = "build_timeout"
    WRONG_ANSWER = "wrong_answer"
    RUN_ERROR = "run_error"
    RUN_CRASH = "run_crash"
    RUN_TIMEOUT = "run_timeout"
    OUT_OF_MEMORY = "out_of_memory"
    DEVICE_LOST = "device_lost"
    LEASE_LOST = "lease_lost"

    def because(self, message: str) -> str:
        """The kind in words and, if anything is said of it, why: ``run timeout: one run was …``."""
        words = self.replace("_", " ")
        return f"{words}: {message}" if message else words


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """One candidate to measure. ``against`` asks for a paired final: the configs of the incumbent
    and the default are timed interleaved with this one, in ``paired_times_s`` of the outcome. Its
    code is made with ``plugins`` (``package==version``) and no others. It is timed by ``protocol``,
    where that is empty as its target's candidates usually are; a worker that does not know it times
    as usual, and says so in the trial."""

    job: str
    task: TaskKey
    number: int
    config: Config
    workload_text: str
    predicted: float | None = None
    origin: str = ""
    against: tuple[Config, ...] = ()
    budgets: Mapping[str, float] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    protocol: str = ""

    @property
    def key(self) -> TrialKey:
        """That of the trial that is asked for."""
        return TrialKey(self.job, self.task, self.number)


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate's life in one job.

    ``times_s`` holds all raw repeats in seconds of one run; it is empty when ``error`` is set.
    ``phases_s`` has the seconds spent in ``queue``, ``build``, ``check`` and ``run``.
    ``paired_times_s`` holds, for a paired final, one row of repeats per config (itself first,
    then those of ``TrialRequest.against``), taken interleaved.
    """

    job: str
    task: TaskKey
    number: int
    config: Config
    times_s: tuple[float, ...] = ()
    error: ErrorKind | None = None
    message: str = ""
    stderr_tail: str = ""
    device: str = ""
    device_model: str = ""
    device_state: Mapping[str, float] = field(default_factory=dict)
    protocol: str = DEFAULT_PROTOCOL
    compiler_version: str = ""
    space_fingerprint: str = ""
    code_hash: str = ""
    predicted: float | None = None
    origin: str = ""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    paired_times_s: tuple[tuple[float, ...], ...] = ()
    created_at: float = 0.0

    @property
    def key(self) -> TrialKey:
        """What it is stored once by."""
        return TrialKey(self.job, self.task, self.number)

    @property
    def ok(self) -> bool:
        """Whether it has a time."""
        return self.error is None and bool(self.times_s)

    @property
    def fastest_s(self) -> float:
        """The fastest repeat in seconds, the least disturbed; infinity for a failed trial."""
        return min(self.times_s) if self.ok else float("inf")

    @property
    def median_s(self) -> float:
        """Median of the repeats in seconds; infinity for a failed trial."""
        return statistics.median(self.times_s) if self.ok else float("inf")

    @property
    def knobs(self) -> str:
        """``contraction mb=8 nb=2``: the sketch and its knobs."""
        from tunefarm.texts import knobs

        return knobs(self.config)

    @property
    def told(self) -> str:
        """``1.23 ms of 9 repeats``, or the error with its message."""
        from tunefarm.texts import counted, duration

        if self.ok:
            return f"{duration(self.median_s)} of {counted(len(self.times_s), 'repeat')}"
        return " ".join(f"{self.error or 'no time'}: {self.message}".split())

    def __repr__(self) -> str:
        """One line: whose trial, which config, and what came of it."""
        return f"Trial({self.job!r}, {self.number}, {self.knobs!r}, {self.told}, {self.origin!r})"

    def _repr_html_(self) -> str:
        from tunefarm.notebook import page
        from tunefarm.texts import duration, stamp

        spread = (min(self.times_s), max(self.times_s)) if self.ok else ()
        facts = {
            "job": self.job,
            "task": f"{self.task.workload[:12]}… for {self.task.target}",
            "config": self.knobs,
            "origin": self.origin,
            "outcome": self.told,
            "repeats": " to ".join(map(duration, spread)),
            "predicted score": "" if self.predicted is None else f"{self.predicted:.3g}",
            "device": f"{self.device} ({self.device_model})" if self.device else "",
            "compiler": self.compiler_version,
            "phases": ", ".join(f"{n} {duration(s)}" for n, s in self.phases_s.items()),
            "stored": stamp(self.created_at),
        }
        return page(f"Trial {self.number}", facts)


@dataclass(frozen=True, slots=True)
class Collected:
    """Finished trials of a job in the order of their storage; ``pending`` are still under way."""

    trials: tuple[Trial, ...]
    cursor: int
    pending: int


@dataclass(frozen=True, slots=True)
class History:
    """A page of past trials, newest first, with the texts of their workloads by key."""

    trials: tuple[Trial, ...]
    workloads: Mapping[str, str]
    cursor: int
    more: bool

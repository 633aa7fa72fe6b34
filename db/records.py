"""Record types of the farm and the database (standard library only).

Every type is an immutable value. These are contracts: the database, the wire format and the
JSON-lines export are made from them, so a field is added with a default and never changes meaning.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Config = Mapping[str, int | str]
"""Knob values of one candidate; the key ``"sketch"`` names the sketch that reads them."""

DEFAULT_PROTOCOL = "warm-activations-cold-weights-v1"


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


class JobState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Verdict(StrEnum):
    """Outcome of a paired final between a challenger and the incumbent."""

    BETTER = "better"
    SAME = "same"
    AMBIGUOUS = "ambiguous"


@dataclass(frozen=True, slots=True, order=True)
class TaskKey:
    """What a record is looked up by: SHA-256 of the workload, and the canonical target string."""

    workload: str
    target: str


@dataclass(frozen=True, slots=True)
class WorkloadRecord:
    """A workload as stored: ``text`` is its canonical JSON, ``key`` the SHA-256 of that text."""

    key: str
    text: str
    summary: str = ""
    flops: int = 0


@dataclass(frozen=True, slots=True)
class JobTask:
    """One task of a job; ``weight`` counts how often the model runs it."""

    workload: WorkloadRecord
    weight: int = 1


@dataclass(frozen=True, slots=True)
class Budget:
    """When a job ends: trials over all its tasks (earlier ones count), and wall-clock seconds."""

    trials: int = 1000
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """A tuning job. ``claimed_by`` is the tuner process that runs it until ``claim_expires_at``."""

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


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a worker offers.

    ``model`` is what records are compared by ("Intel(R) Xeon(R) … 2 cores"), ``kind`` the target
    kind ("llvm", "sim"), ``attributes`` plain facts that requests are matched on, ``peaks`` its
    measured peaks (``flops_1``, ``flops_n`` in FLOP/s, ``bandwidth_*`` in bytes/s) and ``noise``
    the A/A noise floor as a fraction.
    """

    id: str
    kind: str
    model: str
    target: str
    worker: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    peaks: Mapping[str, float] = field(default_factory=dict)
    noise: float = 0.0
    epoch: int = 0
    state: str = "idle"


@dataclass(frozen=True, slots=True)
class Lease:
    """A grant of one device to one client; every write carries (lease, epoch)."""

    id: str
    device: str
    client: str
    epoch: int
    term_s: float
    deadline: float = 0.0
    ended_reason: str = ""


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """One candidate to measure. ``against`` asks for a paired final: the configs of the incumbent
    and the default are timed interleaved with this one, in ``paired_times_s`` of the outcome."""

    job: str
    task: TaskKey
    number: int
    config: Config
    workload_text: str
    predicted: float | None = None
    origin: str = ""
    against: tuple[Config, ...] = ()
    budgets: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate's life in one job; its key is (job, task, number).

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
    def ok(self) -> bool:
        return self.error is None and bool(self.times_s)

    @property
    def median_s(self) -> float:
        """Median of the repeats in seconds; infinity for a failed trial."""
        return statistics.median(self.times_s) if self.ok else float("inf")


@dataclass(frozen=True, slots=True)
class BestKey:
    workload: str
    target: str
    device_model: str
    protocol: str = DEFAULT_PROTOCOL


@dataclass(frozen=True, slots=True)
class Best:
    """The record that a build uses: promoted by a paired final, or provisional (lowest median)."""

    key: BestKey
    trial: Trial
    promoted: bool
    verdict: Verdict | None = None
    speedup_over_default: float | None = None

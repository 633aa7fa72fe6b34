"""Record types of the farm and the database (standard library only).

Every type is an immutable value. These are contracts: the database, the wire format and the
JSON-lines export are made from them, so a field is added with a default and never changes meaning.
"""

from __future__ import annotations

import hashlib
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

Config = Mapping[str, int | str]
"""Knob values of one candidate; the key ``"sketch"`` names the sketch that reads them."""

DEFAULT_PROTOCOL = "warm-activations-cold-weights-v1"
OWNED = "owned"
"""Option of a job that ends with the command that made it: no other command waits for it."""
IDLE = "idle"
"""Option of a job that the tracker made for idle devices: it yields to any other."""
IDLE_PRIORITY = -1_000_000
UNNAMED = "unnamed"
"""Name of a model for which nobody has one; it does not take the place of another."""
FINAL = "final"
"""Origin of a trial that is a paired final: no candidate of the search, outside the budget."""
LOOK = "look"
"""Among the budgets of a paired final: which look at its task it is, from 1."""
TRIALS_A_TASK = 64
"""The usual budget of a job, for each of its tasks."""
HEALTH = "health"
"""Scope of a cordon that is a quarantine."""


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
    """Where a job stands: waiting for a tuner, run by one, or over."""

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


class Role(StrEnum):
    """What a token may do: serve devices, ask for measurements, run anybody's jobs, or all."""

    WORKER = "worker"
    CLIENT = "client"
    TUNER = "tuner"
    ADMIN = "admin"


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

    def __repr__(self) -> str:
        return f"WorkloadRecord({self.summary!r}, key={self.key[:8]}…)"


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


COMPILER_TAG = "compiler"
"""The attribute of a device whose code another compiler makes than that of its worker's others."""
PLUGIN_TAG = "plugin."
"""Before the name of a package: the tag of devices whose worker has that plug-in."""


def plugin_tags(plugins: Iterable[str]) -> dict[str, str]:
    """The tags of a device whose worker has these plug-ins (``package==version``)."""
    pairs = (plugin.partition("==") for plugin in plugins)
    return {f"{PLUGIN_TAG}{package}": version for package, _, version in pairs}


def plugin_conditions(plugins: Iterable[str]) -> str:
    """The selector of devices whose workers have these plug-ins."""
    return " ".join(f'{name}="{version}"' for name, version in plugin_tags(plugins).items())


def plugins_in(selector: str) -> tuple[str, ...]:
    """The plug-ins (``package==version``) that a selector asks for."""
    found = _PLUGIN_CONDITION.findall(selector)
    return tuple(f"{package}=={version}" for package, version in found)


_PLUGIN_CONDITION = re.compile(re.escape(PLUGIN_TAG) + r"([\w.-]+)=\"([^\"]*)\"")


@dataclass(frozen=True, slots=True)
class Job:
    """A tuning job. ``claimed_by`` is the tuner process that runs it; each claim raises
    ``claim_epoch`` and lasts ``claim_term_s`` unless it is renewed. The first device granted
    decides ``compiler_version``; all its trials are made by that compiler. ``selector`` says which
    devices may measure it (``arch>=sm_90 host!=lab3``); ``unmet`` is the tracker's word on why no
    registered device may, empty if one may. ``owner`` is the name of the token that submitted it,
    empty for the farm's own. ``recall`` says why its tuner is asked to put it back into the queue,
    empty if it is not. Its selector also names the ``plugins`` that its tasks are made with.
    ``model_name`` is what people call the model whose tasks these are, empty if they are those of
    none."""

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
class Health:
    """How a device is, as its worker tells it. Times are in seconds since the epoch.

    ``checked_at`` is when peaks and noise were measured (0: never), and ``check`` the last check
    that the tracker asked for and that is done. ``reference_s`` is what the reference loop took
    then, ``drift`` how many times as long it takes now. ``trial_noise`` is what two trials of one
    kernel differ by (a fraction). ``trouble`` says why it does not measure; empty if it does.
    """

    checked_at: float = 0.0
    check: int = 0
    reference_s: float = 0.0
    drift: float = 1.0
    trial_noise: float = 0.0
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class Device:
    """A device that a worker offers.

    ``model`` is what records are compared by ("Intel(R) Xeon(R) … 2 cores"), ``kind`` the target
    kind ("llvm", "sim"), ``attributes`` plain facts that requests are matched on, ``peaks`` its
    measured peaks (``flops_1``, ``flops_n`` in FLOP/s, ``bandwidth_*`` in bytes/s) and ``noise``
    the A/A noise floor as a fraction. ``compiler_version`` is that of its attribute ``compiler``,
    or else its worker's, as the tracker knows it. ``cordon`` is "cordoned", "draining", "drained"
    or "quarantined" where it gets no new lease, for ``cordon_reason``. ``check`` is the number of
    the last check that an operator asked for.
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
    compiler_version: str = ""
    cordon: str = ""
    cordon_reason: str = ""
    health: Health = field(default_factory=Health)
    check: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """A grant of one device to one client; every write carries (lease, epoch).

    Times are in seconds since the epoch; ``ended_at`` is None while it lives. ``recall`` says why
    its holder is asked to give the device back, empty if it is not. ``owner`` is the name of the
    token that acquired it, empty for the farm's own.
    """

    id: str
    device: str
    client: str
    epoch: int
    term_s: float
    deadline: float = 0.0
    ended_reason: str = ""
    job: str = ""
    granted_at: float = 0.0
    ended_at: float | None = None
    recall: str = ""
    owner: str = ""


@dataclass(frozen=True, slots=True)
class Cordon:
    """A device, or a worker with all its devices (``scope``), that gets no new lease; of the scope
    ``health`` it is a device's quarantine.

    With ``drain`` its live leases are asked back, and revoked at ``revoke_at`` (seconds since the
    epoch) if one is set. ``actor`` is who asked for it.
    """

    scope: str
    subject: str
    drain: bool
    actor: str
    reason: str
    at: float
    revoke_at: float | None = None


@dataclass(frozen=True, slots=True)
class Token:
    """A credential as the farm knows it: ``digest`` is the SHA-256 of its secret, in hexadecimal.

    ``name`` is the identity of whoever holds it: tokens of one name own the same jobs and workers.
    ``devices`` selects the devices that it may offer (a worker) or lease; ``max_priority`` bounds
    its jobs', None for no bound. Times are in seconds since the epoch, None for never; that of the
    last call with it, ``used_at``, is known to the minute.
    """

    digest: str
    name: str
    role: Role
    devices: str = ""
    max_priority: int | None = None
    created_at: float = 0.0
    created_by: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    used_at: float | None = None

    @property
    def id(self) -> str:
        """The digits of the digest that people see."""
        return self.digest[:8]


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """What an operator did: ``action`` is cordon, drain, uncordon, revoke, create token or
    revoke token; ``subject`` names the device, worker, lease or token."""

    at: float
    actor: str
    action: str
    subject: str
    reason: str


@dataclass(frozen=True, slots=True)
class TrialRequest:
    """One candidate to measure. ``against`` asks for a paired final: the configs of the incumbent
    and the default are timed interleaved with this one, in ``paired_times_s`` of the outcome. Its
    code is made with ``plugins`` (``package==version``) and no others."""

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
class BestKey:
    """What the best is kept for: a task on a model of device, timed by a protocol."""

    workload: str
    target: str
    device_model: str
    protocol: str = DEFAULT_PROTOCOL


@dataclass(frozen=True, slots=True)
class Best:
    """The record that a build uses: promoted by a paired final, or provisional (lowest median).

    ``model`` names the model in whose whole runs it met its rival after that, if it did: the
    default of its task, or, if it is the default, the record that it took the place of.
    ``model_speedup`` is the speed of those runs with it over that with the rival.
    """

    key: BestKey
    trial: Trial
    promoted: bool
    verdict: Verdict | None = None
    speedup_over_default: float | None = None
    model: str = ""
    model_speedup: float | None = None

    def _repr_html_(self) -> str:
        from tunefarm.notebook import page
        from tunefarm.texts import duration, times

        trial = self.trial
        facts = {
            "task": f"{self.key.workload[:12]}… for {self.key.target}",
            "device model": self.key.device_model,
            "config": trial.knobs,
            "latency": duration(trial.median_s) if trial.ok else "",
            "over the default": times(self.speedup_over_default),
            "verdict": self.verdict or "",
            "stands": "promoted by a final" if self.promoted else "provisional: no final was held",
            "trial": f"{trial.number} of job {trial.job}",
        }
        return page("Record", facts)


class Match(StrEnum):
    """How close a found record is to the key that was asked for, best first. A foreign one is of
    the same workload for a target that does not serve the wanted one: told, never used."""

    EXACT = "exact"
    TARGET = "target"
    COMPATIBLE = "compatible"
    FOREIGN = "foreign"


@dataclass(frozen=True, slots=True)
class Found:
    """One answer to a look-up: same device model, same target, a compatible target, or, alone,
    a foreign one."""

    best: Best
    match: Match


@dataclass(frozen=True, slots=True)
class TrialKey:
    """What a trial is stored once by; a retry keeps it."""

    job: str
    task: TaskKey
    number: int


@dataclass(frozen=True, slots=True)
class Final:
    """The outcome of a paired final of two stored trials. ``incumbent`` is the promoted trial of
    the key that the challenger met, None if there was none; ``speedup`` is over it. With ``model``
    both were timed in whole runs of that model: verdict and ``speedup`` are of these, and an
    incumbent that stands is marked with them."""

    key: BestKey
    challenger: TrialKey
    incumbent: TrialKey | None
    verdict: Verdict
    speedup: float | None = None
    speedup_over_default: float | None = None
    model: str = ""


@dataclass(frozen=True, slots=True)
class Promotion:
    """What a final changed: ``promoted`` tells whether the challenger now stands in the key, and
    ``best`` is the key's best after the call."""

    promoted: bool
    best: Best | None


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


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """What a lease is asked for: a device that serves ``target``, of this model if one is named,
    with these attributes and compiler, whose tags meet ``selector``. A higher priority goes first,
    then the older request."""

    target: str
    device_model: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    compiler_version: str = ""
    selector: str = ""


@dataclass(frozen=True, slots=True)
class Held:
    """A trial that a worker holds, under the lease that brought it."""

    key: TrialKey
    lease: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Result:
    """A finished trial on its way to the tracker, under the lease that brought its request."""

    lease: str
    epoch: int
    trial: Trial


@dataclass(frozen=True, slots=True)
class Work:
    """One candidate to measure on ``device``."""

    device: str
    lease: str
    epoch: int
    request: TrialRequest


@dataclass(frozen=True, slots=True)
class Refusal:
    """A result that the tracker will not store; the worker drops it."""

    key: TrialKey
    reason: str


@dataclass(frozen=True, slots=True)
class WorkerState:
    """What a worker tells with each Sync. ``worker`` is a name that outlives the process, and
    ``incarnation`` one that does not; ``number`` rises with each Sync of an incarnation.
    ``held`` names every trial that the worker has not answered in ``results``; ``capacity`` is
    how many it will hold for each device."""

    worker: str
    incarnation: str
    number: int
    compiler_version: str
    devices: tuple[Device, ...]
    held: tuple[Held, ...] = ()
    results: tuple[Result, ...] = ()
    capacity: int = 8


@dataclass(frozen=True, slots=True)
class WorkerOrders:
    """What the tracker answers: ``work`` the worker does not hold yet, held trials to
    ``cancel``, results that are stored (``accepted``) or ``refused`` and may be forgotten, and
    for devices the number of the last check that was asked for (``checks``).
    A worker that gets no answer for ``term_s`` stops its kernels."""

    work: tuple[Work, ...]
    cancel: tuple[Held, ...]
    accepted: tuple[TrialKey, ...]
    refused: tuple[Refusal, ...]
    term_s: float
    checks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FarmInfo:
    """Facts of a running tracker; terms in seconds, ``started_at`` and its clock's ``now`` (0 if it
    does not tell) in seconds since the epoch, and the ``protocol`` that it speaks."""

    version: str
    database: str
    lease_term_s: float
    claim_term_s: float
    started_at: float
    protocol: int = 0
    now: float = 0.0

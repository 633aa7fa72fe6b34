"""What worker and tracker tell each other, and what the tracker tells of itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tunefarm.db.records.devices import Device
from tunefarm.db.records.keys import TrialKey
from tunefarm.db.records.trials import Trial, TrialRequest


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

"""What records are kept and found by: workloads, tasks, trials, bests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Config = Mapping[str, int | str]
"""Knob values of one candidate; the key ``"sketch"`` names the sketch that reads them."""
DEFAULT_PROTOCOL = "warm-activations-cold-weights-v1"
FROM_MEMORY = "warm-activations-memory-weights-v1"
_PROTOCOLS = {"cuda": "cold-l2-events-v1"}


def protocol_of(target: str, asked: str = "") -> str:
    """How times for a target string are taken now, where nothing else is ``asked``. Only times of
    one protocol are compared.

    Of processors a native loop times calls with activations that the caches may hold and weights
    that the second-level ones do not; ``FROM_MEMORY`` takes these from beyond the third level, as
    models do whose weights exceed it. Of GPUs events time each call alone, which finds nothing in
    the second-level cache.
    """
    return asked or _PROTOCOLS.get(target.partition(" ")[0], DEFAULT_PROTOCOL)


def asked_protocol(from_memory: bool) -> str:
    """What is asked for a task whose weights come from memory, or do not."""
    return FROM_MEMORY if from_memory else ""


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
class TrialKey:
    """What a trial is stored once by; a retry keeps it."""

    job: str
    task: TaskKey
    number: int


@dataclass(frozen=True, slots=True)
class BestKey:
    """What the best is kept for: a task on a model of device, timed by a protocol."""

    workload: str
    target: str
    device_model: str
    protocol: str = DEFAULT_PROTOCOL

    @classmethod
    def of_today(cls, workload: str, target: str, device_model: str, asked: str = "") -> BestKey:
        """The key of what is timed as such targets are now, or as is ``asked``."""
        return cls(workload, target, device_model, protocol_of(target, asked))

"""What a tracker counts about its own work, for its metrics; plain numbers, always kept."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0,
)  # fmt: skip

_waited_s: ContextVar[list[float] | None] = ContextVar("tunefarm_waited_s", default=None)


@dataclass(slots=True)
class Seconds:
    """A histogram of durations; the last bucket holds those beyond all bounds."""

    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.buckets[bisect_left(BOUNDS_S, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class Counts:
    """Since this tracker started. ``stale`` counts refused writes by what was stale (lease, claim
    or incarnation), ``ended`` leases by why, ``errors`` failed calls by (method, status code)."""

    calls: defaultdict[str, Seconds] = field(default_factory=lambda: defaultdict(Seconds))
    errors: Counter[tuple[str, ...]] = field(default_factory=Counter)
    granted: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    stale: Counter[str] = field(default_factory=Counter)


@contextmanager
def idling() -> Iterator[None]:
    """Around what a call waits for by intention, news say: its duration leaves that time out."""
    began = time.monotonic()
    try:
        yield
    finally:
        waited = _waited_s.get()
        if waited is not None:
            waited[0] += time.monotonic() - began


@contextmanager
def timed(into: Seconds) -> Iterator[None]:
    """Add how long this takes, without what it waits for by intention."""
    waited = [0.0]
    token = _waited_s.set(waited)
    began = time.monotonic()
    try:
        yield
    finally:
        into.add(max(0.0, time.monotonic() - began - waited[0]))
        _waited_s.reset(token)

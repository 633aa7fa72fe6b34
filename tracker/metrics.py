"""The farm as Prometheus sees it. Names and meanings are listed in docs/metrics.md.

What the tracker holds in memory is read on its event loop, what the database holds in a reader's
thread, and the text is made in the thread that answers the scrape.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as LateError
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection
from tunefarm.db import statistics
from tunefarm.db.errors import StoreError
from tunefarm.db.records import JobState
from tunefarm.proto.probe import Answer, Routes, health
from tunefarm.tracker.counts import BOUNDS_S, Counts, Seconds
from tunefarm.tracker.farm import Farm
from tunefarm.tracker.leasing import Desk
from tunefarm.tracker.listening import certificates_end

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

Value = TypeVar("Value")

LATE_S = 10.0
"""How long a scrape or a probe may take."""
SETTLED_S = 10.0
"""Trials whose ids are known for that long are counted for good: with several trackers, a smaller
id may be committed after a larger one, but not so late."""


@dataclass(slots=True)
class TrialCounts:
    """Trials stored since this tracker started, by any tracker, by outcome."""

    counted: Counter[str] = field(default_factory=Counter)
    until: int = 0
    seen: int = 0
    seen_at: float = 0.0

    def start(self, connection: Connection) -> None:
        self.until = self.seen = statistics.last_trial(connection)
        self.seen_at = time.monotonic()

    def read(self, connection: Connection) -> Counter[str]:
        now = time.monotonic()
        if now - self.seen_at > SETTLED_S:
            self.counted += statistics.outcomes(connection, self.until, self.seen)
            self.until, self.seen = self.seen, statistics.last_trial(connection)
            self.seen_at = now
        return self.counted + statistics.outcomes(connection, self.until, None)


@dataclass(frozen=True, slots=True)
class Reading:
    """What one scrape tells."""

    devices: Mapping[str, int]
    cordoned: int
    workers: int
    leases: int
    asking: Mapping[int, int]
    jobs: Mapping[JobState, int]
    queued: Mapping[int, int]
    pending: int
    trials: Mapping[str, int]
    certificates: Mapping[str, float]
    writes: Seconds
    writes_waiting: int
    counts: Counts
    started_at: float


class Metrics:
    """Reads the farm for each scrape. Make it on the event loop, before the tracker serves."""

    def __init__(self, farm: Farm, desk: Desk) -> None:
        self._farm = farm
        self._desk = desk
        self._loop = asyncio.get_running_loop()
        self._trials = TrialCounts()

    async def start(self) -> None:
        """Count trials from now on."""
        await self._farm.database.read(self._trials.start)

    def routes(self) -> Routes:
        """What the tracker answers over HTTP, from any thread."""
        return {"/metrics": self._scrape, "/healthz": self._alive, "/readyz": self._ready}

    def _scrape(self) -> Answer:
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.process_collector import ProcessCollector

        registry = CollectorRegistry()
        registry.register(_Once(families(self._await(self.read()))))
        ProcessCollector(registry=registry)
        return Answer(generate_latest(registry).decode(), type=CONTENT_TYPE_LATEST)

    def _alive(self) -> Answer:
        """200 as long as the event loop turns."""
        return self._probe(_nothing())

    def _ready(self) -> Answer:
        """200 as long as the database answers and the tracker is not about to end."""
        return self._probe(self._check())

    def _probe(self, check: Coroutine[Any, Any, None]) -> Answer:
        try:
            self._await(check)
        except LateError:
            return health(f"the tracker has not answered for {LATE_S:.0f} s")
        except StoreError as error:
            return health(str(error))
        return health("the tracker is shutting down" if self._farm.closing else "")

    def _await(self, coroutine: Coroutine[Any, Any, Value]) -> Value:
        """Run it on the tracker's event loop, from another thread."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(LATE_S)

    async def _check(self) -> None:
        await self._farm.database.read(statistics.last_trial)

    async def read(self) -> Reading:
        """What there is to tell now; StoreError if the database cannot be read."""

        def read(
            connection: Connection,
        ) -> tuple[Counter[JobState], Counter[int], int, Counter[str]]:
            return (
                statistics.jobs_by_state(connection),
                statistics.queued_by_priority(connection),
                statistics.pending(connection),
                self._trials.read(connection),
            )

        farm = self._farm
        jobs, queued, pending, trials = await farm.database.read(read)
        states = farm.device_states()
        now, term_s = farm.clock(), farm.options.lease_term_s
        tickets = self._desk.tickets.values()
        return Reading(
            devices=Counter(device.state for device in states),
            cordoned=sum(bool(device.cordon) for device in states),
            workers=sum(now - seen.at <= term_s for seen in farm.workers.values()),
            leases=len(farm.leases),
            asking=Counter(t.waiting.request.priority for t in tickets if t.answer is not None),
            jobs=jobs,
            queued=queued,
            pending=pending,
            trials=trials,
            certificates=certificates_end(farm.options),
            writes=farm.database.durations,
            writes_waiting=farm.database.waiting,
            counts=farm.counts,
            started_at=farm.started_at,
        )


async def _nothing() -> None:
    pass


class _Once:
    """A collector of families that are known already."""

    def __init__(self, found: Iterable[Metric]) -> None:
        self._found = list(found)

    def collect(self) -> Iterable[Metric]:
        return self._found


# --- families -----------------------------------------------------------------------------------


def families(found: Reading) -> Iterator[Metric]:
    """All metrics of the farm."""
    counts = found.counts
    devices = {state: found.devices.get(state, 0) for state in ("idle", "leased", "offline")}
    jobs = {str(state): found.jobs.get(state, 0) for state in JobState}
    yield _gauge("build_info", "The version that runs; 1.", {version("tunefarm"): 1}, "version")
    yield _single("start_time_seconds", "When this tracker started.", found.started_at)
    yield _gauge("devices", "Registered devices.", devices, "state")
    yield _single("devices_cordoned", "Devices kept from new leases.", found.cordoned)
    yield _single("workers_online", "Workers that spoke within a lease term.", found.workers)
    yield _single("leases_live", "Live leases.", found.leases)
    yield _gauge("lease_requests_waiting", "Requests for a device.", found.asking, "priority")
    yield _counter("leases_granted", "Leases granted by this tracker.", {(): counts.granted})
    yield _counter(
        "leases_ended", "Leases ended by this tracker, but with their jobs.",
        {(why,): n for why, n in counts.ended.items()}, "reason",
    )  # fmt: skip
    yield _counter(
        "stale_writes_refused", "Writes refused, by what was stale.",
        {(what,): counts.stale[what] for what in ("lease", "claim", "incarnation")}, "stale",
    )  # fmt: skip
    yield _gauge("jobs", "Jobs in the database.", jobs, "state")
    yield _gauge("jobs_queued", "Jobs that wait for a tuner.", found.queued, "priority")
    yield _single("candidates_pending", "Candidates without a result.", found.pending)
    yield _counter(
        "trials", "Trials stored since this tracker started.",
        {(outcome,): n for outcome, n in {"ok": 0, **found.trials}.items()}, "outcome",
    )  # fmt: skip
    yield _histogram(
        "rpc_duration_seconds", "Calls, without what they wait for by intention.",
        dict(counts.calls), "method",
    )  # fmt: skip
    yield _counter("rpc_errors", "Calls refused or failed.", counts.errors, "method", "code")
    yield _histogram(
        "write_duration_seconds", "Writes from being asked to being committed.", {"": found.writes}
    )
    yield _gauge(
        "certificate_expires_timestamp_seconds", "When a certificate of this tracker ends.",
        found.certificates, "certificate",
    )  # fmt: skip
    yield _single("writes_waiting", "Writes that wait for the writer.", found.writes_waiting)


def _single(name: str, text: str, value: float) -> Metric:
    from prometheus_client.metrics_core import GaugeMetricFamily

    return GaugeMetricFamily(f"tunefarm_{name}", text, value)


def _gauge(
    name: str,
    text: str,
    values: Mapping[str, int] | Mapping[int, int] | Mapping[str, float],
    label: str,
) -> Metric:
    from prometheus_client.metrics_core import GaugeMetricFamily

    family = GaugeMetricFamily(f"tunefarm_{name}", text, labels=[label])
    for key, value in sorted(values.items()):
        family.add_metric([str(key)], value)
    return family


def _counter(name: str, text: str, values: Mapping[tuple[str, ...], int], *labels: str) -> Metric:
    from prometheus_client.metrics_core import CounterMetricFamily

    family = CounterMetricFamily(f"tunefarm_{name}", text, labels=labels)
    for keys, value in sorted(values.items()):
        family.add_metric(keys, value)
    return family


def _histogram(name: str, text: str, found: Mapping[str, Seconds], *labels: str) -> Metric:
    from prometheus_client.metrics_core import HistogramMetricFamily

    family = HistogramMetricFamily(f"tunefarm_{name}", text, labels=labels)
    bounds = [*map(str, BOUNDS_S), "+Inf"]
    for key, seconds in sorted(found.items()):
        below = zip(bounds, accumulate(seconds.buckets), strict=True)
        family.add_metric([key] if labels else [], list(below), seconds.total)
    return family

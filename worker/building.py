"""Builders at work: beside the timing on spare cores, and between timings on the timed ones."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, TypeVar

from tunefarm.db.records import Config, ErrorKind, Trial, TrialRequest
from tunefarm.worker.backend import Built, Problem
from tunefarm.worker.budgets import Budgets
from tunefarm.worker.children import Builder, ProblemCache
from tunefarm.worker.cores import CoreLock
from tunefarm.worker.device import Dropped
from tunefarm.worker.measure import TrialFailed

T = TypeVar("T")
_JOIN_S = 5.0


class BuildOutcome:
    """A build's code or failure, and the seconds it took."""

    __slots__ = ("built", "failure", "seconds")

    def __init__(self, built: Built | None, failure: TrialFailed | None, seconds: float) -> None:
        self.built = built
        self.failure = failure
        self.seconds = seconds

    def code(self) -> Built:
        """The code; raises the failure."""
        if self.failure is not None:
            raise self.failure
        assert self.built is not None
        return self.built


@dataclass(frozen=True, slots=True, eq=False)
class Order:
    """A config that is to be built for a request."""

    request: TrialRequest
    config: Config
    dropped: Dropped

    @property
    def is_dropped(self) -> bool:
        return self.dropped(self.request)

    @property
    def build_s(self) -> float:
        return Budgets.of(self.request.budgets).build_s

    @property
    def company(self) -> Hashable:
        """Equal for orders that may be built together."""
        request = self.request
        return request.task, request.workload_text, request.plugins, self.build_s


_Job: TypeAlias = tuple[Future[Any], Callable[[Builder], Any] | Order]


class BuildPool:
    """Does builds in the order of their submission, each by one of some groups of builders.

    A builder starts one only while it holds the lock of its group's cores with the others, so none
    runs where a kernel is timed, of this worker or another. It takes ``together`` of a task at a
    time, or its share of what waits if that is less.
    """

    def __init__(
        self, groups: Sequence[tuple[CoreLock, Sequence[Builder]]], together: int = 1
    ) -> None:
        self._builders = [builder for _, builders in groups for builder in builders]
        self._together = together
        self._jobs: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._threads = [
            threading.Thread(target=self._serve, args=(lock, builder), daemon=True)
            for lock, builders in groups
            for builder in builders
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, work: Callable[[Builder], T]) -> Future[T]:
        """``work(builder)`` as soon as one is free and its cores are."""
        return self._add(work)

    def order(self, *orders: Order) -> tuple[Future[BuildOutcome], ...]:
        """What comes of building them, in company where that is faster."""
        return tuple(map(self._add, orders))

    def _add(self, work: Callable[[Builder], Any] | Order) -> Future[Any]:
        future: Future[Any] = Future()
        with self._changed:
            self._jobs.append((future, work))
            self._changed.notify()
        return future

    def interrupt(self) -> None:
        """Kill the builds under way."""
        for builder in self._builders:
            builder.kill()

    def close(self) -> None:
        """End all builds; those that wait are cancelled."""
        with self._changed:
            self._closed = True
            for future, _ in self._jobs:
                future.cancel()
            self._changed.notify_all()
        for builder in self._builders:
            builder.close()
        for thread in self._threads:
            thread.join(_JOIN_S)

    def _serve(self, lock: CoreLock, builder: Builder) -> None:
        with lock.held(alone=False):
            builder.start()
        while self._wait():
            with lock.held(alone=False):
                self._do_next(builder)

    def _wait(self) -> bool:
        """Wait until there is work; False when there will be none."""
        with self._changed:
            self._changed.wait_for(lambda: self._jobs or self._closed)
            return not self._closed

    def _do_next(self, builder: Builder) -> None:
        with self._changed:
            jobs = [job for job in self._take() if job[0].set_running_or_notify_cancel()]
        futures = [future for future, _ in jobs]
        try:
            orders = [work for _, work in jobs if isinstance(work, Order)]
            others = [work(builder) for _, work in jobs if not isinstance(work, Order)]
            for future, result in zip(futures, build(orders, builder) or others, strict=True):
                future.set_result(result)
        except Exception as error:
            for future in futures:
                future.set_exception(error)

    def _take(self) -> list[_Job]:
        """The next job, and with an order those right behind it that keep it company."""
        most = min(self._together, -(-len(self._jobs) // len(self._builders)))
        taken = [self._jobs.popleft()] if self._jobs else []
        while self._jobs and len(taken) < most and _are_company(taken[0], self._jobs[0]):
            taken.append(self._jobs.popleft())
        return taken


def _are_company(one: _Job, other: _Job) -> bool:
    a, b = one[1], other[1]
    return isinstance(a, Order) and isinstance(b, Order) and a.company == b.company


@dataclass(slots=True)
class Candidate:
    """A request on its way through the device; ``builds`` are of its config and of those that it
    meets. ``trial`` is what came of it, as soon as it was timed."""

    request: TrialRequest
    builds: tuple[Future[BuildOutcome], ...]
    problem: Future[Problem | TrialFailed]
    trial: Trial | None = None

    @property
    def is_ready(self) -> bool:
        """Whether it can be timed."""
        return self.problem.done() and all(future.done() for future in self.builds)

    def wait(self) -> None:
        """Wait until it can be timed."""
        futures: tuple[Future[Any], ...] = (*self.builds, self.problem)
        for future in futures:
            with contextlib.suppress(CancelledError):
                future.exception()

    def posed(self) -> Problem:
        """The problem; raises what prevented it."""
        found = self.problem.result()
        if isinstance(found, TrialFailed):
            raise found
        return found


class Workshop:
    """Where candidates are made ready to be timed: built, and their workloads posed."""

    def __init__(self, pool: BuildPool) -> None:
        self._pool = pool
        self._problems = ProblemCache()
        self._posing: dict[str, Future[Problem | TrialFailed]] = {}
        self._seed = secrets.randbits(63)
        self.interrupt = pool.interrupt
        self.close = pool.close

    def begin(self, request: TrialRequest, dropped: Dropped) -> Candidate:
        """Have everything made that the request needs."""
        builds = self._pool.order(
            *(Order(request, config, dropped) for config in (request.config, *request.against))
        )
        return Candidate(request, builds, self._pose(request))

    def _pose(self, request: TrialRequest) -> Future[Problem | TrialFailed]:
        """The workload's problem: kept, being made, or made now."""
        self._keep_posed()
        key = hashlib.sha256(request.workload_text.encode()).hexdigest()
        if key in self._posing:
            return self._posing[key]
        kept = self._problems.get(key)
        if kept is None:
            posing = self._posing[key] = self._pool.submit(partial(_pose, request, self._seed))
            return posing
        known: Future[Problem | TrialFailed] = Future()
        known.set_result(kept)
        return known

    def _keep_posed(self) -> None:
        """Move what was posed meanwhile into the cache; what a dead helper prevented is tried
        again."""
        for key in [key for key, posing in self._posing.items() if posing.done()]:
            posing = self._posing.pop(key)
            if posing.cancelled():
                continue
            found = posing.result()
            if not isinstance(found, TrialFailed) or found.kind is not ErrorKind.DEVICE_LOST:
                self._problems.put(key, found)


def build(orders: Sequence[Order], builder: Builder) -> list[BuildOutcome]:
    """What comes of each order. All but the dropped ones are built together; whatever fails in
    company is built again alone, so that it fails by itself and for a reason of its own."""
    wanted = [order for order in orders if not order.is_dropped]
    start = time.monotonic()
    together = _build_together(wanted, builder) if len(wanted) > 1 else {}
    share_s = (time.monotonic() - start) / max(len(wanted), 1)
    return [
        BuildOutcome(together[order], None, share_s)
        if order in together
        else _build_alone(order, builder, share_s)
        for order in orders
    ]


def _build_together(orders: Sequence[Order], builder: Builder) -> dict[Order, Built]:
    """Those that are built within the time that one of them has."""
    first, configs = orders[0], [order.config for order in orders]
    request = first.request
    try:
        found = builder.build_together(
            request.workload_text, request.task.target, configs, first.build_s, request.plugins
        )
    except TrialFailed:
        return {}
    return {order: built for order, built in zip(orders, found, strict=True) if built is not None}


def _build_alone(order: Order, builder: Builder, spent_s: float) -> BuildOutcome:
    start = time.monotonic() - spent_s
    request = order.request
    try:
        if order.is_dropped:
            raise TrialFailed(ErrorKind.LEASE_LOST, "the trial was cancelled")
        built = builder.build(
            request.workload_text, request.task.target, order.config, order.build_s, request.plugins
        )
        return BuildOutcome(built, None, time.monotonic() - start)
    except TrialFailed as failed:
        return BuildOutcome(None, failed, time.monotonic() - start)


def _pose(request: TrialRequest, seed: int, builder: Builder) -> Problem | TrialFailed:
    reference_s = Budgets.of(request.budgets).reference_s
    try:
        return builder.problem(request.workload_text, seed, reference_s)
    except TrialFailed as failed:
        return failed

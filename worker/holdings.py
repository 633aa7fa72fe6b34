"""What a worker holds: candidates on the way to its devices, and results on the way back."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from itertools import groupby

from tunefarm.compiler.errors import PluginMismatch
from tunefarm.compiler.plugins import using
from tunefarm.compiler.version import version_with
from tunefarm.db.records import (
    ErrorKind,
    Held,
    Result,
    Trial,
    TrialKey,
    TrialRequest,
    Work,
    WorkerOrders,
    protocol_of,
)
from tunefarm.proto.logs import ids_of_work
from tunefarm.worker.device import OpenDevice

_log = logging.getLogger(__name__)
_ANSWERED_KEPT = 4096
_TEND_EVERY_S = 1.0


def held_of(work: Work) -> Held:
    return Held(work.request.key, work.lease, work.epoch)


def _lost(work: Work, message: str) -> Trial:
    request = work.request
    return Trial(
        job=request.job,
        task=request.task,
        number=request.number,
        config=request.config,
        error=ErrorKind.DEVICE_LOST,
        message=message,
        device=work.device,
        protocol=protocol_of(request.task.target, request.protocol),
        predicted=request.predicted,
        origin=request.origin,
        created_at=time.time(),
    )


@dataclass(slots=True)
class Bench:
    """One device with the work that waits for it (``queue``) and that it measures (``batch``), and
    the number of the last check that was asked for."""

    open_device: OpenDevice
    queue: list[Work] = field(default_factory=list)
    batch: list[Work] = field(default_factory=list)
    check: int = 0

    @property
    def is_called(self) -> bool:
        """Whether the device has something to do now."""
        health = self.open_device.device.health
        return self.check > health.check or bool(self.queue and not health.trouble)


class Holdings:
    """The worker's work and results, shared by its Sync loop and the threads of its devices.

    ``compiler_version`` makes the code of devices that do not tell theirs.

    Every method may be called from any thread. ``news`` is called, outside the lock, when there
    is a result to tell, or a device says something else of itself.
    """

    def __init__(
        self, devices: Iterable[OpenDevice], compiler_version: str, news: Callable[[], None]
    ) -> None:
        self.benches = {d.device.id: Bench(d) for d in devices}
        self._compiler_version = compiler_version
        self._news = news
        self._changed = threading.Condition()
        self._held: dict[Held, Work] = {}
        self._results: dict[TrialKey, Result] = {}
        self._answered: OrderedDict[Held, None] = OrderedDict()
        self._closed = False

    def snapshot(self) -> tuple[tuple[Held, ...], tuple[Result, ...]]:
        """What is held, and the results that the tracker has not acknowledged."""
        with self._changed:
            return tuple(self._held), tuple(self._results.values())

    # --- the Sync loop --------------------------------------------------------------------------

    def obey(self, orders: WorkerOrders) -> None:
        """Take on new work, drop what is cancelled, forget results that are settled."""
        with self._changed:
            for key in (*orders.accepted, *(refusal.key for refusal in orders.refused)):
                self._results.pop(key, None)
            for work in orders.work:
                self._take(work)
            self._drop(orders.cancel)
            for device, number in orders.checks.items():
                if device in self.benches:
                    self.benches[device].check = number
            self._changed.notify_all()

    def drop_all(self) -> None:
        """Drop everything that is not measured yet, and stop what runs."""
        with self._changed:
            self._drop(tuple(self._held))

    def close(self) -> None:
        """Drop everything and let the devices' threads end."""
        with self._changed:
            self._closed = True
            self._drop(tuple(self._held))
            self._changed.notify_all()

    def _take(self, work: Work) -> None:
        held = held_of(work)
        bench = self.benches.get(work.device)
        if bench is None or held in self._held or held in self._answered:
            return
        self._held[held] = work
        _log.debug("received", extra=ids_of_work(work))
        bench.queue.append(work)

    def _drop(self, dropped: Iterable[Held]) -> None:
        for held in dropped:
            work = self._held.pop(held, None)
            if work is not None:
                _log.info("dropped", extra=ids_of_work(work))
        for bench in self.benches.values():
            bench.queue = [w for w in bench.queue if held_of(w) in self._held]
            if bench.batch and not any(held_of(w) in self._held for w in bench.batch):
                bench.open_device.interrupt()

    # --- the devices ----------------------------------------------------------------------------

    def serve(self, bench: Bench) -> None:
        """Measure what arrives for a device, and look after it, until closed; the body of the
        device's thread."""
        told = bench.open_device.device
        while True:
            with self._changed:
                self._changed.wait_for(lambda: bench.is_called or self._closed, _TEND_EVERY_S)
                if self._closed:
                    return
            self._tend(bench)
            with self._changed:
                if not bench.open_device.device.health.trouble:
                    bench.batch, bench.queue = bench.queue, []
            if bench.batch:
                self._measure(bench)
            with self._changed:
                for work in bench.batch:
                    self._held.pop(held_of(work), None)
                bench.batch = []
            if bench.open_device.device != told:
                told = bench.open_device.device
                self._news()

    def _tend(self, bench: Bench) -> None:
        """Check the device if that was asked for, and let it look after itself."""
        try:
            if bench.check > bench.open_device.device.health.check:
                bench.open_device.check(bench.check)
            bench.open_device.tend()
        except Exception:  # a fault of ours must not take the device's thread with it
            _log.exception("looking after %s failed", bench.open_device.device.id)

    def _measure(self, bench: Bench) -> None:
        work_of = {id(work.request): work for work in bench.batch}

        def report(request: TrialRequest, trial: Trial) -> None:
            self._report(work_of[id(request)], trial)

        def dropped(request: TrialRequest) -> bool:
            return self._is_dropped(work_of[id(request)])

        try:
            requests = [work.request for work in bench.batch]
            for plugins, group in groupby(requests, key=lambda request: request.plugins):
                with using(plugins):
                    bench.open_device.measure(list(group), report, dropped)
        except PluginMismatch as error:
            for work in bench.batch:
                self._report(work, _lost(work, str(error)))
        except Exception as error:  # a fault of ours must not take the device's thread with it
            for work in bench.batch:
                _log.exception("measuring failed", extra=ids_of_work(work))
                self._report(work, _lost(work, f"the worker failed: {error!r}"))

    def _is_dropped(self, work: Work) -> bool:
        with self._changed:
            return self._held.get(held_of(work)) is not work

    def _report(self, work: Work, trial: Trial) -> None:
        _log.debug("measured: %s", trial.error or "ok", extra=ids_of_work(work))
        with self._changed:
            if self._held.pop(held_of(work), None) is None:
                return
            made_by = self.benches[work.device].open_device.device.compiler_version
            version = version_with(made_by or self._compiler_version, work.request.plugins)
            trial = replace(trial, compiler_version=version)
            self._results[work.request.key] = Result(work.lease, work.epoch, trial)
            self._answered[held_of(work)] = None
            while len(self._answered) > _ANSWERED_KEPT:
                self._answered.popitem(last=False)
        self._news()

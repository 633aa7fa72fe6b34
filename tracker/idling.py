"""Idle devices work: what builds missed is tuned on devices that nobody uses.

Such a job has the lowest priority and a small budget. It is asked back, by what the renewals of its
claim say, as soon as anybody waits for a tuner (a queued job) or for a device that it holds; until
then nobody claims it again.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from sqlalchemy import Connection
from tunefarm.db import jobs, misses, stored_jobs
from tunefarm.db.errors import StoreError
from tunefarm.db.records import (
    IDLE,
    IDLE_PRIORITY,
    Budget,
    Device,
    DeviceRequest,
    Job,
    JobTask,
    Miss,
)
from tunefarm.proto.logs import ids
from tunefarm.tracker import signals
from tunefarm.tracker.allocate import serves
from tunefarm.tracker.farm import Farm
from tunefarm.tracker.leasing import Desk
from tunefarm.tracker.limits import check_texts
from tunefarm.tracker.selector import parse_selector

LOOK_S = 1.0
PAUSE_S = 0.25
"""At least so long between two looks, however much happens."""
TASKS = 8
"""Tasks of a job for idle devices."""
CLAIM_S = 0.5
"""How long a queued job may take to be claimed by a tuner that is free."""
MAX_MISSES = 1000
QUEUED = 100
"""Queued jobs that are looked at, the most urgent."""

_log = logging.getLogger(__name__)


async def report(farm: Farm, request_id: str, found: Sequence[Miss]) -> None:
    """Store what a build missed; ValueError for what makes no sense."""
    if not request_id:
        raise ValueError("a report of misses has a request id")
    if len(found) > MAX_MISSES:
        raise ValueError(f"a build reports {MAX_MISSES} misses at most, not {len(found)}")
    for miss in found:
        _check(miss)
    await farm.database.write(lambda c: misses.report(c, request_id, found))
    farm.signals.notify(signals.JOBS)


def _check(miss: Miss) -> None:
    workload, name = miss.workload, f"the miss of workload {miss.workload.key[:12]}"
    check_texts({workload.key: workload.text})
    parse_selector(miss.selector)
    if not (workload.text and miss.target and miss.weight > 0):
        raise ValueError(f"{name} lacks its text, its target or its weight")
    if min(miss.default_s, miss.roofline_s) < 0:
        raise ValueError(f"{name} takes less than no time: {miss.default_s}, {miss.roofline_s}")


@dataclass(slots=True)
class Idling:
    """Makes jobs for idle devices, and says which of them have to yield."""

    farm: Farm
    desk: Desk
    _free_since: dict[str, float] = field(default_factory=dict)

    async def serve(self) -> None:
        """Look again whenever something happens, until cancelled."""
        with self.farm.signals.listen(signals.JOBS, signals.LEASES) as bell:
            while True:
                bell.silence()
                try:
                    await self.step()
                except StoreError as error:
                    _log.warning("idle devices are left alone: %s", error)
                except Exception:  # a fault here must not take the farm's tracker with it
                    _log.exception("looking after idle devices failed")
                await asyncio.sleep(PAUSE_S)
                await bell.rings(LOOK_S)

    async def step(self) -> None:
        """Recall what has to yield; make a job if devices have nothing to do."""

        def read(connection: Connection) -> tuple[tuple[Job, ...], tuple[Job, ...]]:
            waiting = stored_jobs.queued_for_people(connection, QUEUED)
            return stored_jobs.open_for_idle(connection), waiting

        idle, queued = await self.farm.database.read(read)
        trials = self.farm.options.idle_trials
        waiting = None
        if idle or trials:
            waiting = next((job for job in queued if not self.farm.told(job).unmet), None)
        self._recall(idle, waiting)
        rested = self._rested_devices()
        if trials and rested and waiting is None:
            await self._begin({job.target for job in idle}, rested)

    def _recall(self, idle: Sequence[Job], waiting: Job | None) -> None:
        made_here = {job.id for job in idle}
        found = {job.id: self._why_recalled(job.id, made_here, waiting) for job in idle}
        recalls = {job: why for job, why in found.items() if why}
        for job in recalls.keys() - self.farm.recalls.keys():
            _log.info("asked back: %s", recalls[job], extra=ids(job=job))
        if recalls != self.farm.recalls:
            self.farm.recalls = recalls
            self.farm.signals.notify(signals.JOBS)

    def _why_recalled(self, idle: str, made_here: set[str], waiting: Job | None) -> str:
        """What a job for idle devices stands in the way of; empty if of nothing."""
        if not self.farm.options.idle_trials:
            return "this tracker leaves idle devices alone"
        if waiting is not None and time.time() - waiting.updated_at > CLAIM_S:
            return f"job {waiting.id[:8]} waits for a tuner"
        free = self.farm.free_devices()
        held = [
            self.farm.devices[live.lease.device]
            for live in self.farm.leases.values()
            if live.lease.job == idle
        ]
        for other in self.desk.queue:
            request = other.request
            if other.job in made_here or any(serves(device, request) for device in free):
                continue
            for device in held:
                if serves(device, request):
                    return f"{other.client} waits for device {device.id}"
        return ""

    def _rested_devices(self) -> list[Device]:
        """Devices that nobody has held for ``idle_after_s``."""
        now = self.farm.clock()
        free = self.farm.free_devices()
        self._free_since = {d.id: self._free_since.get(d.id, now) for d in free}
        since = now - self.farm.options.idle_after_s
        return [device for device in free if self._free_since[device.id] <= since]

    async def _begin(self, taken: set[str], rested: Sequence[Device]) -> None:
        """Make a job of the most valuable misses of one target that a rested device serves."""
        for target, selector in await self.farm.database.read(misses.waiting_targets):
            request = DeviceRequest(target, selector=selector)
            if target not in taken and any(serves(device, request) for device in rested):
                break
        else:
            return
        trials = self.farm.options.idle_trials
        job = await self.farm.database.write(lambda c: _make_job(c, target, selector, trials))
        if job is not None:
            _log.info("made for idle devices: %d tasks", len(job.tasks), extra=ids(job=job.id))
            self.farm.signals.notify(signals.JOBS)


def _make_job(connection: Connection, target: str, selector: str, trials: int) -> Job | None:
    """A queued job of the target's most valuable misses; None if another tracker made one."""
    if any(job.target == target for job in stored_jobs.open_for_idle(connection)):
        return None
    found = misses.waiting(connection, target, selector, TASKS)
    if not found:
        return None
    tasks = tuple(JobTask(miss.workload, miss.weight) for miss in found)
    made = Job(
        uuid.uuid4().hex,
        target,
        tasks,
        Budget(trials * len(tasks)),
        {IDLE: "1"},
        priority=IDLE_PRIORITY,
        selector=selector,
    )
    misses.assign(connection, found, made.id)
    return jobs.submit(connection, made)

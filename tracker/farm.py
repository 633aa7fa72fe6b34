"""What the tracker knows beyond its database: who is there, and how long promises last.

Deadlines and heartbeats live in memory, on the monotonic clock; the database sees grants and ends.
After a restart every live lease and claim gets a full term, and every device counts as seen. Where
several trackers share a database, all this follows its rows (``replicas``): ``stored`` is a time as
it stands there, by this tracker's clock.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Iterable, Set
from dataclasses import dataclass, field, replace

from tunefarm.db import cordons, leases, queue, stored_jobs
from tunefarm.db.leases import Enlisted
from tunefarm.db.records import HEALTH, OPEN, Cordon, Device, Job, JobState, Lease
from tunefarm.tracker import signals
from tunefarm.tracker.allocate import cordon_of
from tunefarm.tracker.counts import Counts
from tunefarm.tracker.options import TrackerOptions
from tunefarm.tracker.signals import Bell, Signals
from tunefarm.tracker.unmet import why_unmet, why_untuned
from tunefarm.tracker.writer import Database

Clock = Callable[[], float]
TUNER_S = 120.0
"""How long a tuner that has not asked for a job counts as there."""
MAX_TUNERS = 1000
"""Of how many it is remembered what they have."""


@dataclass(slots=True)
class Seen:
    """A worker's process as last heard of, at ``at`` on the tracker's clock; with no capacity it
    takes no new work. ``owner`` is the name of the token that it comes with. Its queue was looked
    at at ``looked_at``; if it was empty, ``empty_since`` is the news of its devices by then.
    It was told of ``checks`` that its devices are to do. ``stored`` is when it said what its row
    has, by this tracker's clock, and ``row_at`` by the database's."""

    incarnation: str
    number: int
    devices: tuple[Device, ...]
    at: float
    capacity: int = 0
    owner: str = ""
    poll: Bell | None = None
    checks: dict[str, int] = field(default_factory=dict)
    looked_at: float = -math.inf
    empty_since: tuple[int, ...] | None = None
    stored: float = -math.inf
    row_at: float = 0.0


@dataclass(slots=True)
class Live:
    """A live lease; it ends at ``deadline`` on the tracker's clock. While its end is written it
    has an event, ``ending``, set once it is known whether it ended."""

    lease: Lease
    deadline: float
    ending: asyncio.Event | None = None
    stored: float = -math.inf


@dataclass(slots=True)
class Claimed:
    """A running job's claim; it ends at ``deadline`` on the tracker's clock."""

    epoch: int
    deadline: float
    stored: float = -math.inf


@dataclass(frozen=True, slots=True)
class Tuner:
    """The plug-ins (``package==version``) of a tuner that asked for a job at ``at`` on the
    tracker's clock."""

    plugins: frozenset[str]
    at: float


@dataclass(frozen=True, slots=True)
class Kept:
    """A cordon; the leases of its devices are revoked at ``deadline`` on the tracker's clock."""

    cordon: Cordon
    deadline: float


@dataclass(slots=True)
class Farm:
    """The tracker's state, used on the event loop only."""

    options: TrackerOptions
    database: Database
    clock: Clock = time.monotonic
    signals: Signals = field(default_factory=Signals)
    workers: dict[str, Seen] = field(default_factory=dict)
    devices: dict[str, Device] = field(default_factory=dict)
    enlisted: dict[str, Enlisted] = field(default_factory=dict)
    leases: dict[str, Live] = field(default_factory=dict)
    claims: dict[str, Claimed] = field(default_factory=dict)
    tuners: dict[str, Tuner] = field(default_factory=dict)
    cordons: tuple[Kept, ...] = ()
    recalls: dict[str, str] = field(default_factory=dict)
    counts: Counts = field(default_factory=Counts)
    idle_at_load: Set[str] = frozenset()
    closing: bool = False
    started: float = 0.0
    started_at: float = 0.0

    async def load(self) -> None:
        """Take over what an earlier tracker left in the database; what several share, they take
        over all the time."""
        self.started = self.clock()
        self.started_at = time.time()

        known = await self.database.read(leases.devices)
        self.devices = {device.id: device for device in known}
        if self.database.is_shared:
            return
        self.idle_at_load = self.devices.keys() - await self.database.read(queue.busy_devices)
        self.enlisted = await self.database.read(leases.all_enlisted)
        for job, epoch in await self.database.read(stored_jobs.running):
            self.claims[job] = Claimed(epoch, self.clock() + self.options.claim_term_s)
        self.hold_cordons(await self.database.read(cordons.cordons))
        await self.adopt_leases()

    async def adopt_leases(self) -> None:
        """Start the term of every lease that lives in the database and is not known here.

        It asks the writer, as one that ends meanwhile must not be held for ever.
        """
        for lease in await self.database.write(leases.live):
            if lease.id not in self.leases:
                self.hold_lease(lease)

    # --- devices --------------------------------------------------------------------------------

    def seen_at(self, device: str) -> float:
        """When the device's worker last spoke; the tracker's start if it has not since then."""
        worker = self.devices[device].worker
        seen = self.workers.get(worker)
        return seen.at if seen else self.started

    def is_online(self, device: str) -> bool:
        """Whether the device's present worker has spoken within a lease term and takes work."""
        seen = self.workers.get(self.devices[device].worker)
        if seen is None or seen.capacity == 0:
            return False
        return self.clock() - seen.at <= self.options.lease_term_s

    def free_devices(self) -> list[Device]:
        """Devices that may be leased now: online, without a lease, not cordoned."""
        leased = {live.lease.device for live in self.leases.values()}
        now, term_s = self.clock(), self.options.lease_term_s
        online = {
            name for name, seen in self.workers.items() if seen.capacity and now - seen.at <= term_s
        }
        return [
            device
            for device in self.devices.values()
            if device.worker in online
            and device.id not in leased
            and self.cordon_of(device.id) is None
        ]

    def near_devices(self, devices: Iterable[Device]) -> frozenset[str]:
        """Those of the devices whose workers have spoken to this tracker, not to another of its
        database."""
        return frozenset(
            device.id
            for device in devices
            if (seen := self.workers.get(device.worker)) is not None and seen.number > 0
        )

    def device_states(self) -> list[Device]:
        """Every device with its state (leased, idle or offline), and what keeps it from leases."""
        leased = {live.lease.device for live in self.leases.values()}
        return [self._state_of(device, device.id in leased) for device in self.devices.values()]

    def _state_of(self, device: Device, is_leased: bool) -> Device:
        online = "leased" if is_leased else "idle"
        device = replace(device, state=online if self.is_online(device.id) else "offline")
        cordon = self.cordon_of(device.id)
        if cordon is None:
            return device
        if cordon.scope == HEALTH:
            return replace(device, cordon="quarantined", cordon_reason=cordon.reason)
        drain = "draining" if is_leased else "drained"
        reason = f"{cordon.reason}, by {cordon.actor}" if cordon.reason else f"by {cordon.actor}"
        return replace(device, cordon=drain if cordon.drain else "cordoned", cordon_reason=reason)

    def hold_cordons(self, found: tuple[Cordon, ...]) -> None:
        """Keep these cordons; the times at which they revoke go on by the tracker's clock."""
        known = {kept.cordon: kept for kept in self.cordons}
        offset_s = self.clock() - time.time()
        never = float("inf")
        self.cordons = tuple(
            known.get(c) or Kept(c, never if c.revoke_at is None else c.revoke_at + offset_s)
            for c in found
        )

    def cordon_of(self, device: str) -> Cordon | None:
        """What keeps a device from new leases, if anything does."""
        if not self.cordons:
            return None
        return cordon_of(self.devices[device], (kept.cordon for kept in self.cordons))

    def told(self, job: Job) -> Job:
        """The job, while it is open, with why nothing of it can be stored, or why no device may
        measure it if it holds none."""
        if job.state not in OPEN:
            return job
        if self.database.trouble:
            return replace(job, unmet=self.database.trouble)
        if any(live.lease.job == job.id for live in self.leases.values()):
            return job
        found = tuple(kept.cordon for kept in self.cordons)
        unmet = why_unmet(job, self.devices.values(), found)
        if not unmet and job.state is JobState.QUEUED:
            unmet = why_untuned(job, [tuner.plugins for tuner in self.tuners.values()])
        return replace(job, unmet=unmet)

    def note_tuner(self, name: str, plugins: Iterable[str]) -> None:
        """Remember what a tuner that asks for a job has, and forget those that ask no more."""
        now = self.clock()
        self.tuners.pop(name, None)
        self.tuners[name] = Tuner(frozenset(plugins), now)
        while len(self.tuners) > MAX_TUNERS or now - self._first_tuner().at > TUNER_S:
            del self.tuners[next(iter(self.tuners))]

    def _first_tuner(self) -> Tuner:
        """The one that has not asked for the longest time."""
        return next(iter(self.tuners.values()))

    def overdue_cordon(self, device: str) -> Cordon | None:
        """The cordon by which a device should have been given back by now, if there is one."""
        now = self.clock()
        late = (kept.cordon for kept in self.cordons if now >= kept.deadline)
        return cordon_of(self.devices[device], late)

    # --- leases and claims ----------------------------------------------------------------------

    def hold_lease(self, lease: Lease) -> Lease:
        """Start the lease's term; returns it with the deadline in seconds since the epoch."""
        term_s = self.options.lease_term_s
        recall = self._recall_of(lease.device)
        lease = replace(lease, term_s=term_s, deadline=time.time() + term_s, recall=recall)
        if self.devices[lease.device].epoch != lease.epoch:
            self.devices[lease.device] = replace(self.devices[lease.device], epoch=lease.epoch)
        self.leases[lease.id] = Live(lease, self.clock() + term_s)
        return lease

    def _recall_of(self, device: str) -> str:
        """Why a device's holder is asked to give it back; empty if it is not."""
        cordon = self.cordon_of(device)
        if cordon is None or not cordon.drain:
            return ""
        return f"device {device} is being drained by {cordon.actor}: {cordon.reason}"

    def give_back_time(self, seconds: float) -> None:
        """Put every deadline off: for that long this process did not run, so nobody could renew."""
        for live in self.leases.values():
            live.deadline += seconds
        for claim in self.claims.values():
            claim.deadline += seconds
        for seen in self.workers.values():
            seen.at += seconds
        self.started += seconds

    def drop_lease(self, lease: str) -> None:
        """Forget a lease that ended; its device and its job hear of it."""
        live = self.leases.pop(lease, None)
        if live is not None:
            self.signals.notify(
                signals.LEASES, signals.end(live.lease.device), signals.job(live.lease.job)
            )

    def drop_leases_of(self, job: str) -> None:
        for lease in [id_ for id_, live in self.leases.items() if live.lease.job == job]:
            self.drop_lease(lease)

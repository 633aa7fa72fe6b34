"""What the tracker knows beyond its database: who is there, and how long promises last.

Deadlines and heartbeats live in memory, on the monotonic clock; the database sees grants and ends.
After a restart every live lease and claim gets a full term, and every device counts as seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection
from tunefarm.db import jobs, leases
from tunefarm.db.records import Device, Lease
from tunefarm.tracker import signals
from tunefarm.tracker.options import TrackerOptions
from tunefarm.tracker.signals import Bell, Signals
from tunefarm.tracker.writer import Database

Clock = Callable[[], float]


@dataclass(slots=True)
class Seen:
    """A worker's process as last heard of, at ``at`` on the tracker's clock; with no capacity it
    takes no new work."""

    incarnation: str
    number: int
    devices: tuple[Device, ...]
    at: float
    capacity: int = 0
    poll: Bell | None = None


@dataclass(slots=True)
class Live:
    """A live lease; it ends at ``deadline`` on the tracker's clock."""

    lease: Lease
    deadline: float


@dataclass(slots=True)
class Claimed:
    """A running job's claim; it ends at ``deadline`` on the tracker's clock."""

    epoch: int
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
    leases: dict[str, Live] = field(default_factory=dict)
    claims: dict[str, Claimed] = field(default_factory=dict)
    closing: bool = False
    started: float = 0.0
    started_at: float = 0.0

    async def load(self) -> None:
        """Take over what an earlier tracker left in the database."""
        self.started = self.clock()
        self.started_at = time.time()

        def read(connection: Connection) -> tuple[tuple[Device, ...], list[tuple[str, int]]]:
            return leases.devices(connection), jobs.running(connection)

        known, running = await self.database.read(read)
        self.devices = {device.id: device for device in known}
        for job, epoch in running:
            self.claims[job] = Claimed(epoch, self.clock() + self.options.claim_term_s)
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

    def device_states(self) -> list[Device]:
        """Every device with its state: leased, idle or offline."""
        leased = {live.lease.device for live in self.leases.values()}
        return [
            replace(
                device,
                state="offline"
                if not self.is_online(device.id)
                else "leased"
                if device.id in leased
                else "idle",
            )
            for device in self.devices.values()
        ]

    # --- leases and claims ----------------------------------------------------------------------

    def hold_lease(self, lease: Lease) -> Lease:
        """Start the lease's term; returns it with the deadline in seconds since the epoch."""
        term_s = self.options.lease_term_s
        lease = replace(lease, term_s=term_s, deadline=time.time() + term_s)
        self.devices[lease.device] = replace(self.devices[lease.device], epoch=lease.epoch)
        self.leases[lease.id] = Live(lease, self.clock() + term_s)
        return lease

    def drop_lease(self, lease: str) -> None:
        """Forget a lease that ended; its device and its job hear of it."""
        live = self.leases.pop(lease, None)
        if live is not None:
            self.signals.notify(
                signals.LEASES, signals.device(live.lease.device), signals.job(live.lease.job)
            )

    def drop_leases_of(self, job: str) -> None:
        for lease in [id_ for id_, live in self.leases.items() if live.lease.job == job]:
            self.drop_lease(lease)

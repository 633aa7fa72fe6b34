"""What ends leases and claims: being given back, a deadline, a lost device, an overdue drain."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field

from sqlalchemy import Connection
from tunefarm.db import jobs, leases
from tunefarm.db.errors import StaleClaim, UnknownRecord
from tunefarm.db.replicas import is_claim_over, is_over, is_silent
from tunefarm.proto.logs import ids, ids_of_lease
from tunefarm.tracker import signals
from tunefarm.tracker.batches import Batches
from tunefarm.tracker.farm import Farm, Kept, Live
from tunefarm.tracker.replicas import Replicas

_log = logging.getLogger(__name__)
Condition = Callable[[Connection], bool]

TICK_S = 0.25
"""How often deadlines are looked at."""
EXPIRED = "expired: its client went silent"
LATE_S = 1.0
"""How late deadlines may be looked at; more is given back to those who could not renew."""


@dataclass(slots=True)
class Endings:
    """Ends what has to end. With other trackers on the database (``replicas``) the rows have the
    last word: another tracker may have heard more."""

    farm: Farm
    replicas: Replicas | None = None
    beat_at: float = 0.0
    looked_at: float = -math.inf
    cordons: tuple[Kept, ...] = ()
    give_back: Batches[str] = field(init=False)

    def __post_init__(self) -> None:
        self.beat_at = self.farm.clock()
        self.give_back = Batches(lambda leases_: self._end(leases_, "released"))

    async def keep_time(self) -> None:
        """Heed the clock every ``TICK_S``, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.heed_clock()

    def heed_clock(self) -> None:
        """Called every ``TICK_S``, and before a deadline is looked at: if it comes late, this
        process stood still, nobody could renew meanwhile, and all get that time back."""
        now = self.farm.clock()
        late_s = now - self.beat_at - TICK_S
        self.beat_at = now
        if late_s > LATE_S and self.replicas is None:
            _log.info("the tracker stood still for %.1f s; every term is put off", late_s)
            self.farm.give_back_time(late_s)

    async def look(self) -> bool:
        """End what has to end by now, if it is time to look, and whether it was: as often as time
        counts, and when cordons changed."""
        if not self._is_due():
            return False
        await self._end_leases()
        await self._end_claims()
        return True

    def _is_due(self) -> bool:
        now, kept = self.farm.clock(), self.farm.cordons
        if now - self.looked_at < TICK_S and kept is self.cordons:
            return False
        self.looked_at, self.cordons = now, kept
        return True

    async def _end_leases(self) -> None:
        for id_ in self._doubtful():
            self.heed_clock()
            live = self.farm.leases.get(id_)
            reason = self._why_over(live) if live is not None else ""
            if live is not None and reason:
                await self._end([id_], reason, self._doubt(live, reason))

    def _doubtful(self) -> list[str]:
        """The leases that may have to end now, found in one quick pass: there may be thousands, and
        every worker that comes has them looked at."""
        farm, now = self.farm, self.farm.clock()
        alive_since = now - farm.options.lease_term_s
        return [
            id_
            for id_, live in farm.leases.items()
            if now >= live.deadline
            or farm.seen_at(live.lease.device) < alive_since
            or (farm.cordons and farm.overdue_cordon(live.lease.device))
        ]

    def _why_over(self, live: Live) -> str:
        """Why a lease has to end now; empty if it lives on."""
        if self.farm.clock() >= live.deadline:
            return EXPIRED
        if self._is_lost(live):
            return leases.DEVICE_LOST
        cordon = self.farm.overdue_cordon(live.lease.device)
        return f"revoked: drained by {cordon.actor}: {cordon.reason}" if cordon else ""

    def _doubt(self, live: Live, reason: str) -> Condition:
        """What must hold in the rows for the lease to end: another tracker may have heard more."""
        if self.replicas is None:
            return lambda _: True
        term_s, beat_s = self.farm.options.lease_term_s, self.replicas.beat_s
        if reason == EXPIRED:
            return lambda c: is_over(c, live.lease.id, term_s, beat_s)
        if reason == leases.DEVICE_LOST:
            worker = self.farm.devices[live.lease.device].worker
            return lambda c: is_silent(c, worker, term_s, beat_s)
        return lambda _: True

    def _is_lost(self, live: Live) -> bool:
        silent_s = self.farm.clock() - self.farm.seen_at(live.lease.device)
        return silent_s > self.farm.options.lease_term_s

    async def _end_claims(self) -> None:
        for job, claim in list(self.farm.claims.items()):
            self.heed_clock()
            if self.farm.clock() < claim.deadline:
                continue
            with suppress(StaleClaim, UnknownRecord):
                if not await self.farm.database.write(self._give_up(job, claim.epoch)):
                    continue
            _log.warning("its tuner went silent; queued again", extra=ids(job=job))
            if self.farm.claims.get(job) is claim:
                del self.farm.claims[job]
            self.farm.drop_leases_of(job)
            self.farm.signals.notify(signals.JOBS, signals.job(job))

    def _give_up(self, job: str, epoch: int) -> Condition:
        """Queue the job again, and whether it is: with other trackers only if its row says so."""
        term_s = self.farm.options.claim_term_s
        beat_s = None if self.replicas is None else self.replicas.beat_s

        def write(connection: Connection) -> bool:
            if beat_s is not None and not is_claim_over(connection, job, epoch, term_s, beat_s):
                return False
            jobs.release(connection, job, epoch, "its tuner went silent")
            return True

        return write

    async def _end(
        self, names: list[str], reason: str, condition: Condition = lambda _: True
    ) -> None:
        """End those of the leases that are held here, if the condition holds in the rows."""
        ending = {name: self.farm.leases[name] for name in names if name in self.farm.leases}

        def write(connection: Connection) -> bool:
            if not condition(connection):
                return False
            leases.end_all(connection, list(ending), reason)
            return True

        decided = asyncio.Event()
        for live in ending.values():
            live.ending = decided
        try:
            ended = await self.farm.database.write(write)
        finally:
            for live in ending.values():
                if live.ending is decided:  # and no other end is being written by now
                    live.ending = None
            decided.set()
        for name, live in ending.items() if ended else ():
            self.farm.counts.ended[reason.partition(":")[0]] += 1
            _log.info("lease ended: %s", reason, extra=ids_of_lease(live.lease))
            self.farm.drop_lease(name)

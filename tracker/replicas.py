"""Several trackers on one database: what each has in memory follows the rows that all share.

A tracker says what it heard and reads what the others did every eighth of a term (``exchange``),
and sooner when one of them has news. The rows decide whether a term is over, by the database's
clock, and who has a device. News travel by LISTEN and NOTIFY; they may be lost, so every wait looks
again after ``POLL_S`` at the latest.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tunefarm.db import replicas
from tunefarm.db.replicas import MEMORY, SLACK_S, Asking, Claim, Heard, Known, Presence
from tunefarm.tracker import signals
from tunefarm.tracker.allocate import Waiting
from tunefarm.tracker.farm import Claimed, Farm, Seen

if TYPE_CHECKING:
    from tunefarm.tracker.leasing import Desk

GAP_S = 1.0
"""How long a device is kept for a request whose client is between two calls."""
POLL_S = 1.0
"""After how long a wait looks again, though it has heard no news."""
REST_S = 0.1
"""At least so long between two exchanges, however much happens."""
BRIEF_S = 0.2
"""A request that has waited no longer is none of the others' business: most are served at once."""
_RETRY_S = 1.0
_GATHER_S = 0.01
"""How long news are gathered before they are sent."""
_PAYLOAD_BYTES = 7000
"""What one NOTIFY carries at most; PostgreSQL takes 8,000."""
_CHANNEL = "tunefarm"
_log = logging.getLogger(__name__)


class Replicas:
    """This tracker among those of its database; used on the event loop only."""

    def __init__(self, farm: Farm, desk: Desk, address: str = "") -> None:
        self.name = uuid.uuid4().hex
        self.address = address
        self._farm = farm
        self._desk = desk
        self._interval_s = min(1.0, min(farm.options.lease_term_s, farm.options.claim_term_s) / 8)
        self._next_at = float("-inf")
        self._done_at = self._known_at = farm.clock()
        self._is_alone = False
        self._news: set[str] = set()
        self._has_news = asyncio.Event()

    # --- exchange -------------------------------------------------------------------------------

    @property
    def due_in_s(self) -> float:
        return max(0.0, self._next_at - self._farm.clock())

    @property
    def beat_s(self) -> float:
        """How long ago some tracker has been alive at most, for terms to run on."""
        return 2 * self._interval_s

    @property
    def is_cut_off(self) -> bool:
        """Whether the database has not answered for so long that its rows may have run out."""
        return self._farm.clock() - self._known_at > MEMORY * self._farm.options.lease_term_s

    def hurry(self) -> None:
        """Have the next exchange soon."""
        self._next_at = min(self._next_at, self._done_at + REST_S)

    async def exchange(self) -> None:
        """Say what this tracker heard and take over what stands in the rows, if it is time."""
        if self.due_in_s > 0:
            return
        farm = self._farm
        self._next_at = farm.clock() + self._interval_s
        heard, heard_at = self._heard(), farm.clock()
        spoke_at = {name: seen.at for name, seen in farm.workers.items()}
        known = await farm.database.write(
            lambda c: replicas.exchange(c, heard, farm.clock() - heard_at)
        )
        self._done_at, self._known_at = farm.clock(), heard_at
        self._take_over(known, spoke_at)

    def _heard(self) -> Heard:
        farm, now = self._farm, self._farm.clock()
        return Heard(
            tracker=self.name,
            address=self.address,
            lease_term_s=farm.options.lease_term_s,
            claim_term_s=farm.options.claim_term_s,
            interval_s=self._interval_s,
            leases={
                id_: live.deadline - now
                for id_, live in farm.leases.items()
                if live.deadline > live.stored + SLACK_S and live.ending is None
            },
            claims={
                job: Claim(claim.epoch, claim.deadline - now)
                for job, claim in farm.claims.items()
                if claim.deadline > claim.stored + SLACK_S
            },
            workers={
                name: Presence(seen.incarnation, now - seen.at, seen.capacity, seen.row_at)
                for name, seen in farm.workers.items()
                if seen.at > seen.stored
            },
            queue=[
                Asking(
                    ticket.waiting.id,
                    ticket.waiting.request,
                    now - ticket.waiting.since,
                    0.0 if ticket.answer is not None else now - ticket.left_at,
                    ticket.waiting.client,
                    ticket.waiting.job,
                )
                for ticket in self._desk.tickets.values()
                if ticket.answer is None or now - ticket.left_at >= BRIEF_S
            ],
        )

    def _take_over(self, known: Known, spoke_at: Mapping[str, float]) -> None:
        """Make what is in memory what stands in the rows; who waits for that hears of it here.

        ``spoke_at`` is when each worker had spoken to this tracker before it looked.
        """
        farm, now = self._farm, self._farm.clock()
        self._is_alone = known.is_alone
        farm.devices = {device.id: device for device in known.devices}
        farm.enlisted = known.enlisted
        if tuple(kept.cordon for kept in farm.cordons) != known.cordons:
            farm.hold_cordons(known.cordons)
            farm.signals.ring(signals.LEASES, signals.JOBS)
        for worker, presence in known.workers.items():
            self._take_over_worker(worker, presence, now, spoke_at.get(worker))
        for lease, left_s in known.leases.values():
            if lease.id not in farm.leases:
                farm.hold_lease(lease)
                farm.leases[lease.id].deadline = now + left_s
            live = farm.leases[lease.id]
            live.stored = now + left_s
            live.deadline = max(live.deadline, live.stored)
        over = [
            id_
            for id_, live in farm.leases.items()
            if id_ not in known.leases and live.ending is None
        ]
        for id_ in over:
            lease = farm.leases.pop(id_).lease
            topics = signals.end(lease.device), signals.job(lease.job)
            farm.signals.ring(signals.LEASES, *topics)
        self._take_over_claims(known, now)
        mine = self._desk.tickets
        gap_s = GAP_S + 2 * self._interval_s
        self._desk.others = [
            Waiting(asking.id, asking.request, now - asking.waited_s, asking.client, asking.job)
            for asking in known.queue
            if asking.id not in mine and asking.silent_s <= gap_s
        ]

    def _take_over_worker(
        self, worker: str, presence: Presence, now: float, spoke_at: float | None
    ) -> None:
        """Take over what the worker has said to another tracker since this one last looked.

        This tracker's own words come back in the rows too, and seem younger than they are by their
        way there and back: they are no news, and nor is what was written before the worker spoke to
        this tracker again.
        """
        at = now - presence.age_s
        seen = self._farm.workers.get(worker)
        if seen is None or seen.incarnation != presence.incarnation:
            if seen is not None and seen.poll is not None:
                seen.poll.ring()
            seen = Seen(presence.incarnation, 0, (), at, presence.capacity)
            seen.stored, seen.row_at = at, presence.row_at
            self._farm.workers[worker] = seen
            self._farm.signals.ring(signals.LEASES)
        elif presence.is_own and spoke_at is not None:
            seen.stored, seen.row_at = spoke_at, presence.row_at
        elif presence.row_at != seen.row_at:
            seen.row_at = presence.row_at
            if seen.at == spoke_at:
                if seen.capacity != presence.capacity:
                    self._farm.signals.ring(signals.LEASES)
                seen.at = seen.stored = max(seen.at, at)
                seen.capacity = presence.capacity

    def _take_over_claims(self, known: Known, now: float) -> None:
        claims = self._farm.claims
        for job in [job for job in claims if job not in known.claims]:
            del claims[job]
        for job, term in known.claims.items():
            deadline = now + term.left_s
            claim = claims.get(job)
            if claim is None or claim.epoch != term.epoch:
                claim = claims[job] = Claimed(term.epoch, deadline)
            claim.stored = deadline
            claim.deadline = max(claim.deadline, deadline)

    def keep_in_touch(self, place: str) -> list[asyncio.Task[None]]:
        """From now on have news of other trackers here and of this one there; ``place`` names the
        database for its driver."""
        self._farm.signals.relay = self._tell
        self._farm.signals.poll_s = POLL_S
        both = self._keep_telling(place), self._keep_listening(place)
        return [asyncio.create_task(keep) for keep in both]

    # --- news -----------------------------------------------------------------------------------

    def _tell(self, topics: Iterable[str]) -> None:
        """Let the other trackers know that these topics have news, if they may care. One that has
        just come looks for itself until this tracker has heard of it."""
        if self._is_alone:
            return
        self._news.update(topic for topic in topics if not self._farm.signals.is_own(topic))
        if self._news:
            self._has_news.set()

    async def _keep_telling(self, place: str) -> None:
        """Send what there is to tell over a connection of its own, until cancelled."""
        while True:
            with suppress(_driver_error()):
                async with await _connect(place) as connection:
                    while True:
                        await self._has_news.wait()
                        await asyncio.sleep(_GATHER_S)
                        await self._send(connection)
            await asyncio.sleep(_RETRY_S)

    async def _send(self, connection: Any) -> None:
        self._has_news.clear()
        topics, self._news = sorted(self._news), set()
        while topics:
            text = ""
            some: list[str] = []
            while topics and len(text) < _PAYLOAD_BYTES:
                some.append(topics.pop()[: _PAYLOAD_BYTES // 8])
                text = json.dumps([self.name, *some])
            await connection.execute("SELECT pg_notify(%s, %s)", (_CHANNEL, text))

    async def _keep_listening(self, place: str) -> None:
        """Take in what other trackers tell, until cancelled."""
        while True:
            with suppress(_driver_error()):
                async with await _connect(place) as connection:
                    await connection.execute(f"LISTEN {_CHANNEL}")
                    async for note in connection.notifies():
                        sender, *topics = json.loads(note.payload)
                        if sender != self.name:
                            self._hear(topics)
            await asyncio.sleep(_RETRY_S)

    def _hear(self, topics: list[str]) -> None:
        somebody_waits = any(not ticket.is_new for ticket in self._desk.tickets.values())
        if signals.JOBS in topics or (signals.LEASES in topics and somebody_waits):
            self.hurry()
        self._farm.signals.ring(*topics)


def _driver_error() -> type[Exception]:
    import psycopg

    return psycopg.Error


async def _connect(place: str) -> Any:
    import psycopg

    return await psycopg.AsyncConnection.connect(place, autocommit=True)

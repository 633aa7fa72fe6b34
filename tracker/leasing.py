"""Leases: the queue of requests, grants and renewals."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError
from tunefarm.db import cordons, jobs, leases
from tunefarm.db.errors import StaleClaim, StaleLease, StoreError, UnknownRecord
from tunefarm.db.grants import Want, grant_all
from tunefarm.db.records import DeviceRequest, Lease
from tunefarm.db.replicas import PLACE_S, renew_lease
from tunefarm.proto.logs import ids_of_lease
from tunefarm.tracker import signals
from tunefarm.tracker.allocate import Waiting, allocate, serves
from tunefarm.tracker.counts import idling
from tunefarm.tracker.endings import TICK_S, Endings
from tunefarm.tracker.farm import Farm
from tunefarm.tracker.replicas import GAP_S, Replicas
from tunefarm.tracker.selector import parse_selector

_log = logging.getLogger(__name__)


def _future() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


@dataclass(slots=True)
class Ticket:
    """A request in the queue. Only one whose client waits is granted anything. ``known`` is done
    once it is known whether it was granted something before, ``writing`` when what is being written
    about it is."""

    waiting: Waiting
    claim_epoch: int
    left_at: float
    answer: asyncio.Future[Lease] | None = None
    owner: str = ""
    known: asyncio.Future[None] = field(default_factory=_future)
    writing: asyncio.Future[None] | None = None

    @property
    def is_new(self) -> bool:
        return not self.known.done()


@dataclass(slots=True)
class Desk:
    """Where requests queue; one task serves them and lets go what expired.

    With other trackers on the database (``replicas``) there are their requests too (``others``):
    they are served in their turn, each by its own tracker.
    """

    farm: Farm
    tickets: dict[str, Ticket] = field(default_factory=dict)
    replicas: Replicas | None = None
    others: list[Waiting] = field(default_factory=list)
    endings: Endings = field(init=False)

    def __post_init__(self) -> None:
        self.endings = Endings(self.farm)

    def join(self, replicas: Replicas) -> None:
        """Share the database with other trackers from now on."""
        self.replicas = self.endings.replicas = replicas

    # --- clients --------------------------------------------------------------------------------

    async def acquire(
        self,
        request_id: str,
        request: DeviceRequest,
        *,
        client: str,
        job: str,
        claim_epoch: int,
        wait_s: float,
        waited_s: float = 0.0,
        owner: str = "",
    ) -> Lease | None:
        """A lease, or None if no device came free in time; a repeated request keeps its place.

        A job that has had a lease gets devices of the same compiler version only, and always those
        that its selector selects. A request that this tracker does not know takes the place of one
        that came ``waited_s`` ago. StaleClaim if the job's claim is not the caller's, ValueError
        for a selector that is none.
        """
        parse_selector(request.selector)
        if job:
            row = await self.farm.database.read(lambda c: jobs.check_claim(c, job, claim_epoch))
            if row.compiler_version:
                request = replace(request, compiler_version=row.compiler_version)
            if row.selector:
                request = replace(request, selector=f"{request.selector} {row.selector}")
                parse_selector(request.selector)
        ticket = self._ticket(request_id, request, client, job, claim_epoch, waited_s)
        ticket.owner = owner
        answer = ticket.answer = asyncio.get_running_loop().create_future()
        self.farm.signals.notify(signals.LEASES)
        try:
            with idling():
                await asyncio.wait([answer], timeout=0 if self.farm.closing else wait_s)
            if not answer.done():
                await asyncio.wait([answer, ticket.known], return_when=asyncio.FIRST_COMPLETED)
            if ticket.writing is not None:
                await asyncio.wait([ticket.writing])
            return answer.result() if answer.done() else None
        finally:
            if ticket.answer is answer:
                ticket.answer = None
            ticket.left_at = self.farm.clock()
            if answer.done():
                self.tickets.pop(request_id, None)

    @property
    def queue(self) -> list[Waiting]:
        """Every request that waits, at other trackers too."""
        return [*(ticket.waiting for ticket in self.tickets.values()), *self.others]

    def place(self, request_id: str) -> int:
        """How many requests stand before this one, and itself; 0 if it is not in the queue."""
        order = sorted(self.queue, key=lambda w: (-w.request.priority, w.since, w.id))
        names = [one.id for one in order]
        return names.index(request_id) + 1 if request_id in names else 0

    def matching(self, request: DeviceRequest) -> int:
        """How many devices would serve the request: online, and not cordoned."""
        farm = self.farm
        return sum(
            serves(d, request) and farm.is_online(d.id) and farm.cordon_of(d.id) is None
            for d in farm.devices.values()
        )

    async def renew(self, lease: str, epoch: int) -> Lease:
        """The lease with a fresh deadline; StaleLease if it has ended. While its end is written
        this waits: the end may be refused."""
        while (live := self.farm.leases.get(lease)) is not None and live.ending is not None:
            await live.ending.wait()
        if self.replicas is not None and (live is None or self.replicas.is_cut_off):
            return await self._renew_by_row(lease, epoch)
        if live is None or live.lease.epoch != epoch:
            await self.farm.database.read(lambda c: leases.check(c, lease, epoch))
            raise StaleLease(f"the lease {lease} is not held")
        return self.farm.hold_lease(live.lease)

    async def _renew_by_row(self, lease: str, epoch: int) -> Lease:
        """Renew a lease that this tracker does not know yet, or no longer for certain."""
        term_s = self.farm.options.lease_term_s
        return self.farm.hold_lease(
            await self.farm.database.write(lambda c: renew_lease(c, lease, epoch, term_s))
        )

    async def release(self, lease: str, epoch: int) -> None:
        """End the lease; one that has ended stays ended."""
        live = self.farm.leases.get(lease)
        if live is None and self.replicas is not None:
            with suppress(StaleLease):
                await self._renew_by_row(lease, epoch)
            live = self.farm.leases.get(lease)
        if live is not None and live.lease.epoch == epoch:
            await self.endings.give_back(lease)

    def _ticket(
        self,
        request_id: str,
        request: DeviceRequest,
        client: str,
        job: str,
        claim_epoch: int,
        waited_s: float,
    ) -> Ticket:
        now = self.farm.clock()
        ticket = self.tickets.get(request_id)
        if ticket is None:
            since = now - max(0.0, waited_s)
            waiting = Waiting(request_id, request, since, client, job)
            ticket = Ticket(waiting, claim_epoch, left_at=now)
            self.tickets[request_id] = ticket
        ticket.waiting = replace(ticket.waiting, request=request)
        return ticket

    # --- the task -------------------------------------------------------------------------------

    async def serve(self) -> None:
        """Grant what is free and end what expired, until cancelled."""
        beating = asyncio.create_task(self.endings.keep_time())
        try:
            with self.farm.signals.listen(signals.LEASES) as bell:
                while True:
                    bell.silence()
                    try:
                        await self.step()
                    except StoreError:
                        await asyncio.sleep(TICK_S)
                    await bell.rings(self._rest_s)
        finally:
            beating.cancel()

    @property
    def _rest_s(self) -> float:
        """How long to do nothing unless there are news."""
        if self.replicas is None:
            return TICK_S
        return min(TICK_S, max(0.01, self.replicas.due_in_s))

    async def step(self) -> None:
        """End what expired or was to be given back by now, then grant what is free."""
        if self.replicas is not None:
            await self.replicas.exchange()
        if await self.endings.look():
            self._forget_the_silent()
        await self._grant()

    async def _grant(self) -> None:
        """Give what is free to those who ask, and to new requests what they were granted before,
        all in one write."""
        if not self.tickets:
            return
        asking = [t.waiting for t in self.tickets.values() if self._is_asking(t)] + self.others
        free = self.farm.free_devices()
        near = self.farm.near_devices(free) if self.replicas is not None else ()
        granted = allocate(asking, free, near)
        places = {waiting.id: device.id for waiting, device in granted}
        served = [
            ticket
            for id_, ticket in self.tickets.items()
            if ticket.answer is not None and (id_ in places or ticket.is_new)
        ]
        if not served:
            return
        writing = _future()
        for ticket in served:
            ticket.writing = writing
        try:
            outcomes = await self.farm.database.write(lambda c: self._store(c, served, places))
        except (StoreError, IntegrityError) as error:
            _log.warning("nothing was granted: %s", error)
            outcomes = {ticket.waiting.id: error for ticket in served}
        for ticket in served:
            self._answer(ticket, outcomes.get(ticket.waiting.id))
            ticket.writing = None
            if ticket.is_new:
                ticket.known.set_result(None)
        writing.set_result(None)
        if any(isinstance(outcome, StaleLease) for outcome in outcomes.values()):
            await self._look_again()

    def _store(
        self, connection: Connection, served: list[Ticket], places: dict[str, str]
    ) -> dict[str, Lease | Exception]:
        """What came of each request: a lease, or an error; of those that wait on, nothing."""
        unplaced = [t.waiting.id for t in served if t.waiting.id not in places]
        before = leases.by_requests(connection, unplaced)
        outcomes: dict[str, Lease | Exception] = {
            request: lease for request, lease in before.items() if lease.ended_at is None
        }
        wants: list[Want] = []
        for ticket in served:
            waiting, id_ = ticket.waiting, ticket.waiting.id
            if id_ not in places:
                continue
            try:
                if waiting.job:
                    jobs.check_claim(connection, waiting.job, ticket.claim_epoch)
            except (StaleClaim, UnknownRecord) as error:
                outcomes[id_] = error
                continue
            wants.append(Want(id_, places[id_], waiting.client, waiting.job, ticket.owner))
        granted = grant_all(connection, wants, self.farm.options.lease_term_s)
        return outcomes | {w.request_id: o for w, o in zip(wants, granted, strict=True)}

    def _answer(self, ticket: Ticket, outcome: Lease | Exception | None) -> None:
        """Tell a request's client what came of it, if it still listens."""
        if isinstance(outcome, Lease):
            if outcome.id not in self.farm.leases:
                self.farm.counts.granted += 1
                _log.info("granted to %s", outcome.client, extra=ids_of_lease(outcome))
            outcome = self.farm.hold_lease(outcome)
            if outcome.job:  # what is left of the job's earlier leases may wait for it
                self.farm.signals.notify(signals.device(outcome.device))
        if ticket.answer is None or ticket.answer.done():
            return
        if isinstance(outcome, Lease):
            ticket.answer.set_result(outcome)
        elif outcome is not None and not isinstance(outcome, StaleLease):
            ticket.answer.set_exception(outcome)

    def _is_asking(self, ticket: Ticket) -> bool:
        """Whether a device is given to a request, or kept until its client calls again."""
        if ticket.answer is None:
            return self.farm.clock() - ticket.left_at <= GAP_S
        return not ticket.answer.done()

    async def _look_again(self) -> None:
        """Take over what another tracker of the database did."""
        if self.replicas is not None:
            return self.replicas.hurry()
        self.farm.hold_cordons(await self.farm.database.write(cordons.cordons))
        await self.farm.adopt_leases()

    def _forget_the_silent(self) -> None:
        """Drop the requests whose clients have not called again for so long that they lose their
        place."""
        now = self.farm.clock()
        for id_, ticket in list(self.tickets.items()):
            if ticket.answer is None and now - ticket.left_at > PLACE_S:
                del self.tickets[id_]

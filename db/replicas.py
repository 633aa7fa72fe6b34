"""What the trackers of one database tell each other through it, by the database's clock.

Who is there, how long leases and claims last, and which requests wait for a device. A tracker
writes what it has heard and reads what all have, every ``exchange``; a term that is over by the row
is over, whatever a tracker holds in memory. While no tracker was alive no time has passed for
anybody: nobody could have renewed anything.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import (
    BindParameter,
    Connection,
    and_,
    bindparam,
    case,
    delete,
    or_,
    select,
    update,
)
from tunefarm.db import cordons, leases
from tunefarm.db.dialect import clock, upsert
from tunefarm.db.farm_models import CLAIM_TERMS, LEASES, TRACKERS, WAITING, WORKERS
from tunefarm.db.leases import Enlisted
from tunefarm.db.models import JOBS
from tunefarm.db.records import Cordon, Device, DeviceRequest, JobState, Lease

PLACE_S = 10.0
"""How long a request keeps its place in the queue while nobody waits on it."""
ALIVE_S = 30.0
"""How long a tracker that said nothing is still looked for."""
FORGOTTEN_S = 3600.0
"""After how long a silent tracker is no longer listed."""
SLACK_S = 0.1
"""By how much a deadline in a row may lag behind the one in a tracker's memory."""
MEMORY = 0.5
"""For what part of a term a tracker that cannot reach the database renews in its memory."""


@dataclass(frozen=True, slots=True)
class Presence:
    """A worker's process, when it last spoke (seconds ago), and how much work it could take.

    ``row_at`` is the time in its row: of what a tracker heard, in the row that it had read before.
    ``is_own`` says that the row has what the tracker that reads it has just said.
    """

    incarnation: str
    age_s: float
    capacity: int
    row_at: float = 0.0
    is_own: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """A running job's claim and how long it lasts (seconds from now)."""

    epoch: int
    left_s: float


@dataclass(frozen=True, slots=True)
class Asking:
    """A request in the queue, since when (seconds ago), and when its client was there."""

    id: str
    request: DeviceRequest
    waited_s: float
    silent_s: float
    client: str = ""
    job: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """What a tracker has to say: the terms that it renewed (seconds left), the workers that spoke
    to it, and its whole queue. ``interval_s`` is how often it says so."""

    tracker: str
    address: str
    lease_term_s: float
    claim_term_s: float
    interval_s: float
    leases: Mapping[str, float]
    claims: Mapping[str, Claim]
    workers: Mapping[str, Presence]
    queue: Sequence[Asking]


@dataclass(frozen=True, slots=True)
class Known:
    """What stands in the rows: live leases with the seconds that are left, claims of running jobs,
    workers, devices and cordons, the queues of the other trackers, and whether there are none of
    these (``is_alone``)."""

    leases: Mapping[str, tuple[Lease, float]]
    claims: Mapping[str, Claim]
    workers: Mapping[str, Presence]
    enlisted: dict[str, Enlisted]
    devices: tuple[Device, ...]
    cordons: tuple[Cordon, ...]
    queue: tuple[Asking, ...]
    is_alone: bool


def exchange(connection: Connection, heard: Heard, late_s: float = 0.0) -> Known:
    """Say what was heard ``late_s`` ago, read what is known."""
    now = clock(connection)
    then = now - late_s
    put_off = _beat(connection, heard, now, then)
    _begin_terms(connection, heard, now)
    _renew(connection, heard, then)
    said = _note_workers(connection, heard, now, then, put_off)
    _queue(connection, heard, then)
    return _read(connection, heard.tracker, now, said)


def is_over(connection: Connection, lease: str, term_s: float, beat_s: float) -> bool:
    """Whether the lease lives and its term is over, by its row and by all that trackers may know.
    Never while no tracker has been alive for ``beat_s``: that time is to be given back first."""
    row = LEASES.c.id == lease, LEASES.c.ended_at.is_(None)
    return _is_past(connection, select(LEASES.c.deadline).where(*row), term_s, beat_s)


def is_claim_over(
    connection: Connection, job: str, epoch: int, term_s: float, beat_s: float
) -> bool:
    """Whether the term of this claim is over, by its row; see ``is_over``."""
    row = CLAIM_TERMS.c.job == job, CLAIM_TERMS.c.epoch == epoch
    return _is_past(connection, select(CLAIM_TERMS.c.deadline).where(*row), term_s, beat_s)


def is_silent(connection: Connection, worker: str, term_s: float, beat_s: float) -> bool:
    """Whether the worker has spoken to no tracker for a term, by its row; see ``is_over``."""
    due_at = select(WORKERS.c.seen_at + term_s).where(WORKERS.c.id == worker)
    return _is_past(connection, due_at, term_s, beat_s)


def _is_past(connection: Connection, query: Any, term_s: float, beat_s: float) -> bool:
    """Whether the time of a row has passed, and every tracker has spoken since then: one that is
    silent may know of a later time, until what it renewed in memory is over too."""
    now = clock(connection)
    time = connection.execute(query).scalar_one_or_none()
    beats = connection.execute(select(TRACKERS.c.beat_at)).scalars().all()
    if time is None or now - max(beats, default=-math.inf) > beat_s:
        return False
    told_at = min(beat for beat in (now, *beats) if beat > now - (1 + MEMORY) * term_s)
    return bool(time + SLACK_S < told_at)


def renew_lease(connection: Connection, lease: str, epoch: int, term_s: float) -> Lease:
    """Renew a lease by its row; StaleLease if it has ended or the epoch is another one."""
    leases.check(connection, lease, epoch)
    deadline = clock(connection) + term_s
    connection.execute(update(LEASES).where(LEASES.c.id == lease).values(deadline=deadline))
    return leases.get(connection, lease)


def addresses(connection: Connection) -> tuple[str, ...]:
    """Where the trackers listen that were alive within ``ALIVE_S``, the last heard of first."""
    query = (
        select(TRACKERS.c.address)
        .where(TRACKERS.c.beat_at > clock(connection) - ALIVE_S)
        .order_by(TRACKERS.c.beat_at.desc())
    )
    return tuple(dict.fromkeys(connection.execute(query).scalars()))


# --- saying -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _PutOff:
    """How the times at which workers spoke were moved: by so long, and not to before ``least``."""

    seconds: float = 0.0
    least: float = -math.inf


def _beat(connection: Connection, heard: Heard, now: float, then: float) -> _PutOff:
    """Note that this tracker lived then; put all terms off by the time in which none did.

    One that begins alone gives everybody a whole term: those before it may have lived too briefly
    for anybody to renew anything, however often. What listened at its address before is gone.
    """
    others = connection.execute(select(TRACKERS)).all()
    last = max((row.beat_at for row in others), default=None)
    is_new = all(row.id != heard.tracker for row in others)
    alive = now - 2 * heard.interval_s
    is_alone = all(row.beat_at < alive or row.address == heard.address for row in others)
    here = {"id": heard.tracker, "address": heard.address, "started_at": now, "beat_at": then}
    statement = upsert(connection, TRACKERS).values(here)
    connection.execute(
        statement.on_conflict_do_update(index_elements=["id"], set_={"beat_at": then})
    )
    connection.execute(delete(TRACKERS).where(TRACKERS.c.beat_at < now - FORGOTTEN_S))
    if last is None:
        return _PutOff()
    if now < last:
        _end_future(connection, heard, now)
        return _PutOff()
    still_s = max(0.0, now - last - heard.interval_s)
    fresh = still_s > heard.lease_term_s / 2 or (is_new and is_alone)
    if not fresh and still_s <= heard.interval_s:
        return _PutOff()
    _give_back_time(connection, heard, still_s, now, fresh)
    return _PutOff(still_s, now if fresh else -math.inf)


def _give_back_time(
    connection: Connection, heard: Heard, still_s: float, now: float, fresh: bool
) -> None:
    """Put all terms off; if they are to be ``fresh``, each gets a whole one. None gets more: one
    that began after that time has lost nothing."""
    for table, column, term_s, live in (
        (LEASES, LEASES.c.deadline, heard.lease_term_s, LEASES.c.ended_at.is_(None)),
        (CLAIM_TERMS, CLAIM_TERMS.c.deadline, heard.claim_term_s, None),
        (WORKERS, WORKERS.c.seen_at, 0.0, WORKERS.c.seen_at.is_not(None)),
    ):
        later, whole = column + still_s, now + term_s
        put_off = whole if fresh else case((later < whole, later), else_=whole)
        statement = update(table).values({column: put_off})
        connection.execute(statement if live is None else statement.where(live))


def _end_future(connection: Connection, heard: Heard, now: float) -> None:
    """Let no time lie further ahead than it could be said now: the database's clock was set back,
    and what was said before would last for as long as that."""
    for column, term_s in (
        (LEASES.c.deadline, heard.lease_term_s),
        (CLAIM_TERMS.c.deadline, heard.claim_term_s),
        (WORKERS.c.seen_at, 0.0),
        (TRACKERS.c.beat_at, 0.0),
        (WAITING.c.since, 0.0),
        (WAITING.c.asked_at, 0.0),
    ):
        whole = now + term_s
        connection.execute(update(column.table).where(column > whole).values({column: whole}))


def _begin_terms(connection: Connection, heard: Heard, now: float) -> None:
    """Give those a term that have none yet: claims are made without one."""
    running = (
        select(JOBS.c.id, JOBS.c.claim_epoch)
        .select_from(JOBS.outerjoin(CLAIM_TERMS, CLAIM_TERMS.c.job == JOBS.c.id))
        .where(JOBS.c.state == str(JobState.RUNNING))
        .where(or_(CLAIM_TERMS.c.epoch.is_(None), CLAIM_TERMS.c.epoch != JOBS.c.claim_epoch))
    )
    deadline = now + heard.claim_term_s
    rows = [
        {"job": job, "epoch": epoch, "deadline": deadline}
        for job, epoch in connection.execute(running)
    ]
    if rows:
        statement = upsert(connection, CLAIM_TERMS)
        new = {name: statement.excluded[name] for name in ("epoch", "deadline")}
        connection.execute(statement.on_conflict_do_update(index_elements=["job"], set_=new), rows)
    endless = LEASES.c.ended_at.is_(None), LEASES.c.deadline.is_(None)
    connection.execute(update(LEASES).where(*endless).values(deadline=now + heard.lease_term_s))
    unseen = WORKERS.c.seen_at.is_(None)
    connection.execute(update(WORKERS).where(unseen).values(seen_at=now))


def _renew(connection: Connection, heard: Heard, now: float) -> None:
    """Put off the terms that were renewed; none ends sooner by that."""
    later: BindParameter[float] = bindparam("later")
    if heard.leases:
        statement = update(LEASES).where(LEASES.c.id == bindparam("at"), LEASES.c.deadline < later)
        rows = [{"at": id_, "later": now + left_s} for id_, left_s in heard.leases.items()]
        connection.execute(statement.values(deadline=later), rows)
    if heard.claims:
        mine = CLAIM_TERMS.c.job == bindparam("at"), CLAIM_TERMS.c.epoch == bindparam("of")
        statement = update(CLAIM_TERMS).where(*mine, CLAIM_TERMS.c.deadline < later)
        rows = [
            {"at": job, "of": claim.epoch, "later": now + claim.left_s}
            for job, claim in heard.claims.items()
        ]
        connection.execute(statement.values(deadline=later), rows)


def _note_workers(
    connection: Connection, heard: Heard, now: float, then: float, put_off: _PutOff
) -> dict[str, float]:
    """Note what workers said last, each unless another tracker has heard more; the times noted.

    A word is dated later than the row that its tracker had read before, however soon it followed
    and however long that one's way was: else it would get lost. A row that lay in the future was
    dated anew when the clock was set back.
    """
    if not heard.workers:
        return {}
    later: BindParameter[float] = bindparam("later")
    process = WORKERS.c.id == bindparam("at"), WORKERS.c.incarnation == bindparam("of")
    statement = update(WORKERS).where(*process, WORKERS.c.seen_at < later)
    said = {}
    for worker, presence in heard.workers.items():
        before = min(max(presence.row_at + put_off.seconds, put_off.least), now)
        said[worker] = max(then - presence.age_s, math.nextafter(before, math.inf))
    rows = [
        {"at": worker, "of": p.incarnation, "later": said[worker], "takes": p.capacity}
        for worker, p in heard.workers.items()
    ]
    connection.execute(statement.values(seen_at=later, capacity=bindparam("takes")), rows)
    return said


def _queue(connection: Connection, heard: Heard, now: float) -> None:
    """Store this tracker's queue as it is; a request goes where its client was last."""
    rows = [
        {
            "id": asking.id,
            "tracker": heard.tracker,
            "request": {"client": asking.client, "job": asking.job, **asdict(asking.request)},
            "since": now - asking.waited_s,
            "asked_at": now - asking.silent_s,
        }
        for asking in heard.queue
    ]
    ids = [row["id"] for row in rows]
    gone = and_(WAITING.c.tracker == heard.tracker, WAITING.c.id.not_in(ids))
    connection.execute(delete(WAITING).where(or_(gone, WAITING.c.asked_at < now - PLACE_S)))
    if not rows:
        return
    statement = upsert(connection, WAITING)
    new = statement.excluded
    told = {name: new[name] for name in ("tracker", "request", "since", "asked_at")}
    statement = statement.on_conflict_do_update(
        index_elements=["id"], set_=told, where=WAITING.c.asked_at < new.asked_at
    )
    connection.execute(statement, rows)


# --- reading ------------------------------------------------------------------------------------


def _read(connection: Connection, tracker: str, now: float, said: Mapping[str, float]) -> Known:
    deadlines = select(LEASES.c.id, LEASES.c.deadline).where(LEASES.c.ended_at.is_(None))
    left_s = {id_: deadline - now for id_, deadline in connection.execute(deadlines)}
    terms = (
        select(CLAIM_TERMS)
        .join(JOBS, and_(JOBS.c.id == CLAIM_TERMS.c.job, JOBS.c.claim_epoch == CLAIM_TERMS.c.epoch))
        .where(JOBS.c.state == str(JobState.RUNNING))
    )
    others = select(WAITING).where(WAITING.c.tracker != tracker)
    alive = select(TRACKERS.c.id).where(TRACKERS.c.beat_at > now - ALIVE_S)
    alive = alive.where(TRACKERS.c.id != tracker)
    workers = connection.execute(select(WORKERS)).all()
    return Known(
        leases={lease.id: (lease, left_s[lease.id]) for lease in leases.live(connection)},
        claims={row.job: Claim(row.epoch, row.deadline - now) for row in connection.execute(terms)},
        workers={row.id: _presence(row, now, said.get(row.id)) for row in workers},
        enlisted=leases.enlisted(workers),
        devices=leases.devices(connection),
        cordons=cordons.cordons(connection),
        queue=tuple(_asking(row, now) for row in connection.execute(others)),
        is_alone=connection.execute(alive).first() is None,
    )


def _presence(row: Any, now: float, said_at: float | None) -> Presence:
    is_own = row.seen_at == said_at
    return Presence(row.incarnation, now - row.seen_at, row.capacity, row.seen_at, is_own)


def _asking(row: Any, now: float) -> Asking:
    fields = dict(row.request)
    client, job = fields.pop("client"), fields.pop("job")
    request = DeviceRequest(**fields)
    return Asking(row.id, request, now - row.since, now - row.asked_at, client, job)

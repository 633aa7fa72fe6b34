"""Workers, devices and leases: who may write what, decided by rows and never by memory.

A grant raises its device's epoch. A write under a lease passes ``check``: the lease is live and
the epoch is its own. A worker's write also comes from the worker's current incarnation. Leases
that ended stay as the record of who held what.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Select, and_, case, insert, or_, select, update
from tunefarm.db.dialect import upsert
from tunefarm.db.errors import StaleIncarnation, StaleLease
from tunefarm.db.models import (
    CORDONS,
    DEVICES,
    INCARNATIONS,
    JOBS,
    LEASES,
    REQUESTS,
    TARGETS,
    WORKERS,
)
from tunefarm.db.records import Device, Lease

DEVICE_LOST = "device_lost"
"""The reason of a lease that ended because its device's worker went silent: what it had delivered
counts as an attempt, because the candidate may be what killed the worker."""

# --- workers and devices ------------------------------------------------------------------------


def enlist(connection: Connection, worker: str, incarnation: str, compiler_version: str) -> bool:
    """Make this process the worker's current one, or confirm it; whether it is new.

    StaleIncarnation if it was current once and another has replaced it.
    """
    now = time.time()
    row = connection.execute(select(WORKERS).where(WORKERS.c.id == worker)).one_or_none()
    if row is not None and row.incarnation == incarnation:
        return False
    values = {
        "incarnation": incarnation,
        "compiler_version": compiler_version,
        "started_at": now,
    }
    if row is None:
        connection.execute(insert(WORKERS).values(id=worker, **values))
    past = select(INCARNATIONS).where(
        INCARNATIONS.c.worker == worker, INCARNATIONS.c.incarnation == incarnation
    )
    if connection.execute(past).one_or_none() is not None:
        raise StaleIncarnation(f"a newer process of worker {worker} has taken over")
    connection.execute(
        insert(INCARNATIONS).values(worker=worker, incarnation=incarnation, started_at=now)
    )
    connection.execute(update(WORKERS).where(WORKERS.c.id == worker).values(**values))
    return True


def register(connection: Connection, worker: str, devices: Iterable[Device]) -> None:
    """Store what a worker tells of its devices; epochs stay."""
    rows = [
        {
            "id": device.id,
            "kind": device.kind,
            "model": device.model,
            "target": device.target,
            "worker": worker,
            "attributes": dict(device.attributes),
            "peaks": dict(device.peaks),
            "noise": device.noise,
            "epoch": 0,
        }
        for device in devices
    ]
    if not rows:
        return
    statement = upsert(connection, DEVICES)
    told = ("kind", "model", "target", "worker", "attributes", "peaks", "noise")
    statement = statement.on_conflict_do_update(
        index_elements=["id"], set_={name: statement.excluded[name] for name in told}
    )
    connection.execute(statement, rows)


def devices(connection: Connection) -> tuple[Device, ...]:
    """Every device that ever registered; ``state`` is not stored and left at its default."""
    return tuple(
        Device(
            id=row.id,
            kind=row.kind,
            model=row.model,
            target=row.target,
            worker=row.worker,
            attributes=row.attributes,
            peaks=row.peaks,
            noise=row.noise,
            epoch=row.epoch,
            compiler_version=row.compiler_version,
        )
        for row in connection.execute(_devices().order_by(DEVICES.c.id))
    )


def _devices() -> Select[Any]:
    source = DEVICES.join(WORKERS, WORKERS.c.id == DEVICES.c.worker)
    return select(*DEVICES.c, WORKERS.c.compiler_version).select_from(source)


# --- leases -------------------------------------------------------------------------------------


def grant(
    connection: Connection,
    device: str,
    *,
    client: str,
    job: str,
    request_id: str,
    term_s: float,
    owner: str = "",
) -> Lease:
    """Lease the device under its next epoch; the job's orphaned trials move to this lease.

    The job's first lease binds it to the compiler version of the device's worker. The same
    ``request_id`` again returns its lease. StaleLease if the device is leased (the database's own
    promise raises IntegrityError if anything gets past that), cordoned, or of another version than
    the job.
    """
    again = by_request(connection, request_id)
    if again is not None:
        return again
    live = select(LEASES.c.id).where(LEASES.c.device == device, LEASES.c.ended_at.is_(None))
    if connection.execute(live).one_or_none() is not None:
        raise StaleLease(f"device {device} is leased")
    _check_cordons(connection, device)
    connection.execute(
        update(DEVICES).where(DEVICES.c.id == device).values(epoch=DEVICES.c.epoch + 1)
    )
    row = connection.execute(_devices().where(DEVICES.c.id == device)).one()
    if job:
        _bind(connection, job, row)
    now = time.time()
    lease = Lease(
        uuid.uuid4().hex, device, client, row.epoch, term_s, job=job, granted_at=now, owner=owner
    )
    connection.execute(
        insert(LEASES).values(
            id=lease.id,
            request_id=request_id,
            device=device,
            client=client,
            job=job,
            epoch=lease.epoch,
            term_s=term_s,
            granted_at=now,
            ended_at=None,
            ended_reason="",
            owner=owner,
        )
    )
    if job:
        _adopt_orphans(connection, lease.id, job, row.kind)
    return lease


def _check_cordons(connection: Connection, device: str) -> None:
    worker = select(DEVICES.c.worker).where(DEVICES.c.id == device).scalar_subquery()
    query = select(CORDONS).where(
        or_(
            and_(CORDONS.c.scope == "device", CORDONS.c.subject == device),
            and_(CORDONS.c.scope == "worker", CORDONS.c.subject == worker),
        )
    )
    row = connection.execute(query.limit(1)).one_or_none()
    if row is not None:
        raise StaleLease(f"device {device} is cordoned by {row.actor}: {row.reason}")


def _bind(connection: Connection, job: str, device: Any) -> None:
    connection.execute(
        update(JOBS)
        .where(JOBS.c.id == job, JOBS.c.compiler_version.is_(None))
        .values(compiler_version=device.compiler_version, revision=JOBS.c.revision + 1)
    )
    query = select(JOBS.c.compiler_version).where(JOBS.c.id == job)
    bound = connection.execute(query).scalar_one_or_none()
    if bound is not None and bound != device.compiler_version:
        raise StaleLease(
            f"device {device.id} has compiler {device.compiler_version}, the trials of job {job} "
            f"are made by {bound}"
        )


def _adopt_orphans(connection: Connection, lease: str, job: str, kind: str) -> None:
    targets = select(TARGETS.c.id).where(
        (TARGETS.c.text == kind) | TARGETS.c.text.startswith(f"{kind} ", autoescape=True)
    )
    connection.execute(
        update(REQUESTS)
        .where(REQUESTS.c.job == job, REQUESTS.c.lease.is_(None))
        .where(REQUESTS.c.target_id.in_(targets))
        .values(lease=lease)
    )


def check(connection: Connection, lease: str, epoch: int) -> Any:
    """The lease's row; StaleLease if it has ended or the epoch is another one."""
    row = connection.execute(select(LEASES).where(LEASES.c.id == lease)).one_or_none()
    if row is None:
        raise StaleLease(f"there is no lease {lease}")
    if row.ended_at is not None:
        raise StaleLease(f"the lease of device {row.device} has ended: {row.ended_reason}")
    if row.epoch != epoch:
        raise StaleLease(
            f"the lease of device {row.device} has epoch {row.epoch}, the write has {epoch}"
        )
    return row


def by_request(connection: Connection, request_id: str) -> Lease | None:
    """The live lease that this request was granted, None if it has none."""
    query = select(LEASES).where(LEASES.c.request_id == request_id, LEASES.c.ended_at.is_(None))
    row = connection.execute(query).one_or_none()
    return _from_row(row) if row is not None else None


def live(connection: Connection) -> tuple[Lease, ...]:
    """Every live lease, in the order of devices."""
    query = select(LEASES).where(LEASES.c.ended_at.is_(None)).order_by(LEASES.c.device)
    return tuple(map(_from_row, connection.execute(query)))


def get(connection: Connection, lease: str) -> Lease:
    """The lease as it stands, live or ended; StaleLease if there is none of this id."""
    row = connection.execute(select(LEASES).where(LEASES.c.id == lease)).one_or_none()
    if row is None:
        raise StaleLease(f"there is no lease {lease}")
    return _from_row(row)


def history(
    connection: Connection,
    *,
    device: str = "",
    job: str = "",
    before: float | None = None,
    limit: int = 100,
) -> tuple[Lease, ...]:
    """Leases, live and ended, the newest first: of devices and jobs whose ids begin as named, and
    granted before that time if one is given."""
    query = select(LEASES).order_by(LEASES.c.granted_at.desc(), LEASES.c.id).limit(limit)
    for column, beginning in ((LEASES.c.device, device), (LEASES.c.job, job)):
        if beginning:
            query = query.where(column.startswith(beginning, autoescape=True))
    if before is not None:
        query = query.where(LEASES.c.granted_at < before)
    return tuple(map(_from_row, connection.execute(query)))


def end(connection: Connection, lease: str, reason: str) -> str | None:
    """End the lease; returns its device, or None if it had ended before."""
    row = connection.execute(
        select(LEASES).where(LEASES.c.id == lease, LEASES.c.ended_at.is_(None))
    ).one_or_none()
    if row is None:
        return None
    connection.execute(
        update(LEASES).where(LEASES.c.id == lease).values(ended_at=time.time(), ended_reason=reason)
    )
    _orphan(connection, lease, blame=reason == DEVICE_LOST)
    return str(row.device)


def end_of_job(connection: Connection, job: str, reason: str) -> None:
    """End every live lease of the job."""
    query = select(LEASES.c.id).where(LEASES.c.job == job, LEASES.c.ended_at.is_(None))
    for lease in connection.execute(query).scalars().all():
        end(connection, lease, reason)


def end_mixed(connection: Connection, worker: str) -> tuple[str, ...]:
    """End the live leases whose job is bound to another compiler version than the worker now has;
    returns them."""
    source = (
        LEASES.join(DEVICES, DEVICES.c.id == LEASES.c.device)
        .join(WORKERS, WORKERS.c.id == DEVICES.c.worker)
        .join(JOBS, JOBS.c.id == LEASES.c.job)
    )
    query = (
        select(LEASES.c.id, WORKERS.c.compiler_version, JOBS.c.compiler_version.label("bound"))
        .select_from(source)
        .where(WORKERS.c.id == worker, LEASES.c.ended_at.is_(None))
        .where(JOBS.c.compiler_version != WORKERS.c.compiler_version)
    )
    mixed = connection.execute(query).all()
    for row in mixed:
        now = f"its worker came back with compiler {row.compiler_version}"
        end(connection, row.id, f"{now}, the job's trials are made by {row.bound}")
    return tuple(row.id for row in mixed)


def _orphan(connection: Connection, lease: str, *, blame: bool) -> None:
    """Leave the lease's trials to the job's next one; unless they are to blame for its end, the
    delivery that they lose does not count as an attempt."""
    values: dict[str, Any] = {"lease": None}
    if not blame:
        delivered = REQUESTS.c.delivered_to.is_not(None)
        values |= {
            "attempts": case((delivered, REQUESTS.c.attempts - 1), else_=REQUESTS.c.attempts),
            "delivered_to": None,
        }
    connection.execute(update(REQUESTS).where(REQUESTS.c.lease == lease).values(values))


def _from_row(row: Any) -> Lease:
    return Lease(
        id=row.id,
        device=row.device,
        client=row.client,
        epoch=row.epoch,
        term_s=row.term_s,
        ended_reason=row.ended_reason,
        job=row.job,
        granted_at=row.granted_at,
        ended_at=row.ended_at,
        owner=row.owner,
    )

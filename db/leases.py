"""Workers, devices and leases: who may write what, decided by rows and never by memory.

A grant (``grants``) raises its device's epoch. A write under a lease passes ``check``: the lease is
live and the epoch is its own. A worker's write also comes from the worker's current incarnation.
Leases that ended stay as the record of who held what.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, Select, case, func, insert, select, update
from tunefarm.db import at_once
from tunefarm.db.dialect import clock_there, is_shared, upsert
from tunefarm.db.errors import StaleIncarnation, StaleLease
from tunefarm.db.farm_models import DEVICES, INCARNATIONS, LEASES, REQUESTS, WORKERS
from tunefarm.db.models import JOBS
from tunefarm.db.records import (
    COMPILER_TAG,
    PLUGIN_TAG,
    Device,
    Health,
    Lease,
    plugin_tags,
    plugins_in,
)
from tunefarm.db.rows import chunks

DEVICE_LOST = "device_lost"
"""The reason of a lease that ended because its device's worker went silent: what it had delivered
counts as an attempt, because the candidate may be what killed the worker."""
COMPILER = func.coalesce(
    DEVICES.c.attributes[COMPILER_TAG].as_string(), WORKERS.c.compiler_version
).label("compiler_version")
"""What makes the code of a device, of a row of ``DEVICES`` with its worker's."""

# --- workers and devices ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Enlisted:
    """A worker by its row: its current process, the compiler of that, and whose it is."""

    incarnation: str
    compiler_version: str
    owner: str


def enlist(
    connection: Connection,
    worker: str,
    incarnation: str,
    compiler_version: str,
    capacity: int = 0,
) -> bool:
    """Make this process the worker's current one, or confirm it; whether it is new.

    A new one has just spoken, and could take ``capacity`` work: other trackers read that.
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
        "seen_at": clock_there(connection),
        "capacity": capacity,
    }
    if row is None:
        connection.execute(insert(WORKERS).values(id=worker, **values))
    past = select(INCARNATIONS).where(
        INCARNATIONS.c.worker == worker, INCARNATIONS.c.incarnation == incarnation
    )
    if connection.execute(past).one_or_none() is not None:
        raise StaleIncarnation(worker)
    connection.execute(
        insert(INCARNATIONS).values(worker=worker, incarnation=incarnation, started_at=now)
    )
    connection.execute(update(WORKERS).where(WORKERS.c.id == worker).values(**values))
    return True


def all_enlisted(connection: Connection) -> dict[str, Enlisted]:
    """Every worker that ever was."""
    return enlisted(connection.execute(select(WORKERS)))


def enlisted(rows: Iterable[Any]) -> dict[str, Enlisted]:
    """Workers by their rows."""
    return {row.id: Enlisted(row.incarnation, row.compiler_version, row.owner) for row in rows}


def register(
    connection: Connection,
    worker: str,
    devices: Iterable[Device],
    known: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Store what a worker tells of its devices; epochs stay.

    With ``known``, the workers that these devices were last known to be of (none of a new one), a
    device that another one has got meanwhile stays that one's; these workers by device.
    """
    taken = {}
    for device in devices:
        told = what_is_told(device, worker)
        statement = upsert(connection, DEVICES).values(epoch=0, **told)
        mine = None if known is None else DEVICES.c.worker.in_([worker, known.get(device.id, "")])
        statement = statement.on_conflict_do_update(
            index_elements=["id"],
            set_={name: statement.excluded[name] for name in told},
            where=mine,
        )
        if connection.execute(statement.returning(DEVICES.c.id)).first() is None:
            present = select(DEVICES.c.worker).where(DEVICES.c.id == device.id)
            taken[device.id] = connection.execute(present).scalar_one()
    return taken


def what_is_told(device: Device, worker: str) -> dict[str, Any]:
    """What the row of a device has from its worker."""
    return {
        "id": device.id,
        "kind": device.kind,
        "model": device.model,
        "target": device.target,
        "worker": worker,
        "attributes": dict(device.attributes),
        "peaks": dict(device.peaks),
        "noise": device.noise,
        "health": asdict(device.health),
    }


def devices(connection: Connection, worker: str = "") -> tuple[Device, ...]:
    """Every device that ever registered, or those of a worker; ``state`` is not stored and left at
    its default."""
    query = devices_query().order_by(DEVICES.c.id)
    if worker:
        query = query.where(DEVICES.c.worker == worker)
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
            health=Health(**row.health),
            check=row.check_number,
        )
        for row in connection.execute(query)
    )


def devices_query() -> Select[Any]:
    """Rows of devices with their compiler versions."""
    source = DEVICES.join(WORKERS, WORKERS.c.id == DEVICES.c.worker)
    return select(*DEVICES.c, COMPILER).select_from(source)


# --- leases -------------------------------------------------------------------------------------


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


def by_requests(connection: Connection, request_ids: Iterable[str]) -> dict[str, Lease]:
    """The leases that these requests were granted, live or ended."""
    found: dict[str, Lease] = {}
    for chunk in chunks(sorted(request_ids)):
        query = select(LEASES).where(LEASES.c.request_id.in_(chunk))
        found.update((row.request_id, _from_row(row)) for row in connection.execute(query))
    return found


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
    return end_all(connection, [lease], reason).get(lease)


def end_all(connection: Connection, leases: Sequence[str], reason: str) -> dict[str, str]:
    """End those of the leases that live; their devices."""
    if is_shared(connection):
        return at_once.end(connection, leases, reason, blame=reason == DEVICE_LOST)
    found: dict[str, str] = {}
    for chunk in chunks(sorted(leases)):
        statement = update(LEASES).where(LEASES.c.id.in_(chunk), LEASES.c.ended_at.is_(None))
        values = {"ended_at": clock_there(connection), "ended_reason": reason}
        ended = connection.execute(statement.values(values).returning(LEASES.c.id, LEASES.c.device))
        found.update((id_, device) for id_, device in ended)
    _orphan(connection, list(found), blame=reason == DEVICE_LOST)
    return found


def end_of_job(connection: Connection, job: str, reason: str) -> None:
    """End every live lease of the job."""
    query = select(LEASES.c.id).where(LEASES.c.job == job, LEASES.c.ended_at.is_(None))
    end_all(connection, connection.execute(query).scalars().all(), reason)


def end_mixed(connection: Connection, worker: str) -> tuple[str, ...]:
    """End the live leases whose job is bound to another compiler version than the worker now has,
    or made with plug-ins that it no longer has; returns them."""
    source = (
        LEASES.join(DEVICES, DEVICES.c.id == LEASES.c.device)
        .join(WORKERS, WORKERS.c.id == DEVICES.c.worker)
        .join(JOBS, JOBS.c.id == LEASES.c.job)
    )
    query = (
        select(LEASES.c.id, COMPILER, JOBS.c.compiler_version.label("bound"))
        .add_columns(DEVICES.c.attributes, JOBS.c.selector)
        .select_from(source)
        .where(WORKERS.c.id == worker, LEASES.c.ended_at.is_(None))
    )
    ended = []
    for row in connection.execute(query).all():
        reason = _why_mixed(row)
        if reason:
            end(connection, row.id, reason)
            ended.append(row.id)
    return tuple(ended)


def _why_mixed(row: Any) -> str:
    """What a worker has become that its job is not; empty if they go together."""
    if row.bound not in (None, row.compiler_version):
        now = f"its worker came back with compiler {row.compiler_version}"
        return f"{now}, the job's trials are made by {row.bound}"
    needed = plugin_tags(plugins_in(row.selector))
    lacking = [n for n, version in needed.items() if row.attributes.get(n) != version]
    if lacking:
        names = ", ".join(name.removeprefix(PLUGIN_TAG) for name in lacking)
        return f"its worker came back without the job's version of plug-in {names}"
    return ""


def _orphan(connection: Connection, leases: list[str], *, blame: bool) -> None:
    """Leave the leases' trials to the jobs' next ones; unless they are to blame for the end, the
    delivery that they lose does not count as an attempt."""
    values: dict[str, Any] = {"lease": None}
    if not blame:
        delivered = REQUESTS.c.delivered_to.is_not(None)
        values |= {
            "attempts": case((delivered, REQUESTS.c.attempts - 1), else_=REQUESTS.c.attempts),
            "delivered_to": None,
        }
    for chunk in chunks(leases):
        connection.execute(update(REQUESTS).where(REQUESTS.c.lease.in_(chunk)).values(values))


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

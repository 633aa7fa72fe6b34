"""New leases: which devices may be lent, to whom, and what comes with them.

A grant raises its device's epoch. The job's first lease binds it to the compiler version of the
device's worker, and the job's orphaned trials move to the new lease.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, insert, select, update
from tunefarm.db import at_once, leases
from tunefarm.db.dialect import clock_there, is_shared
from tunefarm.db.errors import StaleLease
from tunefarm.db.farm_models import CORDONS, DEVICES, LEASES, REQUESTS, WORKERS
from tunefarm.db.models import JOBS, TARGETS
from tunefarm.db.records import HEALTH, Lease

_LENDING = (
    select(
        DEVICES.c.id,
        DEVICES.c.worker,
        DEVICES.c.kind,
        DEVICES.c.epoch,
        leases.COMPILER,
        LEASES.c.id.label("lease"),
    )
    .select_from(
        DEVICES.join(WORKERS, WORKERS.c.id == DEVICES.c.worker).outerjoin(
            LEASES, and_(LEASES.c.device == DEVICES.c.id, LEASES.c.ended_at.is_(None))
        )
    )
    .where(DEVICES.c.id.in_(bindparam("devices", expanding=True)))
)
"""Devices with what decides whether they can be lent, and their live leases."""


@dataclass(frozen=True, slots=True)
class Want:
    """A device that a request is to get."""

    request_id: str
    device: str
    client: str
    job: str = ""
    owner: str = ""


def grant(connection: Connection, want: Want, term_s: float) -> Lease:
    """Lease a device under its next epoch; the same request again returns its lease while that
    lives, and is a new one afterwards: its client may never have heard of it.

    StaleLease if the device is leased (the database's own promise raises IntegrityError if anything
    gets past that), cordoned, or of another version than the job.
    """
    (outcome,) = grant_all(connection, [want], term_s)
    if isinstance(outcome, StaleLease):
        raise outcome
    return outcome


def grant_all(
    connection: Connection, wants: Sequence[Want], term_s: float
) -> list[Lease | StaleLease]:
    """``grant`` for many requests, each of another device; in their order what came of each."""
    if not is_shared(connection):
        return _grant_each(connection, wants, term_s)
    granted: dict[str, Lease | StaleLease] = {**at_once.grant(connection, wants, term_s)}
    rest = [want for want in wants if want.request_id not in granted]
    outcomes = _grant_each(connection, rest, term_s)
    granted.update((want.request_id, o) for want, o in zip(rest, outcomes, strict=True))
    return [granted[want.request_id] for want in wants]


def _grant_each(
    connection: Connection, wants: Sequence[Want], term_s: float
) -> list[Lease | StaleLease]:
    """``grant_all`` on any database, with its reasons."""
    if not wants:
        return []
    before = leases.by_requests(connection, [want.request_id for want in wants])
    known = {request: lease for request, lease in before.items() if lease.ended_at is None}
    _free_requests(connection, before.keys() - known.keys())
    devices = {want.device for want in wants if want.request_id not in known}
    lending = _LENDING.add_columns(clock_there(connection).label("now"))
    rows = {row.id: row for row in connection.execute(lending, {"devices": sorted(devices)})}
    refusals = _refusals(connection, rows)
    outcomes: list[Lease | StaleLease] = []
    for want in wants:
        outcome = known.get(want.request_id) or refusals.get(want.device)
        if outcome is None and want.job:
            outcome = _bind(connection, want.job, rows[want.device])
        outcomes.append(outcome or _lease(want, rows[want.device], term_s))
    pairs = [(w, o) for w, o in zip(wants, outcomes, strict=True) if isinstance(o, Lease)]
    fresh = [(want, lease) for want, lease in pairs if want.request_id not in known]
    _store(connection, fresh)
    for want, lease in fresh:
        if want.job:
            _adopt_orphans(connection, lease.id, want.job, rows[want.device].kind)
    return outcomes


def _free_requests(connection: Connection, ended: Set[str]) -> None:
    """Let requests whose leases have ended be granted another: the rows of those go by ids from now
    on that nobody can guess, and ask by."""
    for request_id in ended:
        freed = update(LEASES).where(LEASES.c.request_id == request_id)
        connection.execute(freed.values(request_id=uuid.uuid4().hex))


def _lease(want: Want, device: Any, term_s: float) -> Lease:
    return Lease(
        id=uuid.uuid4().hex,
        device=want.device,
        client=want.client,
        epoch=device.epoch + 1,
        term_s=term_s,
        job=want.job,
        granted_at=device.now,
        owner=want.owner,
    )


def _store(connection: Connection, fresh: Sequence[tuple[Want, Lease]]) -> None:
    if not fresh:
        return
    devices = [lease.device for _, lease in fresh]
    raised = update(DEVICES).where(DEVICES.c.id.in_(devices)).values(epoch=DEVICES.c.epoch + 1)
    connection.execute(raised)
    shared = is_shared(connection)
    rows = [
        {
            "id": lease.id,
            "request_id": want.request_id,
            "device": lease.device,
            "client": lease.client,
            "job": lease.job,
            "epoch": lease.epoch,
            "term_s": lease.term_s,
            "granted_at": lease.granted_at,
            "ended_at": None,
            "ended_reason": "",
            "owner": lease.owner,
            "deadline": lease.granted_at + lease.term_s if shared else None,
        }
        for want, lease in fresh
    ]
    connection.execute(insert(LEASES), rows)


def _refusals(connection: Connection, devices: dict[str, Any]) -> dict[str, StaleLease]:
    """Why those of these devices that cannot be lent cannot."""
    found = {
        device.id: StaleLease(f"device {device.id} is leased")
        for device in devices.values()
        if device.lease is not None
    }
    cordons = {(row.scope, row.subject): row for row in connection.execute(select(CORDONS))}
    for device in devices.values() if cordons else ():
        places = (("device", device.id), ("worker", device.worker), (HEALTH, device.id))
        row = next((cordons[place] for place in places if place in cordons), None)
        if row is not None:
            state = "quarantined" if row.scope == HEALTH else "cordoned"
            sentence = f"device {device.id} is {state} by {row.actor}: {row.reason}"
            found.setdefault(device.id, StaleLease(sentence))
    return found


def _bind(connection: Connection, job: str, device: Any) -> StaleLease | None:
    """Bind the job to the device's compiler version; a refusal if it is bound to another."""
    connection.execute(
        update(JOBS)
        .where(JOBS.c.id == job, JOBS.c.compiler_version.is_(None))
        .values(compiler_version=device.compiler_version, revision=JOBS.c.revision + 1)
    )
    query = select(JOBS.c.compiler_version).where(JOBS.c.id == job)
    bound = connection.execute(query).scalar_one_or_none()
    if bound is None or bound == device.compiler_version:
        return None
    return StaleLease(
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

"""Devices and workers that get no new lease, and the record of what operators did.

Every function that changes something takes a request id: asked again, it changes nothing.
"""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, and_, delete, insert, or_, select
from tunefarm.db import leases
from tunefarm.db.dialect import upsert
from tunefarm.db.errors import UnknownRecord
from tunefarm.db.farm_models import AUDIT, CORDONS, DEVICES, LEASES, WORKERS
from tunefarm.db.records import AuditEvent, Cordon, Lease

DEVICE, WORKER = "device", "worker"
"""The scopes of a cordon."""
PREFIX_LENGTH = 4


def cordon(
    connection: Connection,
    request_id: str,
    name: str,
    *,
    actor: str,
    reason: str,
    drain: bool = False,
    revoke_after_s: float | None = None,
) -> Cordon:
    """Grant no lease of the device or worker named (or of the one whose id begins so) from now on;
    replaces an earlier cordon. UnknownRecord if there is none or several."""
    scope, subject = find(connection, name)
    now = time.time()
    revoke_at = now + revoke_after_s if drain and revoke_after_s is not None else None
    found = Cordon(scope, subject, drain, actor, reason, now, revoke_at)
    action = "drain" if drain else "cordon"
    if not note(connection, request_id, actor, action, f"{scope} {subject}", reason):
        return next((c for c in cordons(connection) if _key(c) == (scope, subject)), found)
    values = {
        "drain": drain,
        "actor": actor,
        "reason": reason,
        "at": now,
        "revoke_at": revoke_at,
    }
    statement = upsert(connection, CORDONS).values(scope=scope, subject=subject, **values)
    connection.execute(
        statement.on_conflict_do_update(index_elements=["scope", "subject"], set_=values)
    )
    return found


def uncordon(
    connection: Connection, request_id: str, name: str, *, actor: str, reason: str
) -> tuple[str, str]:
    """Let the device or worker have leases again; (scope, id). One without a cordon stays so."""
    scope, subject = find(connection, name)
    here = and_(CORDONS.c.scope == scope, CORDONS.c.subject == subject)
    is_cordoned = connection.execute(select(CORDONS.c.at).where(here)).one_or_none() is not None
    if is_cordoned and note(
        connection, request_id, actor, "uncordon", f"{scope} {subject}", reason
    ):
        connection.execute(delete(CORDONS).where(here))
    return scope, subject


def revoke(connection: Connection, request_id: str, name: str, *, actor: str, reason: str) -> Lease:
    """End the live lease of this id, or beginning of one; the lease as it then stands.

    UnknownRecord if there is none or several, or if it has ended, with why.
    """
    row = _lease_row(connection, name)
    if note(connection, request_id, actor, "revoke", f"lease {row.id}", reason):
        if row.ended_at is not None:
            raise UnknownRecord(f"lease {row.id} has ended already: {row.ended_reason}")
        leases.end(connection, row.id, f"revoked by {actor}: {reason}")
    return leases.get(connection, row.id)


def cordons(connection: Connection) -> tuple[Cordon, ...]:
    """Every cordon, the oldest first."""
    query = select(CORDONS).order_by(CORDONS.c.at, CORDONS.c.scope, CORDONS.c.subject)
    return tuple(Cordon(**row._mapping) for row in connection.execute(query))


def events(connection: Connection, subject: str = "", limit: int = 100) -> tuple[AuditEvent, ...]:
    """What operators did, newest first; only to the device, worker, lease or token if one is
    named."""
    query = select(AUDIT).order_by(AUDIT.c.id.desc()).limit(limit)
    if subject:
        names = [f"{scope} {subject}" for scope in (DEVICE, WORKER, "lease", "token", "job")]
        query = query.where(or_(*(AUDIT.c.subject.startswith(n, autoescape=True) for n in names)))
    return tuple(
        AuditEvent(row.at, row.actor, row.action, row.subject, row.reason)
        for row in connection.execute(query)
    )


def find(connection: Connection, name: str) -> tuple[str, str]:
    """(scope, id) of the device or worker of this id, or of the only one whose id begins so."""
    tables = ((DEVICE, DEVICES), (WORKER, WORKERS))
    known = [
        (scope, id_)
        for scope, table in tables
        for id_ in connection.execute(_beginning(table, name)).scalars()
    ]
    exact = [one for one in known if one[1] == name]
    chosen = exact or known
    if not chosen:
        raise UnknownRecord(f"there is no device or worker {name!r}; `tunefarm devices` lists them")
    if len(chosen) > 1:
        names = ", ".join(f"{scope} {id_}" for scope, id_ in chosen[:3])
        raise UnknownRecord(f"{name!r} names several: {names}; give more of the name")
    return chosen[0]


def _beginning(table: Any, name: str) -> Any:
    if len(name) < PREFIX_LENGTH:
        return select(table.c.id).where(table.c.id == name)
    return select(table.c.id).where(table.c.id.startswith(name, autoescape=True))


def _lease_row(connection: Connection, name: str) -> Any:
    begins = LEASES.c.id.startswith(name, autoescape=True)
    found = connection.execute(select(LEASES).where(begins).limit(2)).all()
    if len(name) < PREFIX_LENGTH or not found:
        raise UnknownRecord(f"there is no lease {name!r}; `tunefarm leases` lists them")
    if len(found) > 1:
        raise UnknownRecord(f"several leases begin with {name}; give more digits of the id")
    return found[0]


def note(
    connection: Connection, request_id: str, actor: str, action: str, subject: str, reason: str
) -> bool:
    """Keep what an operator does in the audit trail; False if this request was kept before."""
    again = select(AUDIT.c.id).where(AUDIT.c.request_id == request_id)
    if connection.execute(again).one_or_none() is not None:
        return False
    connection.execute(
        insert(AUDIT).values(
            request_id=request_id,
            at=time.time(),
            actor=actor,
            action=action,
            subject=subject,
            reason=reason,
        )
    )
    return True


def _key(cordon: Cordon) -> tuple[str, str]:
    return cordon.scope, cordon.subject

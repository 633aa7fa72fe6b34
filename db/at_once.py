"""Many leases granted or ended by one statement, where the database has statements that can.

A statement of PostgreSQL costs a tracker a quarter of a millisecond before the first row, so what
clients ask for all the time is one each. What these leave over, for whatever reason, is for
``grants`` to look at row by row.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import Connection
from tunefarm.db.records import HEALTH, Lease

if TYPE_CHECKING:
    from tunefarm.db.grants import Want

_CLOCK = "extract(epoch FROM clock_timestamp())::double precision"

_GRANT = f"""
WITH wanted AS (
    SELECT * FROM unnest(
        %(ids)s::text[], %(requests)s::text[], %(devices)s::text[],
        %(clients)s::text[], %(owners)s::text[]
    ) AS w (id, request_id, device, client, owner)
), lendable AS (
    SELECT w.*, d.epoch + 1 AS epoch
    FROM wanted w JOIN devices d ON d.id = w.device
    WHERE NOT EXISTS (SELECT FROM leases l WHERE l.device = d.id AND l.ended_at IS NULL)
    AND NOT EXISTS (SELECT FROM leases l WHERE l.request_id = w.request_id)
    AND NOT EXISTS (
        SELECT FROM cordons c WHERE (c.scope, c.subject)
        IN (('device', d.id), ('worker', d.worker), ('{HEALTH}', d.id))
    )
), raised AS (
    UPDATE devices d SET epoch = l.epoch FROM lendable l WHERE d.id = l.device
)
INSERT INTO leases (
    id, request_id, device, client, owner, job, epoch, term_s, granted_at, deadline, ended_reason
)
SELECT id, request_id, device, client, owner, '', epoch, %(term_s)s, now, now + %(term_s)s, ''
FROM lendable, (SELECT {_CLOCK} AS now) AS clock
RETURNING request_id, id, device, client, owner, epoch, granted_at
"""

_END = f"""
WITH ended AS (
    UPDATE leases SET ended_at = {_CLOCK}, ended_reason = %(reason)s
    WHERE id = ANY(%(leases)s) AND ended_at IS NULL
    RETURNING id, device
), orphaned AS (
    UPDATE requests SET
        lease = NULL,
        attempts = attempts - (delivered_to IS NOT NULL AND NOT %(blame)s)::integer,
        delivered_to = CASE WHEN %(blame)s THEN delivered_to END
    WHERE lease IN (SELECT id FROM ended)
)
SELECT id, device FROM ended
"""


def grant(connection: Connection, wants: Sequence[Want], term_s: float) -> dict[str, Lease]:
    """Leases by request, of requests that are new and for no job, on devices that are free."""
    plain = [want for want in wants if not want.job]
    if not plain:
        return {}
    values = {
        "ids": [uuid.uuid4().hex for _ in plain],
        "requests": [want.request_id for want in plain],
        "devices": [want.device for want in plain],
        "clients": [want.client for want in plain],
        "owners": [want.owner for want in plain],
        "term_s": term_s,
    }
    granted = connection.exec_driver_sql(_GRANT, values)
    return {
        request: Lease(id_, device, client, epoch, term_s, granted_at=granted_at, owner=owner)
        for request, id_, device, client, owner, epoch, granted_at in granted
    }


def end(
    connection: Connection, leases: Sequence[str], reason: str, *, blame: bool
) -> dict[str, str]:
    """End those of the leases that live; their devices. See ``leases.end_all``."""
    values = {"leases": list(leases), "reason": reason, "blame": blame}
    return {row.id: row.device for row in connection.exec_driver_sql(_END, values)}

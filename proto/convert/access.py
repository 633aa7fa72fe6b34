"""Tokens and what operators did."""

from __future__ import annotations

from tunefarm.db import records as rec
from tunefarm.proto import records_pb2 as pb
from tunefarm.proto.convert.values import _enum_name


def audit_event_to_wire(event: rec.AuditEvent) -> pb.AuditEvent:
    return pb.AuditEvent(
        at=event.at,
        actor=event.actor,
        action=event.action,
        subject=event.subject,
        reason=event.reason,
    )


def audit_event_from_wire(wire: pb.AuditEvent) -> rec.AuditEvent:
    return rec.AuditEvent(wire.at, wire.actor, wire.action, wire.subject, wire.reason)


def token_to_wire(token: rec.Token) -> pb.Token:
    return pb.Token(
        digest=token.digest,
        name=token.name,
        role=f"ROLE_{token.role.name}",
        devices=token.devices,
        max_priority=token.max_priority,
        created_at=token.created_at,
        created_by=token.created_by,
        expires_at=token.expires_at,
        revoked_at=token.revoked_at,
        used_at=token.used_at,
    )


def token_from_wire(wire: pb.Token) -> rec.Token:
    """ValueError if it has no role, or one that is unknown here."""
    role = _enum_name(pb.Role, wire.role, "ROLE_")
    if role is None:
        raise ValueError("the token has no role")
    return rec.Token(
        digest=wire.digest,
        name=wire.name,
        role=rec.Role[role],
        devices=wire.devices,
        max_priority=wire.max_priority if wire.HasField("max_priority") else None,
        created_at=wire.created_at,
        created_by=wire.created_by,
        expires_at=wire.expires_at if wire.HasField("expires_at") else None,
        revoked_at=wire.revoked_at if wire.HasField("revoked_at") else None,
        used_at=wire.used_at if wire.HasField("used_at") else None,
    )

"""Who may call what: a line for each method. What has no line is nobody's."""

from __future__ import annotations

from dataclasses import dataclass

from tunefarm.db.records import Role
from tunefarm.proto.errors import Forbidden
from tunefarm.tracker.callers import Caller

SMALL = 64 << 10
"""Bytes of requests that name something."""
LISTS = 4 << 20
"""Bytes of requests that name many things."""
BULK = 16 << 20
"""Bytes of requests that carry candidates, results or workloads."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The roles that may call a method (nobody asks for a token if it is open), and how long its
    request may be. With ``certified``, a tracker that has a CA of its callers asks for a
    certificate. Requests that come ``bundled`` are held to limits one by one, by who answers."""

    roles: frozenset[Role] = frozenset()
    max_bytes: int = SMALL
    is_open: bool = False
    certified: bool = False
    bundled: bool = False


ANYBODY = frozenset(Role)
WORKERS = frozenset({Role.WORKER, Role.ADMIN})
CLIENTS = frozenset({Role.CLIENT, Role.TUNER, Role.ADMIN})
TUNERS = frozenset({Role.TUNER, Role.ADMIN})
ADMINS = frozenset({Role.ADMIN})

_FARM = {
    "Info": Rule(ANYBODY),
    "Acquire": Rule(CLIENTS),
    "Renew": Rule(CLIENTS),
    "Release": Rule(CLIENTS),
    "Leases": Rule(CLIENTS, LISTS, bundled=True),
    "Submit": Rule(CLIENTS, BULK),
    "Collect": Rule(CLIENTS),
    "Pending": Rule(CLIENTS),
    "SubmitJob": Rule(CLIENTS, BULK),
    "ClaimJob": Rule(TUNERS),
    "RenewJob": Rule(TUNERS),
    "ReleaseJob": Rule(TUNERS),
    "FinishJob": Rule(TUNERS),
    "Cancel": Rule(CLIENTS),
    "RetryJob": Rule(CLIENTS),
    "NoteJob": Rule(CLIENTS),
    "GetJob": Rule(CLIENTS),
    "ListJobs": Rule(CLIENTS),
    "Watch": Rule(CLIENTS),
    "Best": Rule(CLIENTS, LISTS),
    "Promote": Rule(CLIENTS),
    "History": Rule(CLIENTS, LISTS),
    "TaskStats": Rule(CLIENTS, LISTS),
    "CountTrials": Rule(CLIENTS, LISTS),
    "ReportMisses": Rule(CLIENTS, BULK),
    "Misses": Rule(CLIENTS),
    "NoteModel": Rule(CLIENTS, BULK),
    "Devices": Rule(CLIENTS),
    "LeaseHistory": Rule(CLIENTS),
    "Cordon": Rule(ADMINS),
    "Uncordon": Rule(ADMINS),
    "CheckDevice": Rule(ADMINS),
    "Revoke": Rule(ADMINS),
    "Audit": Rule(ADMINS),
}
POLICY = {
    "/tunefarm.v1.Worker/Sync": Rule(WORKERS, BULK, certified=True),
    **{f"/tunefarm.v1.Farm/{method}": rule for method, rule in _FARM.items()},
    "/tunefarm.v1.Tokens/CreateToken": Rule(ADMINS),
    "/tunefarm.v1.Tokens/ListTokens": Rule(ADMINS),
    "/tunefarm.v1.Tokens/RevokeToken": Rule(ADMINS),
    "/grpc.health.v1.Health/Check": Rule(is_open=True),
    "/grpc.health.v1.Health/List": Rule(is_open=True),
    "/grpc.health.v1.Health/Watch": Rule(is_open=True),
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": Rule(ADMINS),
}


def check_role(caller: Caller, rule: Rule, name: str) -> None:
    """Forbidden unless the caller's role may call the method ``name`` of this rule."""
    if caller.role not in rule.roles:
        roles = " or ".join(sorted(rule.roles)) or "nobody"
        raise Forbidden(f"{name} is for {roles}, and token {caller.name} has role {caller.role}")

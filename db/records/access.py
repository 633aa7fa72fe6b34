"""Who may do what, and who did."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a token may do: serve devices, ask for measurements, run anybody's jobs, or all."""

    WORKER = "worker"
    CLIENT = "client"
    TUNER = "tuner"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Token:
    """A credential as the farm knows it: ``digest`` is the SHA-256 of its secret, in hexadecimal.

    ``name`` is the identity of whoever holds it: tokens of one name own the same jobs and workers.
    ``devices`` selects the devices that it may offer (a worker) or lease; ``max_priority`` bounds
    its jobs', None for no bound. Times are in seconds since the epoch, None for never; that of the
    last call with it, ``used_at``, is known to the minute.
    """

    digest: str
    name: str
    role: Role
    devices: str = ""
    max_priority: int | None = None
    created_at: float = 0.0
    created_by: str = ""
    expires_at: float | None = None
    revoked_at: float | None = None
    used_at: float | None = None

    @property
    def id(self) -> str:
        """The digits of the digest that people see."""
        return self.digest[:8]


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """What an operator did: ``action`` is cordon, drain, uncordon, revoke, create token or
    revoke token; ``subject`` names the device, worker, lease or token."""

    at: float
    actor: str
    action: str
    subject: str
    reason: str

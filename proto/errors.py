"""What a call to the farm can raise, one sentence each, and how it travels.

The tracker raises these too: ``reason`` and ``status`` (a gRPC status name) are how one travels,
in the call's status and its ``google.rpc.ErrorInfo``.
"""

from __future__ import annotations

from typing import ClassVar

DOMAIN = "tunefarm"


class FarmError(Exception):
    """Something that the farm refuses or cannot do, told in one sentence."""

    reason: ClassVar[str] = "INTERNAL"
    status: ClassVar[str] = "INTERNAL"


class TrackerUnavailable(FarmError):
    """No tracker answers; what was asked may or may not have been done."""

    reason = "UNAVAILABLE"
    status = "UNAVAILABLE"


class TokenRefused(FarmError):
    """The call carries no token, or one that is unknown, has expired or was revoked."""

    reason = "TOKEN_REFUSED"
    status = "UNAUTHENTICATED"


class Forbidden(FarmError):
    """The token is good, and not for this: another role, another owner, other devices."""

    reason = "FORBIDDEN"
    status = "PERMISSION_DENIED"


class InvalidRequest(FarmError):
    """A request that makes no sense as it stands; repeating it will not help."""

    reason = "INVALID_REQUEST"
    status = "INVALID_ARGUMENT"


class NotFound(FarmError):
    """No such job, trial or lease."""

    reason = "NOT_FOUND"
    status = "NOT_FOUND"


class LeaseLost(FarmError):
    """The lease has ended or another epoch of its device is live; acquire a new one."""

    reason = "LEASE_LOST"
    status = "FAILED_PRECONDITION"


class ClaimLost(FarmError):
    """The job has been claimed again, finished or cancelled; stop working on it."""

    reason = "CLAIM_LOST"
    status = "FAILED_PRECONDITION"


class Superseded(FarmError):
    """A newer process of the same worker has taken over; this one has to end."""

    reason = "SUPERSEDED"
    status = "FAILED_PRECONDITION"


class StorageFailed(FarmError):
    """The tracker's database refuses to write (full, locked, read-only, corrupt)."""

    reason = "STORAGE_FAILED"
    status = "RESOURCE_EXHAUSTED"


class ProtocolMismatch(FarmError):
    """Caller and tracker are of releases too far apart to work together."""

    reason = "PROTOCOL_MISMATCH"
    status = "FAILED_PRECONDITION"


class Overloaded(StorageFailed):
    """The tracker holds as much as it takes; ask again later."""

    reason = "OVERLOADED"


ERRORS: dict[str, type[FarmError]] = {
    kind.reason: kind
    for kind in (
        FarmError,
        TrackerUnavailable,
        TokenRefused,
        Forbidden,
        InvalidRequest,
        NotFound,
        LeaseLost,
        ClaimLost,
        Superseded,
        StorageFailed,
        Overloaded,
        ProtocolMismatch,
    )
}

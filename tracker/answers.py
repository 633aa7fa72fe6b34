"""How the gRPC face fails: every domain error becomes one exact status."""

from __future__ import annotations

import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn, Protocol, TypeVar

import grpc
from google.protobuf import any_pb2
from google.rpc import error_details_pb2, status_pb2
from tunefarm.db.errors import (
    NotYours,
    StaleClaim,
    StaleIncarnation,
    StaleLease,
    StoreError,
    UnknownRecord,
)
from tunefarm.proto import errors
from tunefarm.tracker.counts import Counts
from tunefarm.tracker.farm import Farm

MAX_MESSAGE_BYTES = 1500
"""An answer's headers hold the sentence twice, escaped (three bytes for one) and as it is; gRPC
begins to drop headers beyond 8192 bytes."""
_log = logging.getLogger(__name__)
_WIRE_ERRORS: tuple[tuple[type[Exception], type[errors.FarmError]], ...] = (
    (StaleLease, errors.LeaseLost),
    (StaleClaim, errors.ClaimLost),
    (StaleIncarnation, errors.Superseded),
    (UnknownRecord, errors.NotFound),
    (NotYours, errors.Forbidden),
    (StoreError, errors.StorageFailed),
    (ValueError, errors.InvalidRequest),
)

REFUSALS: tuple[type[Exception], ...] = (
    errors.FarmError,
    *(kind for kind, _ in _WIRE_ERRORS),
)
"""What an answer may raise: everything else is a fault of ours."""
_STALE = {StaleLease: "lease", StaleClaim: "claim", StaleIncarnation: "incarnation"}

S = TypeVar("S", bound="Servicer")
Q = TypeVar("Q")
R = TypeVar("R")


class Servicer(Protocol):
    """What answers calls."""

    @property
    def _farm(self) -> Farm: ...


def refusal(method: str, error: Exception, counts: Counts) -> errors.FarmError:
    """One of ``REFUSALS`` as a caller gets it; stale writes are counted."""
    if isinstance(error, errors.FarmError):
        return error
    stale = _STALE.get(type(error))
    if stale is not None:
        counts.stale[stale] += 1
    _log.debug("%s refused: %s", method, error, exc_info=True)
    wire = next(wire for kind, wire in _WIRE_ERRORS if isinstance(error, kind))
    return wire(str(error))


async def refuse(context: Any, error: errors.FarmError) -> NoReturn:
    """End the call with the error's status and its ErrorInfo."""
    code = getattr(grpc.StatusCode, error.status)
    message = _shortened(str(error))
    detail = any_pb2.Any()
    detail.Pack(error_details_pb2.ErrorInfo(reason=error.reason, domain=errors.DOMAIN))
    status = status_pb2.Status(code=code.value[0], message=message, details=[detail])
    trailer = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(code, message, trailer)
    raise AssertionError("abort returns never")


def _shortened(message: str) -> str:
    """The sentence in what the headers of an answer may hold: it may quote what a caller sent."""
    content = message.encode()
    if len(content) <= MAX_MESSAGE_BYTES:
        return message
    return content[:MAX_MESSAGE_BYTES].decode(errors="ignore") + "…"


def answers(
    method: Callable[[S, Q], Awaitable[R]],
) -> Callable[[S, Q, Any], Awaitable[R]]:
    """Make a method of (self, request) one of gRPC's, whose domain errors are statuses."""

    @functools.wraps(method)
    async def call(self: S, request: Q, context: Any) -> R:
        try:
            return await method(self, request)
        except REFUSALS as error:
            await refuse(context, refusal(method.__name__, error, self._farm.counts))

    return call

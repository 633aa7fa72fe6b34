"""A connection to the tracker: its channel, deadlines, repeats, and what its errors mean."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

import grpc
from tunefarm.proto.awake import awake_s
from tunefarm.proto.errors import (
    DOMAIN,
    ERRORS,
    FarmError,
    InvalidRequest,
    TokenRefused,
    TrackerUnavailable,
)
from tunefarm.proto.pauses import Pauses
from tunefarm.proto.rendezvous import read_rendezvous
from tunefarm.proto.tls import Tls, trouble

_log = logging.getLogger(__name__)
MAX_MESSAGE_BYTES = 64 << 20
CALL_S = 15.0
"""Deadline of a call in seconds, on top of the time a long poll may wait."""
FIRST_PAUSE_S, MOST_PAUSE_S = 0.2, 3.0
"""Between the tries of a call whose tracker is away."""
_FIRST_START_S, _MOST_START_S = 0.05, 0.5
"""The same while it has never answered: it is about to start."""

_CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)


class Method:
    """A method of whichever tracker the connection has turned to when it is called."""

    def __init__(self, service: Service, name: str) -> None:
        self._service = service
        self._name = name

    def __call__(self, request: Any, **how: Any) -> Any:
        return getattr(self._service.stub(), self._name)(request, **how)

    def future(self, request: Any, **how: Any) -> Any:
        return getattr(self._service.stub(), self._name).future(request, **how)


class Service:
    """The methods of a service at the trackers of a connection."""

    def __init__(self, connection: Connection, make: Callable[[Any], Any]) -> None:
        self._connection = connection
        self._make = make
        self._making = Lock()
        self._made: tuple[Trackers | None, list[Any]] = None, []

    def stub(self) -> Any:
        """What calls the tracker that is asked now; one for all threads."""
        with self._making:
            trackers, stubs = self._made
            if trackers is not self._connection.trackers:
                trackers = self._connection.trackers
                stubs = [self._make(channel) for channel in trackers.channels]
                self._made = trackers, stubs
        return stubs[self._connection.turn % len(stubs)]

    def __getattr__(self, name: str) -> Method:
        return Method(self, name)


@dataclass(frozen=True, slots=True, eq=False)
class Trackers:
    """Trackers of one database, what opens them, and a channel to each."""

    address: str
    token: str = field(repr=False)
    tls: Tls | None
    addresses: tuple[str, ...]
    channels: tuple[Any, ...]

    @staticmethod
    def at(address: str, token: str, tls: Tls | None) -> Trackers:
        """InvalidRequest if they are not named by HOST:PORT,HOST:PORT."""
        addresses = tuple(one.strip() for one in address.split(","))
        for one in addresses:
            host, _, port = one.rpartition(":")
            if not host or not port.isdigit():
                raise InvalidRequest(
                    f"{one!r} is not a tracker's address; write HOST:PORT, or HOST:PORT,HOST:PORT "
                    "for several trackers of one database"
                )
        channels = tuple(
            grpc.insecure_channel(one, options=_CHANNEL_OPTIONS)
            if tls is None
            else grpc.secure_channel(one, tls.credentials(), options=_CHANNEL_OPTIONS)
            for one in addresses
        )
        return Trackers(address, token, tls, addresses, channels)

    def close(self) -> None:
        for channel in self.channels:
            channel.close()


class Connection:
    """Channels to the tracker at ``address`` (HOST:PORT) with a ``token``; in the clear unless
    there is ``tls``.

    ``address`` may name several trackers of one database (HOST:PORT,HOST:PORT): one of them is
    asked, ``turn``, until it does not answer, then the next. With ``file``, the rendezvous file
    that named them, those that it names by then are asked: a tracker may come back elsewhere.
    """

    def __init__(
        self,
        address: str,
        token: str,
        connect_s: float,
        patience_s: float,
        tls: Tls | None = None,
        file: Path | None = None,
    ) -> None:
        self.trackers = Trackers.at(address, token, tls)
        self.turn = 0
        self._file = file
        self._following = Lock()
        self._left: Trackers | None = None
        self._is_closed = False
        self._connect_s = connect_s
        self._patience_s = patience_s
        self._hurry_s = math.inf
        self._answered = False

    @property
    def address(self) -> str:
        """The tracker that is asked now."""
        return self._address(self.turn)

    def _address(self, turn: int) -> str:
        addresses = self.trackers.addresses
        return addresses[turn % len(addresses)]

    @property
    def has_several(self) -> bool:
        """Whether there are other trackers to turn to."""
        return len(self.trackers.addresses) > 1

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        token = self.trackers.token
        return (("authorization", f"Bearer {token}"),) if token else ()

    def _service(self, make: Callable[[Any], Any]) -> Any:
        return Service(self, make)

    def turn_from(self, turn: int) -> None:
        """Ask the next tracker from now on, unless somebody else has seen to that."""
        if self.turn == turn:
            self.turn = (turn + 1) % len(self.trackers.addresses)

    def turned_from(self, turn: int) -> TrackerUnavailable:
        """Ask the next tracker from now on; the error of a call that is not repeated there."""
        self.turn_from(turn)
        return TrackerUnavailable(
            f"the tracker at {self._address(turn)} does not answer; the one at {self.address} is "
            "asked from now on"
        )

    def follow(self) -> None:
        """Turn to the trackers that the rendezvous file names now, if there is one and it can be
        read. Calls under way at those before may end, at those before these are cancelled."""
        if self._file is None:
            return
        with suppress(InvalidRequest), self._following:
            found, before = read_rendezvous(self._file), self.trackers
            told = found.address, found.token, found.tls
            if self._is_closed or told == (before.address, before.token, before.tls):
                return
            self.trackers, self.turn = Trackers.at(*told), 0
            left, self._left = self._left, before
            if left is not None:
                left.close()
            _log.info("the tracker at %s is now at %s", before.address, found.address)

    def close(self) -> None:
        with self._following:
            self._is_closed = True
            for trackers in filter(None, (self._left, self.trackers)):
                trackers.close()

    def hurry(self, patience_s: float = 1.0) -> None:
        """From now on wait no longer than this for a tracker that is away, also in calls under
        way."""
        self._hurry_s = min(self._hurry_s, patience_s)

    @contextmanager
    def patient(self, patience_s: float) -> Iterator[None]:
        """Meanwhile wait this long for a tracker that is away, unless told to ``hurry``."""
        before, self._patience_s = self._patience_s, patience_s
        try:
            yield
        finally:
            self._patience_s = before

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _call(
        self,
        method: Callable[..., Any],
        request: Any,
        wait_s: float = 0.0,
        patience_s: float | None = None,
    ) -> Any:
        timeout_s = wait_s + CALL_S
        if self.has_several and patience_s is not None:
            timeout_s = wait_s + min(CALL_S, max(1.0, patience_s))
        waited_s = 0.0
        pauses = Pauses(FIRST_PAUSE_S if self._answered else _FIRST_START_S)
        most_s = MOST_PAUSE_S if self._answered else _MOST_START_S
        untried = len(self.trackers.addresses) - 1
        while True:
            trackers, turn, tried = self.trackers, self.turn, awake_s()
            try:
                reply = method(request, timeout=timeout_s, metadata=self._metadata)
                self._answered = True
                return reply
            except grpc.RpcError as error:
                waited_s += awake_s() - tried
                left_s = self._wanted_s(patience_s) - waited_s
                if self.has_moved(trackers, error):
                    continue
                if not self.is_away(error) or (left_s <= 0 and untried <= 0):
                    raise self._error(error, timeout_s) from error
            self.turn_from(turn)
            untried -= 1
            if untried >= 0:
                continue
            pause_s = min(left_s, pauses.after_failure(most_s))
            time.sleep(pause_s)
            waited_s += pause_s

    def has_moved(self, trackers: Trackers, error: Any) -> bool:
        """Whether the trackers of a call that failed are no longer those to ask: they are away, or
        another one has come to their address, which knows no such token."""
        if not self.is_away(error) and not isinstance(_carried_error(error), TokenRefused):
            return False
        self.follow()
        return self.trackers is not trackers

    def is_away(self, error: Any) -> bool:
        """Whether a call failed because its tracker is away: gone, or silent."""
        return _is_unavailable(error) or error.code() == grpc.StatusCode.DEADLINE_EXCEEDED

    def _wanted_s(self, patience_s: float | None) -> float:
        """How long to wait for a tracker that is away: a call's own time, or this client's."""
        if not self._answered:
            return self._connect_s
        own_s = self._patience_s if patience_s is None else min(patience_s, self._patience_s)
        return min(own_s, self._hurry_s)

    def _error(self, error: Any, timeout_s: float) -> FarmError:
        """The domain error that a failed call carries or stands for."""
        carried = _carried_error(error)
        if carried is not None:
            return carried
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
            return TrackerUnavailable(
                f"the tracker at {self.address} did not answer within {timeout_s:.0f} s"
            )
        if _is_unavailable(error):
            return TrackerUnavailable(
                trouble(self.address, self.trackers.tls)
                or f"no tracker answers at {' or '.join(self.trackers.addresses)}; start one with "
                "`tunefarm tracker`"
            )
        if error.code() == grpc.StatusCode.UNIMPLEMENTED:
            return FarmError(f"the tracker at {self.address} is too old for this; upgrade it")
        name = error.code().name
        return FarmError(f"the tracker at {self.address} failed: {name}: {error.details()}")


def _is_unavailable(error: Any) -> bool:
    """Whether the tracker could not be reached (or cut the call while it shut down)."""
    if _carried_error(error) is not None:
        return False
    return error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


def _carried_error(error: Any) -> FarmError | None:
    """The tracker's own error in the call's ``google.rpc.ErrorInfo``, if it has one."""
    from google.rpc import error_details_pb2
    from grpc_status import rpc_status

    status = rpc_status.from_call(error)
    for detail in status.details if status else ():
        info = error_details_pb2.ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            return ERRORS.get(info.reason, FarmError)(status.message)
    return None

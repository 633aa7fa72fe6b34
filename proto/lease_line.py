"""Acquire, Renew and Release over one stream to each tracker, which all threads of a client share.

A message on an open stream costs a tracker a fraction of a call, and what several threads ask at
one time travels together. To its caller each is a call still: it has a deadline, may be repeated,
and fails with a ``grpc.RpcError`` if the tracker is away, or with the error that the tracker names.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import grpc
from tunefarm.proto import farm_pb2_grpc
from tunefarm.proto.errors import ERRORS, FarmError
from tunefarm.proto.farm_pb2 import LeaseAnswer, LeaseCall, LeaseCalls

MAX_BYTES = 16 << 10
"""Of a call that goes by stream; a longer one goes alone."""
MAX_CALLS = 128
"""Calls that go together; a tracker takes 4 MiB at a time."""


class LeaseLine:
    """The three methods at the tracker behind a channel. One that is too old for the stream is
    called as it can be."""

    def __init__(self, channel: Any) -> None:
        self._farm: Any = farm_pb2_grpc.FarmStub(channel)  # type: ignore[no-untyped-call]
        self._lock = threading.Lock()
        self._stream: _Stream | None = None
        self._is_too_old = False

    def Acquire(self, request: Any, **how: Any) -> Any:
        return self._ask("acquire", self._farm.Acquire, request, **how)

    def Renew(self, request: Any, **how: Any) -> Any:
        return self._ask("renew", self._farm.Renew, request, **how)

    def Release(self, request: Any, **how: Any) -> Any:
        return self._ask("release", self._farm.Release, request, **how)

    def _ask(
        self, kind: str, alone: Callable[..., Any], request: Any, timeout: float, metadata: Any
    ) -> Any:
        if not self._is_too_old and request.ByteSize() <= MAX_BYTES:
            try:
                return self._open(metadata).ask(kind, request, timeout)
            except StreamEnded as end:
                if end.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
                self._is_too_old = True
        return alone(request, timeout=timeout, metadata=metadata)

    def _open(self, metadata: Any) -> _Stream:
        with self._lock:
            if self._stream is None or self._stream.has_ended:
                self._stream = _Stream(self._farm.Leases, metadata)
            return self._stream


class StreamEnded(grpc.RpcError):
    """The stream ended before the answer came; this is how, as of a call that failed."""

    def __init__(self, code: grpc.StatusCode, details: str, trailer: Any = ()) -> None:
        super().__init__(details)
        self._code, self._details, self._trailer = code, details, trailer

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._trailer


class _Stream:
    """One stream, from its opening to its end, and who waits for which answer on it."""

    def __init__(self, method: Callable[..., Any], metadata: Any) -> None:
        self._numbers = itertools.count(1)
        self._said: queue.SimpleQueue[LeaseCall | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._end: tuple[grpc.StatusCode, str, Any] | None = None
        self._call = method(self._frames(), metadata=metadata)
        threading.Thread(target=self._listen, name="tunefarm-leases", daemon=True).start()

    @property
    def has_ended(self) -> bool:
        return self._end is not None

    def ask(self, kind: str, request: Any, timeout_s: float) -> Any:
        """The tracker's reply, or the error that it names; StreamEnded if none comes."""
        number, reply = next(self._numbers), Future[Any]()
        with self._lock:
            if self._end is not None:
                raise StreamEnded(*self._end)
            self._waiting[number] = reply
        self._said.put(LeaseCall(number=number, **{kind: request}))
        try:
            return reply.result(timeout_s)
        except TimeoutError:
            # What was said must not be heard once its caller has given it up.
            self._call.cancel()
            raise StreamEnded(grpc.StatusCode.DEADLINE_EXCEEDED, "no answer came") from None

    def _frames(self) -> Iterator[LeaseCalls]:
        """What is said, as much at a time as there is, until the stream has ended."""
        while True:
            said = [self._said.get()]
            with suppress(queue.Empty):
                while len(said) < MAX_CALLS:
                    said.append(self._said.get_nowait())
            calls = [call for call in said if call is not None]
            if len(calls) < len(said):
                return
            yield LeaseCalls(calls=calls)

    def _listen(self) -> None:
        """Hand answers to those who wait, until the stream ends."""
        end: tuple[grpc.StatusCode, str, Any]
        try:
            for frame in self._call:
                for answer in frame.answers:
                    self._settle(answer)
            end = grpc.StatusCode.UNAVAILABLE, "the tracker has ended the stream", ()
        except grpc.RpcError as error:
            end = error.code(), error.details() or "", error.trailing_metadata()
        with self._lock:
            self._end = end
        self._said.put(None)
        for reply in self._waiting.values():
            reply.set_exception(StreamEnded(*end))

    def _settle(self, answer: LeaseAnswer) -> None:
        reply = self._waiting.pop(answer.number, None)
        if reply is None:
            return
        kind = answer.WhichOneof("answer")
        if kind == "failure":
            failure = answer.failure
            reply.set_exception(ERRORS.get(failure.reason, FarmError)(failure.message))
        else:
            reply.set_result(getattr(answer, kind))

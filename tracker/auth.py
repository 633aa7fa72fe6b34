"""Before a call is answered: who makes it, whether they may, and what they send."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import grpc
from tunefarm.proto.errors import FarmError, Forbidden
from tunefarm.tracker import limits
from tunefarm.tracker.answers import refuse
from tunefarm.tracker.callers import Caller, set_caller
from tunefarm.tracker.counts import Counts
from tunefarm.tracker.keyring import Keyring
from tunefarm.tracker.policy import POLICY, Rule, check_role

_CLOSED = Rule()


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets a call through if ``POLICY`` lets the role of its token call the method, and if its
    request keeps to ``limits``.

    A caller who may not is refused before any of the request is read.
    """

    def __init__(self, keyring: Keyring, counts: Counts, has_client_ca: bool = False) -> None:
        self._keyring = keyring
        self._counts = counts
        self._has_client_ca = has_client_ca

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        rule = POLICY.get(details.method, _CLOSED)
        name = details.method.rpartition("/")[2]
        if rule.is_open:
            return _wrapped(handler, name, rule, _let_in)
        try:
            header = dict(details.invocation_metadata).get("authorization", "")
            digest, caller = self._keyring.admit(str(header))
            check_role(caller, rule, name)
        except FarmError as error:
            self._counts.errors[name, error.status] += 1
            return _refusal(error)

        return _wrapped(handler, name, rule, partial(self._let_in, rule, digest, caller))

    @contextmanager
    def _let_in(self, rule: Rule, digest: str, caller: Caller, context: Any) -> Iterator[Check]:
        """Around the answering of a call of this caller's; what to ask before each of its
        requests."""
        if rule.certified and self._has_client_ca:
            _check_certificate(context)
        set_caller(caller)
        with self._keyring.call(digest):
            yield partial(self._keyring.check, digest)


Check = Callable[[], None]
LetIn = Callable[[Any], AbstractContextManager[Check]]


def _let_in(_: Any) -> AbstractContextManager[Check]:
    """Anybody, for as long as they like."""
    return nullcontext(lambda: None)


def _wrapped(handler: Any, name: str, rule: Rule, let_in: LetIn) -> Any:
    """The handler, within ``let_in`` of the call's context, on a request that keeps to limits."""

    def read(content: Any) -> Any:
        request = limits.read(name, rule.max_bytes, handler.request_deserializer, content)
        if not rule.bundled:
            limits.check(request)
        return request

    async def unary_unary(content: bytes, context: Any) -> Any:
        try:
            with let_in(context):
                return await handler.unary_unary(read(content), context)
        except FarmError as error:
            await refuse(context, error)

    async def unary_stream(content: bytes, context: Any) -> None:
        try:
            with let_in(context):
                await handler.unary_stream(read(content), context)
        except FarmError as error:
            await refuse(context, error)

    async def requests(contents: Any, check: Check) -> AsyncIterator[Any]:
        async for content in contents:
            check()
            yield read(content)

    async def stream_stream(contents: Any, context: Any) -> AsyncIterator[Any]:
        try:
            with let_in(context) as check:
                async for reply in handler.stream_stream(requests(contents, check), context):
                    yield reply
        except FarmError as error:
            await refuse(context, error)

    serializer = handler.response_serializer
    if handler.unary_unary is not None:
        return grpc.unary_unary_rpc_method_handler(unary_unary, response_serializer=serializer)
    if handler.unary_stream is not None:
        return grpc.unary_stream_rpc_method_handler(unary_stream, response_serializer=serializer)
    return grpc.stream_stream_rpc_method_handler(stream_stream, response_serializer=serializer)


def _check_certificate(context: Any) -> None:
    """Forbidden if a call came over TLS without a certificate of the farm's."""
    how = context.auth_context()
    if how.get("transport_security_type") == [b"ssl"] and context.peer_identities() is None:
        raise Forbidden(
            "a worker comes with a certificate of the farm's: name the tracker's port for workers, "
            "and give --tls-cert FILE and --tls-key FILE"
        )


def _refusal(error: FarmError) -> Any:
    """A handler that refuses. It is one of a stream of requests, which on the wire any call is, as
    only those begin before a request has been received."""

    async def call(_: Any, context: Any) -> None:
        await refuse(context, error)

    return grpc.stream_unary_rpc_method_handler(call)

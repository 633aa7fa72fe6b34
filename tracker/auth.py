"""Before a call is answered: who makes it, whether they may, and what they send."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from tunefarm.proto.errors import FarmError, Forbidden
from tunefarm.tracker.answers import refuse
from tunefarm.tracker.callers import Caller, set_caller
from tunefarm.tracker.counts import Counts
from tunefarm.tracker.keyring import Keyring
from tunefarm.tracker.policy import POLICY, Rule

_CLOSED = Rule()


class Gate(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Lets a call through if ``POLICY`` lets the role of its token call the method.

    A call that is refused is so before any of its request is read.
    """

    def __init__(self, keyring: Keyring, counts: Counts, has_client_ca: bool = False) -> None:
        self._keyring = keyring
        self._counts = counts
        self._has_client_ca = has_client_ca

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        handler = await continuation(details)
        rule = POLICY.get(details.method, _CLOSED)
        if handler is None or rule.is_open:
            return handler
        try:
            header = dict(details.invocation_metadata).get("authorization", "")
            digest, caller = self._keyring.admit(str(header))
            _check_role(caller, rule, details.method)
        except FarmError as error:
            self._counts.errors[details.method.rpartition("/")[2], error.status] += 1
            return _refusal(error)
        return self._guarded(handler, digest, caller, rule.certified and self._has_client_ca)

    def _guarded(self, handler: Any, digest: str, caller: Caller, certified: bool) -> Any:
        """The handler, told who calls; it is cut when their token ends."""

        async def unary(request: Any, context: Any) -> Any:
            set_caller(caller)
            try:
                if certified:
                    _check_certificate(context)
                with self._keyring.call(digest):
                    return await handler.unary_unary(request, context)
            except FarmError as error:
                await refuse(context, error)

        async def stream(requests: Any, context: Any) -> AsyncIterator[Any]:
            set_caller(caller)
            try:
                with self._keyring.call(digest):
                    async for reply in handler.stream_stream(requests, context):
                        yield reply
            except FarmError as error:
                await refuse(context, error)

        is_unary = handler.unary_unary is not None
        make: Any = (
            grpc.unary_unary_rpc_method_handler
            if is_unary
            else grpc.stream_stream_rpc_method_handler
        )
        return make(
            unary if is_unary else stream,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )


def _check_role(caller: Caller, rule: Rule, method: str) -> None:
    if caller.role not in rule.roles:
        roles = " or ".join(sorted(rule.roles)) or "nobody"
        raise Forbidden(
            f"{method.rpartition('/')[2]} is for {roles}, and token {caller.name} has role "
            f"{caller.role}"
        )


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

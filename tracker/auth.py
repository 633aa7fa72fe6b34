"""Who may call: everybody with the farm's token, nobody without; health alone is open."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from tunefarm.proto.errors import TokenRefused
from tunefarm.tracker.servicers import refuse

_OPEN = "/grpc.health.v1.Health/"


class TokenCheck(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls without ``authorization: Bearer TOKEN``."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}".encode()

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        handler = await continuation(details)
        if handler is None or details.method.startswith(_OPEN) or self._knows(details):
            return handler
        return _refusal(handler)

    def _knows(self, details: Any) -> bool:
        given = dict(details.invocation_metadata).get("authorization", "")
        return hmac.compare_digest(str(given).encode(), self._wanted)


def _refusal(handler: Any) -> Any:
    """A handler of the same kind that refuses."""

    async def unary(_: Any, context: Any) -> None:
        await refuse(
            context,
            TokenRefused(
                "the tracker refuses the token; pass the one in the tracker's rendezvous file"
            ),
        )

    async def stream(request: Any, context: Any) -> Any:
        await unary(request, context)
        yield None

    name = (
        f"{'stream' if handler.request_streaming else 'unary'}_"
        f"{'stream' if handler.response_streaming else 'unary'}_rpc_method_handler"
    )
    make: Any = getattr(grpc, name)
    return make(
        stream if handler.response_streaming else unary,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )

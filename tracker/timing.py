"""How long calls take, and how they fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from tunefarm.proto import farm_pb2
from tunefarm.tracker.counts import Counts, timed

_OURS = f"/{farm_pb2.DESCRIPTOR.package}."


class CallTimes(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Counts the farm's calls, refused ones too; health and reflection are left out."""

    def __init__(self, counts: Counts) -> None:
        self._counts = counts

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], details: Any
    ) -> Any:
        handler = await continuation(details)
        if handler is None or handler.unary_unary is None or not details.method.startswith(_OURS):
            return handler
        return grpc.unary_unary_rpc_method_handler(
            self._counted(details.method.rpartition("/")[2], handler.unary_unary),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _counted(self, method: str, behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Any:
        async def call(request: Any, context: Any) -> Any:
            with timed(self._counts.calls[method]):
                try:
                    return await behaviour(request, context)
                except grpc.aio.AbortError:
                    self._counts.errors[method, context.code().name] += 1
                    raise

        return call

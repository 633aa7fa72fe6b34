"""What the parts of the client share that call the farm's service."""

from __future__ import annotations

import uuid
from functools import cached_property
from typing import Any

from tunefarm.proto import farm_pb2_grpc
from tunefarm.proto.connection import Connection


class FarmCalls(Connection):
    """A connection to the farm's service."""

    @cached_property
    def _farm(self) -> Any:
        return self._service(farm_pb2_grpc.FarmStub)


def new_request_id() -> str:
    """What makes a call that is repeated after a lost reply the same call."""
    return uuid.uuid4().hex

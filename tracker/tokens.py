"""What administrators call about tokens."""

from __future__ import annotations

from tunefarm.db import tokens
from tunefarm.proto import convert, farm_pb2, farm_pb2_grpc
from tunefarm.tracker.answers import answers
from tunefarm.tracker.callers import caller
from tunefarm.tracker.farm import Farm
from tunefarm.tracker.keyring import Keyring
from tunefarm.tracker.selector import parse_selector


class TokensServicer(farm_pb2_grpc.TokensServicer):
    """Tokens are made, listed and revoked; a change counts when the call returns."""

    def __init__(self, farm: Farm, keyring: Keyring) -> None:
        self._farm = farm
        self._keyring = keyring

    @answers
    async def CreateToken(self, request: farm_pb2.CreateTokenRequest) -> farm_pb2.CreateTokenReply:
        if not request.request_id:
            raise ValueError("a token is made with a request id")
        wanted = convert.token_from_wire(request.token)
        parse_selector(wanted.devices)
        actor = caller().signed(request.actor)
        made = await self._farm.database.write(
            lambda c: tokens.create(c, request.request_id, wanted, actor)
        )
        await self._keyring.load()
        return farm_pb2.CreateTokenReply(token=convert.token_to_wire(made))

    @answers
    async def ListTokens(self, request: farm_pb2.ListTokensRequest) -> farm_pb2.ListTokensReply:
        found = await self._farm.database.read(tokens.tokens)
        return farm_pb2.ListTokensReply(tokens=[convert.token_to_wire(one) for one in found])

    @answers
    async def RevokeToken(self, request: farm_pb2.RevokeTokenRequest) -> farm_pb2.RevokeTokenReply:
        if not request.request_id:
            raise ValueError("a token is revoked with a request id")
        actor = caller().signed(request.actor)
        ended = await self._farm.database.write(
            lambda c: tokens.revoke(
                c, request.request_id, request.name, actor=actor, reason=request.reason
            )
        )
        await self._keyring.load()
        return farm_pb2.RevokeTokenReply(tokens=[convert.token_to_wire(one) for one in ended])

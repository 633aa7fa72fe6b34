"""Secrets, and what administrators call about tokens."""

from __future__ import annotations

import hashlib
import secrets
from typing import Any

from tunefarm.db.records import Token
from tunefarm.proto import convert, farm_pb2, farm_pb2_grpc
from tunefarm.proto.calls import new_request_id
from tunefarm.proto.connection import Connection

PREFIX = "tunefarm_"
"""How secrets begin, so that people and scanners of code know one when they see it."""


def new_secret() -> str:
    """256 random bits that nobody has seen."""
    return PREFIX + secrets.token_urlsafe(32)


def digest_of(secret: str) -> str:
    """What a farm stores of a secret. Secrets are long and random: a plain SHA-256 keeps them."""
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenCalls(Connection):
    """A connection of an administrator."""

    @property
    def _tokens(self) -> Any:
        return self._service(farm_pb2_grpc.TokensStub)

    def create_token(self, token: Token, *, actor: str) -> Token:
        """Let the secret of ``token.digest`` in from now on; the secret itself is not told.

        InvalidRequest if its name, scope or expiry is none.
        """
        wire = farm_pb2.CreateTokenRequest(
            request_id=new_request_id(), token=convert.token_to_wire(token), actor=actor
        )
        reply: farm_pb2.CreateTokenReply = self._call(self._tokens.CreateToken, wire)
        return convert.token_from_wire(reply.token)

    def tokens(self) -> tuple[Token, ...]:
        """Every token that ever was, the oldest first."""
        reply: farm_pb2.ListTokensReply = self._call(
            self._tokens.ListTokens, farm_pb2.ListTokensRequest()
        )
        return tuple(convert.token_from_wire(token) for token in reply.tokens)

    def revoke_token(self, name: str, *, actor: str, reason: str = "") -> tuple[Token, ...]:
        """End all tokens of a name, or the one whose id begins so; those that it ended.

        NotFound if there is none.
        """
        wire = farm_pb2.RevokeTokenRequest(
            request_id=new_request_id(), name=name, actor=actor, reason=reason
        )
        reply: farm_pb2.RevokeTokenReply = self._call(self._tokens.RevokeToken, wire)
        return tuple(convert.token_from_wire(token) for token in reply.tokens)

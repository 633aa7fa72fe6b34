"""The tokens that open this tracker, and the calls that each of them has under way."""

from __future__ import annotations

import asyncio
import hmac
import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from tunefarm.db import tokens
from tunefarm.db.errors import StoreError
from tunefarm.db.records import Token
from tunefarm.proto.errors import TokenRefused
from tunefarm.proto.tokens import digest_of
from tunefarm.tracker.callers import OWN, Caller
from tunefarm.tracker.writer import Database

REFRESH_S = 1.0
"""How often expiry is looked at, and what other trackers of the database did."""
NOTED_S = 60.0
"""How exact the database knows when a token was last used."""
_SCHEME = "Bearer "
_REMEDY = (
    "name the tracker by the file that it or `tunefarm token create --file` wrote "
    "(--tracker FILE), or pass a token by TUNEFARM_TOKEN or TUNEFARM_TOKEN_FILE "
    "(workers and tuners: --token-file FILE)"
)
_log = logging.getLogger(__name__)


class Keyring:
    """Used on the event loop only. ``own`` is the token of the rendezvous file."""

    def __init__(self, own: str, database: Database) -> None:
        self._own = digest_of(own)
        self._database = database
        self._tokens: dict[str, Token] = {}
        self._calls: dict[str, set[asyncio.Task[object]]] = {}
        self._used: dict[str, float] = {}
        self._asked = 0
        self._taken = 0

    @property
    def is_empty(self) -> bool:
        """Whether no token but the tracker's own opens it."""
        return not any(token.revoked_at is None for token in self._tokens.values())

    def admit(self, header: str) -> tuple[str, Caller]:
        """The digest and the holder of the token in an ``authorization`` header.

        TokenRefused if there is none, or if it is unknown, expired or revoked.
        """
        if not header.startswith(_SCHEME):
            raise TokenRefused(f"the call carries no token; {_REMEDY}")
        digest = digest_of(header[len(_SCHEME) :])
        if hmac.compare_digest(digest, self._own):
            return digest, OWN
        self.check(digest)
        return digest, Caller.of(self._tokens[digest])

    def check(self, digest: str) -> None:
        """Note that a token is used; TokenRefused if it is unknown, expired or revoked."""
        if digest == self._own:
            return
        token = self._tokens.get(digest)
        if token is None:
            raise TokenRefused(f"the tracker refuses the token; {_REMEDY}")
        why = _why_over(token)
        if why:
            raise TokenRefused(f"token {token.name} ({token.id}) {why}; ask for another")
        self._used[digest] = time.time()

    @contextmanager
    def call(self, digest: str) -> Iterator[None]:
        """Have this task cancelled when the token ends; TokenRefused then takes the place of its
        CancelledError."""
        task = asyncio.current_task()
        assert task is not None
        under_way = self._calls.setdefault(digest, set())
        under_way.add(task)
        try:
            yield
        except asyncio.CancelledError:
            token = self._tokens.get(digest)
            if token is None or not _why_over(token):
                raise
            task.uncancel()
            raise TokenRefused(f"token {token.name} ({token.id}) {_why_over(token)}") from None
        finally:
            under_way.discard(task)
            if not under_way:
                self._calls.pop(digest, None)

    def take(self, known: Iterable[Token]) -> None:
        """Take over the tokens as they are stored; calls of those that have ended are cut."""
        self._tokens = {token.digest: token for token in known}
        for digest in list(self._calls):
            token = self._tokens.get(digest)
            if token is not None and _why_over(token):
                for task in list(self._calls[digest]):
                    task.cancel()

    async def load(self) -> None:
        """Take over the tokens that the database has; of several answers the last one asked for."""
        self._asked += 1
        number = self._asked
        found = await self._database.read(tokens.tokens)
        if number > self._taken:
            self._taken = number
            self.take(found)

    async def keep(self) -> None:
        """Follow the database and the clock, until cancelled."""
        while True:
            await asyncio.sleep(REFRESH_S)
            try:
                await self.load()
                await self.note_uses()
            except StoreError as error:
                _log.warning("tokens were not read anew: %s", error)

    async def note_uses(self) -> None:
        """Store when tokens were last used, each at most once in ``NOTED_S`` seconds."""
        used = {
            digest: at
            for digest, at in self._used.items()
            if digest in self._tokens and at > (self._tokens[digest].used_at or 0.0) + NOTED_S
        }
        if used:
            await self._database.write(lambda c: tokens.note_uses(c, used))


def _why_over(token: Token) -> str:
    """Why a token opens nothing any more; empty if it does."""
    if token.revoked_at is not None:
        return f"was revoked at {_stamp(token.revoked_at)}"
    if token.expires_at is not None and time.time() >= token.expires_at:
        return f"expired at {_stamp(token.expires_at)}"
    return ""


def _stamp(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))

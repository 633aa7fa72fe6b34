"""What answers carry to keep browsers safe, and who may ask beyond loopback."""

from __future__ import annotations

import threading
import time
from collections.abc import Awaitable, Callable
from urllib.parse import quote

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from tunefarm.db import tokens
from tunefarm.db.errors import StoreError
from tunefarm.db.records import Role, Token
from tunefarm.db.store import Store
from tunefarm.proto.tokens import digest_of

COOKIE = "tunefarm_token"
REFRESH_S = 1.0
"""How long a token that was revoked may still open pages."""
OPEN_PATHS = ("/login", "/static/")
READERS = frozenset({Role.CLIENT, Role.TUNER, Role.ADMIN})

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
Next = Callable[[Request], Awaitable[Response]]


class Guard:
    """The tokens that open the dashboard: those of the farm's clients, tuners and admins."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._tokens: dict[str, Token] = {}
        self._read_at = float("-inf")

    def refusal(self, secret: str) -> str:
        """Why a secret opens nothing; empty if it opens the dashboard."""
        if not secret:
            return "this dashboard asks for a token; `tunefarm token create` makes one"
        token = self._known().get(digest_of(secret))
        if token is None:
            return "the farm does not know this token; ask an administrator for one"
        if token.revoked_at is not None:
            return f"token {token.name} ({token.id}) was revoked; ask for another"
        if token.expires_at is not None and time.time() >= token.expires_at:
            return f"token {token.name} ({token.id}) has expired; ask for another"
        if token.role not in READERS:
            return f"token {token.name} has role {token.role}; pages are for clients and admins"
        return ""

    @property
    def is_open_to_somebody(self) -> bool:
        """Whether any token opens pages."""
        now = time.time()
        return any(
            t.revoked_at is None and t.role in READERS and (t.expires_at or now + 1) > now
            for t in self._known().values()
        )

    def _known(self) -> dict[str, Token]:
        with self._lock:
            if time.monotonic() - self._read_at >= REFRESH_S:
                with self._store.reading() as connection:
                    self._tokens = {t.digest: t for t in tokens.tokens(connection)}
                self._read_at = time.monotonic()
            return self._tokens


def harden(app: FastAPI, guard: Guard | None) -> None:
    """Put the headers on every answer, and the guard before every page."""

    @app.middleware("http")
    async def protect(request: Request, call_next: Next) -> Response:
        refused = await _refused(request, guard) if guard is not None else None
        answer = refused or await call_next(request)
        for name, value in _HEADERS.items():
            answer.headers.setdefault(name, value)
        is_static = request.url.path.startswith("/static/")
        answer.headers.setdefault("Cache-Control", "no-cache" if is_static else "no-store")
        return answer


async def _refused(request: Request, guard: Guard) -> Response | None:
    """The answer to a request that may not pass: people are asked for a token."""
    path = request.url.path
    if path.startswith(OPEN_PATHS):
        return None
    try:
        why = await run_in_threadpool(guard.refusal, secret_of(request))
    except StoreError as error:
        return JSONResponse({"error": str(error)}, 503)
    if not why:
        return None
    if path.startswith(("/api/", "/live/")):
        return JSONResponse({"error": why}, 401, {"WWW-Authenticate": "Bearer"})
    asked = f"{path}?{request.url.query}" if request.url.query else path
    return RedirectResponse(f"/login?next={quote(asked)}", 303)


def secret_of(request: Request) -> str:
    """The secret in the authorization header or the cookie, empty if there is none."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return secret.strip()
    return request.cookies.get(COOKIE, "")

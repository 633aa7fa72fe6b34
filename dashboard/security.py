"""What answers carry to keep browsers safe, who may ask, and as whom they ask the tracker."""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tunefarm.db import tokens
from tunefarm.db.errors import StoreError
from tunefarm.db.records import Role, Token
from tunefarm.db.store import Store
from tunefarm.proto.tokens import digest_of

COOKIE = "tunefarm_session"
SESSION_S = 12 * 3600.0
SESSIONS = 1000
REFRESH_S = 1.0
"""How long a token that was revoked may still open pages."""
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
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


class Guard:
    """The tokens that open the dashboard: those of the farm's clients, tuners and admins, and the
    tracker's own, of which ``own`` tells the digest (empty: unknown). Of an ``is_open`` dashboard
    pages need none; who changes something does."""

    def __init__(
        self, store: Store, own: Callable[[], str] = lambda: "", *, is_open: bool = False
    ) -> None:
        self.is_open = is_open
        self._store = store
        self._own = own
        self._lock = threading.Lock()
        self._tokens: dict[str, Token] = {}
        self._read_at = float("-inf")

    def refusal(self, secret: str) -> str:
        """Why a secret opens nothing; empty if it opens the dashboard."""
        found = self.look_up(secret)
        return found if isinstance(found, str) else ""

    def look_up(self, secret: str) -> Token | str:
        """The token of a secret that opens the dashboard, or why it does not."""
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
        return token

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
                own = self._own()
                if own:
                    self._tokens[own] = Token(own, "", Role.ADMIN)
                self._read_at = time.monotonic()
            return self._tokens


@dataclass
class Sessions:
    """Secrets of those who signed in, by what their browsers keep instead. Cookies go to all ports
    of a machine, whoever listens there: so they hold nothing that a tracker would take."""

    _secrets: OrderedDict[str, tuple[str, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, secret: str) -> str:
        """A new session's name, for ``SESSION_S``; of ``SESSIONS`` others the oldest ends."""
        name = secrets.token_urlsafe(32)
        with self._lock:
            self._secrets[name] = (secret, time.monotonic() + SESSION_S)
            while len(self._secrets) > SESSIONS:
                self._secrets.popitem(last=False)
        return name

    def secret(self, name: str) -> str:
        """The secret of a session, empty if there is none."""
        with self._lock:
            secret, until = self._secrets.get(name, ("", 0.0))
        return secret if time.monotonic() < until else ""

    def end(self, name: str) -> None:
        with self._lock:
            self._secrets.pop(name, None)


def harden(app: FastAPI, guard: Guard) -> None:
    """Put the headers on every answer, and the guard before every page."""
    app.add_middleware(Protection, guard=guard)


@dataclass(frozen=True, slots=True)
class Protection:
    """What every request passes. The token of whoever asks is ``request.state.holder``; None where
    pages are open to all."""

    app: ASGIApp
    guard: Guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        request.state.holder = None
        refused = _foreign(request) or await _refused(request, self.guard)
        is_static = request.url.path.startswith("/static/")
        own = {**_HEADERS, "Cache-Control": "no-cache" if is_static else "no-store"}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in own.items():
                    headers.setdefault(name, value)
            await send(message)

        await (refused or self.app)(scope, receive, send_with_headers)


def _foreign(request: Request) -> Response | None:
    """The answer to what another site's page sends here; None if it is none."""
    if request.method in _SAFE:
        return None
    site, origin = request.headers.get("sec-fetch-site"), request.headers.get("origin")
    is_own = site in ("same-origin", "none") if site else _is_origin(request, origin)
    if is_own:
        return None
    return JSONResponse({"error": "this came from a page of another site; open this one"}, 403)


def _is_origin(request: Request, origin: str | None) -> bool:
    """Whether that is where this page is; programs send none."""
    return origin is None or urlsplit(origin).netloc == request.headers.get("host")


async def _refused(request: Request, guard: Guard) -> Response | None:
    """The answer to a request that may not pass: people are asked for a token."""
    path, secret = request.url.path, secret_of(request)
    if path.startswith("/static/") or (not secret and (guard.is_open or path == "/login")):
        return None
    try:
        found = await run_in_threadpool(guard.look_up, secret)
    except StoreError as error:
        return JSONResponse({"error": str(error)}, 503)
    if not isinstance(found, str):
        request.state.holder = found
        return None
    if guard.is_open or path == "/login":
        return None
    if path.startswith(("/api/", "/live/")):
        return JSONResponse({"error": found}, 401, {"WWW-Authenticate": "Bearer"})
    asked = f"{path}?{request.url.query}" if request.url.query else path
    return RedirectResponse(f"/login?next={quote(asked)}", 303)


def secret_of(request: Request) -> str:
    """The secret in the authorization header or of the session, empty if there is none."""
    return _bearer(request) or request.app.state.sessions.secret(request.cookies.get(COOKIE, ""))


def _bearer(request: Request) -> str:
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def form_key(secret: str) -> str:
    """What a form carries to show that it is of a page that the holder of the secret was given."""
    return hmac.new(secret.encode(), b"forms of the dashboard", "sha256").hexdigest()


def is_own_form(request: Request, key: str) -> bool:
    """Whether a form came from a page of this session; what a program sends with a secret in its
    header needs no key, as no page can make a browser do that."""
    if _bearer(request):
        return True
    return hmac.compare_digest(key.encode(), form_key(secret_of(request)).encode())

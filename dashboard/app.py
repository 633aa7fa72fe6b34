"""The dashboard as a web application: pages, the JSON API, live events and static files."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from tunefarm.dashboard import actions, api, live, login, pages
from tunefarm.dashboard.actions import Tracker
from tunefarm.dashboard.code import CodeError, Coder
from tunefarm.dashboard.memo import Memo
from tunefarm.dashboard.paging import BadCursor
from tunefarm.dashboard.rendering import STATIC, render
from tunefarm.dashboard.security import Guard, Sessions, harden
from tunefarm.dashboard.spaces import Spaces
from tunefarm.dashboard.watch import Watch
from tunefarm.db.errors import StoreError, UnknownRecord
from tunefarm.db.store import Store
from tunefarm.proto.errors import FarmError

from tunefarm import __version__

_DESCRIPTION = """\
Read-only views of a tunefarm database. Lists take `cursor` (the `next` of the page before); data of
charts come as JSON, or with `format=csv` as CSV. Units stand in the names: seconds, unless it says
otherwise, and seconds since the epoch for times of day.
"""
_STATUS = {
    "UNAVAILABLE": 503,
    "RESOURCE_EXHAUSTED": 503,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 409,
}
"""HTTP's words for those of a tracker."""


def create_app(
    store: Store,
    guard: Guard | None = None,
    hosts: Sequence[str] = ("*",),
    tracker: Tracker | None = None,
) -> FastAPI:
    """The application over a database that was opened to read. Without a ``guard`` pages are open
    to all; requests that name another host than ``hosts`` are refused. Jobs are changed by asking
    the ``tracker``, if there is one, as the holder of the token that came with the request."""
    guard = guard or Guard(store, is_open=True)
    app = FastAPI(
        title="tunefarm dashboard",
        version=__version__,
        description=_DESCRIPTION,
        openapi_url="/api/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.state.store = store
    app.state.guard = guard
    app.state.sessions = Sessions()
    app.state.tracker = tracker
    app.state.coder = Coder()
    app.state.spaces = Spaces()
    app.state.memo = Memo()
    app.state.watch = Watch(store)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    app.include_router(pages.router)
    app.include_router(login.router)
    app.include_router(actions.router)
    app.include_router(live.router)
    app.include_router(api.router)
    harden(app, guard)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))
    _tell_errors(app)
    return app


def _tell_errors(app: FastAPI) -> None:
    """One sentence for what went wrong: a page for people, JSON for programs."""

    @app.exception_handler(UnknownRecord)
    async def unknown(request: Request, error: UnknownRecord) -> Response:
        return _told(request, 404, str(error))

    @app.exception_handler(StoreError)
    async def away(request: Request, error: StoreError) -> Response:
        return _told(request, 503, str(error))

    @app.exception_handler(FarmError)
    async def not_done(request: Request, error: FarmError) -> Response:
        return _told(request, _STATUS.get(error.status, 500), str(error))

    @app.exception_handler(CodeError)
    async def without_code(request: Request, error: CodeError) -> Response:
        return _told(request, 422, str(error))

    @app.exception_handler(BadCursor)
    async def cursor(request: Request, error: BadCursor) -> Response:
        return _told(request, 400, str(error))

    @app.exception_handler(StarletteHTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        missing = f"there is no page {request.url.path}; the overview has all"
        return _told(
            request, error.status_code, missing if error.status_code == 404 else error.detail
        )

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:])
        got = str(first.get("input"))[:60]
        return _told(request, 422, f"{name} {got!r} does not fit: {first['msg'].lower()}")


def _told(request: Request, status: int, sentence: str) -> Response:
    if request.url.path.startswith("/api/"):
        return JSONResponse({"error": sentence}, status)
    return render(request, "error.html", status=status, sentence=sentence)

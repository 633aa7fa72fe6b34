"""Signing in to a dashboard that asks for tokens, and out of it."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from tunefarm.dashboard.actions import Tracker
from tunefarm.dashboard.rendering import render
from tunefarm.dashboard.requests import form_of
from tunefarm.dashboard.security import COOKIE, Guard

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/login")
def ask_token(request: Request, next: str = "/") -> Response:
    return _sign_in(request, _inside(next))


@router.post("/login")
async def take_token(request: Request) -> Response:
    form = await form_of(request)
    secret, target = form.get("token", "").strip(), _inside(form.get("next", "/"))
    guard: Guard = request.app.state.guard
    why = await run_in_threadpool(guard.refusal, secret)
    if why:
        return _sign_in(request, target, why)
    answer = RedirectResponse(target, 303)
    session = request.app.state.sessions.begin(secret)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, session, httponly=True, samesite="strict", secure=secure)
    return answer


def _sign_in(request: Request, target: str, why: str = "") -> Response:
    """The page that asks for a token, and goes on to the target."""
    tracker: Tracker | None = request.app.state.tracker
    is_open = request.app.state.guard.is_open
    own = tracker.file if tracker is not None and is_open and tracker.is_known else None
    return render(
        request, "login.html", 401 if why else 200, next=target, why=why, is_open=is_open, own=own
    )


@router.post("/logout")
def forget_token(request: Request) -> Response:
    request.app.state.sessions.end(request.cookies.get(COOKIE, ""))
    answer = RedirectResponse("/" if request.app.state.guard.is_open else "/login", 303)
    answer.delete_cookie(COOKIE)
    return answer


def _inside(target: str) -> str:
    """A path of this site; the overview instead of any other address."""
    return target if target.startswith("/") and target[1:2] not in ("/", "\\") else "/"

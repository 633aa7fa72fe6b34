"""The pages: each reads what it shows and fills a template."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from tunefarm.dashboard.queries import devices, jobs, overview
from tunefarm.dashboard.rendering import render
from tunefarm.dashboard.requests import Cursor, Reading, Text
from tunefarm.dashboard.security import COOKIE, Guard
from tunefarm.db.records import JobState

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_MAX_FORM_BYTES = 4096


@router.get("/")
def show_overview(request: Request, db: Reading) -> Response:
    open_jobs = jobs.jobs(db, states=[str(s) for s in jobs.OPEN], limit=12)
    recent = () if open_jobs.rows else jobs.jobs(db, limit=5).rows
    return render(
        request,
        "overview.html",
        totals=overview.totals(db),
        open_jobs=open_jobs,
        recent_jobs=recent,
        devices=devices.devices(db),
        wins=overview.wins(db),
    )


@router.get("/jobs")
def list_jobs(
    request: Request, db: Reading, q: Text = "", state: str = "", cursor: Cursor = ""
) -> Response:
    states = [state] if state else []
    page = jobs.jobs(db, states=states, text=q, cursor=cursor)
    return render(
        request, "jobs.html", page=page, q=q, state=state, states=[str(s) for s in JobState]
    )


# --- tokens -------------------------------------------------------------------------------------


@router.get("/login")
def ask_token(request: Request, next: str = "/") -> Response:
    return render(request, "login.html", next=_inside(next), why="")


@router.post("/login")
async def take_token(request: Request) -> Response:
    body = (await request.body())[:_MAX_FORM_BYTES].decode("utf-8", "replace")
    form = parse_qs(body)
    secret, target = form.get("token", [""])[0].strip(), _inside(form.get("next", ["/"])[0])
    guard: Guard | None = request.app.state.guard
    why = await run_in_threadpool(guard.refusal, secret) if guard is not None else ""
    if why:
        return render(request, "login.html", 401, next=target, why=why)
    answer = RedirectResponse(target, 303)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, secret, httponly=True, samesite="strict", secure=secure)
    return answer


@router.post("/logout")
def forget_token() -> Response:
    answer = RedirectResponse("/login", 303)
    answer.delete_cookie(COOKIE)
    return answer


def _inside(target: str) -> str:
    """A path of this site; the overview instead of any other address."""
    return target if target.startswith("/") and target[1:2] not in ("/", "\\") else "/"

"""What changes jobs: each asks the tracker, with the token of whoever asks. The database is read
only here as everywhere in the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.exceptions import HTTPException
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from tunefarm.dashboard.queries.jobs import JobLine
from tunefarm.dashboard.requests import form_of
from tunefarm.dashboard.security import form_key, is_own_form, secret_of
from tunefarm.dashboard.spaces import plugins_of
from tunefarm.db.earlier import Made, Plugins, count_earlier, machines_online
from tunefarm.db.records import (
    IDLE,
    OWNED,
    Budget,
    Job,
    JobState,
    Role,
    TaskKey,
    Token,
    protocol_of,
)
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import FarmError, TrackerUnavailable
from tunefarm.proto.rendezvous import Rendezvous
from tunefarm.proto.tokens import digest_of

router = APIRouter(include_in_schema=False)
MAX_TRIALS = 1_000_000
_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class Tracker:
    """The tracker of the database. Trackers come and go: ``find`` says where it is now, None while
    that is not known here, or raises FarmError; ``unknown`` tells people what to do then. Its own
    token is in ``file``, if it writes one."""

    find: Callable[[], Rendezvous | None]
    unknown: str = ""
    file: Path | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is one to ask, as far as that can be seen from here."""
        return self._found() is not None

    def own_digest(self) -> str:
        """The digest of the tracker's own token; empty if that is not known here."""
        found = self._found()
        return digest_of(found.token) if found is not None and found.token else ""

    def connect(self, secret: str) -> FarmClient:
        """A client that asks with this secret; FarmError if the tracker cannot be found."""
        found = self.find()
        if found is None:
            raise TrackerUnavailable(self.unknown)
        return FarmClient(
            found.address, secret, connect_s=_PATIENCE_S, patience_s=_PATIENCE_S, tls=found.tls
        )

    def _found(self) -> Rendezvous | None:
        try:
            return self.find()
        except FarmError:
            return None


@dataclass(frozen=True, slots=True)
class Choices:
    """What a page offers to whoever looks at a job; ``key`` goes with its forms. Where no tracker
    is known, ``unknown`` says what to do."""

    is_known: bool
    can_cancel: bool = False
    can_retry: bool = False
    can_go_on: bool = False
    can_note: bool = False
    key: str = ""
    why_not: str = ""
    unknown: str = ""


def choices(request: Request, job: JobLine) -> Choices:
    """What the holder of the request's token may do to a job; the tracker has the last word."""
    tracker: Tracker | None = request.app.state.tracker
    if tracker is None or not tracker.is_known:
        return Choices(is_known=False, unknown=tracker.unknown if tracker is not None else "")
    holder: Token | None = request.state.holder
    if holder is None:
        return Choices(is_known=True)
    if holder.role is Role.CLIENT and holder.name != job.owner:
        why = f"It belongs to {job.owner or 'the farm itself'}; {holder.name} may not change it."
        return Choices(is_known=True, can_go_on=not job.is_open, key=_key(request), why_not=why)
    ended_badly = job.state in (JobState.FAILED, JobState.CANCELLED)
    return Choices(
        is_known=True,
        can_cancel=job.is_open,
        can_retry=ended_badly and OWNED not in job.options,
        can_go_on=not job.is_open,
        can_note=True,
        key=_key(request),
    )


def _key(request: Request) -> str:
    return form_key(secret_of(request))


@router.post("/jobs/{job}/cancel")
async def cancel(request: Request, job: str) -> Response:
    form = await form_of(request)
    reason = form.get("reason", "").strip()[:500] or "cancelled from the dashboard"
    return await _act(request, form, lambda farm: farm.cancel(job, reason))


@router.post("/jobs/{job}/retry")
async def retry(request: Request, job: str) -> Response:
    return await _act(request, await form_of(request), lambda farm: farm.retry(job))


@router.post("/jobs/{job}/note")
async def note(request: Request, job: str) -> Response:
    form = await form_of(request)
    text = form.get("note", "")
    return await _act(request, form, lambda farm: farm.note_job(job, text, actor="dashboard"))


@router.post("/jobs/{job}/further")
async def tune_further(request: Request, job: str) -> Response:
    """Submit the job again, to measure so many candidates more."""
    form = await form_of(request)
    word = form.get("trials", "")
    if not word.isdecimal() or not 1 <= int(word) <= MAX_TRIALS:
        raise HTTPException(422, f"candidates {word!r} is no number from 1 to {MAX_TRIALS}")
    return await _act(request, form, lambda farm: farm.submit_job(_again(farm, job, int(word))))


def _again(farm: FarmClient, name: str, trials: int) -> Job:
    """A new job with the tasks of one that is over, for this many trials beyond all that count."""
    job = farm.job(name)
    made = _made(job)
    machines = machines_online(farm.devices(), job.target)
    earlier = min(count_earlier(farm, made, machine) for machine in machines)
    options = {k: v for k, v in job.options.items() if k not in (OWNED, IDLE)}
    return replace(
        job,
        id="",
        budget=Budget(earlier + trials, job.budget.seconds),
        options={**options, "earlier": str(earlier)},
        priority=max(0, job.priority),
        note="",
    )


def _made(job: Job) -> dict[TaskKey, Made]:
    """How the tasks of a job are made and timed; only the compiler knows of plug-ins."""
    known: dict[str, Plugins] = {}
    if job.plugins:
        known = plugins_of(job.target, (task.workload.text for task in job.tasks))
    return {
        TaskKey(task.workload.key, job.target): (
            known.get(task.workload.text, ()),
            protocol_of(job.target, task.protocol),
        )
        for task in job.tasks
    }


async def _act(
    request: Request, form: dict[str, str], call: Callable[[FarmClient], Job]
) -> Response:
    """Have the tracker do it as the holder of the request's token, and show the job it is about."""
    tracker: Tracker | None = request.app.state.tracker
    if tracker is None or not tracker.is_known:
        why = tracker.unknown if tracker is not None else ""
        raise HTTPException(503, why or "no tracker serves this database now; start one first")
    if request.state.holder is None:
        raise HTTPException(401, "changing jobs takes a token; sign in with one")
    if not is_own_form(request, form.get("key", "")):
        raise HTTPException(403, "this form is not of your session; open the job's page again")
    secret = secret_of(request)

    def done() -> Job:
        with tracker.connect(secret) as farm:
            return call(farm)

    job = await run_in_threadpool(done)
    return RedirectResponse(f"/jobs/{job.id}", 303)

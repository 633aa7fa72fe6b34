"""What changes jobs: each asks the tracker, with the token of whoever asks. The database is read
only here as everywhere in the dashboard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.exceptions import HTTPException
from fastapi.responses import RedirectResponse, Response
from starlette.concurrency import run_in_threadpool
from tunefarm.dashboard.queries.jobs import JobLine
from tunefarm.dashboard.requests import form_of
from tunefarm.dashboard.security import form_key, is_own_form, secret_of
from tunefarm.db.records import (
    IDLE,
    OWNED,
    Budget,
    Job,
    JobState,
    Role,
    TaskKey,
    Token,
)
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import FarmError
from tunefarm.proto.rendezvous import read_rendezvous
from tunefarm.proto.tls import Tls
from tunefarm.proto.tokens import digest_of

router = APIRouter(include_in_schema=False)
MAX_TRIALS = 1_000_000
_PATIENCE_S = 3.0


@dataclass(frozen=True, slots=True)
class Tracker:
    """Where the tracker of the database is: its address, or the rendezvous file that tells it."""

    address: str = ""
    tls: Tls | None = field(default=None, repr=False)
    rendezvous: Path | None = None

    @property
    def is_known(self) -> bool:
        """Whether there is one to ask, as far as that can be seen from here."""
        if self.address:
            return True
        try:
            return self.rendezvous is not None and read_rendezvous(self.rendezvous).is_running
        except FarmError:
            return False

    def own_digest(self) -> str:
        """The digest of the token in its rendezvous file; empty if that cannot be read."""
        try:
            return digest_of(read_rendezvous(self.rendezvous).token) if self.rendezvous else ""
        except FarmError:
            return ""

    def connect(self, secret: str) -> FarmClient:
        """A client that asks with this secret; FarmError if the tracker cannot be found."""
        address, tls = self.address, self.tls
        if not address:
            assert self.rendezvous is not None
            found = read_rendezvous(self.rendezvous)
            address, tls = found.address, found.tls
        return FarmClient(address, secret, connect_s=_PATIENCE_S, patience_s=_PATIENCE_S, tls=tls)


@dataclass(frozen=True, slots=True)
class Choices:
    """What a page offers to whoever looks at a job; ``key`` goes with its forms."""

    is_known: bool
    can_cancel: bool = False
    can_retry: bool = False
    can_go_on: bool = False
    key: str = ""
    why_not: str = ""


def choices(request: Request, job: JobLine) -> Choices:
    """What the holder of the request's token may do to a job; the tracker has the last word."""
    tracker: Tracker | None = request.app.state.tracker
    if tracker is None or not tracker.is_known:
        return Choices(is_known=False)
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
    keys = [TaskKey(task.workload.key, job.target) for task in job.tasks]
    online = {
        (device.compiler_version, device.model)
        for device in farm.devices()
        if device.state != "offline" and device.target == job.target
    } or {(job.compiler_version, "")}
    earlier = min(farm.count_candidates(keys, *machine) for machine in online)
    options = {k: v for k, v in job.options.items() if k not in (OWNED, IDLE)}
    return replace(
        job,
        id="",
        budget=Budget(earlier + trials, job.budget.seconds),
        options={**options, "earlier": str(earlier)},
        priority=max(0, job.priority),
    )


async def _act(
    request: Request, form: dict[str, str], call: Callable[[FarmClient], Job]
) -> Response:
    """Have the tracker do it as the holder of the request's token, and show the job it is about."""
    tracker: Tracker | None = request.app.state.tracker
    if tracker is None or not tracker.is_known:
        raise HTTPException(503, "no tracker serves this database now; start one first")
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

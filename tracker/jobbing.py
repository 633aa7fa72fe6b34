"""Jobs: submitted, claimed by tuners, watched, ended."""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import replace
from functools import partial

from sqlalchemy import Connection
from tunefarm.db import jobs, stored_jobs
from tunefarm.db.records import IDLE, Job, JobState, JobUpdate
from tunefarm.proto.logs import ids
from tunefarm.tracker import signals
from tunefarm.tracker.farm import Claimed, Farm
from tunefarm.tracker.selector import parse_selector

_log = logging.getLogger(__name__)
IDLE_TERM_S = 3.0
MAX_PLUGINS = 10_000
"""Characters in which a tuner may name its plug-ins."""


async def submit(farm: Farm, job: Job) -> Job:
    """Queue a job; ValueError if it has no tasks or no budget, or if its selector is none."""
    if not job.id:
        raise ValueError("the job has no id")
    if not job.tasks:
        raise ValueError("the job has no tasks")
    if job.budget.trials < 1:
        raise ValueError(f"the job's budget is {job.budget.trials} trials; at least 1 is needed")
    parse_selector(job.selector)
    stored = await farm.database.write(lambda c: jobs.submit(c, job))
    _log.info("submitted: %d tasks on %s", len(stored.tasks), stored.target, extra=ids(job=job.id))
    farm.signals.notify(signals.JOBS, signals.job(job.id))
    return farm.told(stored)


async def claim(
    farm: Farm,
    request_id: str,
    tuner: str,
    job: str,
    wait_s: float,
    plugins: Collection[str] = (),
) -> Job | None:
    """The job named or the most urgent queued one, claimed; None if none came in time.

    A queued job that selects devices is left until one that may measure it is registered, so that
    it keeps no tuner from the others; one that is asked back until nobody waits any more; and one
    whose tasks need other ``plugins`` than the tuner has to another tuner.
    """
    if sum(map(len, plugins)) > MAX_PLUGINS:
        raise ValueError(f"a tuner names its plug-ins in {MAX_PLUGINS} characters at most")
    farm.note_tuner(tuner, plugins)
    deadline = farm.clock() + wait_s
    with farm.signals.listen(signals.JOBS) as bell:
        while True:
            bell.silence()
            selecting = await farm.database.read(stored_jobs.queued_with_selector)
            ready = {one.id for one in selecting if set(one.plugins) <= set(plugins)}
            ready -= {one.id for one in selecting if farm.told(one).unmet}
            claim = partial(jobs.claim, tuner=tuner, request_id=request_id, job=job)
            found = await farm.database.write(
                partial(claim, skip=set(farm.recalls), selecting=ready)
            )
            if found is not None:
                farm.drop_leases_of(found.id)
                _log.info("claimed by %s", tuner, extra=ids(job=found.id, epoch=found.claim_epoch))
                return _hold(farm, found)
            left_s = deadline - farm.clock()
            if left_s <= 0 or farm.closing:
                return None
            await bell.rings(left_s)


def _hold(farm: Farm, job: Job) -> Job:
    farm.claims[job.id] = Claimed(job.claim_epoch, farm.clock() + farm.options.claim_term_s)
    farm.signals.notify(signals.job(job.id))
    return _with_term(farm, job)


def _with_term(farm: Farm, job: Job) -> Job:
    """The claimed job as its tuner is told. One for idle devices is renewed more often, because
    that is how its tuner hears that it is asked back."""
    term_s = farm.options.claim_term_s
    if IDLE in job.options:
        term_s = min(term_s, IDLE_TERM_S)
    return replace(job, claim_term_s=term_s, recall=farm.recalls.get(job.id, ""))


async def renew(farm: Farm, job: str, epoch: int) -> Job:
    """The claimed job with a fresh term; StaleClaim if the claim has ended."""

    def read(connection: Connection) -> Job:
        jobs.check_claim(connection, job, epoch)
        return stored_jobs.get(connection, job)

    found = await farm.database.read(read)
    claim = farm.claims.get(job)
    if claim is not None and claim.epoch == epoch:
        claim.deadline = farm.clock() + farm.options.claim_term_s
    return _with_term(farm, found)


async def release(farm: Farm, job: str, epoch: int) -> Job:
    """Put a claimed job back into the queue."""
    return _over(farm, await farm.database.write(lambda c: jobs.release(c, job, epoch)))


async def finish(farm: Farm, job: str, epoch: int, state: JobState, message: str) -> Job:
    """End a claimed job; ValueError unless as succeeded or failed."""
    if state not in (JobState.SUCCEEDED, JobState.FAILED):
        raise ValueError(f"a job finishes as succeeded or failed, not as {state}")
    return _over(
        farm, await farm.database.write(lambda c: jobs.finish(c, job, epoch, state, message))
    )


async def cancel(farm: Farm, job: str, reason: str) -> Job:
    """End a job, whoever runs it."""
    return _over(farm, await farm.database.write(lambda c: jobs.cancel(c, job, reason)))


async def retry(farm: Farm, job: str) -> Job:
    """Queue a failed or cancelled job again; ValueError if it has succeeded."""
    found = await farm.database.write(lambda c: jobs.retry(c, job))
    _log.info("queued again", extra=ids(job=found.id))
    farm.signals.notify(signals.JOBS, signals.job(found.id))
    return farm.told(found)


async def note(farm: Farm, request_id: str, job: str, text: str, actor: str) -> Job:
    """Say this of a job; ValueError if it is too long."""
    found = await farm.database.write(lambda c: jobs.note(c, request_id, job, text, actor=actor))
    farm.signals.notify(signals.job(found.id))
    return farm.told(found)


async def watch(farm: Farm, job: str, cursor: int, wait_s: float) -> JobUpdate:
    """The job's progress; waits until it differs from what ``cursor`` has seen."""
    deadline = farm.clock() + wait_s
    with farm.signals.listen(signals.job(job)) as bell:
        while True:
            bell.silence()
            update = await farm.database.read(lambda c: stored_jobs.progress(c, job))
            left_s = deadline - farm.clock()
            if update.cursor != cursor or left_s <= 0 or farm.closing:
                return replace(update, job=farm.told(update.job))
            await bell.rings(left_s)


def _over(farm: Farm, job: Job) -> Job:
    """Forget the claim and the leases of a job that nobody runs any more."""
    _log.info("%s", job.state.because(job.message), extra=ids(job=job.id))
    if job.state is not JobState.RUNNING:
        farm.claims.pop(job.id, None)
        farm.drop_leases_of(job.id)
    farm.signals.notify(signals.JOBS, signals.job(job.id))
    return job

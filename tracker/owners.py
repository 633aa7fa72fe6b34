"""What the caller may change: jobs, leases and candidates that are its own."""

from __future__ import annotations

from collections.abc import Collection

from tunefarm.db import leases, stored_jobs, tokens
from tunefarm.db.records import Role
from tunefarm.tracker.callers import caller
from tunefarm.tracker.farm import Farm


async def check_job(farm: Farm, job: str) -> None:
    """Forbidden if the job is not the caller's to change; NotFound if there is none."""
    if caller().role is Role.CLIENT:
        found = await farm.database.read(lambda c: stored_jobs.get(c, job))
        caller().check_owner(found.id, found.owner)


async def check_trials(farm: Farm, names: Collection[str]) -> None:
    """Forbidden if trials are meant for a job that is not the caller's; outside of jobs they have
    a name of their own."""
    if caller().role is Role.CLIENT:
        owners = await farm.database.read(lambda c: tokens.owners_of_jobs(c, names))
        for job, owner in owners.items():
            caller().check_owner(job, owner)


async def check_lease(farm: Farm, lease: str) -> None:
    """Forbidden if the lease is not the caller's; LeaseLost if there is none."""
    live = farm.leases.get(lease)
    if live is not None:
        caller().check_lease(live.lease)
    elif caller().role is not Role.ADMIN:
        caller().check_lease(await farm.database.read(lambda c: leases.get(c, lease)))

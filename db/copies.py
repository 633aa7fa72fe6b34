"""What another database told, stored as it stood there: devices, a job, its leases, its records.
Trials are the same everywhere (``trials.add``)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, insert, update
from tunefarm.db import best, jobs, leases, trials
from tunefarm.db.farm_models import LEASES
from tunefarm.db.models import JOBS
from tunefarm.db.records import Best, Device, Job, Lease

_THERE = "there"
"""The process of a worker whose own the database does not know."""


def add_devices(connection: Connection, devices: Sequence[Device]) -> None:
    """Store devices that are new here, and their workers."""
    for worker in sorted({device.worker for device in devices}):
        mine = [device for device in devices if device.worker == worker]
        leases.enlist(connection, worker, _THERE, mine[0].compiler_version)
        leases.register(connection, worker, mine)


def add_job(connection: Connection, job: Job) -> None:
    """Store a job that is new here, with its state and its times."""
    jobs.submit(connection, job)
    connection.execute(
        update(JOBS)
        .where(JOBS.c.id == job.id)
        .values(
            state=str(job.state),
            message=job.message,
            claimed_by=job.claimed_by,
            claim_epoch=job.claim_epoch,
            compiler_version=job.compiler_version or None,
            created_at=job.created_at,
            updated_at=job.updated_at,
        )
    )


def add_leases(connection: Connection, found: Iterable[Lease]) -> None:
    """Store leases that are new here; their devices are known."""
    rows = [
        {
            "id": lease.id,
            "request_id": lease.id,
            "device": lease.device,
            "client": lease.client,
            "job": lease.job,
            "epoch": lease.epoch,
            "term_s": lease.term_s,
            "granted_at": lease.granted_at,
            "ended_at": lease.ended_at,
            "ended_reason": lease.ended_reason,
            "owner": lease.owner,
        }
        for lease in found
    ]
    if rows:
        connection.execute(insert(LEASES), rows)


def add_promoted(connection: Connection, found: Sequence[Best]) -> None:
    """Let promoted records stand in their keys, with the trials that they are of."""
    trials.add(connection, [one.trial for one in found])
    for one in found:
        best.restore(connection, one)

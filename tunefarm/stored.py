"""Jobs of a database that no farm serves: looked at as a farm would show them, not changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tunefarm.compiler.errors import TunefarmError
from tunefarm.db.records import (
    OPEN,
    BestKey,
    Collected,
    Device,
    Found,
    Job,
    JobState,
    JobUpdate,
    Miss,
)

if TYPE_CHECKING:
    from tunefarm.db.store import Store
    from tunefarm.proto.client import FarmClient


@dataclass(frozen=True, slots=True)
class StoredJobs:
    """What ``FarmClient`` answers of jobs, from the database alone; ``why`` says what is missing
    for more."""

    store: Store
    why: str

    def job(self, job: str) -> Job:
        """The job with its tasks; StoreError if there is none of this id."""
        from tunefarm.db import stored_jobs

        with self.store.reading() as connection:
            return stored_jobs.get(connection, job)

    def watch(self, job: str, *, wait_s: float = 0.0) -> Iterator[JobUpdate]:
        """Where the job stands; TunefarmError after that if it is not over."""
        from tunefarm.db import stored_jobs

        with self.store.reading() as connection:
            update = stored_jobs.progress(connection, job)
        yield update
        if update.job.state in OPEN:
            raise TunefarmError(f"job {job[:8]} is {update.job.state}, and {self.why}")

    def cancel(self, job: str, reason: str = "") -> Job:
        """The job if it is over; TunefarmError if not, as only a tracker changes jobs."""
        found = self.job(job)
        if found.state in OPEN:
            raise TunefarmError(f"job {job[:8]} is {found.state}, and {self.why}")
        return found

    def note_job(self, job: str, note: str, *, actor: str) -> Job:
        """The job if that is its note already; TunefarmError if not, as only a tracker changes
        jobs."""
        found = self.job(job)
        if found.note != note:
            raise TunefarmError(f"job {job[:8]} is not noted, as {self.why}")
        return found

    def retry(self, job: str) -> Job:
        """The job if it is open already; TunefarmError if it has succeeded, and else too, as only a
        tracker changes jobs."""
        found = self.job(job)
        if found.state is JobState.SUCCEEDED:
            raise TunefarmError(f"job {job[:8]} has succeeded; tune the model again to go on")
        if found.state not in OPEN:
            raise TunefarmError(f"job {job[:8]} is {found.state}, and {self.why}")
        return found

    def jobs(self, *, limit: int) -> tuple[Job, ...]:
        """The latest jobs, newest first, and why none may measure one, as ``told_jobs`` says."""
        return told_jobs(self.store, limit)

    def misses(self, limit: int) -> tuple[Miss, ...]:
        """What builds reported as untuned, with the largest gain first."""
        from tunefarm.db import misses

        with self.store.reading() as connection:
            return misses.most_valuable(connection, limit)

    def collect(self, job: str, cursor: int = 0, *, limit: int) -> Collected:
        return self.store.trials_of(job, cursor, limit)

    def best(self, keys: Iterable[BestKey]) -> Mapping[BestKey, Sequence[Found]]:
        return self.store.best(keys)

    def devices(self) -> tuple[Device, ...]:
        """None: devices are a farm's."""
        return ()


def told_jobs(store: Store, limit: int) -> tuple[Job, ...]:
    """The latest jobs, newest first; open ones that hold no device with why none may measure them,
    if that is so."""
    from tunefarm.db import cordons, leases
    from tunefarm.tracker.unmet import why_unmet

    found = store.jobs(limit=limit)
    with store.reading() as connection:
        devices, kept = leases.devices(connection), cordons.cordons(connection)
        served = {lease.job for lease in leases.live(connection)}
    return tuple(
        replace(job, unmet=why_unmet(job, devices, kept))
        if job.state in OPEN and job.id not in served
        else job
        for job in found
    )


@contextmanager
def farm_or_database(tracker: str, database: str) -> Iterator[FarmClient | StoredJobs]:
    """The farm that is named or that serves the database; the database alone if none does."""
    from tunefarm.api import default_database
    from tunefarm.db.dialect import parse_url, sqlite_path
    from tunefarm.db.store import Store
    from tunefarm.farm import connect, rendezvous_of
    from tunefarm.proto.errors import TrackerUnavailable

    if tracker and database:
        raise TunefarmError("give --tracker (a running farm) or --db (a database), not both")
    database = database or default_database()
    place = tracker or rendezvous_of(database)
    path = sqlite_path(parse_url(database))
    try:
        client = connect(str(place)) if place else None
        why = "only its farm can change it: give --tracker HOST:PORT"
    except TrackerUnavailable as away:
        if tracker or (path is not None and not path.exists()):
            raise
        client, why = None, str(away)
    if client is not None:
        with client:
            yield client
        return
    with Store.open(database, readonly=True) as store:
        yield StoredJobs(store, why)

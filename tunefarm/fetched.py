"""A job of a farm that is known by its tracker alone, fetched into a database of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from tunefarm.db.records import Best, BestKey, Job, Lease, Match

if TYPE_CHECKING:
    from tunefarm.db.store import Store
    from tunefarm.proto.client import FarmClient

PAGE = 1000
"""Trials or leases of one answer."""


@contextmanager
def fetched(farm: FarmClient, name: str) -> Iterator[tuple[Store, Job]]:
    """A database that lasts as long as the block, with all that a report tells of a job, and the
    job: its trials, leases and devices, and the records that its tasks had at its end.

    NotFound unless ``name`` is its id, or the beginning of its id alone; FarmError as calls raise.
    """
    from tunefarm.db import copies
    from tunefarm.db.store import Store

    job = farm.job(name)
    with (
        TemporaryDirectory(prefix="tunefarm-") as folder,
        Store.open(str(Path(folder) / "job.db")) as store,
    ):
        held = list(leases_of(farm, job.id))
        with store.writing() as connection:
            copies.add_devices(connection, farm.devices())
            copies.add_job(connection, job)
            copies.add_leases(connection, held)
        keys = _fetch_trials(farm, job.id, store)
        with store.writing() as connection:
            copies.add_promoted(connection, _promoted(farm, keys, job.id))
        yield store, job


def leases_of(farm: FarmClient, job: str) -> Iterator[Lease]:
    """All leases of a job, the newest first."""
    before = 0.0
    while True:
        page = farm.lease_history(job=job, before=before, limit=PAGE)
        yield from page
        if len(page) < PAGE:
            return
        before = page[-1].granted_at


def _fetch_trials(farm: FarmClient, job: str, store: Store) -> set[BestKey]:
    """Store all trials of a job; the keys that its tasks, timed as those were, have on the models
    of the devices that measured them."""
    from tunefarm.db.lookup import best_key_of

    cursor, keys = 0, set[BestKey]()
    while True:
        page = farm.collect(job, cursor, limit=PAGE)
        store.add_trials(page.trials)
        keys |= {best_key_of(trial) for trial in page.trials if trial.device_model}
        if len(page.trials) < PAGE:
            models = {key.device_model for key in keys}
            return {replace(key, device_model=model) for key in keys for model in models}
        cursor = page.cursor


def _promoted(farm: FarmClient, keys: set[BestKey], job: str) -> list[Best]:
    """The records of these keys that finals promoted, as they stood when the job was over."""
    found = [one for answers in farm.best(keys, job).values() for one in answers]
    return [one.best for one in found if one.match is Match.EXACT and one.best.promoted]

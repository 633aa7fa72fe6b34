"""What the database layer raises, one sentence each."""

from __future__ import annotations


class StoreError(Exception):
    """The database cannot be used: missing, corrupt, newer, locked, read-only or full."""


HAS_TRACKER = "has a tracker already"


class DatabaseInUse(StoreError):
    """Another tracker has the database."""


class StaleLease(Exception):
    """A write under a lease that has ended or whose epoch has passed."""


class StaleClaim(Exception):
    """A write by a tuner that does not hold the job's claim."""


class StaleIncarnation(Exception):
    """A write by a process of ``worker`` that a newer one has replaced."""

    def __init__(self, worker: str) -> None:
        super().__init__(
            f"a newer process of worker {worker} has taken over; a second worker beside it needs "
            "a --name and devices of its own"
        )


class UnknownRecord(Exception):
    """No job or trial of this key."""


class NotYours(Exception):
    """A write to what belongs to the holder of another token."""

"""Leaving old trials out by policy. What explains a best record is never left out.

Kept whatever the policy says: the trials in ``best``, those that fought a final, the finals
themselves, the default (trial 0) of each job that one of them comes from, and all trials of open
jobs. Counts of tasks and jobs stay as they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, delete, func, select, tuple_, union
from tunefarm.db.models import BEST, FINALS, JOBS, TRIALS
from tunefarm.db.records import FINAL, OPEN

BATCH = 200
"""Trials that one transaction leaves out."""


@dataclass(frozen=True, slots=True)
class Policy:
    """Leave out trials older than this (seconds; None: of any age) that are not among the newest
    ``keep`` of their task."""

    older_than_s: float | None = None
    keep: int = 0

    def __post_init__(self) -> None:
        if self.keep < 0 or (self.older_than_s is not None and self.older_than_s <= 0):
            raise ValueError(f"{self} keeps nothing that makes sense; give an age above 0")
        if self.older_than_s is None and not self.keep:
            raise ValueError("say how old trials have to be, or how many of each task stay")


def prunable(connection: Connection, policy: Policy, now: float) -> list[int]:
    """Ids of the trials that the policy leaves out, oldest first."""
    rank = func.row_number().over(
        partition_by=(TRIALS.c.workload_id, TRIALS.c.target_id), order_by=TRIALS.c.id.desc()
    )
    ranked = select(TRIALS.c.id.label("id"), rank.label("rank")).subquery()
    query = select(TRIALS.c.id).where(*_free()).order_by(TRIALS.c.id)
    if policy.older_than_s is not None:
        query = query.where(TRIALS.c.created_at < now - policy.older_than_s)
    if policy.keep:
        query = query.join(ranked, ranked.c.id == TRIALS.c.id).where(ranked.c.rank > policy.keep)
    return list(connection.execute(query).scalars())


def leave_out(connection: Connection, ids: Sequence[int]) -> int:
    """Delete those of these trials (``BATCH`` at most) that nothing keeps by now; how many."""
    return connection.execute(delete(TRIALS).where(TRIALS.c.id.in_(ids), *_free())).rowcount


def batches(ids: Sequence[int]) -> Iterable[Sequence[int]]:
    return (ids[start : start + BATCH] for start in range(0, len(ids), BATCH))


def _free() -> list[ColumnElement[bool]]:
    """The conditions under which no record needs a trial."""
    open_jobs = select(JOBS.c.id).where(JOBS.c.state.in_([str(state) for state in OPEN]))
    needed = _needed()
    origin = TRIALS.alias("origin")
    defaults: Any = select(origin.c.job, origin.c.workload_id, origin.c.target_id).where(
        origin.c.id.in_(needed)
    )
    own = tuple_(TRIALS.c.job, TRIALS.c.workload_id, TRIALS.c.target_id)
    return [
        TRIALS.c.origin != FINAL,
        TRIALS.c.id.not_in(needed),
        TRIALS.c.job.not_in(open_jobs),
        (TRIALS.c.number != 0) | own.not_in(defaults),
    ]


def _needed() -> Any:
    """Ids of the trials in ``best`` and of those that fought finals."""
    return union(
        select(BEST.c.trial_id),
        select(FINALS.c.challenger_id),
        select(FINALS.c.incumbent_id).where(FINALS.c.incumbent_id.is_not(None)),
    )

"""Failed trials, gathered by what they say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, select
from tunefarm.dashboard.paging import parse_cursor
from tunefarm.db.models import TRIALS

WINDOW = 10_000
"""So many trials are looked at; a cursor goes on before them."""
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{12,}\b|\d+(?:\.\d+)?(?:e[-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Failures of one kind whose messages differ in numbers only; ``message``, ``trial_id`` and
    ``at`` are of the latest."""

    error: str
    message: str
    trial_id: int
    at: float
    count: int
    jobs: int
    devices: int


@dataclass(frozen=True, slots=True)
class Failures:
    """Clusters among ``seen`` trials, the largest first; ``next`` is the cursor of those before."""

    clusters: tuple[Cluster, ...]
    seen: int
    failed: int
    next: str = ""


def failures(
    connection: Connection, *, job: str = "", error: str = "", text: str = "", cursor: str = ""
) -> Failures:
    """What failed among the newest ``WINDOW`` trials (of a job, if one is named), of an error kind
    if one is named, and with ``text`` in the message."""
    columns = TRIALS.c
    chosen = select(columns.id).order_by(columns.id.desc()).limit(WINDOW)
    if job:
        chosen = chosen.where(columns.job == job)
    after = parse_cursor(cursor, int)
    if after is not None:
        chosen = chosen.where(columns.id < after[0])
    ids = [int(id_) for id_ in connection.execute(chosen).scalars()]
    query = (
        select(columns.id, columns.job, columns.device, columns.error, columns.message,
               columns.created_at)
        .where(columns.id.in_(chosen.scalar_subquery()), columns.error.is_not(None))
        .order_by(columns.id.desc())
    )  # fmt: skip
    if error:
        query = query.where(columns.error == error)
    if text:
        query = query.where(columns.message.icontains(text, autoescape=True))
    rows = connection.execute(query).all()
    more = str(ids[-1]) if len(ids) == WINDOW else ""
    return Failures(_clusters(rows), len(ids), len(rows), more)


def pattern_of(message: str) -> str:
    """A message with its numbers and addresses left out."""
    return _VARIABLE.sub("#", " ".join(message.split()))


def _clusters(rows: Sequence[Any]) -> tuple[Cluster, ...]:
    groups: dict[tuple[str, str], list[Any]] = {}
    for row in rows:
        groups.setdefault((row.error, pattern_of(row.message)), []).append(row)
    found = [_cluster(group) for group in groups.values()]
    return tuple(sorted(found, key=lambda cluster: (-cluster.count, -cluster.trial_id)))


def _cluster(group: Sequence[Any]) -> Cluster:
    latest = group[0]
    return Cluster(
        error=latest.error,
        message=latest.message,
        trial_id=latest.id,
        at=latest.created_at,
        count=len(group),
        jobs=len({row.job for row in group}),
        devices=len({row.device for row in group}),
    )

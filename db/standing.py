"""What stood in a key when a job was over: what later jobs won is theirs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, and_, func, select
from tunefarm.db.models import FINALS, TRIALS


def last_trial(connection: Connection, job: str) -> int | None:
    """The last trial of a job; None if it has none."""
    found: int | None = connection.execute(
        select(func.max(TRIALS.c.id)).where(TRIALS.c.job == job)
    ).scalar()
    return found


def replaced(connection: Connection, records: Collection[int], since: int) -> dict[int, list[Any]]:
    """The finals by which these records (their trials) were promoted, and those of what each
    replaced, back to the trial ``since``: by the records' trials, the latest first. A record that
    no final promoted here, as in a copy of a job, has none."""
    if not records:
        return {}
    columns = (FINALS.c.id, FINALS.c.challenger_id, FINALS.c.incumbent_id)
    first = select(FINALS.c.challenger_id.label("record"), *columns)
    chain = first.where(FINALS.c.promoted, FINALS.c.challenger_id.in_(records)).cte(recursive=True)
    is_before = and_(
        chain.c.challenger_id > since,
        FINALS.c.challenger_id == chain.c.incumbent_id,
        FINALS.c.id < chain.c.id,
    )
    chain = chain.union(select(chain.c.record, *columns).where(FINALS.c.promoted, is_before))
    query = (
        select(
            chain.c.record,
            FINALS.c.challenger_id.label("trial_id"),
            TRIALS.c.number,
            func.coalesce(FINALS.c.latency_s, TRIALS.c.median_s).label("median_s"),
            FINALS.c.verdict,
            FINALS.c.speedup,
            FINALS.c.speedup_over_default,
            FINALS.c.model,
            FINALS.c.latency_s,
        )
        .join(FINALS, FINALS.c.id == chain.c.id)
        .join(TRIALS, TRIALS.c.id == FINALS.c.challenger_id)
        .order_by(FINALS.c.id.desc())
    )
    found: dict[int, list[Any]] = {}
    for row in connection.execute(query):
        found.setdefault(row.record, []).append(row)
    return found

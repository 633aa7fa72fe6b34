"""What the default of a task takes, one rule for tasks, models and the outcomes of jobs: what the
final that decided saw of it, as two trials that are apart in time, or of two devices, differ by
more. Where none decided, it is as it was timed last where the record in question was, and of a task
without a record anywhere."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Subquery, and_, select
from tunefarm.db.models import BEST, TRIALS


def default_beside(record: Any) -> float | None:
    """Seconds of the default beside a row of ``BEST`` with its trial's ``number``; None if nothing
    tells."""
    if record is None:
        return None
    return default_met(record, record.default_s) if record.promoted else record.default_s


def default_met(record: Any, timed_s: float | None) -> float | None:
    """Seconds of the default that a promoted record met: its own if it is the default, ``timed_s``
    if it met none."""
    if record.number == 0:
        return float(record.median_s)
    ratio = record.speedup_over_default
    return float(record.median_s * ratio) if ratio else timed_s


def first_records(connection: Connection, tasks: Subquery) -> dict[tuple[int, int], Any]:
    """For each workload and target of ``tasks`` the record that builds look at first: a promoted
    one, then the newest."""
    same = (BEST.c.workload_id == tasks.c.workload_id, BEST.c.target_id == tasks.c.target_id)
    query = (
        select(BEST, TRIALS.c.number, TRIALS.c.device_state)
        .select_from(tasks.join(BEST, and_(*same)).join(TRIALS, TRIALS.c.id == BEST.c.trial_id))
        .order_by(BEST.c.promoted, BEST.c.trial_id)
    )
    return {(row.workload_id, row.target_id): row for row in connection.execute(query)}

"""Tasks that builds found no record for, waiting for idle devices."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Select, and_, case, delete, func, or_, select, update
from tunefarm.db.dialect import upsert
from tunefarm.db.models import JOBS, MISSES, TARGETS, WORKLOADS
from tunefarm.db.records import OPEN, Miss, WorkloadRecord
from tunefarm.db.rows import add_workloads, target_ids, workload_ids

KEPT = 10_000
"""Misses that are kept at most, those reported last."""
AGAIN_S = 24 * 3600.0
"""How long after the end of its job a miss that is reported again may be tuned again."""

_GAIN = MISSES.c.weight * (MISSES.c.default_s - MISSES.c.roofline_s)
_KEY = (MISSES.c.workload_id, MISSES.c.target_id)


def report(connection: Connection, request_id: str, misses: Sequence[Miss]) -> None:
    """Store what a build missed. Of several models the one that runs a task most often counts, and
    of several callers' devices those of the last.

    The same ``request_id`` again changes nothing.
    """
    if not misses:
        return
    add_workloads(connection, (miss.workload for miss in misses))
    workloads = workload_ids(connection, (miss.workload.key for miss in misses))
    targets = target_ids(connection, (miss.target for miss in misses))
    now = time.time()
    rows = {
        (workloads[m.workload.key], targets[m.target]): {
            "workload_id": workloads[m.workload.key],
            "target_id": targets[m.target],
            "weight": m.weight,
            "default_s": m.default_s,
            "roofline_s": m.roofline_s,
            "builds": 1,
            "reported_at": now,
            "request_id": request_id,
            "job": "",
            "selector": m.selector,
        }
        for m in misses
    }
    statement = upsert(connection, MISSES)
    new, old = statement.excluded, MISSES.c
    statement = statement.on_conflict_do_update(
        index_elements=[column.name for column in _KEY],
        set_={
            "weight": case((new.weight > old.weight, new.weight), else_=old.weight),
            "default_s": new.default_s,
            "roofline_s": new.roofline_s,
            "builds": old.builds + 1,
            "reported_at": new.reported_at,
            "request_id": new.request_id,
            "selector": new.selector,
        },
        where=old.request_id != request_id,
    )
    connection.execute(statement, list(rows.values()))
    _forget_the_oldest(connection)


def _forget_the_oldest(connection: Connection) -> None:
    newest_first = select(MISSES.c.reported_at).order_by(MISSES.c.reported_at.desc())
    last = connection.execute(newest_first.offset(KEPT).limit(1)).scalar_one_or_none()
    if last is not None:
        connection.execute(delete(MISSES).where(MISSES.c.reported_at <= last))


def most_valuable(connection: Connection, limit: int) -> tuple[Miss, ...]:
    """What was reported, with the largest gain first; without the workloads' texts."""
    rows = connection.execute(_misses().order_by(_GAIN.desc(), *_KEY).limit(limit))
    return tuple(_from_row(row, "") for row in rows)


def waiting(connection: Connection, target: str, selector: str, limit: int) -> tuple[Miss, ...]:
    """Those of a target, to be measured on the devices so selected, that no job tunes or has tuned
    since they were reported, with the largest gain first."""
    query = _misses().where(_is_waiting(), TARGETS.c.text == target)
    query = query.where(MISSES.c.selector == selector)
    rows = connection.execute(query.order_by(_GAIN.desc(), *_KEY).limit(limit))
    return tuple(_from_row(row, row.text) for row in rows)


def waiting_targets(connection: Connection) -> tuple[tuple[str, str], ...]:
    """The targets of all that wait, with selectors of devices, those of the largest gain first."""
    source = MISSES.join(TARGETS, TARGETS.c.id == MISSES.c.target_id)
    query = (
        select(TARGETS.c.text, MISSES.c.selector)
        .select_from(source.outerjoin(JOBS, JOBS.c.id == MISSES.c.job))
        .where(_is_waiting())
        .group_by(TARGETS.c.text, MISSES.c.selector)
        .order_by(func.max(_GAIN).desc(), TARGETS.c.text, MISSES.c.selector)
    )
    return tuple((target, selector) for target, selector in connection.execute(query))


def assign(connection: Connection, misses: Sequence[Miss], job: str) -> None:
    """Note which job tunes them."""
    workloads = workload_ids(connection, (miss.workload.key for miss in misses))
    targets = target_ids(connection, (miss.target for miss in misses))
    for miss in misses:
        mine = and_(
            MISSES.c.workload_id == workloads[miss.workload.key],
            MISSES.c.target_id == targets[miss.target],
        )
        connection.execute(update(MISSES).where(mine).values(job=job))


def _is_waiting() -> Any:
    is_over = JOBS.c.state.not_in([str(state) for state in OPEN])
    again = and_(is_over, MISSES.c.reported_at > JOBS.c.updated_at + AGAIN_S)
    return or_(MISSES.c.job == "", JOBS.c.id.is_(None), again)


def _misses() -> Select[Any]:
    source = (
        MISSES.join(WORKLOADS, WORKLOADS.c.id == MISSES.c.workload_id)
        .join(TARGETS, TARGETS.c.id == MISSES.c.target_id)
        .outerjoin(JOBS, JOBS.c.id == MISSES.c.job)
    )
    return select(
        *MISSES.c,
        WORKLOADS.c.key,
        WORKLOADS.c.text,
        WORKLOADS.c.summary,
        WORKLOADS.c.flops,
        TARGETS.c.text.label("target"),
    ).select_from(source)


def _from_row(row: Any, text: str) -> Miss:
    return Miss(
        workload=WorkloadRecord(row.key, text, row.summary, row.flops),
        target=row.target,
        weight=row.weight,
        default_s=row.default_s,
        roofline_s=row.roofline_s,
        builds=row.builds,
        reported_at=row.reported_at,
        job=row.job,
        selector=row.selector,
    )

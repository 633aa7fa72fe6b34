"""Between rows and records, and between the texts of workloads and targets and their integers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, select
from tunefarm.db.dialect import upsert
from tunefarm.db.models import TARGETS, TRIALS, WORKLOADS
from tunefarm.db.records import ErrorKind, TaskKey, Trial, WorkloadRecord

CHUNK = 500
"""Rows or values in one statement; databases limit the number of parameters."""


# --- workloads and targets ----------------------------------------------------------------------


def add_workloads(connection: Connection, workloads: Iterable[WorkloadRecord]) -> None:
    """Store workloads; a text fills in one that was known by key only."""
    rows = [
        {"key": w.key, "text": w.text, "summary": w.summary, "flops": w.flops}
        for w in {w.key: w for w in workloads}.values()
    ]
    if not rows:
        return
    statement = upsert(connection, WORKLOADS)
    new = statement.excluded
    statement = statement.on_conflict_do_update(
        index_elements=["key"],
        set_={"text": new.text, "summary": new.summary, "flops": new.flops},
        where=(WORKLOADS.c.text == "") | ((WORKLOADS.c.summary == "") & (new.summary != "")),
    )
    connection.execute(statement, rows)


def workload_ids(connection: Connection, keys: Iterable[str]) -> dict[str, int]:
    """The integers of workload keys; unknown ones are stored without a text."""
    return _ids(connection, WORKLOADS, WORKLOADS.c.key, set(keys), {"summary": "", "flops": 0})


def target_ids(connection: Connection, texts: Iterable[str]) -> dict[str, int]:
    return _ids(connection, TARGETS, TARGETS.c.text, set(texts), {})


def _ids(
    connection: Connection, table: Any, column: Any, names: set[str], rest: Mapping[str, object]
) -> dict[str, int]:
    found = known_ids(connection, table, column, names)
    missing = sorted(names - found.keys())
    if missing:
        rows = [{"text": "", **rest, column.name: name} for name in missing]
        connection.execute(upsert(connection, table).on_conflict_do_nothing(), rows)
        found |= known_ids(connection, table, column, set(missing))
    return found


def known_ids(connection: Connection, table: Any, column: Any, names: set[str]) -> dict[str, int]:
    """The integers of those names that are stored."""
    found: dict[str, int] = {}
    for chunk in chunks(sorted(names)):
        rows = connection.execute(select(column, table.c.id).where(column.in_(chunk)))
        found.update((name, id_) for name, id_ in rows)
    return found


def texts_of(connection: Connection, keys: Iterable[str]) -> dict[str, str]:
    """The texts of workloads by key."""
    found: dict[str, str] = {}
    for chunk in chunks(sorted(set(keys))):
        query = select(WORKLOADS.c.key, WORKLOADS.c.text).where(WORKLOADS.c.key.in_(chunk))
        found.update((key, text) for key, text in connection.execute(query))
    return found


def chunks(names: list[Any]) -> Iterable[list[Any]]:
    return (names[start : start + CHUNK] for start in range(0, len(names), CHUNK))


# --- trials -------------------------------------------------------------------------------------

TRIAL_COLUMNS: tuple[ColumnElement[Any], ...] = (
    *TRIALS.c,
    WORKLOADS.c.key.label("workload"),
    TARGETS.c.text.label("target"),
)
"""What ``trial_from_row`` reads, selected from ``TRIAL_SOURCE``."""
TRIAL_SOURCE: FromClause = TRIALS.join(WORKLOADS, WORKLOADS.c.id == TRIALS.c.workload_id).join(
    TARGETS, TARGETS.c.id == TRIALS.c.target_id
)


def trial_to_row(trial: Trial, workload_id: int, target_id: int) -> dict[str, object]:
    return {
        "job": trial.job,
        "workload_id": workload_id,
        "target_id": target_id,
        "number": trial.number,
        "config": dict(trial.config),
        "times_s": list(trial.times_s),
        "median_s": trial.median_s if trial.ok else None,
        "error": str(trial.error) if trial.error else None,
        "message": trial.message,
        "stderr_tail": trial.stderr_tail,
        "device": trial.device,
        "device_model": trial.device_model,
        "device_state": dict(trial.device_state),
        "protocol": trial.protocol,
        "compiler_version": trial.compiler_version,
        "space_fingerprint": trial.space_fingerprint,
        "code_hash": trial.code_hash,
        "predicted": trial.predicted,
        "origin": trial.origin,
        "phases_s": dict(trial.phases_s),
        "paired_times_s": [list(row) for row in trial.paired_times_s],
        "created_at": trial.created_at,
    }


def trial_from_row(row: Any) -> Trial:
    return Trial(
        job=row.job,
        task=TaskKey(row.workload, row.target),
        number=row.number,
        config=row.config,
        times_s=tuple(row.times_s),
        error=ErrorKind(row.error) if row.error else None,
        message=row.message,
        stderr_tail=row.stderr_tail,
        device=row.device,
        device_model=row.device_model,
        device_state=row.device_state,
        protocol=row.protocol,
        compiler_version=row.compiler_version,
        space_fingerprint=row.space_fingerprint,
        code_hash=row.code_hash,
        predicted=row.predicted,
        origin=row.origin,
        phases_s=row.phases_s,
        paired_times_s=tuple(tuple(times) for times in row.paired_times_s),
        created_at=row.created_at,
    )

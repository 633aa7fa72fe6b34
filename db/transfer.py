"""Export of a database to JSON lines, and import of such lines into one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from sqlalchemy import Connection, select
from tunefarm.db import best, jsonl, trials
from tunefarm.db.errors import StoreError
from tunefarm.db.models import WORKLOADS
from tunefarm.db.records import Best, Trial, TrialKey, WorkloadRecord
from tunefarm.db.rows import add_workloads, chunks
from tunefarm.db.store import Store

STARTER_JOB = "starter"
STARTER_SPEEDUP = 1.03  # over the default; less is within what machines of one model differ by


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did. ``targets`` counts the trials of each target, so that those of other
    machines are seen; they are kept. ``problems`` has a sentence for each line left out."""

    added: int
    known: int
    promoted: int
    targets: Mapping[str, int]
    problems: tuple[str, ...]


def export(store: Store, stream: TextIO, *, best_only: bool = False, target: str = "") -> int:
    """Write the database's records; returns the number of trials.

    ``best_only`` keeps the best trial of each key and the default it beat (trial 0 of its job);
    ``target`` keeps one target's.
    """
    with store.reading() as connection:
        leaders = [b for b in best.everything(connection) if target in ("", b.key.target)]
        chosen: Iterable[Trial]
        if best_only:
            chosen = _with_defaults(connection, [leader.trial for leader in leaders])
            keys = {trial.task.workload for trial in chosen}
            texts = _workloads(connection, keys)
        else:
            chosen = trials.everything(connection, target)
            texts = _workloads(connection, None)
        promoted = [leader for leader in leaders if leader.promoted]
        return jsonl.write(stream, texts, chosen, promoted)


def export_starter(store: Store, path: Path) -> int:
    """Write what ships with the package: promoted records that are clearly ahead of the default.

    They carry a median instead of samples, and nothing of the machine but its model. Returns
    their number; StoreError if the file cannot be written.
    """
    with store.reading() as connection:
        leaders = [
            leader
            for leader in best.everything(connection)
            if leader.promoted and (leader.speedup_over_default or 0.0) >= STARTER_SPEEDUP
        ]
        texts = _workloads(connection, {leader.key.workload for leader in leaders})
    known = {workload.key for workload in texts}
    kept = [_shipped(leader) for leader in leaders if leader.key.workload in known]
    return _whole(path, lambda stream: jsonl.write(stream, texts, [b.trial for b in kept], kept))


def _shipped(leader: Best) -> Best:
    trial = leader.trial
    return replace(
        leader,
        model="",
        model_speedup=None,
        final_s=None,
        trial=Trial(
            f"{STARTER_JOB} {trial.device_model}",
            trial.task,
            0,
            trial.config,
            times_s=(float(f"{leader.latency_s:.4g}"),),
            device_model=trial.device_model,
            protocol=trial.protocol,
            compiler_version=trial.compiler_version,
            space_fingerprint=trial.space_fingerprint,
        ),
    )


def import_file(store: Store, path: Path) -> Imported:
    """Add a file's records to the database in one transaction; what is known stays as it is.

    StoreError if the file cannot be read or the database cannot be written.
    """
    found = jsonl.read(path)
    return import_records(store, found)


def import_records(store: Store, found: jsonl.Records) -> Imported:
    """Add records to the database in one transaction; trials that are known stay as they are."""
    with store.writing() as connection:
        add_workloads(connection, found.workloads.values())
        added = trials.add(connection, found.trials)
        promoted = sum(best.restore(connection, leader) for leader in found.promoted)
    return Imported(
        added=len(added),
        known=len(found.trials) - len(added),
        promoted=promoted,
        targets=Counter(trial.task.target for trial in found.trials),
        problems=tuple(found.problems),
    )


def export_file(store: Store, path: Path, *, best_only: bool = False, target: str = "") -> int:
    """``export`` to a file that appears whole or not at all; StoreError if it cannot be written."""
    return _whole(path, lambda stream: export(store, stream, best_only=best_only, target=target))


def _whole(path: Path, write: Callable[[TextIO], int]) -> int:
    """A file that appears whole or not at all; StoreError if it cannot be written."""
    scratch = path.with_name(f".{path.name}.part")
    try:
        with scratch.open("w", encoding="utf-8") as stream:
            number = write(stream)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    return number


def _with_defaults(connection: Connection, leaders: Iterable[Trial]) -> list[Trial]:
    keys = dict.fromkeys(
        TrialKey(t.job, t.task, number) for t in leaders for number in sorted({0, t.number})
    )
    return trials.of_keys(connection, list(keys))


def _workloads(connection: Connection, keys: set[str] | None) -> list[WorkloadRecord]:
    """The stored workloads of these keys (all for None) whose text is known, in key order."""
    columns = (WORKLOADS.c.key, WORKLOADS.c.text, WORKLOADS.c.summary, WORKLOADS.c.flops)
    query = select(*columns).where(WORKLOADS.c.text != "").order_by(WORKLOADS.c.key)
    if keys is None:
        return [WorkloadRecord(*row) for row in connection.execute(query)]
    rows = [
        WorkloadRecord(*row)
        for chunk in chunks(sorted(keys))
        for row in connection.execute(query.where(WORKLOADS.c.key.in_(chunk)))
    ]
    return sorted(rows, key=lambda workload: workload.key)

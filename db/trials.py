"""Trials: stored exactly once, with the counts and provisional bests that follow from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from sqlalchemy import Connection, Select, and_, case, func, select, tuple_, update
from tunefarm.db.dialect import upsert
from tunefarm.db.lookup import slot_of
from tunefarm.db.models import BEST, JOB_TASKS, JOBS, TARGETS, TASKS, TRIALS, WORKLOADS
from tunefarm.db.records import FINAL, Collected, History, Progress, TaskKey, Trial, TrialKey
from tunefarm.db.rows import (
    CHUNK,
    TRIAL_COLUMNS,
    TRIAL_SOURCE,
    chunks,
    known_ids,
    target_ids,
    texts_of,
    trial_from_row,
    trial_to_row,
    workload_ids,
)

Stored = tuple[int, int, int, Trial]
"""(trial id, workload id, target id, trial)."""


def add(connection: Connection, trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """Store the trials whose (job, task, number) is new, in order; returns those."""
    workloads = workload_ids(connection, (t.task.workload for t in trials))
    targets = target_ids(connection, (t.task.target for t in trials))
    added: list[Trial] = []
    for start in range(0, len(trials), CHUNK):
        stored = _insert(connection, trials[start : start + CHUNK], workloads, targets)
        _count_for_tasks(connection, stored)
        _count_for_jobs(connection, stored)
        _offer_to_best(connection, stored)
        added += [trial for *_, trial in stored]
    return tuple(added)


def _insert(
    connection: Connection,
    trials: Sequence[Trial],
    workloads: dict[str, int],
    targets: dict[str, int],
) -> list[Stored]:
    waiting: dict[tuple[str, int, int, int], Trial] = {}
    for t in trials:
        key = (t.job, workloads[t.task.workload], targets[t.task.target], t.number)
        waiting.setdefault(key, t)
    if not waiting:
        return []
    columns = TRIALS.c
    statement = (
        upsert(connection, TRIALS)
        .on_conflict_do_nothing()
        .returning(columns.id, columns.job, columns.workload_id, columns.target_id, columns.number)
    )
    rows = [trial_to_row(t, workload, target) for (_, workload, target, _), t in waiting.items()]
    inserted = sorted(tuple(row) for row in connection.execute(statement, rows))
    return [
        (id_, workload, target, waiting[job, workload, target, number])
        for id_, job, workload, target, number in inserted
    ]


def _count_for_tasks(connection: Connection, stored: Sequence[Stored]) -> None:
    groups: dict[tuple[int, int], list[Trial]] = {}
    for _, workload, target, trial in stored:
        groups.setdefault((workload, target), []).append(trial)
    if not groups:
        return
    rows = [
        {"workload_id": workload, "target_id": target, **_latencies(mine), **_candidates(mine)}
        for (workload, target), mine in groups.items()
    ]
    statement = upsert(connection, TASKS)
    new, old = statement.excluded, TASKS.c
    statement = statement.on_conflict_do_update(
        index_elements=["workload_id", "target_id"],
        set_={
            "ok": old.ok + new.ok,
            "failed": old.failed + new.failed,
            "best_s": _least(old.best_s, new.best_s),
            "default_s": func.coalesce(new.default_s, old.default_s),
        },
    )
    connection.execute(statement, rows)


def _latencies(trials: Iterable[Trial]) -> dict[str, float | None]:
    good = [t for t in trials if t.ok]
    defaults = [t.median_s for t in good if t.number == 0]
    return {
        "best_s": min((t.median_s for t in good), default=None),
        "default_s": defaults[-1] if defaults else None,
    }


def _candidates(trials: Iterable[Trial]) -> dict[str, int]:
    """Counts without paired finals, which are no candidates."""
    mine = [t.ok for t in trials if t.origin != FINAL]
    return {"ok": sum(mine), "failed": len(mine) - sum(mine)}


def _least(old: object, new: object) -> object:
    """The smaller of two columns, either of which may be null."""
    first, second = func.coalesce(old, new), func.coalesce(new, old)
    return case((first <= second, first), else_=second)


def _count_for_jobs(connection: Connection, stored: Sequence[Stored]) -> None:
    groups: dict[tuple[str, int], list[Trial]] = {}
    for _, workload, _, trial in stored:
        groups.setdefault((trial.job, workload), []).append(trial)
    for (job, workload), trials in groups.items():
        where = and_(JOB_TASKS.c.job == job, JOB_TASKS.c.workload_id == workload)
        row = connection.execute(select(JOB_TASKS).where(where)).one_or_none()
        if row is None:
            continue
        seen, counts = _latencies(trials), _candidates(trials)
        errors = Counter(row.errors) + Counter(str(t.error) for t in trials if t.error)
        latencies = [s for s in (row.best_s, seen["best_s"]) if s is not None]
        default_s = row.default_s if seen["default_s"] is None else seen["default_s"]
        connection.execute(
            update(JOB_TASKS)
            .where(where)
            .values(
                ok=row.ok + counts["ok"],
                failed=row.failed + counts["failed"],
                best_s=min(latencies, default=None),
                default_s=default_s,
                errors=dict(errors),
            )
        )
    for job in sorted({job for job, _ in groups}):
        statement = update(JOBS).where(JOBS.c.id == job)
        connection.execute(statement.values(revision=JOBS.c.revision + 1))


def _offer_to_best(connection: Connection, stored: Sequence[Stored]) -> None:
    """Keep the lowest median of each slot that has no promoted record."""
    leaders: dict[tuple[object, ...], dict[str, object]] = {}
    defaults: dict[tuple[object, ...], float] = {}
    for id_, workload, target, trial in stored:
        if not trial.ok:
            continue
        key = (workload, target, *slot_of(trial))
        row = leaders.get(key)
        if row is None or trial.median_s < row["median_s"]:  # type: ignore[operator]
            leaders[key] = _best_row(id_, workload, target, trial)
        if trial.number == 0:
            defaults[key] = trial.median_s
    if not leaders:
        return
    for slot, leader in leaders.items():
        leader["default_s"] = defaults.get(slot)
    statement = upsert(connection, BEST)
    new, old = statement.excluded, BEST.c
    wins = and_(old.promoted.is_(False), new.median_s < old.median_s)
    statement = statement.on_conflict_do_update(
        index_elements=[column.name for column in BEST.primary_key],
        set_={
            "trial_id": case((wins, new.trial_id), else_=old.trial_id),
            "median_s": case((wins, new.median_s), else_=old.median_s),
            "default_s": func.coalesce(new.default_s, old.default_s),
        },
    )
    connection.execute(statement, list(leaders.values()))


def _best_row(id_: int, workload: int, target: int, trial: Trial) -> dict[str, object]:
    return {
        "workload_id": workload,
        "target_id": target,
        "device_model": trial.device_model,
        "protocol": trial.protocol,
        "space_fingerprint": trial.space_fingerprint,
        "compiler_version": trial.compiler_version,
        "trial_id": id_,
        "median_s": trial.median_s,
        "default_s": None,
        "promoted": False,
        "verdict": None,
        "speedup_over_default": None,
    }


# --- reading ------------------------------------------------------------------------------------


def stored_keys(connection: Connection, keys: Sequence[TrialKey]) -> dict[TrialKey, int]:
    """The ids of those trials that are stored."""
    workloads = known_ids(connection, WORKLOADS, WORKLOADS.c.key, {k.task.workload for k in keys})
    targets = known_ids(connection, TARGETS, TARGETS.c.text, {k.task.target for k in keys})
    wanted = {
        (k.job, workloads[k.task.workload], targets[k.task.target], k.number): k
        for k in keys
        if k.task.workload in workloads and k.task.target in targets
    }
    columns = (TRIALS.c.job, TRIALS.c.workload_id, TRIALS.c.target_id, TRIALS.c.number)
    found: dict[TrialKey, int] = {}
    for chunk in chunks(list(wanted)):
        query = select(TRIALS.c.id, *columns).where(tuple_(*columns).in_(chunk))
        for id_, *key in connection.execute(query):
            found[wanted[tuple(key)]] = id_
    return found


def of_keys(connection: Connection, keys: Sequence[TrialKey]) -> list[Trial]:
    """Those trials that are stored, in storage order."""
    found: list[Trial] = []
    for chunk in chunks(sorted(stored_keys(connection, keys).values())):
        query = _trials().where(TRIALS.c.id.in_(chunk)).order_by(TRIALS.c.id)
        found += map(trial_from_row, connection.execute(query))
    return found


def of_job(connection: Connection, job: str, cursor: int, limit: int) -> Collected:
    """Trials of the job stored after ``cursor``, in storage order; ``pending`` is left at 0."""
    query = (
        _trials()
        .where(TRIALS.c.job == job, TRIALS.c.id > cursor)
        .order_by(TRIALS.c.id)
        .limit(limit)
    )
    rows = connection.execute(query).all()
    last = rows[-1].id if rows else cursor
    return Collected(tuple(map(trial_from_row, rows)), last, 0)


def history(
    connection: Connection, target: str, workloads: Sequence[str], cursor: int, limit: int
) -> History:
    """A page of trials, newest first; empty ``target`` and ``workloads`` mean all."""
    query = _trials().order_by(TRIALS.c.id.desc()).limit(limit + 1)
    if cursor:
        query = query.where(TRIALS.c.id < cursor)
    if target:
        ids = known_ids(connection, TARGETS, TARGETS.c.text, {target})
        query = query.where(TRIALS.c.target_id.in_(list(ids.values())))
    if workloads:
        ids = known_ids(connection, WORKLOADS, WORKLOADS.c.key, set(workloads))
        query = query.where(TRIALS.c.workload_id.in_(list(ids.values())))
    rows = connection.execute(query).all()
    page = rows[:limit]
    trials = tuple(map(trial_from_row, page))
    texts = texts_of(connection, (t.task.workload for t in trials))
    return History(trials, texts, page[-1].id if page else cursor, len(rows) > limit)


def everything(connection: Connection, target: str = "") -> Iterator[Trial]:
    """Every trial in storage order, streamed; of one target if one is named."""
    cursor = 0
    while True:
        query = _trials().where(TRIALS.c.id > cursor).order_by(TRIALS.c.id).limit(2 * CHUNK)
        if target:
            query = query.where(TARGETS.c.text == target)
        rows = connection.execute(query).all()
        yield from map(trial_from_row, rows)
        if not rows:
            return
        cursor = rows[-1].id


def task_progress(connection: Connection, tasks: Sequence[TaskKey]) -> dict[TaskKey, Progress]:
    """Counts of candidates and latencies of tasks over all jobs; zeros for tasks without any."""
    found = {task: Progress(task) for task in tasks}
    source = TASKS.join(WORKLOADS, WORKLOADS.c.id == TASKS.c.workload_id)
    source = source.join(TARGETS, TARGETS.c.id == TASKS.c.target_id)
    columns = (WORKLOADS.c.key, WORKLOADS.c.summary, WORKLOADS.c.flops, TARGETS.c.text, *TASKS.c)
    for chunk in chunks(sorted({task.workload for task in tasks})):
        query = select(*columns).select_from(source).where(WORKLOADS.c.key.in_(chunk))
        for row in connection.execute(query):
            task = TaskKey(row.key, row.text)
            if task in found:
                found[task] = Progress(
                    task,
                    summary=row.summary,
                    flops=row.flops,
                    ok=row.ok,
                    failed=row.failed,
                    best_s=row.best_s,
                    default_s=row.default_s,
                )
    return found


def count_candidates(
    connection: Connection,
    tasks: Iterable[TaskKey],
    compiler_version: str = "",
    device_model: str = "",
    protocol: str = "",
) -> int:
    """How many candidates of these tasks are stored, failed ones too; finals are none.

    Of one compiler version and device model if they are named; trials that name none count. Of one
    protocol if it is named.
    """
    keys = list(tasks)
    workloads = known_ids(connection, WORKLOADS, WORKLOADS.c.key, {k.workload for k in keys})
    targets = known_ids(connection, TARGETS, TARGETS.c.text, {k.target for k in keys})
    wanted = {
        (workloads[k.workload], targets[k.target])
        for k in keys
        if k.workload in workloads and k.target in targets
    }
    query = select(func.count()).select_from(TRIALS).where(TRIALS.c.origin != FINAL)
    if compiler_version:
        query = query.where(TRIALS.c.compiler_version.in_((compiler_version, "")))
    if device_model:
        query = query.where(TRIALS.c.device_model.in_((device_model, "")))
    if protocol:
        query = query.where(TRIALS.c.protocol == protocol)
    columns = tuple_(TRIALS.c.workload_id, TRIALS.c.target_id)
    return sum(
        connection.execute(query.where(columns.in_(chunk))).scalar_one()
        for chunk in chunks(sorted(wanted))
    )


def count(connection: Connection) -> int:
    """How many trials are stored."""
    return connection.execute(select(func.count()).select_from(TRIALS)).scalar_one()


def _trials() -> Select[tuple[object, ...]]:
    return select(*TRIAL_COLUMNS).select_from(TRIAL_SOURCE)

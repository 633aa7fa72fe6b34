"""Submitted candidates: queued under a lease, delivered at least once, stored exactly once."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, case, delete, func, insert, select, tuple_, update
from tunefarm.db import leases, trials
from tunefarm.db.errors import StaleLease
from tunefarm.db.farm_models import DEVICES, LEASES, REQUESTS
from tunefarm.db.models import TARGETS, WORKLOADS
from tunefarm.db.records import (
    ErrorKind,
    Held,
    Refusal,
    Result,
    TaskKey,
    Trial,
    TrialKey,
    TrialRequest,
    Work,
    WorkloadRecord,
    protocol_of,
)
from tunefarm.db.rows import add_workloads, chunks, target_ids, workload_ids

MAX_ATTEMPTS = 3
"""Worker processes that a candidate may outlive; then it is quarantined as a failed trial."""

_KEY = (REQUESTS.c.job, REQUESTS.c.workload_id, REQUESTS.c.target_id, REQUESTS.c.number)


@dataclass(frozen=True, slots=True)
class Queued:
    """A candidate without a result, as the tracker decides about it."""

    id: int
    work: Work
    attempts: int
    delivered_to: str | None
    device_model: str

    @property
    def key(self) -> TrialKey:
        return self.work.request.key

    @property
    def held(self) -> Held:
        return Held(self.key, self.work.lease, self.work.epoch)


# --- clients ------------------------------------------------------------------------------------


def submit(
    connection: Connection, lease: str, epoch: int, requests: Sequence[TrialRequest]
) -> tuple[TrialKey, ...]:
    """Queue candidates under a live lease; returns the keys that are stored as trials already.

    A key that is queued keeps its place; if it waited without a lease, it takes this request.
    StaleLease if the lease has ended or works for another job.
    """
    row = leases.check(connection, lease, epoch)
    for request in requests:
        if row.job and request.job != row.job:
            raise StaleLease(f"the lease works for job {row.job}, not for job {request.job}")
    done = trials.stored_keys(connection, [request.key for request in requests])
    fresh = {r.key: r for r in requests if r.key not in done}
    if fresh:
        _enqueue(connection, lease, list(fresh.values()))
    return tuple(done)


def _enqueue(connection: Connection, lease: str, requests: Sequence[TrialRequest]) -> None:
    texts = {request.task.workload: request.workload_text for request in requests}
    add_workloads(connection, (WorkloadRecord(key, text) for key, text in texts.items()))
    workloads = workload_ids(connection, texts)
    targets = target_ids(connection, {request.task.target for request in requests})
    now = time.time()
    rows = {
        (r.job, workloads[r.task.workload], targets[r.task.target], r.number): {
            "lease": lease,
            "config": dict(r.config),
            "predicted": r.predicted,
            "origin": r.origin,
            "against": [dict(config) for config in r.against],
            "budgets": dict(r.budgets),
            "plugins": list(r.plugins),
            "protocol": r.protocol,
            "created_at": now,
        }
        for r in requests
    }
    known: dict[Any, Any] = {}
    for chunk in chunks(list(rows)):
        query = select(*_KEY, REQUESTS.c.id, REQUESTS.c.lease).where(tuple_(*_KEY).in_(chunk))
        for row in connection.execute(query):
            known[tuple(row[:4])] = row
    new = []
    for key, values in rows.items():
        if key not in known:
            names = dict(zip((column.name for column in _KEY), key, strict=True))
            new.append({**names, **values, "attempts": 0, "delivered_to": None})
        elif known[key].lease is None:
            statement = update(REQUESTS).where(REQUESTS.c.id == known[key].id)
            connection.execute(statement.values(values))
    if new:
        connection.execute(insert(REQUESTS), new)


def pending(connection: Connection, job: str) -> tuple[TrialRequest, ...]:
    """Candidates of the job without a result, oldest first."""
    query = _queued().where(REQUESTS.c.job == job).order_by(REQUESTS.c.id)
    return tuple(_from_row(row).work.request for row in connection.execute(query))


def pending_count(connection: Connection, job: str) -> int:
    query = select(func.count()).select_from(REQUESTS).where(REQUESTS.c.job == job)
    return connection.execute(query).scalar_one()


# --- workers ------------------------------------------------------------------------------------


def busy_devices(connection: Connection) -> frozenset[str]:
    """Devices with candidates under their live leases."""
    source = REQUESTS.join(LEASES, LEASES.c.id == REQUESTS.c.lease)
    query = select(LEASES.c.device).select_from(source).where(LEASES.c.ended_at.is_(None))
    return frozenset(connection.execute(query.distinct()).scalars())


def wanted(connection: Connection, device: str, incarnation: str, limit: int) -> list[Queued]:
    """What the device should measure under its live lease: first what this worker process has
    been given, then the others, each oldest first."""
    query = (
        _queued()
        .where(LEASES.c.device == device, LEASES.c.ended_at.is_(None))
        .order_by(case((REQUESTS.c.delivered_to == incarnation, 0), else_=1), REQUESTS.c.id)
        .limit(limit)
    )
    return [_from_row(row) for row in connection.execute(query)]


def choose(
    queue: Sequence[Queued], held: Collection[Held], incarnation: str, capacity: int
) -> list[Queued]:
    """What to deliver now (a pure function).

    Candidates that an earlier worker process had when it died are suspects: they go out one at a
    time, with nothing beside them, so that the one that kills is known by the third death.
    """
    in_hand = [q for q in queue if q.held in held]
    if any(q.attempts > 1 for q in in_hand):
        return []
    rest = [q for q in queue if q.held not in held]
    lost = [q for q in rest if q.delivered_to == incarnation]
    suspects = [q for q in rest if q.attempts > 0 and q.delivered_to != incarnation]
    if any(q.attempts > 1 for q in lost):
        return lost[:1] if not in_hand else []
    if suspects:
        return lost if in_hand or lost else suspects[:1]
    return rest[: max(0, capacity - len(in_hand))]


def deliver(connection: Connection, chosen: Sequence[Queued], incarnation: str) -> list[Work]:
    """Note who gets these candidates; those that spent their attempts become failed trials."""
    out: list[Work] = []
    for queued in chosen:
        if queued.delivered_to == incarnation:
            out.append(queued.work)
        elif queued.attempts >= MAX_ATTEMPTS:
            _quarantine(connection, queued)
        else:
            connection.execute(
                update(REQUESTS)
                .where(REQUESTS.c.id == queued.id)
                .values(attempts=queued.attempts + 1, delivered_to=incarnation)
            )
            out.append(queued.work)
    return out


def take_back(connection: Connection, incarnation: str, held: Collection[TrialKey]) -> None:
    """Undo the deliveries to a worker process that leaves, but for what it still holds."""
    query = _queued().where(REQUESTS.c.delivered_to == incarnation)
    given = [_from_row(row) for row in connection.execute(query)]
    for chunk in chunks([queued.id for queued in given if queued.key not in held]):
        connection.execute(
            update(REQUESTS)
            .where(REQUESTS.c.id.in_(chunk))
            .values(attempts=REQUESTS.c.attempts - 1, delivered_to=None)
        )


def store(
    connection: Connection, worker: str, results: Sequence[Result]
) -> tuple[tuple[TrialKey, ...], tuple[Refusal, ...]]:
    """Store a worker's results: (accepted keys, refusals). Each is accepted if its candidate is
    queued under the result's own lease, live, on a device of this worker; or if it is stored."""
    stored = trials.stored_keys(connection, [r.trial.key for r in results])
    accepted: list[TrialKey] = []
    refused: list[Refusal] = []
    fresh: list[Trial] = []
    finished: list[int] = []
    for result in results:
        key = result.trial.key
        if key in stored:
            accepted.append(key)
            continue
        try:
            row = _fence(connection, worker, result, key)
        except StaleLease as error:
            refused.append(Refusal(key, str(error)))
            continue
        accepted.append(key)
        finished.append(row.id)
        fresh.append(_completed(result.trial, row))
    trials.add(connection, fresh)
    for chunk in chunks(finished):
        connection.execute(delete(REQUESTS).where(REQUESTS.c.id.in_(chunk)))
    return tuple(accepted), tuple(refused)


def _fence(connection: Connection, worker: str, result: Result, key: TrialKey) -> Any:
    lease = leases.check(connection, result.lease, result.epoch)
    owner = select(DEVICES.c.worker).where(DEVICES.c.id == lease.device)
    if connection.execute(owner).scalar_one() != worker:
        raise StaleLease(f"device {lease.device} is served by another worker now")
    query = (
        select(REQUESTS, DEVICES.c.id.label("device"), DEVICES.c.model)
        .select_from(
            REQUESTS.join(WORKLOADS, WORKLOADS.c.id == REQUESTS.c.workload_id)
            .join(TARGETS, TARGETS.c.id == REQUESTS.c.target_id)
            .join(LEASES, LEASES.c.id == REQUESTS.c.lease)
            .join(DEVICES, DEVICES.c.id == LEASES.c.device)
        )
        .where(REQUESTS.c.job == key.job, REQUESTS.c.number == key.number)
        .where(WORKLOADS.c.key == key.task.workload, TARGETS.c.text == key.task.target)
        .where(REQUESTS.c.lease == result.lease)
    )
    row = connection.execute(query).one_or_none()
    if row is None:
        raise StaleLease(f"trial {key.number} is not wanted under this lease any more")
    return row


def _completed(trial: Trial, row: Any) -> Trial:
    """The trial with what the tracker knows better: what was asked, and on which device."""
    return replace(
        trial,
        config=row.config,
        predicted=row.predicted,
        origin=row.origin,
        device=row.device,
        device_model=trial.device_model or row.model,
        created_at=trial.created_at or time.time(),
    )


def _quarantine(connection: Connection, queued: Queued) -> None:
    request = queued.work.request
    trial = Trial(
        job=request.job,
        task=request.task,
        number=request.number,
        config=request.config,
        error=ErrorKind.RUN_CRASH,
        message=f"its worker died {queued.attempts} times while it was measured; quarantined",
        device=queued.work.device,
        device_model=queued.device_model,
        protocol=protocol_of(request.task.target, request.protocol),
        predicted=request.predicted,
        origin=request.origin,
        created_at=time.time(),
    )
    trials.add(connection, [trial])
    connection.execute(delete(REQUESTS).where(REQUESTS.c.id == queued.id))


def _queued() -> Any:
    source = (
        REQUESTS.join(WORKLOADS, WORKLOADS.c.id == REQUESTS.c.workload_id)
        .join(TARGETS, TARGETS.c.id == REQUESTS.c.target_id)
        .outerjoin(LEASES, LEASES.c.id == REQUESTS.c.lease)
        .outerjoin(DEVICES, DEVICES.c.id == LEASES.c.device)
    )
    return select(
        *REQUESTS.c,
        WORKLOADS.c.key.label("workload"),
        WORKLOADS.c.text.label("workload_text"),
        TARGETS.c.text.label("target"),
        LEASES.c.device,
        LEASES.c.epoch,
        DEVICES.c.model,
    ).select_from(source)


def _from_row(row: Any) -> Queued:
    request = TrialRequest(
        job=row.job,
        task=TaskKey(row.workload, row.target),
        number=row.number,
        config=row.config,
        workload_text=row.workload_text,
        predicted=row.predicted,
        origin=row.origin,
        against=tuple(row.against),
        budgets=row.budgets,
        plugins=tuple(row.plugins),
        protocol=row.protocol,
    )
    work = Work(row.device or "", row.lease or "", row.epoch or 0, request)
    return Queued(row.id, work, row.attempts, row.delivered_to, row.model or "")

"""Models: which tasks each has, and for which targets it was tuned or built."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import Connection, case, insert, select
from tunefarm.db.dialect import upsert
from tunefarm.db.models import JOBS, MODEL_TASKS, MODELS, TARGETS
from tunefarm.db.records import UNNAMED, JobTask, model_digest
from tunefarm.db.rows import add_workloads, target_ids, workload_ids

MAX_NAME = 200
OFTEN_S = 600.0
"""How often a model that is built again and again is noted, in seconds."""
NAME_OF_JOB = case((JOBS.c.name == UNNAMED, MODELS.c.name), else_=JOBS.c.name)
"""What the model of a job was called when it was submitted, whatever people call it since; a job
that was submitted without a name has its model's."""


def weights_of(tasks: Iterable[JobTask]) -> Counter[str]:
    """How often the workloads of tasks run, by their keys and in the order of the tasks."""
    weights: Counter[str] = Counter()
    for task in tasks:
        weights[task.workload.key] += task.weight
    return weights


def note_tasks(connection: Connection, name: str, target: str, tasks: Sequence[JobTask]) -> str:
    """Note a model as ``note`` does, and what is known of its workloads."""
    add_workloads(connection, (task.workload for task in tasks if task.workload.text))
    return note(connection, name, target, weights_of(tasks))


def note(connection: Connection, name: str, target: str, weights: Mapping[str, int]) -> str:
    """Note that somebody tunes or builds a model, whose workloads' keys have these weights, for a
    target; returns the digest of the model."""
    digest = model_digest(weights.items())
    _add_tasks(connection, digest, weights)
    now = time.time()
    row = {
        "digest": digest,
        "target_id": target_ids(connection, [target])[target],
        "name": name[:MAX_NAME],
        "created_at": now,
        "seen_at": now,
    }
    statement = upsert(connection, MODELS).values(row)
    new = statement.excluded
    kept = case((new.name == UNNAMED, MODELS.c.name), else_=new.name)
    statement = statement.on_conflict_do_update(
        index_elements=["digest", "target_id"], set_={"name": kept, "seen_at": new.seen_at}
    )
    connection.execute(statement)
    return digest


def is_noted(connection: Connection, name: str, target: str, weights: Mapping[str, int]) -> bool:
    """Whether the model was noted so within ``OFTEN_S``: doing it again would tell nothing new."""
    is_target = TARGETS.c.id == MODELS.c.target_id
    query = select(MODELS.c.name, MODELS.c.seen_at).join(TARGETS, is_target)
    query = query.where(MODELS.c.digest == model_digest(weights.items()), TARGETS.c.text == target)
    found = connection.execute(query).one_or_none()
    if found is None or time.time() - found.seen_at > OFTEN_S:
        return False
    return name == UNNAMED or found.name == name[:MAX_NAME]


def _add_tasks(connection: Connection, digest: str, weights: Mapping[str, int]) -> None:
    known = select(MODEL_TASKS.c.position).where(MODEL_TASKS.c.digest == digest).limit(1)
    if not weights or connection.execute(known).one_or_none() is not None:
        return
    ids = workload_ids(connection, weights)
    rows = [
        {"digest": digest, "position": place, "workload_id": ids[key], "weight": weight}
        for place, (key, weight) in enumerate(weights.items())
    ]
    connection.execute(insert(MODEL_TASKS), rows)

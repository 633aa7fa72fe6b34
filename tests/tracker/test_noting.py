"""Models that a tracker is told of: with their tasks, and only what makes sense."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select
from tunefarm.db.models import MODEL_TASKS, MODELS, WORKLOADS
from tunefarm.db.records import JobTask, Role, Token, WorkloadRecord
from tunefarm.db.store import Store
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import Forbidden, InvalidRequest
from tunefarm.proto.tokens import digest_of, new_secret


def task(text: str, weight: int = 1) -> JobTask:
    key = hashlib.sha256(text.encode()).hexdigest()
    return JobTask(WorkloadRecord(key, text, f"op {text}", 64), weight)


def noted(tracker: Any, name: str) -> list[tuple[str, int]]:
    """Summaries and weights of a model's tasks."""
    with Store.open(str(tracker.database), readonly=True) as store, store.reading() as connection:
        query = (
            select(WORKLOADS.c.summary, MODEL_TASKS.c.weight)
            .join(MODEL_TASKS, MODEL_TASKS.c.workload_id == WORKLOADS.c.id)
            .join(MODELS, MODELS.c.digest == MODEL_TASKS.c.digest)
            .where(MODELS.c.name == name)
            .order_by(MODEL_TASKS.c.position)
        )
        return [tuple(row) for row in connection.execute(query)]


def test_a_client_notes_its_model(shared_tracker: Any, farm: FarmClient) -> None:
    tasks = [task("noted a", 3), task("noted b")]
    secret = new_secret()
    farm.create_token(Token(digest_of(secret), "noting", Role.CLIENT), actor="root@lab")
    with FarmClient(shared_tracker.address, secret) as client:
        client.note_model("mobilenet", "sim", tasks)
        client.note_model("mobilenet", "sim", tasks)
    assert noted(shared_tracker, "mobilenet") == [("op noted a", 3), ("op noted b", 1)]


def test_a_worker_does_not(shared_tracker: Any, farm: FarmClient) -> None:
    secret = new_secret()
    farm.create_token(Token(digest_of(secret), "serving", Role.WORKER), actor="root@lab")
    with (
        FarmClient(shared_tracker.address, secret) as worker,
        pytest.raises(Forbidden, match="NoteModel is for admin or client or tuner"),
    ):
        worker.note_model("mobilenet", "sim", [task("a")])


@pytest.mark.parametrize(
    ("name", "target", "tasks", "sentence"),
    [
        ("", "sim", [task("a")], "has a name, a target and tasks"),
        ("net", "", [task("a")], "has a name, a target and tasks"),
        ("net", "sim", [], "has a name, a target and tasks"),
        ("net", "sim", [task("a", 0)], "a task of model net has a weight below 1"),
        (
            "net",
            "sim",
            [JobTask(replace(task("a").workload, text="b"))],
            "is not the SHA-256 of the text",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    farm: FarmClient, name: str, target: str, tasks: list[JobTask], sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        farm.note_model(name, target, tasks)

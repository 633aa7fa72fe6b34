"""Models: noted once, whoever tunes or builds them, with the tasks that they have."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import select, update
from tunefarm.db import jobs, stored_jobs, whole_models
from tunefarm.db.models import JOBS, MODEL_TASKS, MODELS, WORKLOADS
from tunefarm.db.records import UNNAMED, Budget, Job, JobTask, WorkloadRecord, model_digest
from tunefarm.db.store import Store

MakeWorkload = Callable[[str], WorkloadRecord]
WEIGHTS = {"k1": 3, "k2": 1}


def note(store: Store, name: str, target: str = "sim", weights: dict[str, int] = WEIGHTS) -> str:
    with store.writing() as connection:
        return whole_models.note(connection, name, target, weights)


def names(store: Store) -> list[str]:
    with store.reading() as connection:
        query = select(MODELS.c.name).order_by(MODELS.c.digest, MODELS.c.target_id)
        return list(connection.execute(query).scalars())


def test_a_model_is_known_by_its_tasks(store: Store) -> None:
    first = note(store, "mobilenet")
    assert note(store, "copy of mobilenet", weights={"k2": 1, "k1": 3}) == first
    assert names(store) == ["copy of mobilenet"]
    assert note(store, "mobilenet", weights={"k1": 4, "k2": 1}) != first
    assert note(store, "mobilenet", "sim -seed=1") == first
    assert len(names(store)) == 3


def test_a_model_has_its_tasks_in_the_order_of_first_use(store: Store) -> None:
    digest = note(store, "mobilenet")
    note(store, "mobilenet", "sim -seed=1")
    with store.reading() as connection:
        query = (
            select(WORKLOADS.c.key, MODEL_TASKS.c.weight)
            .join(WORKLOADS, WORKLOADS.c.id == MODEL_TASKS.c.workload_id)
            .where(MODEL_TASKS.c.digest == digest)
            .order_by(MODEL_TASKS.c.position)
        )
        assert [tuple(row) for row in connection.execute(query)] == [("k1", 3), ("k2", 1)]


def test_a_model_tells_what_its_tasks_are(store: Store, workload: MakeWorkload) -> None:
    tasks = [JobTask(workload("a"), 2), JobTask(workload("b")), JobTask(workload("a"))]
    with store.writing() as connection:
        digest = whole_models.note_tasks(connection, "mobilenet", "sim", tasks)
        keys_only = [JobTask(WorkloadRecord(task.workload.key, "", "?"), 1) for task in tasks]
        whole_models.note_tasks(connection, "copy", "sim", keys_only)
        query = (
            select(WORKLOADS.c.text, WORKLOADS.c.summary, MODEL_TASKS.c.weight)
            .join(WORKLOADS, WORKLOADS.c.id == MODEL_TASKS.c.workload_id)
            .where(MODEL_TASKS.c.digest == digest)
            .order_by(MODEL_TASKS.c.position)
        )
        found = [tuple(row) for row in connection.execute(query)]
    known = [(task.workload.text, task.workload.summary) for task in tasks]
    assert found == [(*known[0], 3), (*known[1], 1)]


def test_who_has_no_name_for_it_leaves_the_one_that_is_there(store: Store) -> None:
    note(store, UNNAMED)
    assert names(store) == [UNNAMED]
    note(store, "mobilenet")
    note(store, UNNAMED)
    assert names(store) == ["mobilenet"]


def test_what_was_noted_a_moment_ago_is_not_noted_again(store: Store) -> None:
    def is_noted(name: str, target: str = "sim") -> bool:
        with store.reading() as connection:
            return whole_models.is_noted(connection, name, target, WEIGHTS)

    assert not is_noted("mobilenet")
    note(store, "mobilenet")
    assert is_noted("mobilenet")
    assert is_noted(UNNAMED)
    assert not is_noted("another name")
    assert not is_noted("mobilenet", "sim -seed=1")
    with store.writing() as connection:
        connection.execute(update(MODELS).values(seen_at=1.0))
    assert not is_noted("mobilenet")


def test_a_job_names_the_model_that_it_tunes(store: Store, workload: MakeWorkload) -> None:
    tasks = tuple(JobTask(workload(text), weight) for text, weight in (("a", 2), ("b", 1)))
    digest = model_digest((task.workload.key, task.weight) for task in tasks)
    with store.writing() as connection:
        named = jobs.submit(connection, Job("j1", "sim", tasks, Budget(9), model_name="mobilenet"))
        part = jobs.submit(connection, Job("j2", "sim", tasks[:1], Budget(9)))
        assert (named.model_name, part.model_name) == ("mobilenet", "")
        assert stored_jobs.get(connection, "j1") == named
        query = select(JOBS.c.id, JOBS.c.model).order_by(JOBS.c.id)
        assert [tuple(row) for row in connection.execute(query)] == [("j1", digest), ("j2", "")]
        assert stored_jobs.recent(connection, (), 9)[-1].model_name == "mobilenet"
    assert names(store) == ["mobilenet"]


def test_a_job_keeps_the_name_it_was_submitted_with(store: Store, workload: MakeWorkload) -> None:
    task = JobTask(workload("a"))
    weights = {task.workload.key: 1}
    with store.writing() as connection:
        for name, model in (("j1", "qdq"), ("j2", UNNAMED), ("j3", "x" * 300), ("j4", "qdq")):
            jobs.submit(connection, Job(name, "sim", (task,), Budget(9), model_name=model))
    note(store, "zzz", weights=weights)
    with store.reading() as connection:
        found = {j.id: j.model_name for j in stored_jobs.recent(connection, (), 9)}
        one = stored_jobs.progress(connection, "j1").job.model_name
    assert found == {"j1": "qdq", "j2": "zzz", "j3": "x" * whole_models.MAX_NAME, "j4": "qdq"}
    assert one == "qdq"
    assert names(store) == ["zzz"], "the model itself is called as it was last"

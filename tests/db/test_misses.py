"""What builds missed, and jobs that queue again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import update
from tunefarm.db import jobs, misses, stored_jobs
from tunefarm.db.models import JOBS, MISSES
from tunefarm.db.records import (
    IDLE,
    IDLE_PRIORITY,
    OWNED,
    Budget,
    Job,
    JobState,
    JobTask,
    Miss,
    WorkloadRecord,
)
from tunefarm.db.store import Store

MakeWorkload = Callable[[str], WorkloadRecord]


@pytest.fixture
def miss(workload: MakeWorkload) -> Callable[..., Miss]:
    def make(text: str, gain_s: float, weight: int = 1, target: str = "sim") -> Miss:
        return Miss(workload(text), target, weight, default_s=1.0 + gain_s, roofline_s=1.0)

    return make


def report(store: Store, request: str, *found: Miss) -> None:
    with store.writing() as connection:
        misses.report(connection, request, found)


def waiting(store: Store, target: str = "sim") -> list[str]:
    with store.reading() as connection:
        return [m.workload.text for m in misses.waiting(connection, target, "", 10)]


def test_the_most_valuable_are_first(store: Store, miss: Callable[..., Miss]) -> None:
    report(store, "r1", miss("a", 0.1), miss("b", 0.1, weight=5), miss("c", 0.3))
    report(store, "r2", miss("d", 9.0, target="sim -seed=1"))
    assert waiting(store) == ["b", "c", "a"]
    with store.reading() as connection:
        assert misses.waiting_targets(connection) == (("sim -seed=1", ""), ("sim", ""))
        told = misses.most_valuable(connection, 2)
    assert [(m.workload.summary, m.workload.text) for m in told] == [("op d", ""), ("op b", "")]
    assert told[1].gain_s == pytest.approx(0.5)


def test_a_report_counts_once(store: Store, miss: Callable[..., Miss]) -> None:
    for request in ("r1", "r1", "r2"):
        report(store, request, miss("a", 0.1, weight=3 if request == "r1" else 2))
    with store.reading() as connection:
        (told,) = misses.most_valuable(connection, 10)
    assert (told.builds, told.weight) == (2, 3)


def test_the_oldest_are_forgotten(
    store: Store, miss: Callable[..., Miss], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(misses, "KEPT", 2)
    for text in ("a", "b", "c"):
        report(store, text, miss(text, 0.1))
    assert sorted(waiting(store)) == ["b", "c"]


def test_what_a_job_tunes_waits_no_more(store: Store, miss: Callable[..., Miss]) -> None:
    report(store, "r1", miss("a", 0.1), miss("b", 0.2))
    made = Job(
        "idle", "sim", (JobTask(miss("b", 0.2).workload),), Budget(8), {IDLE: "1"},
        priority=IDLE_PRIORITY,
    )  # fmt: skip
    with store.writing() as connection:
        jobs.submit(connection, made)
        misses.assign(connection, [miss("b", 0.2)], made.id)
        assert [job.id for job in stored_jobs.open_for_idle(connection)] == ["idle"]
        assert stored_jobs.queued_for_people(connection, 9) == ()
    assert waiting(store) == ["a"]
    with store.writing() as connection:
        jobs.cancel(connection, "idle", "")
    report(store, "r2", miss("b", 0.2))
    assert waiting(store) == ["a"], "the job was over just now"
    with store.writing() as connection:
        connection.execute(update(JOBS).values(updated_at=JOBS.c.updated_at - misses.AGAIN_S - 1))
    assert waiting(store) == ["b", "a"], "it was reported a day after that"
    with store.writing() as connection:
        connection.execute(update(MISSES).values(reported_at=1.0))
    assert waiting(store) == ["a"]


def test_a_failed_or_cancelled_job_queues_again(store: Store, workload: MakeWorkload) -> None:
    def ended(name: str, state: JobState, **options: str) -> None:
        job = Job(name, "sim", (JobTask(workload("a")),), Budget(8), options)
        with store.writing() as connection:
            jobs.submit(connection, job)
            claimed = jobs.claim(connection, "t", f"claim of {name}", name)
            assert claimed is not None
            if state is JobState.CANCELLED:
                jobs.cancel(connection, name, "no longer wanted")
            else:
                jobs.finish(connection, name, claimed.claim_epoch, state, "because")

    for name, state in (("failed", JobState.FAILED), ("cancelled", JobState.CANCELLED)):
        ended(name, state)
        with store.writing() as connection:
            again = jobs.retry(connection, name)
            assert (again.state, again.message) == (JobState.QUEUED, "")
            assert jobs.retry(connection, name) == again
            claimed = jobs.claim(connection, "t", f"another claim of {name}", name)
            assert claimed is not None
            assert claimed.claim_epoch == 2
    ended("good", JobState.SUCCEEDED)
    ended("own", JobState.CANCELLED, **{OWNED: "1"})
    for name, why in (("good", "has succeeded"), ("own", "belongs to a `tunefarm tune`")):
        with store.writing() as connection, pytest.raises(ValueError, match=why):
            jobs.retry(connection, name)

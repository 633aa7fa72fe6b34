"""What charts know of an open job grows to what would be read at once."""

from __future__ import annotations

from typing import Any

from fastapi.testclient import TestClient
from tunefarm.dashboard.queries import curves, followed, jobs
from tunefarm.db.records import FINAL
from tunefarm.db.store import Store

JOB = "aaaa1111"
API = f"/api/v1/jobs/{JOB}"


def store_more(farm: Any, start: int, count: int) -> None:
    """Candidates of both tasks in turn, some of which fail, and a final in between."""
    with Store.open(farm.database) as store:
        for number in range(start, start + count):
            store.add_trials([farm.trial(t, number, fails=number % 5 == 3) for t in (0, 1)])
        store.add_trials([farm.trial(1, start + count, origin=FINAL)])


def test_what_grew_is_what_is_read_at_once(farm: Any) -> None:
    with Store.open(farm.database, readonly=True) as reader:
        steps: followed.Steps | None = None
        phases: followed.Phases | None = None
        points: followed.Points | None = None
        for round_ in range(4):
            with reader.reading() as db:
                tasks = jobs.tasks(db, JOB)
                ids = [task.workload_id for task in tasks]
                steps = followed.steps(db, JOB, steps)
                phases = followed.phases(db, JOB, phases)
                points = followed.points(db, JOB, ids, 2, points)
                assert steps == followed.steps(db, JOB)
                assert phases.last == followed.phases(db, JOB).last
                assert points == followed.points(db, JOB, ids, 2)
                assert steps.count == 120 + 20 * round_
                assert len(steps.rows) > 6
                assert curves.best_so_far(db, jobs.job(db, JOB), tasks, known=steps)
            store_more(farm, 100 + 20 * round_, 10)


def test_other_steps_are_read_anew(farm: Any) -> None:
    with Store.open(farm.database, readonly=True) as reader, reader.reading() as db:
        ids = [task.workload_id for task in jobs.tasks(db, JOB)]
        every = followed.points(db, JOB, ids, 1)
        third = followed.points(db, JOB, ids, 3, every)
        assert {point.number % 3 for point in third.rows} == {0}
        assert len(every.rows) == 3 * len(third.rows)


def test_a_job_without_a_trial_has_nothing_yet(farm: Any) -> None:
    with Store.open(farm.database, readonly=True) as reader, reader.reading() as db:
        assert followed.steps(db, "none") == followed.Steps()
        assert followed.phases(db, "none").seconds == (0.0, 0.0, 0.0)


def test_charts_come_on_from_what_a_page_has(farm: Any, own_client: TestClient) -> None:
    for name in ("best-so-far", "points"):
        before = own_client.get(f"{API}/{name}").json()
        after, step = before["columns"]["id"][-1], before["notes"].get("step", 0)
        store_more(farm, 200 if name == "points" else 100, 10)
        more = own_client.get(f"{API}/{name}?after={after}&step={step}").json()
        whole = own_client.get(f"{API}/{name}").json()
        assert more["notes"]["after"] == after
        assert more["columns"]["id"]
        for column, cells in whole["columns"].items():
            assert before["columns"][column] + more["columns"][column] == cells, (name, column)
    other = own_client.get(f"{API}/points?after={after}&step=7").json()
    assert other["notes"]["after"] == 0
    assert other["columns"] == whole["columns"]

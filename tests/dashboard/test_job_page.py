"""The page of a job and the data of its charts."""

from __future__ import annotations

import csv
import io
import re
import time
from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Connection, insert, update
from tunefarm.dashboard import live
from tunefarm.dashboard.actions import Tracker
from tunefarm.dashboard.app import create_app
from tunefarm.dashboard.datasets import dataset
from tunefarm.dashboard.queries import curves
from tunefarm.dashboard.ranks import importance, rank_correlation, top_recall
from tunefarm.db import jobs
from tunefarm.db.farm_models import REQUESTS
from tunefarm.db.models import JOBS
from tunefarm.db.records import (
    FINAL,
    BestKey,
    Budget,
    Final,
    Job,
    JobState,
    JobTask,
    TaskKey,
    TrialKey,
    Verdict,
)
from tunefarm.db.store import Store

JOB = "/api/v1/jobs/aaaa"
REQUEST: dict[str, Any] = {
    "workload_id": 1, "target_id": 1, "number": 0, "config": {}, "origin": "default", "against": [],
    "budgets": {}, "attempts": 0, "created_at": 0.0,
}  # fmt: skip


def cells(page: str) -> dict[str, list[str]]:
    """The numbers of the rows of the job's tasks, by their names."""
    table = page[page.index('aria-label="Tasks, table"') :].partition("</table>")[0]
    rows = re.findall(r"<tr[ >].*?</tr>", table, re.S)[1:]
    return {
        re.search(r'title="([^"]*)"', row)[1]: re.findall(r'<td class="n[^"]*">([^<]*)</td>', row)  # type: ignore[index]
        for row in rows
    }


def test_a_job_that_is_over_tells_what_builds_get(farm: Any, own_client: TestClient) -> None:
    page = own_client.get("/jobs/aaaa").text
    assert ">Fastest seen</dt>" in page
    assert "finals will time them" in page
    before = cells(page)
    with Store.open(farm.database) as store, store.writing() as db:
        claimed = jobs.claim(db, "tuner-1", "c1", "aaaa1111")
        assert claimed is not None
        jobs.finish(db, "aaaa1111", claimed.claim_epoch, JobState.SUCCEEDED, "")
    page = own_client.get("/jobs/aaaa").text
    assert ">Faster than default</dt>" in page
    after = cells(page)
    promoted, other = (task.summary for task in farm.tasks)
    assert after[promoted][4] == "1.90\u202f×"
    assert after[promoted][2] != after[promoted][3] == before[promoted][2]
    assert after[other][4] == "1.00\u202f×"  # no final: a build takes the default
    assert after[other][1] == after[other][2] == before[other][1]
    told = own_client.get(f"{JOB}/outcome").json()
    assert told["device"] == "Some CPU 2 cores"
    found = {one["task"]["summary"]: one["default_s"] / one["best_s"] for one in told["results"]}
    assert found == pytest.approx({promoted: 1.9, other: 1.0})


@pytest.mark.parametrize(("index", "own_gain"), [(0, 1.9), (1, 1.0)])
def test_what_a_later_job_won_is_no_gain_of_those_before(
    farm: Any, own_client: TestClient, index: int, own_gain: float
) -> None:
    task, later = farm.tasks[index], "cccc1111"
    key = TaskKey(task.key, farm.target)
    record = BestKey(task.key, farm.target, farm.trial(index, 0).device_model)

    def end(db: Connection, job: str) -> None:
        claimed = jobs.claim(db, "tuner-1", "c1", job)
        assert claimed is not None
        jobs.finish(db, job, claimed.claim_epoch, JobState.SUCCEEDED, "")

    def gain(job: str) -> float:
        told = own_client.get(f"/api/v1/jobs/{job}").json()
        results = own_client.get(f"/api/v1/jobs/{job}/outcome").json()["results"]
        total = sum(one["task"]["weight"] * one["best_s"] for one in results)
        assert told["best_s"] == pytest.approx(total)
        found = next(one for one in results if one["task"]["workload"] == task.key)
        return float(found["default_s"] / found["best_s"])

    with Store.open(farm.database) as store:
        with store.writing() as db:
            end(db, farm.job)
            jobs.submit(db, Job(later, farm.target, (JobTask(task),), Budget(9)))
        assert gain(farm.job) == pytest.approx(own_gain)
        final = replace(farm.trial(index, 1, origin=FINAL), job=later)
        store.add_trials([replace(farm.trial(index, 0), job=later), final])
        standing = TrialKey(farm.job, key, 60) if own_gain > 1 else None
        won = Final(record, TrialKey(later, key, 1), standing, Verdict.BETTER, 1.2, 2.3)
        assert store.promote("f2", won).promoted
        with store.writing() as db:
            end(db, later)
    assert gain(later) == pytest.approx(2.3)
    assert gain(farm.job) == pytest.approx(own_gain)


def test_lists_show_of_a_job_that_is_over_what_its_page_does(
    farm: Any, own_client: TestClient
) -> None:
    seen = own_client.get(JOB).json()
    for page in ("/", "/jobs", "/models"):
        assert ("× seen" in own_client.get(page).text) == (page != "/models")
    with Store.open(farm.database) as store, store.writing() as db:
        claimed = jobs.claim(db, "tuner-1", "c1", "aaaa1111")
        assert claimed is not None
        jobs.finish(db, "aaaa1111", claimed.claim_epoch, JobState.SUCCEEDED, "")
    results = own_client.get(f"{JOB}/outcome").json()["results"]
    told = own_client.get(JOB).json()
    for key in ("default_s", "best_s"):
        total = sum(one["task"]["weight"] * one[key] for one in results)
        assert told[key] == pytest.approx(total) != pytest.approx(seen[key])
    ratio = f"{told['default_s'] / told['best_s']:.2f}\u202f×"
    for page in ("/", "/jobs"):
        assert f'<td class="n">{ratio}</td>' in own_client.get(page).text
        assert "× seen" not in own_client.get(page).text


def test_a_default_takes_the_same_wherever_it_is_shown(farm: Any, own_client: TestClient) -> None:
    """A later job times the defaults at a bad moment: where a final decided it does not count."""

    def told() -> list[list[float]]:
        tasks = [one.key for one in farm.tasks]
        listed = own_client.get("/api/v1/tasks").json()["rows"]
        (model,) = own_client.get("/api/v1/models").json()["rows"]
        results = own_client.get(f"{JOB}/outcome").json()["results"]
        job = {one["task"]["workload"]: one for one in results}
        rows = [{one["workload"]: one for one in found} for found in (listed, model["tasks"])]
        found = [[each[key]["default_s"] for key in tasks] for each in (*rows, job)]
        alone = [own_client.get(f"/api/v1/tasks/{key}/{listed[0]['target_id']}") for key in tasks]
        return [*found, [one.json()["default_s"] for one in alone]]

    later = "cccc1111"
    with Store.open(farm.database) as store:
        with store.writing() as db:
            claimed = jobs.claim(db, "tuner-1", "c1", farm.job)
            assert claimed is not None
            jobs.finish(db, farm.job, claimed.claim_epoch, JobState.SUCCEEDED, "")
            jobs.submit(db, Job(later, farm.target, (JobTask(farm.tasks[0]),), Budget(9)))
        before = told()
        assert before == [pytest.approx(before[0])] * 4
        slow = replace(farm.trial(0, 0), job=later, times_s=(0.5,))
        store.add_trials([slow])
    assert told() == before
    (task,) = own_client.get("/api/v1/tasks?q=matmul 8x").json()["rows"]
    assert task["default_s"] == pytest.approx(1.9 * farm.trial(0, 60).median_s)


def test_a_default_that_stands_gains_nothing_on_itself(farm: Any, own_client: TestClient) -> None:
    trial = farm.trial(1, 0)
    key = BestKey(trial.task.workload, farm.target, trial.device_model)
    with Store.open(farm.database) as store:
        store.promote("f2", Final(key, TrialKey(farm.job, trial.task, 0), None, Verdict.SAME))
        with store.writing() as db:
            jobs.submit(db, Job("cccc1111", farm.target, (JobTask(farm.tasks[1]),), Budget(9)))
        store.add_trials([replace(trial, job="cccc1111", times_s=(0.5,))])
    (task,) = own_client.get("/api/v1/tasks?q=matmul 64x").json()["rows"]
    assert (task["default_s"], task["speedup"]) == (trial.median_s, 1.0)


def test_a_job_that_ended_without_a_trial_waits_for_none(client: TestClient) -> None:
    told = client.get("/api/v1/jobs/bbbb").json()
    assert (told["default_s"], told["best_s"]) == (None, None)
    page = client.get("/jobs/bbbb").text
    assert "The job ended before its first trial." in page
    assert not re.search(r"\byet\b|data-chart|as soon as|after 40", page)


def test_a_job_says_what_it_does_before_its_first_trial(farm: Any, own_client: TestClient) -> None:
    def said(words: str) -> str:
        for page in ("/", "/jobs", "/jobs/cccc", "/jobs/cccc?part=now"):
            assert words.lower() in own_client.get(page).text.lower()
        with Store.open(farm.database, readonly=True) as store, store.reading() as db:
            return str(live.job_mark(db, "cccc1111"))

    job = Job("cccc1111", farm.target, (JobTask(farm.tasks[0]),), Budget(9))
    with Store.open(farm.database) as store:
        with store.writing() as db:
            jobs.submit(db, job)
        marks = [said("waiting for a tuner")]
        with store.writing() as db:
            jobs.claim(db, "tuner-1", "c1", job.id)
        marks.append(said("waiting for a device"))
        with store.writing() as db:
            db.execute(update(JOBS).where(JOBS.c.id == job.id).values(compiler_version="0.1"))
        said("its tuner gets ready")
        with store.writing() as db:
            db.execute(insert(REQUESTS).values(job=job.id, **REQUEST))
        marks.append(said("building and timing its first candidates"))
        store.add_trials([replace(farm.trial(0, 0), job=job.id)])
        assert "building and timing" not in own_client.get("/jobs/cccc").text
    assert len(set(marks)) == 3


def test_the_list_of_tasks_shows_gains_of_finals_alone(
    shared_farm: Any, client: TestClient
) -> None:
    rows = client.get("/api/v1/tasks").json()["rows"]
    promoted, other = (task.key for task in shared_farm.tasks)
    found = {row["workload"]: row["speedup"] for row in rows}
    assert found == {promoted: pytest.approx(1.9), other: None}


@pytest.mark.parametrize("part", ["now", "actions", "tables"])
@pytest.mark.parametrize("task", ["", "&task=1"])
def test_a_part_of_the_page_is_that_of_the_whole(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, part: str, task: str
) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)
    whole = client.get(f"/jobs/aaaa1111?{task[1:]}").text
    found = client.get(f"/jobs/aaaa1111?part={part}{task}")
    assert found.status_code == 200
    words = [re.sub(r"<[^>]*>|\s+", " ", page).split() for page in (found.text, whole)]
    assert " ".join(words[0]) in " ".join(words[1])
    assert (part == "actions") or len(words[0]) > 20


@pytest.mark.parametrize("query", ["", "?part=actions"])
def test_who_looks_is_told_how_to_name_a_tracker(shared_farm: Any, query: str) -> None:
    tracker = Tracker(lambda: None, unknown="name it by `--tracker`")
    with Store.open(shared_farm.database, readonly=True) as store:
        page = TestClient(create_app(store, tracker=tracker)).get(f"/jobs/aaaa1111{query}").text
    assert "name it by <code>--tracker</code>" in page


def test_best_so_far_only_falls_and_ends_at_the_best(client: TestClient) -> None:
    data = client.get(f"{JOB}/best-so-far?task=0").json()
    latencies = data["columns"]["latency_s"]
    assert latencies == sorted(latencies, reverse=True)
    assert len(latencies) > 3
    tasks = client.get(f"{JOB}/tasks").json()
    candidates = client.get("/api/v1/trials?job=aaaa&outcome=ok&limit=500").json()["rows"]
    mine = [t for t in candidates if t["workload_id"] == tasks[0]["workload_id"]]
    assert latencies[-1] == min(t["latency_s"] for t in mine if t["origin"] != "final")
    low, high = data["columns"]["low_s"], data["columns"]["high_s"]
    assert all(a <= b <= c for a, b, c in zip(low, latencies, high, strict=True))


def test_a_chart_of_all_tasks_has_each(client: TestClient) -> None:
    data = client.get(f"{JOB}/best-so-far").json()
    assert set(data["columns"]["task"]) == {0, 1}
    assert data["notes"]["trials"] == 120


def test_scores_are_ranked_within_tasks(client: TestClient) -> None:
    notes = client.get(f"{JOB}/points").json()["notes"]
    assert notes["rank_correlation"] > 0.9
    assert 0 < notes["top_recall"] <= 1
    assert notes["sampled"] == notes["of"] == 120


def test_charts_come_as_csv_with_the_same_rows(client: TestClient) -> None:
    answer = client.get(f"{JOB}/points?format=csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="trials.csv"'
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    data = client.get(f"{JOB}/points").json()["columns"]
    assert [int(row["id"]) for row in rows] == data["id"]
    assert {row["sketch"] for row in rows} == {"contraction"}


def test_trials_come_with_the_fastest_first(client: TestClient) -> None:
    def page(**more: Any) -> Any:
        params = {"job": "aaaa", "order": "fastest", "limit": 20, **more}
        return client.get("/api/v1/trials", params=params).json()

    first = page()
    second = page(cursor=first["next"])
    seen = [(row["latency_s"], row["id"]) for row in first["rows"] + second["rows"]]
    every = client.get("/api/v1/trials?job=aaaa&outcome=ok&limit=500").json()["rows"]
    assert seen == sorted((row["latency_s"], row["id"]) for row in every)[:40]
    assert page(q="nowhere")["rows"] == []
    found = client.get("/trials?job=aaaa&order=fastest").text
    assert f'<a href="/trials/{seen[0][1]}">' in found
    assert 'rel="next">Next<' in found


@pytest.mark.parametrize("whose", ["jobs/aaaa1111", "TASK"])
def test_every_trial_is_downloaded_with_its_knobs(client: TestClient, whose: str) -> None:
    task = client.get(f"{JOB}/tasks").json()[0]
    whose = whose.replace("TASK", f"tasks/{task['workload']}/{task['target_id']}")
    answer = client.get(f"/api/v1/{whose}/trials?format=csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == (121 if whose.startswith("jobs") else 61)  # the final too
    assert {row["knob_mb"] for row in rows} >= {"1", "2", "4", "8"}
    assert {row["knob_sketch"] for row in rows} == {"contraction"}
    failed = next(row for row in rows if row["error"])
    assert "bytes of stack" in failed["message"]
    assert failed["latency_s"] == ""


def test_the_gain_is_of_the_last_quarter() -> None:
    columns = ("task", "trial", "speedup")
    rows = [(0, 1, 1.0), (0, 50, 2.0), (0, 90, 3.0), (1, 2, 1.0)]
    gain = curves.recent_gain(dataset("best", columns, rows, {"trials": 100}))
    assert gain == pytest.approx(1.5**0.5 - 1)
    assert curves.recent_gain(dataset("best", columns, rows, {"trials": 30})) is None


def test_the_roofline_counts_bytes_of_inputs_and_outputs(client: TestClient) -> None:
    columns = client.get(f"{JOB}/roofline").json()["columns"]
    moved = 4 * (8 * 16 + 16 * 24 + 8 * 24)
    assert columns["intensity"][0] == pytest.approx(2 * 8 * 16 * 24 / moved)


def test_wall_time_adds_up_phases(client: TestClient) -> None:
    wall = client.get(f"{JOB}/wall-time").json()
    assert wall["build_s"] == pytest.approx(0.2 * 121)
    assert wall["run_s"] == pytest.approx(0.05 * 121)


def test_the_page_shows_a_task_of_its_own(client: TestClient) -> None:
    assert "All 2 tasks" in client.get("/jobs/aaaa").text
    one = client.get("/jobs/aaaa?task=1").text
    assert "best-so-far?task=1" in one
    missing = client.get("/jobs/aaaa?task=9")
    assert missing.status_code == 404
    assert "the job has no task 9" in missing.text


def test_trials_are_searched_by_knob_and_message(client: TestClient) -> None:
    failed = client.get("/api/v1/trials?job=aaaa&outcome=failed").json()["rows"]
    assert len(failed) == 12
    found = client.get("/api/v1/trials?q=take 1017 bytes").json()["rows"]
    assert {row["number"] for row in found} == {17}
    assert client.get("/trials?q=1017&outcome=build_error").text.count("build error</span>") == 2


def test_rank_correlation_shares_ties() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == 0
    assert rank_correlation([1, 2, 2, 3], [1, 2.5, 2.5, 9]) == pytest.approx(1)


def test_top_recall_counts_the_best_that_were_foretold() -> None:
    truth = list(range(10))
    assert top_recall(truth, truth, 0.2) == 1
    assert top_recall([-t for t in truth], truth, 0.2) == 0


def test_importance_is_of_the_choice_that_decides() -> None:
    import numpy as np

    rng = np.random.default_rng(0)
    decisive, idle = rng.integers(0, 3, 300), rng.integers(0, 3, 300)
    outcomes = decisive + rng.normal(0, 0.1, 300)
    assert importance(decisive.tolist(), outcomes) > 0.95
    assert importance(idle.tolist(), outcomes) < 0.03
    assert importance(["same"] * 300, outcomes) == 0

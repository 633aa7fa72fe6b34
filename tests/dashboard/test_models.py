"""The pages of models: what a run takes, task by task, and what is left to tune."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tunefarm.dashboard.app import create_app
from tunefarm.dashboard.spaces import Spaces, plugins_of
from tunefarm.db import whole_models
from tunefarm.db.models import BEST
from tunefarm.db.records import BestKey, Final, TrialKey, Verdict, model_digest
from tunefarm.db.store import Store


@pytest.fixture
def place(client: TestClient) -> str:
    """Digest and target of the farm's model, as addresses have them."""
    (model,) = client.get("/api/v1/models").json()["rows"]
    return f"{model['digest']}/{model['target_id']}"


def test_a_job_of_a_model_makes_the_model(client: TestClient, shared_farm: Any) -> None:
    (model,) = client.get("/api/v1/models").json()["rows"]
    weights = zip((task.key for task in shared_farm.tasks), (3, 1), strict=True)
    assert model["digest"] == model_digest(weights)
    assert model["name"] == "tiny net"
    assert [task["weight"] for task in model["tasks"]] == [3, 1]


def test_a_later_build_renames_the_model_and_none_of_its_jobs(farm: Any) -> None:
    weights = dict(zip((task.key for task in farm.tasks), (3, 1), strict=True))
    with Store.open(farm.database) as store:
        with store.writing() as connection:
            whole_models.note(connection, "zzz", farm.target, weights)
        client = TestClient(create_app(store))
        (model,) = client.get("/api/v1/models").json()["rows"]
        found = {
            text: [job["model_name"] for job in client.get(f"/api/v1/jobs?q={text}").json()["rows"]]
            for text in ("tiny net", "zzz")
        }
    assert model["name"] == "zzz"
    assert found == {"tiny net": ["tiny net"], "zzz": []}


def test_tasks_have_the_standing_of_their_records(client: TestClient, place: str) -> None:
    first, second = client.get(f"/api/v1/models/{place}").json()["tasks"]
    assert first["standing"] == "promoted"
    assert second["standing"] == "provisional"
    assert first["default_s"] == pytest.approx(1.9 * first["best_s"])  # as the final has it
    assert second["best_s"] < second["default_s"]


def test_a_default_that_stands_is_as_fast_as_itself(farm: Any) -> None:
    with Store.open(farm.database) as store:
        trial = farm.trial(1, 0)
        default = TrialKey(trial.job, trial.task, 0)
        key = BestKey(trial.task.workload, farm.target, trial.device_model)
        store.promote("f2", Final(key, default, None, Verdict.SAME))
        client = TestClient(create_app(store))
        (model,) = client.get("/api/v1/models").json()["rows"]
    task = model["tasks"][1]
    assert task["standing"] == "confirmed"
    assert task["default_s"] == task["best_s"]


def test_shares_of_time_are_weighted_latencies(client: TestClient, place: str) -> None:
    columns = client.get(f"/api/v1/models/{place}/tasks").json()
    times = [
        weight * latency
        for weight, latency in zip(
            columns["columns"]["weight"], columns["columns"]["latency_s"], strict=True
        )
    ]
    assert columns["columns"]["time_s"] == pytest.approx(times)
    assert columns["notes"]["run_s"] == pytest.approx(sum(times))
    csv = client.get(f"/api/v1/models/{place}/tasks?format=csv").text
    assert csv.splitlines()[0].startswith("task,summary,weight,standing")


def test_its_tasks_stand_under_the_roofs_of_the_device(client: TestClient, place: str) -> None:
    data = client.get(f"/api/v1/models/{place}/roofline").json()
    assert len(data["columns"]["flops_s"]) == 2
    assert data["notes"]["flops_s"] == 1e11


def test_pages_link_to_the_model(client: TestClient, place: str) -> None:
    task = client.get("/api/v1/tasks?q=matmul 8x").json()["rows"][0]
    for path in (
        "/", "/models", "/jobs", "/jobs/aaaa1111",
        f"/tasks/{task['workload'][:16]}/{task['target_id']}",
    ):  # fmt: skip
        assert f"/models/{place}" in client.get(path).text, path
    page = client.get(f"/models/{place}").text
    assert "tiny net" in page
    assert "/jobs/aaaa1111" in page


def test_models_are_searched(client: TestClient, place: str) -> None:
    for text in ("tiny", "x86-64-v3", place[:6]):
        assert len(client.get(f"/api/v1/models?q={text}").json()["rows"]) == 1, text
    assert client.get("/api/v1/models?q=resnet").json()["rows"] == []
    assert client.get("/jobs?q=tiny&part=found").text.count("/jobs/aaaa1111") == 1
    assert client.get("/models/nothing/1").status_code == 404


def test_records_of_another_space_are_stale(client: TestClient, place: str) -> None:
    gaps = client.get(f"/api/v1/models/{place}/gaps").json()
    assert [gap["is_stale"] for gap in gaps] == [True, True]
    assert "sketch space f1" in gaps[0]["why"]
    part = client.get(f"/models/{place}/gaps").text
    assert "0 tasks untuned, 2 stale" in part
    assert "<html" not in part


def test_a_record_of_the_present_space_is_not(farm: Any) -> None:
    with Store.open(farm.database) as store:
        spaces = Spaces().fingerprints(farm.target, [task.text for task in farm.tasks])
        with store.writing() as db:
            for task in farm.tasks:
                db.execute(BEST.update().values(space_fingerprint=spaces[task.text]))
            whole_models.note(db, "larger net", farm.target, {farm.tasks[0].key: 1, "unknown": 2})
        client = TestClient(create_app(store))
        rows = client.get("/api/v1/models").json()["rows"]
        found = {
            row["name"]: client.get(f"/api/v1/models/{row['digest']}/{row['target_id']}/gaps")
            for row in rows
        }
    assert found["tiny net"].json() == []
    (gap,) = found["larger net"].json()
    assert (gap["task"]["standing"], gap["is_stale"]) == ("untuned", False)


def test_lists_of_models_go_on(farm: Any) -> None:
    with Store.open(farm.database) as store:
        with store.writing() as db:
            for number in range(5):
                whole_models.note(db, f"net {number}", farm.target, {farm.tasks[0].key: number + 9})
        client = TestClient(create_app(store))
        seen, cursor = [], ""
        while len(seen) < 9:
            page = client.get("/api/v1/models", params={"limit": 2, "cursor": cursor}).json()
            seen += [row["name"] for row in page["rows"]]
            cursor = page["next"]
            if not cursor:
                break
    assert seen == ["net 4", "net 3", "net 2", "net 1", "net 0", "tiny net"]


def test_the_compiler_tells_what_tasks_are_made_with(
    shared_farm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = shared_farm.tasks[0].text
    param = '{"constant":false,"domain":"any","dtype":"float32","shape":[8,16]}'
    node = '{"args":[0],"attrs":{},"op":"sum_squares","type":["float32",[8]]}'
    toy = f'{{"nodes":[{node}],"outputs":[1],"params":[{param}],"version":1}}'
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[1] / "system/plugin"))
    found = plugins_of(shared_farm.target, [plain, toy])
    assert found[plain] == ()
    (plugin,) = found[toy]
    assert plugin.startswith("toy-ops==0.1+")

"""Pages of tasks and trials: what is known of a record, its code, and how it compares."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tunefarm.dashboard.code import diff


def newest(client: TestClient, query: str) -> Any:
    return client.get(f"/api/v1/trials?{query}").json()["rows"][0]


def test_a_task_shows_its_record_and_what_its_knobs_explain(client: TestClient) -> None:
    task = client.get("/api/v1/tasks?q=matmul 8x").json()["rows"][0]
    place = f"{task['workload'][:16]}/{task['target_id']}"
    page = client.get(f"/tasks/{place}").text
    assert "promoted" in page
    assert "1.90\u202f×" in page
    assert "polyline" in page
    (standing,) = client.get(f"/api/v1/tasks/{place}/records").json()
    assert standing["promoted"]
    knobs = client.get(f"/api/v1/tasks/{place}/knobs").json()["columns"]
    assert set(knobs["knob"]) == {"mb", "nb"}
    history = client.get(f"/api/v1/tasks/{place}/history").json()["columns"]
    assert len(history["id"]) == 55
    configs = client.get(f"/api/v1/tasks/{place}/best-configs?format=csv").text
    assert {"mb", "nb", "sketch"} < set(configs.splitlines()[0].split(","))


def test_unknown_tasks_and_trials_are_told(client: TestClient) -> None:
    assert client.get("/tasks/ffffffffffff/1").status_code == 404
    assert "may have been pruned" in client.get("/trials/99999").text
    assert client.get("/trials/one").status_code == 422


def test_a_trial_tells_all_that_is_stored(client: TestClient) -> None:
    final = newest(client, "q=final")
    page = client.get(f"/trials/{final['id']}").text
    for word in ("drift then", "better", "Protocol", "0.1.0+abc", "Measure it again"):
        assert word in page
    failed = newest(client, "outcome=build_error")
    assert "LLVM ERROR: no" in client.get(f"/trials/{failed['id']}").text


def test_text_of_a_trial_cannot_leave_its_place_in_the_program(client: TestClient) -> None:
    trial = client.get("/api/v1/trials/1").json()["trial"]
    program = client.get("/trials/1/reproduce.py").text
    compile(program, "reproduce.py", "exec")
    assert repr(trial["config"]["mb"]) in program
    assert trial["task"]["target"] in program


@pytest.mark.parametrize(("kind", "word"), [("scheduled", "for "), ("assembly", "ret")])
def test_code_is_made_by_the_compiler_in_a_child(client: TestClient, kind: str, word: str) -> None:
    made = client.get(f"/api/v1/trials/1/code?kind={kind}")
    assert made.status_code == 200
    assert word in made.json()["text"]


def test_what_the_compiler_refuses_is_told(client: TestClient) -> None:
    child = [sys.executable, "-m", "tunefarm.dashboard.code_child"]
    asked = '{"workload": "{}", "target": "llvm", "config": {}, "kind": "scheduled"}'
    done = subprocess.run(child, input=asked, capture_output=True, text=True)
    assert done.returncode == 1
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_dashboard_loads_no_compiler() -> None:
    blocked = "import sys; sys.modules['tunefarm.compiler'] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", blocked + "import tunefarm.dashboard.app"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_two_trials_differ_in_knobs_and_code(client: TestClient) -> None:
    page = client.get("/diff?a=1&b=2").text
    assert page.count('class="chosen"') >= 1
    lines = diff("a\nb\nc", "a\nx\nc")
    assert [line.sign for line in lines] == ["at", "", "del", "add", ""]
    assert diff("same", "same") == ()


def test_a_workload_is_compared_across_jobs_and_targets(client: TestClient) -> None:
    task = client.get("/api/v1/tasks?q=matmul 8x").json()["rows"][0]
    page = client.get(f"/compare/{task['workload'][:16]}").text
    assert "bbbb2222" in page
    rows = client.get(f"/api/v1/compare/{task['workload'][:16]}").json()["columns"]
    assert rows["promoted"] == [1]


def test_csv_cells_are_no_formulas() -> None:
    from tunefarm.dashboard.datasets import dataset, to_csv

    text = to_csv(dataset("d", ("name", "n"), [("=1+1", -2.5)]))
    assert text == "name,n\n'=1+1,-2.5\n"


def test_candidates_come_by_the_values_of_their_knobs(client: TestClient) -> None:
    task = client.get("/api/v1/jobs/aaaa/tasks").json()[0]
    place = f"{task['workload'][:16]}/{task['target_id']}"
    data = client.get(f"/api/v1/tasks/{place}/slices").json()["columns"]
    assert set(data["knob_mb"]) >= {1, 2, 4, 8}
    assert len(data["id"]) == len(data["latency_s"]) == len(data["knob_mb"])
    for index in range(5):
        id_, latency_s, value = (data[name][index] for name in ("id", "latency_s", "knob_mb"))
        trial = client.get(f"/api/v1/trials/{id_}").json()["trial"]
        assert trial["config"]["mb"] == value
        assert sorted(trial["times_s"])[len(trial["times_s"]) // 2] == latency_s
    assert 'data-chart="slice"' in client.get(f"/tasks/{place}").text

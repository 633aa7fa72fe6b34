"""Pages and the JSON API over a real database."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tunefarm.dashboard.app import create_app
from tunefarm.db.store import Store

PAGES = [
    "/",
    "/jobs",
    "/jobs?q=nothing-like-it",
    "/models",
    "/models?q=nothing-like-it",
    "/trials",
    "/trials?q=x&outcome=ok",
    "/devices",
    "/failures",
]


@pytest.mark.parametrize("path", PAGES)
def test_pages_answer_with_and_without_records(
    client: TestClient, tmp_path: Path, path: str
) -> None:
    assert client.get(path).status_code == 200
    Store.open(str(tmp_path / "empty.db")).close()
    with Store.open(str(tmp_path / "empty.db"), readonly=True) as store:
        assert TestClient(create_app(store)).get(path).status_code == 200


def test_pages_forbid_scripts_and_styles_that_are_not_their_own(client: TestClient) -> None:
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert "style=" not in answer.text
    assert "http://" not in answer.text
    assert "https://" not in answer.text


def test_the_overview_tells_who_keeps_a_device_and_what_won_and_failed(client: TestClient) -> None:
    text = client.get("/").text
    assert "new fans" in text
    assert "1.90\u202f×" in text
    assert "build error" in text


def test_jobs_are_searched_by_id_task_and_state(client: TestClient) -> None:
    def ids(query: str) -> list[str]:
        return [job["id"] for job in client.get(f"/api/v1/jobs{query}").json()["rows"]]

    assert ids("") == ["bbbb2222", "aaaa1111"]
    assert ids("?q=aaaa") == ["aaaa1111"]
    assert ids("?q=matmul 64x") == ["aaaa1111"]
    assert ids("?q=nobody") == ["bbbb2222"]
    assert ids("?state=cancelled") == ["bbbb2222"]
    assert ids("?q=100%") == []


def test_jobs_are_drawn_in_one_chart(client: TestClient, farm: Any) -> None:
    data = client.get("/api/v1/curves?job=aaaa&job=bbbb&job=aaaa1111").json()
    rows = list(zip(*data["columns"].values(), strict=True))
    own = [row for row in rows if row[1] == "aaaa1111"]
    times = [row[4] for row in own]
    assert times == sorted(times, reverse=True)
    tasks = client.get("/api/v1/jobs/aaaa/tasks").json()
    assert times[0] == pytest.approx(sum(t["weight"] * t["default_s"] for t in tasks))
    assert times[-1] == pytest.approx(sum(t["weight"] * t["best_s"] for t in tasks))
    assert own[-1][0] is None
    page = client.get("/jobs/curves?job=aaaa&job=bbbb").text
    assert 'data-src="/api/v1/curves?job=aaaa1111&amp;job=bbbb2222&amp;workload="' in page

    one = tasks[0]["workload"][:16]
    data = client.get(f"/api/v1/curves?job=aaaa&workload={one}").json()
    assert data["columns"]["latency_s"][0] == pytest.approx(
        tasks[0]["weight"] * tasks[0]["default_s"]
    )
    for query, told in (("job=none", 404), ("job=aaaa&workload=ffff", 404), ("", 422)):
        assert client.get(f"/api/v1/curves?{query}").status_code == told


def test_lists_go_on_where_the_page_before_ended(client: TestClient) -> None:
    first = client.get("/api/v1/jobs?limit=1").json()
    second = client.get("/api/v1/jobs", params={"limit": 1, "cursor": first["next"]}).json()
    assert [row["id"] for row in first["rows"] + second["rows"]] == ["bbbb2222", "aaaa1111"]
    assert second["next"] == ""
    refused = client.get("/api/v1/jobs?cursor=what")
    assert refused.status_code == 400
    assert "no cursor" in refused.json()["error"]


def test_what_is_not_there_is_told_in_a_sentence(client: TestClient) -> None:
    page = client.get("/nowhere")
    assert page.status_code == 404
    assert "there is no page /nowhere" in page.text
    unknown = client.get("/api/v1/jobs/cccc")
    assert unknown.status_code == 404
    assert unknown.json()["error"].startswith("no job begins with")


def test_a_page_can_be_asked_for_its_changing_part(client: TestClient) -> None:
    part = client.get("/jobs?part=found").text
    assert "<html" not in part
    assert "aaaa1111" in part


def test_pages_are_the_same_on_postgresql(postgresql_farm: Any) -> None:
    with Store.open(postgresql_farm.database, readonly=True) as store:
        client = TestClient(create_app(store))
        for path in (
            *PAGES, "/jobs?q=matmul&state=queued", "/jobs/aaaa", "/jobs/aaaa?task=1",
            "/jobs/curves?job=aaaa&job=bbbb", "/trials/1", "/diff?a=1&b=2", "/devices/llvm-1",
            "/failures?q=stack", "/tasks?q=matmul",
        ):  # fmt: skip
            assert client.get(path).status_code == 200, path
        task = client.get("/api/v1/tasks?q=matmul 8x").json()["rows"][0]
        place = f"{task['workload'][:16]}/{task['target_id']}"
        (found,) = client.get("/api/v1/models?q=tiny&limit=1").json()["rows"]
        model = f"{found['digest']}/{found['target_id']}"
        for path in (
            f"/models/{model}", f"/models/{model}/gaps", f"/api/v1/models/{model}/roofline",
            f"/tasks/{place}", f"/compare/{place.partition('/')[0]}",
            f"/api/v1/tasks/{place}/history", "/api/v1/jobs/aaaa/best-so-far",
            "/api/v1/jobs/aaaa/points", "/api/v1/jobs/aaaa/roofline", "/api/v1/jobs?limit=1",
            "/api/v1/devices/llvm-1/drift", "/api/v1/overview", "/api/v1/wins",
        ):  # fmt: skip
            assert client.get(path).status_code == 200, path
        first = client.get("/api/v1/jobs?limit=1").json()
        after = client.get("/api/v1/jobs", params={"cursor": first["next"]}).json()
        assert [row["id"] for row in after["rows"]] == ["aaaa1111"]


def test_text_of_records_is_no_markup(client: TestClient) -> None:
    answer = client.get("/jobs", params={"q": "<script>alert(1)</script>"}).text
    assert "<script>alert" not in answer

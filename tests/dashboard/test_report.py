"""A job as one page: whole without a server, safe with any text, as settled as builds are."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tunefarm.dashboard.queries import jobs as lines
from tunefarm.dashboard.report import report
from tunefarm.db import jobs
from tunefarm.db.records import Budget, Job, JobState, JobTask, WorkloadRecord
from tunefarm.db.store import Store

from tunefarm.cli.app import run

LOOKS = [(1280, 900, "light"), (390, 844, "dark")]
_AXE = "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => \
v.id + ': ' + v.nodes.map(n => n.target.join(' ')).slice(0, 3).join(', ')))"
_WIDER = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


def written(farm: Any, path: Path) -> str:
    """The report of the farm's job, by the command."""
    assert run(["report", "aaaa", "-o", str(path), "--db", farm.database]) == 0
    return path.read_text()


def end(farm: Any, message: str = "") -> None:
    """Let the farm's job be over."""
    with Store.open(farm.database) as store, store.writing() as db:
        claimed = jobs.claim(db, "tuner-1", "c1", "aaaa1111")
        assert claimed is not None
        jobs.finish(db, "aaaa1111", claimed.claim_epoch, JobState.SUCCEEDED, message)


def test_a_page_loads_nothing_and_allows_only_its_own_scripts(
    shared_farm: Any, tmp_path: Path
) -> None:
    page = written(shared_farm, tmp_path / "job.html")
    tags = re.findall(r"<(?!!--)[a-z][^>]*>", re.sub(r"<script.*?</script>", "", page, flags=re.S))
    assert not [tag for tag in tags if re.search(r"\s(src|href|action|srcset)=", tag)]
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    inline = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", page, re.S)
    digests = [base64.b64encode(hashlib.sha256(t.encode()).digest()).decode() for t in inline]
    assert len(digests) == 4
    assert all(f"sha256-{digest}" in policy[1].replace("&#43;", "+") for digest in digests)
    assert "unsafe" not in policy[1]


def test_the_dashboard_has_it_too(client: TestClient) -> None:
    answer = client.get("/jobs/aaaa/report.html")
    assert answer.headers["content-disposition"] == 'attachment; filename="job-aaaa1111.html"'
    assert "<h1>Job <code>aaaa1111</code>" in answer.text
    assert "aaaa1111/report.html" in client.get("/jobs/aaaa1111").text


def test_a_job_under_way_promises_nothing(shared_farm: Any, tmp_path: Path) -> None:
    page = written(shared_farm, tmp_path / "job.html")
    assert "The job is not over: latencies are those of the fastest candidates seen" in page
    assert '<th class="n">Fastest seen</th>' in page
    assert "tiles take" in page


def test_a_job_that_is_over_tells_what_builds_get(farm: Any, tmp_path: Path) -> None:
    end(farm)
    page = written(farm, tmp_path / "job.html")
    assert '<th class="n">Tuned</th>' in page
    rows = re.findall(r"<tr>\s*<td class=\"text\">.*?</tr>", page, re.S)
    cells = [re.findall(r'<td class="n[^"]*">([^<]*)</td>', row) for row in rows]
    promoted, other = sorted(cells, key=lambda c: -int(c[3]))
    assert promoted[2] == "1.90\u202f×"
    assert other[2] == "1.00\u202f×"  # the fastest seen is not promoted: a build takes the default
    assert promoted[7].isdigit()


@pytest.mark.parametrize("hostile", ["</script><script>alert(1)</script>", '"><img src=x>'])
def test_texts_of_others_stay_texts(tmp_path: Path, hostile: str, farm: Any) -> None:
    text = WorkloadRecord("f" * 64, "{}", hostile, 1)
    with Store.open(farm.database) as store:
        with store.writing() as db:
            jobs.submit(db, Job("cccc1111", "llvm", (JobTask(text),), Budget(5), owner=hostile))
            jobs.cancel(db, "cccc1111", hostile)
        with store.reading() as db:
            page = report(db, lines.job(db, "cccc"))
    assert hostile not in page
    assert page.count("<script>") == 2


def test_a_report_needs_a_job_and_a_place(shared_farm: Any, tmp_path: Path, capsys: Any) -> None:
    place = str(tmp_path / "job.html")
    assert run(["report", "nowhere", "-o", place, "--db", shared_farm.database]) == 2
    assert "no job begins with 'nowhere'" in capsys.readouterr().err
    assert run(["report", "aaaa", "-o", "job.pdf", "--db", shared_farm.database]) == 2
    assert "job.pdf does not end in .html" in capsys.readouterr().err
    assert not Path(place).exists()


@pytest.mark.parametrize("look", LOOKS, ids=["desktop", "phone"])
def test_a_page_works_from_a_file(
    browser: Any, axe: str, shared_farm: Any, tmp_path: Path, look: tuple[int, int, str]
) -> None:
    path = tmp_path / "job.html"
    written(shared_farm, path)
    width, height, scheme = look
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    errors: list[str] = []
    asked: list[str] = []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    for chart in page.locator("[data-chart]").all():
        chart.locator("canvas, .empty").first.wait_for()
    page.get_by_role("button", name="over time").click()
    page.locator("#best canvas").wait_for()
    assert page.locator("[data-chart] canvas").count() == 6
    assert page.evaluate(_WIDER) <= 0
    assert asked == [path.as_uri()]
    assert errors == []
    csp_free = browser.new_context(viewport={"width": width, "height": height}, bypass_csp=True)
    again = csp_free.new_page()
    again.goto(path.as_uri())
    again.locator("#best canvas").wait_for()
    again.evaluate(axe)
    assert again.evaluate(_AXE) == []

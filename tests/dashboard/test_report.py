"""A job as one page: whole without a server, safe with any text, as settled as builds are."""

from __future__ import annotations

import base64
import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update
from tunefarm.dashboard.queries import jobs as lines
from tunefarm.dashboard.queries.promoted import built
from tunefarm.dashboard.report import report
from tunefarm.db import copies, jobs
from tunefarm.db.models import JOB_TASKS
from tunefarm.db.records import (
    FINAL,
    FROM_MEMORY,
    BestKey,
    Budget,
    Final,
    Job,
    JobState,
    JobTask,
    Lease,
    Role,
    TaskKey,
    Token,
    TrialKey,
    Verdict,
    WorkloadRecord,
)
from tunefarm.db.store import Store
from tunefarm.proto.client import FarmClient
from tunefarm.proto.tokens import digest_of, new_secret

from tunefarm import fetched
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
    full = tmp_path / "full.html"
    full.symlink_to("/dev/full")
    assert run(["report", "aaaa", "-o", str(full), "--db", shared_farm.database]) == 2
    assert f"{full} cannot be written: No space left on device" in capsys.readouterr().err


@contextmanager
def serving(database: str) -> Iterator[Path]:
    """A tracker on a database; its rendezvous file."""
    command = [sys.executable, "-m", "tunefarm", "tracker", "--db", database]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("tracker listening")
        yield Path(f"{database}.tracker.json")
    finally:
        process.terminate()
        process.communicate()


def without_now(page: str) -> str:
    """A page but for when it was made."""
    made = re.compile(r"written \d{4}-\d\d-\d\d \d\d:\d\d[^<]*")
    assert len(made.findall(page)) == 1
    return made.sub("", page)


def test_a_record_that_was_timed_in_another_way_is_of_another_job(farm: Any) -> None:
    first = farm.trial(0, 1000, origin=FINAL)
    other = replace(first, job="dddd1111", protocol=FROM_MEMORY)
    key = BestKey(other.task.workload, farm.target, other.device_model, FROM_MEMORY)
    won = TrialKey(other.job, other.task, other.number)
    with Store.open(farm.database) as store:
        store.add_trials([other])
        store.promote("f2", Final(key, won, None, Verdict.BETTER, None, 3.0))
        with store.reading() as db:
            found = next(task for task in built(db, [farm.job]) if task.weight == 3)
    assert found.default_s is not None
    assert found.best_s is not None
    assert found.default_s / found.best_s == pytest.approx(1.9)


def test_a_copy_of_a_job_has_the_record_of_an_earlier_one(farm: Any, tmp_path: Path) -> None:
    task, default = farm.tasks[0], replace(farm.trial(0, 0), job="cccc1111")
    key = BestKey(task.key, farm.target, default.device_model)
    job = Job("cccc1111", farm.target, (JobTask(task),), Budget(9))
    with (
        Store.open(farm.database) as there,
        Store.open(str(tmp_path / "copy.db")) as copy,
    ):
        (standing,) = (one.best for one in there.best([key])[key] if one.best.promoted)
        gains = []
        for store in (there, copy):
            with store.writing() as db:
                copies.add_job(db, job)
            store.add_trials([default])
            if store is copy:
                with store.writing() as db:
                    copies.add_promoted(db, [standing])
            with store.reading() as db:
                (found,) = built(db, [job.id])
            gains.append((found.default_s or 0.0) / (found.best_s or 1.0))
    assert gains == pytest.approx([1.9, 1.9])


@pytest.mark.parametrize("asked", ["", FROM_MEMORY], ids=["as usual", "of older workers"])
def test_a_farm_that_is_known_by_its_tracker_gives_the_same_page(
    farm: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, asked: str
) -> None:
    """Also of a job whose workers did not know how its tasks were to be timed."""
    now = time.time()
    with Store.open(farm.database) as store, store.writing() as db:
        db.execute(update(JOB_TASKS).values(protocol=asked))
        copies.add_leases(
            db,
            [
                Lease(f"more{n}", farm.device, "t", n, 10.0, job=farm.job, granted_at=at,
                      ended_at=at + 5)
                for n, at in enumerate((now - 500, now - 400, now - 300), 2)
            ],
        )  # fmt: skip
    end(farm)
    mine = written(farm, tmp_path / "mine.html")
    monkeypatch.setattr(fetched, "PAGE", 2)  # leases come in more than one page
    theirs = tmp_path / "theirs.html"
    with serving(farm.database) as place:
        assert run(["report", "aaaa", "-o", str(theirs), "--tracker", str(place)]) == 0
        assert without_now(theirs.read_text()) == without_now(mine)
        assert run(["report", "none", "-o", str(theirs), "--tracker", str(place)]) == 2
        assert "none" in capsys.readouterr().err
        monkeypatch.setenv("TUNEFARM_HOME", str(tmp_path / "elsewhere"))
        for role, code in ((Role.CLIENT, 0), (Role.WORKER, 2)):
            secret = new_secret()
            with FarmClient.from_rendezvous(place) as admin:
                admin.create_token(Token(digest_of(secret), f"a-{role}", role), actor="me")
                address = admin.address
            monkeypatch.setenv("TUNEFARM_TOKEN", secret)
            assert run(["report", "aaaa", "-o", str(theirs), "--tracker", address]) == code
        assert "token a-worker has role worker" in capsys.readouterr().err
    both = ["report", "aaaa", "--db", farm.database, "--tracker", str(place)]
    assert run([*both, "-o", str(theirs)]) == 2
    assert "not both" in capsys.readouterr().err


@pytest.mark.parametrize("index", [0, 1], ids=["of a record", "of a default"])
def test_a_tracker_tells_of_a_job_what_stood_at_its_end(
    farm: Any, tmp_path: Path, index: int
) -> None:
    task, later = farm.tasks[index], "cccc1111"
    key = TaskKey(task.key, farm.target)
    record = BestKey(task.key, farm.target, farm.trial(index, 0).device_model)
    end(farm)
    before = without_now(written(farm, tmp_path / "before.html"))
    with Store.open(farm.database) as store:
        with store.writing() as db:
            copies.add_job(db, Job(later, farm.target, (JobTask(task),), Budget(9)))
        challengers = [replace(farm.trial(index, n, origin=FINAL), job=later) for n in (1, 2)]
        store.add_trials([replace(farm.trial(index, 0), job=later), *challengers])
        standing = TrialKey(farm.job, key, 60) if index == 0 else None
        for number in (1, 2):
            won = TrialKey(later, key, number)
            final = Final(record, won, standing, Verdict.BETTER, 1.2, 2.3 + number)
            assert store.promote(f"later{number}", final).promoted
            standing = won
    theirs = tmp_path / "theirs.html"
    with serving(farm.database) as place:
        assert run(["report", "aaaa", "-o", str(theirs), "--tracker", str(place)]) == 0
    assert without_now(theirs.read_text()) == before


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

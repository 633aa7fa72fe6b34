"""The dashboard that a tracker serves: whose jobs who may change, and what it costs the tracker."""

from __future__ import annotations

import os
import re
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tunefarm.db import tokens
from tunefarm.db.records import OWNED, Budget, Job, JobState, JobTask, Role, Token
from tunefarm.db.store import Store
from tunefarm.proto.client import FarmClient
from tunefarm.proto.rendezvous import read_rendezvous
from tunefarm.proto.tokens import digest_of, new_secret

from tests.patience import is_alive, wait_for

PATIENCE_S = 60.0


@dataclass
class Beside:
    """A tracker process on a farm's database, and the dashboard that it serves."""

    farm: Any
    process: subprocess.Popen[str]
    address: str

    @property
    def rendezvous(self) -> Path:
        return Path(f"{self.farm.database}.tracker.json")

    def client(self) -> FarmClient:
        return FarmClient.from_rendezvous(self.rendezvous)

    @contextmanager
    def browser(self, secret: str = "") -> Iterator[httpx.Client]:
        """Somebody at the pages; with a secret they are signed in."""
        with httpx.Client(base_url=self.address, timeout=PATIENCE_S) as made:
            if secret:
                assert made.post("/login", data={"token": secret}).status_code == 303
            yield made

    def submit(self, owner: str = "", **options: str) -> str:
        secret = self.secret(owner)
        job = Job("", self.farm.target, (JobTask(self.farm.tasks[0], 2),), Budget(20), options)
        with self.client() as own:
            if not secret:
                return own.submit_job(job).id
            with FarmClient(own.address, secret) as client:
                return client.submit_job(job).id

    def secret(self, owner: str) -> str:
        return SECRETS[owner] if owner else ""

    def state(self, job: str) -> JobState:
        with self.client() as client:
            return client.job(job).state

    def server(self) -> psutil.Process:
        """The process of the dashboard, once it is there."""
        (child,) = wait_for(lambda: psutil.Process(self.process.pid).children())
        return child


SECRETS = {name: new_secret() for name in ("anna", "bert", "root")}


def answer(browser: httpx.Client, path: str) -> httpx.Response | None:
    """The answer, None while connections break."""
    try:
        return browser.get(path)
    except httpx.TransportError:
        return None


@contextmanager
def started(farm: Any, *options: str) -> Iterator[Beside]:
    """A tracker for as long as it takes."""
    command = [sys.executable, "-m", "tunefarm", "tracker", "--db", farm.database]
    process = subprocess.Popen(
        [*command, *options, "--dashboard-port", "0", "--log-level", "error"],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        found = None
        while found is None:
            line = process.stdout.readline()
            assert line, "the tracker ended"
            found = re.match(r"dashboard at (https?://[\d.]+:\d+)/", line)
        yield Beside(farm, process, found[1])
    finally:
        process.terminate()
        process.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def beside(module_farm: Any) -> Iterator[Beside]:
    with Store.open(module_farm.database) as store, store.writing() as db:
        for name, secret in SECRETS.items():
            role = Role.ADMIN if name == "root" else Role.CLIENT
            tokens.create(db, name, Token(digest_of(secret), name, role), "me")
    with started(module_farm) as running:
        yield running


def key_of(page: str) -> str:
    found = re.search(r'name="key" value="(\w+)"', page)
    assert found, page
    return found[1]


def test_anybody_of_this_machine_looks_and_nobody_changes(beside: Beside) -> None:
    job = beside.submit("anna")
    with beside.browser() as browser:
        page = browser.get(f"/jobs/{job}")
        assert page.status_code == 200
        assert "Sign in to cancel it" in page.text
        assert "Cancel this job" not in page.text
        assert browser.post(f"/jobs/{job}/cancel").status_code == 401
    assert beside.state(job) is JobState.QUEUED


def test_a_client_cancels_its_own_job_and_queues_it_again(beside: Beside) -> None:
    job = beside.submit("anna")
    with beside.browser(SECRETS["anna"]) as browser:
        key = key_of(browser.get(f"/jobs/{job}").text)
        done = browser.post(f"/jobs/{job}/cancel", data={"key": key, "reason": "lunch"})
        assert (done.status_code, done.headers["location"]) == (303, f"/jobs/{job}")
        page = browser.get(f"/jobs/{job}").text
        assert "lunch" in page
        assert beside.state(job) is JobState.CANCELLED
        again = browser.post(f"/jobs/{job}/retry", data={"key": key_of(page)})
        assert again.status_code == 303
    assert beside.state(job) is JobState.QUEUED


def test_the_owner_of_a_job_notes_what_everybody_reads_and_finds(beside: Beside) -> None:
    job = beside.submit("anna")
    with beside.browser(SECRETS["anna"]) as browser:
        key = key_of(browser.get(f"/jobs/{job}").text)
        for said in ("the first <b>try</b>", "quiet machine,\r\nnew tiles"):
            done = browser.post(f"/jobs/{job}/note", data={"key": key, "note": said})
            assert done.status_code == 303
        long = browser.post(f"/jobs/{job}/note", data={"key": key, "note": "ö" * 1001})
        assert long.status_code == 400
        assert "a note has 1000 characters at most, not 1001" in long.text
    with beside.browser(SECRETS["bert"]) as browser:
        page = browser.get(f"/jobs/{job}").text
        assert "quiet machine,\nnew tiles" in page
        assert "anna (dashboard)" in page
        found = browser.get("/api/v1/jobs?q=new tiles").json()["rows"]
        assert [row["id"] for row in found] == [job]
        own = key_of(browser.get(f"/jobs/{beside.submit('bert')}").text)
        refused = browser.post(f"/jobs/{job}/note", data={"key": own, "note": ""})
        assert refused.status_code == 403
    with FarmClient.from_rendezvous(beside.rendezvous) as admin:
        trail = [(event.action, event.reason) for event in admin.audit(job)]
    assert trail == [("note", "quiet machine,\nnew tiles"), ("note", "the first <b>try</b>")]


def test_the_tracker_refuses_what_the_role_may_not(beside: Beside) -> None:
    job = beside.submit("anna")
    with beside.browser(SECRETS["bert"]) as browser:
        page = browser.get(f"/jobs/{job}").text
        assert "belongs to anna; bert may not change it" in page
        assert "Cancel this job" not in page
        own = key_of(browser.get(f"/jobs/{beside.submit('bert')}").text)
        refused = browser.post(f"/jobs/{job}/cancel", data={"key": own})
        assert refused.status_code == 403
        assert "client bert may change its own jobs only" in refused.text
    with beside.browser(SECRETS["root"]) as browser:
        key = key_of(browser.get(f"/jobs/{job}").text)
        assert browser.post(f"/jobs/{job}/cancel", data={"key": key}).status_code == 303
    assert beside.state(job) is JobState.CANCELLED


def test_the_trackers_own_token_does_all(beside: Beside) -> None:
    job = beside.submit("anna")
    with beside.browser(read_rendezvous(beside.rendezvous).token) as browser:
        key = key_of(browser.get(f"/jobs/{job}").text)
        assert browser.post(f"/jobs/{job}/cancel", data={"key": key}).status_code == 303
    assert beside.state(job) is JobState.CANCELLED


def test_other_sites_cannot_use_a_session(beside: Beside) -> None:
    job = beside.submit("anna")
    with beside.browser(SECRETS["anna"]) as browser:
        key = key_of(browser.get(f"/jobs/{job}").text)
        place, form = f"/jobs/{job}/cancel", {"key": key}
        for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "http://evil.example"}):
            refused = browser.post(place, data=form, headers=headers)
            assert refused.status_code == 403
            assert "another site" in refused.json()["error"]
        for wrong in ({}, {"key": "0" * 64}, {"key": "ü"}):
            refused = browser.post(place, data=wrong)
            assert refused.status_code == 403
            assert "not of your session" in refused.text
        assert browser.get(place).status_code == 405
    assert beside.state(job) is JobState.QUEUED


def test_a_program_brings_its_token_with_the_call(beside: Beside) -> None:
    job = beside.submit("anna")
    headers = {"Authorization": f"Bearer {SECRETS['anna']}"}
    with beside.browser() as program:
        assert program.post(f"/jobs/{job}/cancel", headers=headers).status_code == 303
    assert beside.state(job) is JobState.CANCELLED


def test_cookies_hold_nothing_that_a_tracker_takes(beside: Beside) -> None:
    with beside.browser(SECRETS["anna"]) as browser:
        cookies = dict(browser.cookies)
        assert cookies
        assert SECRETS["anna"] not in str(cookies)
        assert browser.post("/logout").status_code == 303
        browser.cookies.update(cookies)
        assert "Sign in to cancel it" in browser.get(f"/jobs/{beside.submit('anna')}").text


def test_people_cancel_a_job_by_its_page(beside: Beside, browser: Any, axe: str) -> None:
    job = beside.submit("anna")
    page = browser.new_context(viewport={"width": 390, "height": 844}).new_page()
    page.set_default_timeout(1000 * PATIENCE_S)
    errors: list[str] = []
    page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
    page.goto(f"{beside.address}/jobs/{job}")
    page.get_by_role("link", name="Sign in to cancel it").click()
    page.get_by_label("Secret of the token").fill(SECRETS["anna"])
    page.get_by_role("button", name="Sign in").click()
    page.get_by_text("Cancel it").click()
    page.evaluate(axe)
    assert page.evaluate("axe.run(document).then(r => r.violations.map(v => v.id))") == []
    watching = page.context.new_page()
    watching.set_default_timeout(1000 * PATIENCE_S)
    watching.goto(page.url)
    page.get_by_label("Reason").fill("lunch")
    page.get_by_role("button", name="Cancel this job").click()
    page.get_by_text("lunch").wait_for()
    page.get_by_role("button", name="Queue it again").wait_for()
    watching.get_by_role("button", name="Queue it again").wait_for()  # told by an event
    assert beside.state(job) is JobState.CANCELLED
    assert errors == []


def test_a_job_that_is_over_is_tuned_further(beside: Beside) -> None:
    job = beside.submit("anna", **{OWNED: "1", "strategy": "random"})
    with beside.browser(SECRETS["anna"]) as browser:
        key = key_of(browser.get(f"/jobs/{job}").text)
        browser.post(f"/jobs/{job}/cancel", data={"key": key})
        page = browser.get(f"/jobs/{job}").text
        assert "Queue it again" not in page  # it belongs to a command
        refused = browser.post(f"/jobs/{job}/further", data={"key": key, "trials": "many"})
        assert refused.status_code == 422
        done = browser.post(f"/jobs/{job}/further", data={"key": key, "trials": "30"})
        assert done.status_code == 303
    with beside.client() as client:
        made = client.job(done.headers["location"].removeprefix("/jobs/"))
    assert made.id != job
    assert made.owner == "anna"
    assert made.options["strategy"] == "random"
    assert OWNED not in made.options
    assert made.budget.trials == 30 + int(made.options["earlier"])
    assert int(made.options["earlier"]) == 60  # what the farm's first job measured of the task
    assert [task.weight for task in made.tasks] == [2]


def test_the_dashboard_is_another_process_that_comes_back(beside: Beside) -> None:
    with beside.browser() as browser:
        assert browser.get("/").status_code == 200
        first = beside.server()
        assert first.nice() > psutil.Process(beside.process.pid).nice() or first.nice() == 19
        first.kill()
        assert wait_for(lambda: answer(browser, "/")).status_code == 200
        assert beside.server().pid != first.pid
    assert beside.process.poll() is None


def test_it_ends_with_the_tracker_however_that_ends(farm: Any) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        with started(farm) as running:
            child = running.server()
            os.kill(running.process.pid, number)
            running.process.wait(PATIENCE_S)
            wait_for(lambda child=child: not is_alive(child))


def test_a_port_that_is_taken_is_told_at_once(beside: Beside, tmp_path: Path) -> None:
    port = beside.address.rpartition(":")[2]
    command = [sys.executable, "-m", "tunefarm", "tracker", "--db", str(tmp_path / "farm.db")]
    done = subprocess.run(
        [*command, "--dashboard-port", port], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 2
    assert "choose another with --dashboard-port" in done.stderr


def test_beyond_this_machine_it_speaks_tls_and_asks_for_a_token(farm: Any, tmp_path: Path) -> None:
    make = [sys.executable, "-m", "tunefarm", "certificates", "--server", "localhost"]
    subprocess.run([*make, "--folder", str(tmp_path)], check=True, capture_output=True)
    files = ("--tls-cert", str(tmp_path / "server.pem"), "--tls-key", str(tmp_path / "server.key"))
    with started(farm, "--host", "0.0.0.0", *files) as running:
        port = int(running.address.rpartition(":")[2])
        trusting = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        own = {"Authorization": f"Bearer {read_rendezvous(running.rendezvous).token}"}
        address = f"https://localhost:{port}"
        with httpx.Client(base_url=address, verify=trusting, timeout=PATIENCE_S) as browser:
            assert browser.get("/jobs").headers["location"] == "/login?next=/jobs"
            assert browser.get("/jobs", headers=own).status_code == 200
        first = ssl.get_server_certificate(("localhost", port))
        subprocess.run([*make, "--folder", str(tmp_path)], check=True, capture_output=True)
        wait_for(lambda: ssl.get_server_certificate(("localhost", port)) != first)

"""What those who watch a farm see: metrics, probes, and one trial in the logs of all processes."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.workload import Workload
from tunefarm.db.records import Budget, DeviceRequest, Job, JobState, JobTask, Lease, WorkloadRecord
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import LeaseLost

from tests.patience import wait_for
from tunefarm.farm import connect

TARGET = "sim -failures=20 -trial-ms=10"
SKETCH = Path(__file__).parents[1] / "tuner" / "sim_sketch.py"
TUNER = f"import runpy; runpy.run_path({str(SKETCH)!r}); from tunefarm.cli import main; main()"
LOGS = ["--log-format", "json", "--log-level", "debug"]
PATIENCE_S = 60.0

Samples = dict[tuple[str, tuple[str, ...]], float]


class Farm:
    """A tracker with metrics, a worker with probes and tuners, logging JSON into a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.database = folder / "farm.db"
        self.rendezvous = str(folder / "farm.tracker.json")
        self.processes: dict[str, subprocess.Popen[str]] = {}
        place = ["--rendezvous", self.rendezvous]
        watched = ["--metrics-port", "0", "--lease-term-s", "3"]
        lines = self.start("tracker", "--db", str(self.database), *place, *watched)
        self.metrics = next(line for line in lines if line.startswith("metrics at")).split()[-1]
        options = ["--target", TARGET, "--name", "lab-1", "--health-port", "0", *place]
        self.health = next(iter(self.start("worker", *options))).split()[-1]

    def start(self, role: str, *options: str) -> Iterator[str]:
        """Start a process; the lines that it prints, as they come."""
        with (self.folder / f"{role}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", TUNER, role, *options, *LOGS],
                stdout=subprocess.PIPE, stderr=log, text=True,
                env=os.environ | {"TUNEFARM_HOME": str(self.folder / "home")},
            )  # fmt: skip
        self.processes[role] = process
        assert process.stdout is not None
        return iter(process.stdout)

    def log(self, role: str) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.folder / f"{role}.log").open()]

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as connection:
            return connection.execute(query).fetchall()

    def scrape(self) -> Samples:
        samples: Samples = {}
        for family in text_string_to_metric_families(get(self.metrics)[1]):
            for sample in family.samples:
                samples[sample.name, tuple(v for _, v in sorted(sample.labels.items()))] = (
                    sample.value
                )
        return samples

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.communicate()


@dataclass(frozen=True)
class Tuned:
    """A job that a tuner ran, and what the metrics were before, during and after."""

    job: str
    before: Samples
    during: Samples
    after: Samples


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    """One for all tests that leave it running."""
    made = Farm(tmp_path_factory.mktemp("watched"))
    yield made
    made.close()


@pytest.fixture
def own_farm(tmp_path: Path) -> Iterator[Farm]:
    made = Farm(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def client(farm: Farm) -> Iterator[FarmClient]:
    with connect(farm.rendezvous) as client:
        yield client


@pytest.fixture(scope="module")
def tuned(farm: Farm, client: FarmClient) -> Tuned:
    """The only job of the farm, over."""
    job = client.submit_job(job_of(200)).id
    before = farm.scrape()
    farm.start("tuner", "--rendezvous", farm.rendezvous, "--once")
    measured = ("tunefarm_trials_total", ("ok",))
    during = wait_for(lambda: found if (found := farm.scrape())[measured] >= 10 else None)
    wait_for(lambda: client.job(job).state is not JobState.RUNNING)
    assert farm.processes["tuner"].wait(PATIENCE_S) == 0
    return Tuned(job, before, during, farm.scrape())


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def job_of(budget: int) -> Job:
    function = Function(
        (x := Var("x", TensorType((8, 8), "float32")),),
        call("relu", x),
        {"primitive": True, "constants": ()},
    )
    made = Workload.from_function(function)
    task = JobTask(WorkloadRecord(made.key, made.text, made.summary, made.flops), 1)
    return Job("", TARGET, (task,), Budget(budget), priority=3)


def test_metrics_agree_with_the_database_during_and_after_a_job(farm: Farm, tuned: Tuned) -> None:
    assert tuned.before["tunefarm_jobs_queued", ("3",)] == 1
    during, after = tuned.during, tuned.after
    assert during["tunefarm_devices", ("leased",)] == 1
    assert during["tunefarm_leases_live", ()] == during["tunefarm_workers_online", ()] == 1
    assert during["tunefarm_jobs", ("running",)] == 1
    assert during["tunefarm_candidates_pending", ()] >= 0
    outcomes = Counter(error or "ok" for (error,) in farm.rows("SELECT error FROM trials"))
    stored = {
        labels[0]: n for (name, labels), n in after.items() if name == "tunefarm_trials_total"
    }
    assert stored == outcomes
    assert len(outcomes) > 1, "some of these trials fail"
    assert after["tunefarm_jobs", ("succeeded",)] == 1
    assert after["tunefarm_candidates_pending", ()] == 0
    granted = [row[0] for row in farm.rows("SELECT job FROM leases WHERE job != ''")]
    assert set(granted) == {tuned.job}
    assert after["tunefarm_leases_ended_total", ("released",)] == len(granted)
    others = tuned.before["tunefarm_leases_granted_total", ()]
    assert after["tunefarm_leases_granted_total", ()] - others == len(granted)
    assert after["tunefarm_devices", ("idle",)] == 1
    assert after["tunefarm_rpc_duration_seconds_count", ("SubmitJob",)] == 1
    waited = after["tunefarm_rpc_duration_seconds_sum", ("Sync",)]
    assert waited < 1.0 * after["tunefarm_rpc_duration_seconds_count", ("Sync",)], "polls idle"
    assert after["tunefarm_write_duration_seconds_count", ()] > 10
    assert after["process_resident_memory_bytes", ()] > 1e6


def test_expired_leases_and_refused_writes_are_counted(farm: Farm, client: FarmClient) -> None:
    refused, expired = ("tunefarm_stale_writes_refused_total", ("lease",)), ("expired",)
    before = farm.scrape()
    lease = client.acquire(DeviceRequest("sim"), client="c", wait_s=PATIENCE_S)
    assert isinstance(lease, Lease)
    ended = "tunefarm_leases_ended_total"
    wait_for(lambda: farm.scrape().get((ended, expired), 0) > before.get((ended, expired), 0))
    with pytest.raises(LeaseLost):
        client.renew(lease)
    after = farm.scrape()
    assert after[refused] == before.get(refused, 0) + 1
    assert after["tunefarm_rpc_errors_total", (LeaseLost.status, "Renew")] >= 1


def test_one_trial_is_followed_by_its_ids_through_the_logs(farm: Farm, tuned: Tuned) -> None:
    job = tuned.job
    lease, epoch, number = farm.rows(
        "SELECT l.id, l.epoch, t.number FROM trials t JOIN leases l ON l.job = t.job "
        "WHERE t.origin != 'final' ORDER BY t.id LIMIT 1"
    )[0]
    ids = {"job": job, "lease": lease, "epoch": epoch, "trial": number}

    def said(role: str) -> list[str]:
        lines = [line for line in farm.log(role) if ids.items() <= line.items()]
        return [re.sub(r":.*", "", str(line["message"])) for line in lines]

    assert said("tracker") == ["given to worker lab-1", "result stored"]
    assert said("worker") == ["received", "measured"]
    of_job = [line for line in farm.log("tuner") if line.get("job") == job]
    assert str(of_job[0]["message"]).startswith("claimed: 1 tasks, 200 trials")
    assert of_job[-1]["message"] == "succeeded"
    assert not any("job=" in str(line["message"]) for line in of_job)  # it is in each line's fields
    of_tracker = [line["message"] for line in farm.log("tracker") if line.get("job") == job]
    assert str(of_tracker[0]).startswith("submitted: 1 tasks")
    assert "lease ended: released" in of_tracker


def test_no_log_has_the_token(farm: Farm, tuned: Tuned) -> None:
    token = json.loads(Path(farm.rendezvous).read_text())["token"]
    assert any(line.get("job") == tuned.job for line in farm.log("tuner"))
    for role in ("tracker", "worker", "tuner"):
        assert token not in (farm.folder / f"{role}.log").read_text()


def test_probes_tell_of_a_tracker_that_is_away_and_a_worker_that_ends(own_farm: Farm) -> None:
    farm = own_farm
    tracker, worker = farm.metrics.removesuffix("/metrics"), farm.health.removesuffix("/healthz")
    for place in (tracker, worker):
        wait_for(lambda place=place: get(f"{place}/readyz") == (200, "ok\n"))
        assert get(f"{place}/healthz") == (200, "ok\n")
    probed = next(iter(farm.start("tuner", "--health-port", "0", "--rendezvous", farm.rendezvous)))
    tuner = probed.split()[-1].removesuffix("/healthz")
    assert get(f"{tuner}/healthz") == (200, "ok\n")
    wait_for(lambda: get(f"{tuner}/readyz") == (200, "ok\n"))
    farm.processes["tuner"].send_signal(signal.SIGTERM)
    assert farm.processes["tuner"].wait(PATIENCE_S) == 0
    assert get(f"{tracker}/else") == (404, "there is /healthz, /metrics, /readyz here\n")
    farm.processes["tracker"].send_signal(signal.SIGTERM)
    assert farm.processes["tracker"].wait(PATIENCE_S) == 0
    wait_for(lambda: get(f"{worker}/readyz")[0] == 503)
    assert re.fullmatch(r"the tracker has not answered for \d+ s\n", get(f"{worker}/readyz")[1])
    assert get(f"{worker}/healthz") == (200, "ok\n"), "a worker waits; it need not be restarted"
    farm.processes["worker"].send_signal(signal.SIGTERM)
    assert farm.processes["worker"].wait(PATIENCE_S) == 0


def test_a_port_that_is_taken_is_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-m", "tunefarm", "tracker", "--db", str(tmp_path / "f.db"),
             "--metrics-port", port],
            capture_output=True, text=True, timeout=PATIENCE_S,
        )  # fmt: skip
    assert done.returncode == 2
    assert f"cannot answer HTTP at 127.0.0.1:{port}: Address already in use" in done.stderr

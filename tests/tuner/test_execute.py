"""Jobs on a real farm: a tracker process, a worker process with a simulated device, tuners."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.db.models import BEST, FINALS, TRIALS
from tunefarm.db.records import (
    BestKey,
    Budget,
    Config,
    FarmInfo,
    Job,
    JobState,
    JobTask,
    Trial,
    WorkloadRecord,
)
from tunefarm.db.store import Store
from tunefarm.proto.awake import awake_s
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import TrackerUnavailable
from tunefarm.tuner import execute
from tunefarm.tuner.options import TunerOptions
from tunefarm.tuner.pulse import Pulse
from tunefarm.worker.sim import sim_time_s

from tests.patience import wait_for
from tests.ports import own_port

TARGET = "sim -failures=10 -trial-ms=2"
SKETCH = Path(__file__).with_name("sim_sketch.py")
_TRACKER = """
import json, sys
from tunefarm.tracker.options import TrackerOptions
from tunefarm.tracker.server import main_serve
main_serve(TrackerOptions(**json.loads(sys.argv[1])))
"""
_WORKER = """
import json, sys
from pathlib import Path
from tunefarm.compiler import version
path, targets, other = json.loads(sys.argv[1])
if other:
    version.compiler_version = lambda: other
from tunefarm.worker.main import WorkerOptions, run_worker
run_worker(WorkerOptions(rendezvous=Path(path), targets=tuple(targets)))
"""
_TUNER = """
import json, logging, runpy, sys
from pathlib import Path
from tunefarm.tuner.execute import run_tuner
from tunefarm.tuner.options import TunerOptions
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
path, sketch, options = json.loads(sys.argv[1])
runpy.run_path(sketch)
run_tuner(TunerOptions(rendezvous=Path(path), **options))
"""


@dataclass
class Farm:
    """Processes around one database; all are killed at the end."""

    folder: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)
    port: int = field(default_factory=own_port)

    @property
    def rendezvous(self) -> Path:
        return self.folder / "farm.db.tracker.json"

    def client(self) -> FarmClient:
        return FarmClient.from_rendezvous(self.rendezvous)

    def spawn(self, code: str, argument: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, json.dumps(argument)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        self.processes.append(process)
        return process

    def start_tracker(self) -> subprocess.Popen[str]:
        options = {
            "database": str(self.folder / "farm.db"),
            "port": self.port,
            "lease_term_s": 2.0,
            "claim_term_s": 2.0,
        }
        process = self.spawn(_TRACKER, options)
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("tracker listening on "), line + process.communicate()[1]
        return process

    def start_worker(self, target: str = TARGET, version: str = "") -> subprocess.Popen[str]:
        """A worker of this compiler, or of one that says it has another version."""
        return self.spawn(_WORKER, [str(self.rendezvous), [target], version])

    def start_tuner(self, **options: object) -> subprocess.Popen[str]:
        return self.spawn(
            _TUNER, [str(self.rendezvous), str(SKETCH), {"once": True, "threads": 1, **options}]
        )

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    running = Farm(tmp_path)
    running.start_tracker()
    yield running
    running.close()


def workload(*shape: int) -> WorkloadRecord:
    x = Var("x", TensorType(shape, "float32"))
    function = Function((x,), call("relu", x), {"primitive": True, "constants": ()})
    made = Workload.from_function(function)
    return WorkloadRecord(made.key, made.text, made.summary, made.flops)


def new_job(
    trials: int, shapes: Sequence[tuple[int, ...]] = ((8, 8), (16, 4)), **options: str
) -> Job:
    tasks = tuple(JobTask(workload(*shape), weight) for weight, shape in enumerate(shapes, 1))
    return Job("", Target(options.pop("target", TARGET)).text, tasks, Budget(trials), options)


def trials_of(client: FarmClient, job: Job) -> list[Trial]:
    return list(client.collect(job.id, limit=100_000).trials)


def true_s(trial: Trial, text: str) -> float:
    return sim_time_s(text, Target(trial.task.target), trial.config)


def finish(process: subprocess.Popen[str], seconds: float = 120.0) -> str:
    _, errors = process.communicate(timeout=seconds)
    assert process.returncode == 0, errors
    return errors


def assert_complete(trials: Sequence[Trial], job: Job) -> None:
    """Every number once, from trial 0 on, and no config twice but in finals."""
    for task in job.tasks:
        mine = [t for t in trials if t.task.workload == task.workload.key]
        assert sorted(t.number for t in mine) == list(range(len(mine)))
        assert mine[0].number == 0
        configs = Counter(canonical(t.config) for t in mine if t.origin != "final")
        assert max(configs.values()) == 1


def canonical(config: Config) -> str:
    return json.dumps(dict(config), sort_keys=True)


def test_a_tracker_that_is_away_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(execute, "_PAUSE_S", 0.0)
    stopped, asked = threading.Event(), 0

    class Away:
        def info(self) -> FarmInfo:
            nonlocal asked
            asked += 1
            if asked == 3:
                stopped.set()
            raise TrackerUnavailable("no tracker answers")

    client: Any = Away()
    execute._greet(client, TunerOptions(tracker="lab:1"), stopped, Pulse(stopped))
    assert asked == 3
    assert [record.message for record in caplog.records] == ["no tracker answers; trying again"]


def test_a_job_runs_to_its_end_and_promotes_the_best(farm: Farm) -> None:
    farm.start_worker()
    with farm.client() as client:
        job = client.submit_job(new_job(80))
        finish(farm.start_tuner())
        assert client.job(job.id).state is JobState.SUCCEEDED
        trials = trials_of(client, job)
        assert_complete(trials, job)
        candidates = [t for t in trials if t.origin != "final"]
        assert len(candidates) == 80
        assert {t.origin for t in candidates} == {"default", "model", "droplet", "random", "hint"}
        assert any(not t.ok for t in candidates)  # a tenth of the configs fails here
        for task in job.tasks:
            mine = [t for t in candidates if t.task.workload == task.workload.key]
            assert len(mine) >= 16
            key = BestKey(task.workload.key, job.target, "simulated")
            best = client.best([key])[key][0].best
            assert best.promoted
            assert best.final_s == pytest.approx(true_s(best.trial, task.workload.text), rel=0.05)
            text = task.workload.text
            assert true_s(best.trial, text) < 0.75 * true_s(mine[0], text)
            assert true_s(best.trial, text) <= 1.01 * min(true_s(t, text) for t in mine if t.ok)
        assert all(lease.client == "" for lease in client.leases())


def test_a_default_that_alone_was_tried_is_not_promoted(farm: Farm) -> None:
    farm.start_worker()
    with farm.client() as client:
        for trials, promoted in ((1, False), (16, True)):
            job = client.submit_job(new_job(trials, [(8, 8)]))
            finish(farm.start_tuner())
            assert client.job(job.id).state is JobState.SUCCEEDED
            key = BestKey(job.tasks[0].workload.key, job.target, "simulated")
            assert client.best([key])[key][0].best.promoted == promoted


def test_a_killed_tuner_is_followed_by_another(farm: Farm) -> None:
    farm.start_worker("sim -failures=10 -trial-ms=20")
    with farm.client() as client:
        job = client.submit_job(new_job(90, target="sim -failures=10 -trial-ms=20"))
        for measured in (10, 40):
            tuner = farm.start_tuner()
            wait_for(lambda: len(trials_of(client, job)) >= measured)  # noqa: B023
            os.kill(tuner.pid, signal.SIGKILL)
            tuner.wait()
        before = len(trials_of(client, job))
        assert 40 <= before < 90
        finish(farm.start_tuner())
        trials = trials_of(client, job)
        assert_complete(trials, job)
        assert sum(t.origin != "final" for t in trials) == 90
        assert client.job(job.id).state is JobState.SUCCEEDED
        assert not client.pending(job.id)


def test_a_worker_and_a_tracker_may_die(farm: Farm) -> None:
    target = "sim -failures=0 -trial-ms=20"
    tracker, worker = farm.processes[0], farm.start_worker(target)
    with farm.client() as client:
        job = client.submit_job(new_job(60, target=target))
        tuner = farm.start_tuner()
        wait_for(lambda: len(trials_of(client, job)) >= 10)
        worker.kill()
        worker = farm.start_worker(target)
        wait_for(lambda: len(trials_of(client, job)) >= 25)
        tracker.kill()
        tracker.wait()
        farm.start_tracker()
    finish(tuner)
    with farm.client() as client:
        trials = trials_of(client, job)
        assert_complete(trials, job)
        assert sum(t.origin != "final" for t in trials) == 60
        assert client.job(job.id).state is JobState.SUCCEEDED


def test_a_tracker_may_come_back_on_another_port(farm: Farm) -> None:
    """While its tuner waits for a job, and again while it has one."""
    target = "sim -failures=0 -trial-ms=20"
    tracker, tuner = farm.processes[0], farm.start_tuner()
    farm.start_worker(target)
    assert tuner.stderr is not None
    assert any("of tracker 127.0.0.1" in line for line in iter(tuner.stderr.readline, ""))

    def move(client: FarmClient, tracker: subprocess.Popen[str]) -> subprocess.Popen[str]:
        tracker.kill()
        tracker.wait()
        farm.port = own_port()
        moved = farm.start_tracker()
        client.info()
        assert client.address == f"127.0.0.1:{farm.port}"
        return moved

    with farm.client() as client:
        client.info()
        tracker = move(client, tracker)
        job = client.submit_job(new_job(60, target=target))
        wait_for(lambda: len(trials_of(client, job)) >= 10)
        move(client, tracker)
        finish(tuner)
        assert client.job(job.id).state is JobState.SUCCEEDED
        assert client.job(job.id).claim_epoch == 1
        assert_complete(trials_of(client, job), job)


def test_a_job_keeps_its_lease_while_its_tracker_is_away_for_more_than_a_term(farm: Farm) -> None:
    target = "sim -failures=0 -trial-ms=20"
    farm.start_worker(target)
    with farm.client() as client:
        job = client.submit_job(new_job(60, target=target))
        tuner = farm.start_tuner()
        wait_for(lambda: len(trials_of(client, job)) >= 10)
        farm.processes[0].kill()
        farm.processes[0].wait()
        time.sleep(3.0)
        farm.start_tracker()
        finish(tuner)
        assert client.job(job.id).claim_epoch == 1
        assert len(client.lease_history(job=job.id)) == 1
        assert_complete(trials_of(client, job), job)


def test_sigterm_puts_the_job_back(farm: Farm) -> None:
    farm.start_worker("sim -trial-ms=50")
    with farm.client() as client:
        job = client.submit_job(new_job(500, target="sim -trial-ms=50"))
        tuner = farm.start_tuner()
        wait_for(lambda: len(trials_of(client, job)) >= 3)
        tuner.terminate()
        finish(tuner, 60)
        assert client.job(job.id).state is JobState.QUEUED
        assert not client.leases()


def test_a_cancelled_job_is_left(farm: Farm) -> None:
    farm.start_worker("sim -trial-ms=50")
    with farm.client() as client:
        job = client.submit_job(new_job(500, target="sim -trial-ms=50"))
        tuner = farm.start_tuner()
        wait_for(lambda: len(trials_of(client, job)) >= 3)
        client.cancel(job.id, "no longer wanted")
        finish(tuner, 60)
        assert client.job(job.id).state is JobState.CANCELLED


def test_earlier_trials_count_and_are_not_repeated(farm: Farm) -> None:
    farm.start_worker()
    with farm.client() as client:
        first = client.submit_job(new_job(50, [(8, 8)]))
        finish(farm.start_tuner())
        again = client.submit_job(new_job(50, [(8, 8)]))
        finish(farm.start_tuner())
        assert client.job(again.id).state is JobState.SUCCEEDED
        assert trials_of(client, again) == []
        more = client.submit_job(new_job(70, [(8, 8)]))
        finish(farm.start_tuner())
        known = [canonical(t.config) for t in trials_of(client, first) if t.origin != "final"]
        news = [t for t in trials_of(client, more) if t.origin != "final"]
        assert len(news) == 20
        assert not {canonical(t.config) for t in news if t.number} & set(known)


def test_a_job_never_mixes_compiler_versions(farm: Farm) -> None:
    target = "sim -failures=0 -trial-ms=20"
    worker = farm.start_worker(target, "1")
    with farm.client() as client:
        job = client.submit_job(new_job(40, target=target))
        tuner = farm.start_tuner()
        wait_for(lambda: len(trials_of(client, job)) >= 10)
        stop(worker)
        worker = farm.start_worker(target, "2")
        wait_for(lambda: {d.compiler_version for d in client.devices()} == {"2"})
        assert tuner.stderr is not None
        line = next(line for line in tuner.stderr if "waiting for a device" in line)
        assert "made by compiler 1, the devices online have compiler 2; start a worker of" in line
        stop(worker)
        farm.start_worker(target, "1")
        finish(tuner)
        trials = trials_of(client, job)
        assert_complete(trials, job)
        assert {t.compiler_version for t in trials} == {"1"}
        assert sum(t.origin != "final" for t in trials) == 40


def test_a_job_with_a_farm_of_its_own_ends_when_its_compiler_changes(farm: Farm) -> None:
    target = "sim -failures=0 -trial-ms=20"
    worker = farm.start_worker(target, "1")
    with farm.client() as client:
        job = client.submit_job(new_job(400, target=target, owned="1"))
        tuner = farm.start_tuner()
        wait_for(lambda: len(trials_of(client, job)) >= 10)
        stop(worker)
        farm.start_worker(target, "2")
        finish(tuner)
        over = client.job(job.id)
        assert over.state is JobState.FAILED
        sentence = "the compiler has changed: its trials are made by compiler 1, the devices online"
        assert over.message.startswith(sentence)


def test_what_another_compiler_made_is_measured_again_before_it_is_compared(farm: Farm) -> None:
    old = farm.start_worker(version="1")
    with farm.client() as client:
        first = client.submit_job(new_job(50, [(8, 8)]))
        finish(farm.start_tuner())
        known = [t for t in trials_of(client, first) if t.ok and t.origin != "final"]
        incumbent = max(known[1:], key=lambda t: t.median_s)
        promote_as(farm, incumbent, seconds=1e-12)  # as if compiler 1 had been that much better
        stop(old)
        farm.start_worker(version="2")
        again = client.submit_job(new_job(20, [(8, 8)]))
        finish(farm.start_tuner())
        trials = trials_of(client, again)
        assert {t.compiler_version for t in trials} == {"2"}
        candidates = [t for t in trials if t.origin != "final"]
        assert len(candidates) == 20  # the 50 of compiler 1 are not in this budget,
        hinted = {canonical(t.config) for t in candidates if t.origin == "hint"}
        assert hinted & {canonical(t.config) for t in known}  # but they warm the search up
        key = BestKey(first.tasks[0].workload.key, first.target, "simulated")
        winner = client.best([key])[key][0].best.trial
        assert (winner.job, winner.compiler_version) == (again.id, "2")
    with Store.open(str(farm.folder / "farm.db"), readonly=True) as store, store.reading() as read:
        final = read.execute(select(FINALS).where(FINALS.c.incumbent_id.is_not(None))).one()
    text = first.tasks[0].workload.text
    ratio = true_s(incumbent, text) / true_s(winner, text)
    assert final.promoted
    assert final.speedup == pytest.approx(ratio, rel=0.05)  # of times taken now, not of 1e-12 s


def stop(worker: subprocess.Popen[str]) -> None:
    worker.terminate()
    worker.wait(90)


def promote_as(farm: Farm, trial: Trial, seconds: float) -> None:
    """Make the trial the one promoted record of the farm, with this time."""
    with Store.open(str(farm.folder / "farm.db")) as store, store.writing() as connection:
        mine = (TRIALS.c.job == trial.job) & (TRIALS.c.number == trial.number)
        row = connection.execute(select(TRIALS.c.id).where(mine)).one()
        times = {"times_s": [seconds], "median_s": seconds}
        connection.execute(update(TRIALS).where(mine).values(times))
        promoted = {"trial_id": row.id, "median_s": seconds, "promoted": True}
        assert connection.execute(update(BEST).values(promoted)).rowcount == 1


def test_another_task_starts_from_what_similar_ones_taught(farm: Farm) -> None:
    farm.start_worker()
    with farm.client() as client:
        client.submit_job(new_job(60, [(8, 8)]))
        finish(farm.start_tuner())
        job = client.submit_job(new_job(12, [(8, 4)]))
        finish(farm.start_tuner())
        assert "hint" in {t.origin for t in trials_of(client, job)}


def test_tasks_that_always_fail_stop_early_with_the_cause(farm: Farm) -> None:
    farm.start_worker("sim -failures=0")
    with farm.client() as client:
        # Each dimension of 666 makes the test's sketch add the knob by which the device fails.
        shapes = [(666, 2), (4, 4)]
        job = new_job(200, shapes, target="sim -failures=0", first_trials="24")
        job = client.submit_job(job)
        finish(farm.start_tuner())
        done = client.job(job.id)
        assert done.state is JobState.SUCCEEDED
        assert done.message.startswith("1 of 2 tasks have no time: the first 1")
        assert "wrong answer: simulated wrong answer" in done.message
        failed = [t for t in trials_of(client, job) if not t.ok]
        assert 16 <= len(failed) <= 24
        doomed = client.submit_job(new_job(50, [(666, 2)], target="sim -failures=0"))
        finish(farm.start_tuner())
        assert client.job(doomed.id).state is JobState.FAILED


def test_a_wall_clock_budget_ends_the_job(farm: Farm) -> None:
    target = "sim -failures=0 -trial-ms=10"
    farm.start_worker(target)
    with farm.client() as client:
        made = new_job(100_000, target=target)
        job = client.submit_job(
            Job("", made.target, made.tasks, Budget(100_000, seconds=3.0), {"patience": "0"})
        )
        start = awake_s()
        finish(farm.start_tuner())
        assert awake_s() - start < 60
        assert client.job(job.id).state is JobState.SUCCEEDED
        assert any(t.origin == "final" for t in trials_of(client, job))


def test_what_the_job_says_wrong_fails_it_in_one_sentence(farm: Farm) -> None:
    farm.start_worker()
    with farm.client() as client:
        for options, sentence in (
            ({"strategy": "anneal"}, "no search strategy 'anneal'"),
            ({"patience": "long"}, "job option patience is 'long'; write a whole number"),
        ):
            job = client.submit_job(new_job(10, **options))
            finish(farm.start_tuner())
            done = client.job(job.id)
            assert done.state is JobState.FAILED
            assert done.message.startswith(sentence)
        broken = WorkloadRecord(hashlib.sha256(b"{").hexdigest(), "{", "broken")
        job = client.submit_job(Job("", TARGET, (JobTask(broken),), Budget(5)))
        finish(farm.start_tuner())
        assert client.job(job.id).message == "the workload is not JSON"


def test_without_a_tracker_it_says_so(tmp_path: Path) -> None:
    code = """
from tunefarm.proto.errors import TrackerUnavailable
from tunefarm.tuner.execute import run_tuner
from tunefarm.tuner.options import TunerOptions
try:
    run_tuner(TunerOptions(tracker="127.0.0.1:1", once=True))
except TrackerUnavailable as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == ("no tracker answers at 127.0.0.1:1; start one with `tunefarm tracker`\n")


def test_a_tuner_yields_a_device_that_is_drained_and_goes_on_with_another(farm: Farm) -> None:
    target = "sim -failures=0 -trial-ms=5"
    farm.spawn(_WORKER, [str(farm.rendezvous), [target, target], ""])
    with farm.client() as client:
        wait_for(lambda: len(client.devices()) == 2)
        job = client.submit_job(new_job(200, target=target))
        tuner = farm.start_tuner()
        wait_for(lambda: len(trials_of(client, job)) > 20)
        (lease,) = client.leases()
        client.cordon(lease.device, actor="anna", reason="new fans", drain=True)
        wait_for(lambda: [one.device for one in client.leases()] != [lease.device])
        finish(tuner)
        trials = trials_of(client, job)
        assert client.job(job.id).state is JobState.SUCCEEDED
        assert_complete(trials, job)
        assert {t.device for t in trials} == {d.id for d in client.devices()}
        (last, first) = client.lease_history(job=job.id)
        assert (first.id, first.ended_reason) == (lease.id, "released"), "it was given back"
        assert last.device != lease.device
        assert {d.id: d.cordon for d in client.devices()}[lease.device] == "drained"

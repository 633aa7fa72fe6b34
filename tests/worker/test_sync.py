"""A real worker process under a real tracker process: work comes, results go, nothing is lost."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tunefarm.db.records import Device, DeviceRequest, Lease, TaskKey, Trial, TrialRequest
from tunefarm.proto.awake import awake_s
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import LeaseLost

from tests.patience import LOOK_S, turns
from tests.ports import own_port

TERM_S = 3.0
DEADLINE_S = 30.0
WORKLOAD = hashlib.sha256(b"text").hexdigest()

TRACKER = """
import sys
from tunefarm.tracker.options import TrackerOptions
from tunefarm.tracker.server import main_serve
main_serve(TrackerOptions(sys.argv[1], port=int(sys.argv[2]), lease_term_s=float(sys.argv[3])))
"""
WORKER = """
import sys
from pathlib import Path
from tunefarm.worker.main import WorkerOptions, run_worker
run_worker(WorkerOptions(rendezvous=Path(sys.argv[1]), targets=tuple(sys.argv[2:]), name="w"))
"""


class Farm:
    """A tracker and a worker, each a process that tests may kill and start again."""

    def __init__(self, folder: Path, *targets: str) -> None:
        self.database = folder / "farm.db"
        self.rendezvous = folder / "farm.db.tracker.json"
        self.targets = targets
        self.port = own_port()
        self.tracker = self.start_tracker()
        self.worker = self.start_worker()

    def start_tracker(self) -> subprocess.Popen[bytes]:
        arguments = [str(self.database), str(self.port), str(TERM_S)]
        command = [sys.executable, "-c", TRACKER, *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        assert b"listening" in process.stdout.readline()
        return process

    def start_worker(self) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, "-c", WORKER, str(self.rendezvous), *self.targets]
        return subprocess.Popen(arguments)

    def client(self) -> FarmClient:
        return FarmClient.from_rendezvous(self.rendezvous)

    def close(self) -> None:
        for process in (self.worker, self.tracker):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def farm(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Farm]:
    made = Farm(tmp_path, *getattr(request, "param", ("sim -failures=0 -trial-ms=5",)))
    yield made
    made.close()


def acquire(client: FarmClient, target: str) -> Lease:
    lease = client.acquire(DeviceRequest(target), client="test", wait_s=DEADLINE_S)
    assert lease is not None
    return lease


def candidates(target: str, count: int, job: str = "job") -> list[TrialRequest]:
    key = TaskKey(WORKLOAD, target)
    return [TrialRequest(job, key, n, {"tile": n}, "text") for n in range(count)]


def collect(client: FarmClient, count: int, job: str = "job") -> list[Trial]:
    trials: list[Trial] = []
    cursor = 0
    for _ in turns(f"{count} trials"):
        if len(trials) >= count:
            break
        found = client.collect(job, cursor, wait_s=1.0)
        trials += found.trials
        cursor = found.cursor
    return trials


def numbers(trials: Sequence[Trial]) -> list[int]:
    return sorted(t.number for t in trials)


def test_candidates_come_back_as_trials(farm: Farm) -> None:
    target = farm.targets[0]
    with farm.client() as client:
        lease = acquire(client, target)
        with client.keep_lease(lease):
            client.submit(lease, candidates(target, 40))
            trials = collect(client, 40)
    assert numbers(trials) == list(range(40))
    assert all(t.ok and t.device == lease.device and t.compiler_version for t in trials)


def test_the_tracker_may_be_killed(farm: Farm) -> None:
    target = farm.targets[0]
    with farm.client() as client:
        lease = acquire(client, target)
        with client.keep_lease(lease):
            client.submit(lease, candidates(target, 100))
            assert collect(client, 10)
            farm.tracker.kill()
            farm.tracker.wait()
            farm.tracker = farm.start_tracker()
            trials = collect(client, 100)
    assert numbers(trials) == list(range(100))


def test_the_worker_may_be_killed(farm: Farm) -> None:
    target = farm.targets[0]
    with farm.client() as client:
        lease = acquire(client, target)
        with client.keep_lease(lease):
            client.submit(lease, candidates(target, 100))
            assert collect(client, 10)
            farm.worker.kill()
            farm.worker.wait()
            farm.worker = farm.start_worker()
            trials = collect(client, 100)
    assert numbers(trials) == list(range(100))


def test_a_released_lease_stops_the_kernel_at_once(farm: Farm) -> None:
    target = farm.targets[0]
    with farm.client() as client:
        first = acquire(client, target)
        client.submit(first, [endless(target)])
        time.sleep(0.3)
        client.release(first)
        second = acquire(client, target)
        assert second.epoch > first.epoch
        start = awake_s()
        with client.keep_lease(second):
            client.submit(second, candidates(target, 5, "other"))
            assert numbers(collect(client, 5, "other")) == list(range(5))
        assert awake_s() - start < 3 * TERM_S
        assert client.collect("job").trials == ()


def endless(target: str) -> TrialRequest:
    return TrialRequest("job", TaskKey(WORKLOAD, target), 0, {"busy-ms": 10**9}, "text")


def test_a_signal_ends_the_worker_while_it_measures(farm: Farm) -> None:
    target = farm.targets[0]
    with farm.client() as client:
        client.submit(acquire(client, target), [endless(target)])
        time.sleep(0.3)
        farm.worker.send_signal(signal.SIGTERM)
        assert farm.worker.wait(60) == 0


@pytest.mark.parametrize("farm", [("sim -failures=0", "sim -failures=0 -seed=1")], indirect=True)
def test_one_worker_serves_several_devices(farm: Farm) -> None:
    with farm.client() as client:
        leases = [acquire(client, target) for target in farm.targets]
        assert leases[0].device != leases[1].device
        with client.keep_lease(leases[0]), client.keep_lease(leases[1]):
            for number, (lease, target) in enumerate(zip(leases, farm.targets, strict=True)):
                client.submit(lease, candidates(target, 10, f"job{number}"))
            first, second = collect(client, 10, "job0"), collect(client, 10, "job1")
    assert numbers(first) == numbers(second) == list(range(10))
    assert {t.device for t in first} == {leases[0].device}


def test_a_frozen_worker_changes_nothing_when_it_wakes(farm: Farm) -> None:
    target = farm.targets[0]
    with farm.client() as client:
        lease = acquire(client, target)
        with client.keep_lease(lease):
            client.submit(lease, candidates(target, 200))
            assert collect(client, 5)
        os.kill(farm.worker.pid, signal.SIGSTOP)
        time.sleep(TERM_S + 1)  # neither the worker nor the lease is renewed
        before = len(client.collect("job").trials)
        os.kill(farm.worker.pid, signal.SIGCONT)
        with client.keep_lease(acquire(client, target)) as again:
            client.submit(again.latest, candidates(target, 5, "other"))
            assert numbers(collect(client, 5, "other")) == list(range(5))
        assert len(client.collect("job").trials) == before


def until(client: FarmClient, wanted: Callable[[Device], bool]) -> Device:
    """The farm's only device as soon as it is as wanted."""
    for _ in turns(lambda: f"a device, and found {client.devices()}"):
        found = client.devices()
        if found and wanted(found[0]):
            return found[0]
        time.sleep(LOOK_S)
    raise AssertionError  # turns() ends by raising


@pytest.fixture
def trouble(tmp_path: Path) -> Path:
    """A file whose text is the device's trouble."""
    return tmp_path / "trouble"


@pytest.fixture
def ailing(tmp_path: Path, trouble: Path) -> Iterator[Farm]:
    made = Farm(tmp_path, f"sim -failures=0 -trial-ms=20 -trouble={trouble}")
    yield made
    made.close()


def test_a_device_in_trouble_loses_its_lease_and_nothing_else(ailing: Farm, trouble: Path) -> None:
    target = ailing.targets[0]
    with ailing.client() as client:
        lease = acquire(client, target)
        with client.keep_lease(lease):
            client.submit(lease, candidates(target, 120))
            assert collect(client, 5)
        trouble.write_text("its reference loop takes 1.50 times as long")
        ill = until(client, lambda d: d.cordon == "quarantined")
        assert ill.cordon_reason == "its reference loop takes 1.50 times as long"
        with pytest.raises(LeaseLost, match="quarantined: its reference loop"):
            client.renew(lease)
        before = len(client.collect("job").trials)
        assert before < 120
        wanted = DeviceRequest(target)
        assert client.acquire(wanted, client="test", wait_s=0.5) is None
        assert len(client.collect("job").trials) == before
        trouble.write_text("")
        with client.keep_lease(acquire(client, target)) as again:
            client.submit(again.latest, candidates(target, 120))
            assert numbers(collect(client, 120)) == list(range(120))


def test_a_check_is_done_once_and_may_find_the_device_well(ailing: Farm, trouble: Path) -> None:
    with ailing.client() as client:
        until(client, lambda d: d.state == "idle" and d.health.checked_at > 0)
        asked = client.check_devices("sim-", actor="anna")
        (number,) = asked.values()
        first = until(client, lambda d: d.health.check == number).health.checked_at
        trouble.write_text("a wrong answer")
        client.check_devices("sim-", actor="anna", lift=True, reason="try it")
        ill = until(client, lambda d: d.cordon == "quarantined" and d.health.check == number + 1)
        assert ill.health.checked_at > first
        trouble.unlink()
        client.check_devices("sim-", actor="anna")
        until(client, lambda d: not d.cordon and d.health.check == number + 2)
        what = [event.action for event in client.audit()]
        assert what == ["check", "lift", "check"]

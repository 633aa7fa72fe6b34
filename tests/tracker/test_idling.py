"""Idle devices tune what builds missed, and yield to whoever waits."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tunefarm.db.records import (
    IDLE,
    DeviceRequest,
    Job,
    JobState,
    Miss,
    Role,
    Token,
    WorkloadRecord,
)
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import InvalidRequest
from tunefarm.proto.tokens import digest_of, new_secret

from tests.patience import wait_for


def workload(text: str) -> WorkloadRecord:
    return WorkloadRecord(hashlib.sha256(text.encode()).hexdigest(), text, f"op {text}", 64)


def miss(text: str, gain_s: float, target: str = "sim", weight: int = 1) -> Miss:
    return Miss(workload(text), target, weight, default_s=2.0 + gain_s, roofline_s=2.0)


@pytest.fixture
def idle_farm(tracker, start_worker, tmp_path: Path) -> Iterator[FarmClient]:
    """A client of a tracker that lets devices work when they were idle for 0.2 s; device d1."""
    tracker.kill()
    tracker.options = {"idle_trials": 4, "idle_after_s": 0.2}
    tracker.start()
    start_worker(tracker)
    with tracker.client() as client:
        wait_for(client.devices)
        yield client


def made(farm: FarmClient) -> list[Job]:
    return [job for job in farm.jobs() if IDLE in job.options]


def test_the_most_valuable_misses_of_a_target_are_tuned(idle_farm: FarmClient) -> None:
    many = [miss(f"m{n}", 0.001 * n) for n in range(20)]
    foreign = miss("other", 9.0, target="sim -seed=7")
    idle_farm.report_misses([*many, foreign, miss("heavy", 0.01, weight=50)])
    wait_for(lambda: made(idle_farm))
    (job,) = made(idle_farm)
    assert [t.workload.text for t in job.tasks] == ["heavy", *(f"m{n}" for n in range(19, 12, -1))]
    assert (job.target, job.budget.trials, job.tasks[0].weight) == ("sim", 32, 50)
    assert job.state is JobState.QUEUED
    told = idle_farm.misses(3)
    assert [(m.workload.summary, m.job) for m in told] == [
        ("op other", ""),
        ("op heavy", job.id),
        ("op m19", job.id),
    ]
    idle_farm.cancel(job.id)
    wait_for(lambda: len(made(idle_farm)) == 2)
    assert [t.workload.text for t in made(idle_farm)[0].tasks] == [
        f"m{n}" for n in range(12, 4, -1)
    ]


def test_a_scope_holds_for_what_is_reported(
    idle_farm: FarmClient, tracker: Any, start_worker: Callable[..., Any]
) -> None:
    """Devices that the reporter may not lease are not used for it, whatever selector it names."""
    secret = new_secret()
    narrow = Token(digest_of(secret), "anna", Role.CLIENT, devices="name=d2")
    idle_farm.create_token(narrow, actor="root@lab")
    with tracker.client(secret) as anna:
        anna.report_misses([miss("narrow", 1.0), replace(miss("odd", 0.5), selector="name=d1")])
    idle_farm.report_misses([miss("wide", 0.1)])
    wait_for(lambda: made(idle_farm))
    (job,) = made(idle_farm)
    assert (job.selector, [t.workload.text for t in job.tasks]) == ("", ["wide"])
    idle_farm.cancel(job.id)
    start_worker(tracker, "d2")
    wait_for(lambda: len(made(idle_farm)) == 2)
    job = made(idle_farm)[0]
    assert (job.selector, [t.workload.text for t in job.tasks]) == ("name=d2", ["narrow"])
    with pytest.raises(InvalidRequest, match="is no condition"):
        idle_farm.report_misses([replace(miss("bad", 1.0), selector="name")])


def test_a_job_that_waits_for_a_tuner_is_served_first(
    idle_farm: FarmClient, new_job: Callable[..., Job]
) -> None:
    idle_farm.report_misses([miss("a", 1.0)])
    idle = idle_farm.claim_job(tuner="t", wait_s=60)
    assert idle is not None
    assert IDLE in idle.options
    assert idle_farm.renew_job(idle).recall == ""
    real = idle_farm.submit_job(new_job(priority=-5))
    wait_for(lambda: idle_farm.renew_job(idle).recall)
    assert idle_farm.renew_job(idle).recall == f"job {real.id[:8]} waits for a tuner"
    idle_farm.release_job(idle)
    claimed = idle_farm.claim_job(tuner="t", wait_s=60)
    assert claimed is not None
    assert claimed.id == real.id
    idle_farm.finish_job(claimed, JobState.SUCCEEDED)
    again = idle_farm.claim_job(tuner="t", wait_s=60)
    assert again is not None
    assert again.id == idle.id


def test_whoever_waits_for_its_device_gets_it(idle_farm: FarmClient) -> None:
    idle_farm.report_misses([miss("a", 1.0)])
    idle = idle_farm.claim_job(tuner="t", wait_s=60)
    assert idle is not None
    lease = idle_farm.acquire(DeviceRequest("sim", priority=idle.priority), client="t", job=idle)
    assert lease is not None
    request_id = "closing"

    def ask(wait_s: float) -> object:
        wanted = DeviceRequest("sim")
        return idle_farm.acquire(wanted, client="anna", request_id=request_id, wait_s=wait_s)

    assert ask(0.5) is None
    wait_for(lambda: ask(0.2) or idle_farm.renew_job(idle).recall)
    assert idle_farm.renew_job(idle).recall == f"anna waits for device {lease.device}"
    assert idle_farm.claim_job(tuner="u", wait_s=0.2) is None
    idle_farm.release_job(idle)
    granted = idle_farm.acquire(
        DeviceRequest("sim"), client="anna", request_id=request_id, wait_s=30
    )
    assert granted is not None
    assert granted.device == lease.device


def test_devices_are_left_alone_where_the_tracker_says_so(
    farm: FarmClient, shared_tracker, start_worker
) -> None:
    start_worker(shared_tracker, "d9")
    wait_for(farm.devices)
    farm.report_misses([miss("a", 1.0)])
    time.sleep(1.5)
    assert made(farm) == []
    assert [m.workload.summary for m in farm.misses()] == ["op a"]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (Miss(WorkloadRecord("0" * 64, "text"), "sim"), "is not the SHA-256 of the text"),
        (miss("a", 1.0, target=""), "lacks its text, its target or its weight"),
        (miss("a", 1.0, weight=0), "lacks its text, its target or its weight"),
        (miss("a", -9.0), "takes less than no time"),
        (Miss(WorkloadRecord("0" * 64, ""), "sim"), "lacks its text, its target or its weight"),
    ],
)
def test_a_report_that_makes_no_sense_is_refused(
    farm: FarmClient, wrong: Miss, sentence: str
) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        farm.report_misses([wrong])

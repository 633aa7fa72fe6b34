"""What operators do to a running farm: selection, cordons, drains, revocations, the record."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tunefarm.db.records import Device, DeviceRequest, Job, JobState, Lease, TrialRequest
from tunefarm.proto.awake import awake_s
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import InvalidRequest, LeaseLost, NotFound

from tests.patience import wait_for

StartWorker = Callable[..., Any]
NewJob = Callable[..., Job]
Candidates = Callable[[str, range], list[TrialRequest]]
DATABASES = ("sqlite", "postgresql")
TERM_S = 6.0
OPTIONS = {"lease_term_s": TERM_S, "claim_term_s": TERM_S}


def selecting(selector: str, priority: int = 0) -> DeviceRequest:
    return DeviceRequest("sim", selector=selector, priority=priority)


def acquire(farm: FarmClient, name: str, wait_s: float = 20.0, **how: Any) -> Lease | None:
    return farm.acquire(selecting(f"name={name}"), client="c", wait_s=wait_s, **how)


def leased(farm: FarmClient, name: str, **how: Any) -> Lease:
    lease = acquire(farm, name, **how)
    assert lease is not None
    return lease


def claimed(farm: FarmClient, job: Job) -> Job:
    farm.submit_job(job)
    found = farm.claim_job(tuner="t", job=job.id)
    assert found is not None
    return found


def state_of(farm: FarmClient, device: str) -> Device:
    return {d.id: d for d in farm.devices()}[device]


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """A device name of the test's own."""
    return f"{request.node.name}-device"


@pytest.fixture
def worker(farm: FarmClient, shared_tracker: Any, start_worker: StartWorker, device: str) -> Any:
    """A worker of the test's own device, which is known already."""
    worker = start_worker(shared_tracker, device, name=f"worker-of-{device}")
    wait_for(lambda: device in {d.id for d in farm.devices()})
    return worker


# --- selected devices ---------------------------------------------------------------------------


def test_a_lease_is_of_a_device_that_the_request_and_its_job_select(
    farm: FarmClient, shared_tracker: Any, start_worker: StartWorker, device: str, new_job: NewJob
) -> None:
    names = [f"{device}-{n}" for n in (8, 9, 10)]
    for name in names:
        start_worker(shared_tracker, name)
    wait_for(lambda: set(names) <= {d.id for d in farm.devices()})
    job = claimed(farm, new_job(selector=f"device>={device}-9 device!={device}-9"))
    assert job.selector == f"device>={device}-9 device!={device}-9"
    lease = farm.acquire(selecting(f"device={device}-*"), client="c", job=job, wait_s=60)
    assert lease is not None
    assert (lease.device, lease.job) == (f"{device}-10", job.id)
    other = farm.acquire(selecting(f"device={device}-9"), client="c", job=job, wait_s=0.2)
    assert other is None, "what the job does not select is not for it"


def test_what_is_no_selector_is_refused(farm: FarmClient, new_job: NewJob) -> None:
    for use in (
        lambda: farm.submit_job(new_job(selector="fast")),
        lambda: farm.acquire(selecting("fast"), client="c"),
    ):
        with pytest.raises(InvalidRequest, match="'fast' is no condition; a device is selected by"):
            use()


def test_a_job_that_nothing_satisfies_says_so_and_keeps_no_tuner_busy(
    farm: FarmClient, worker: Any, device: str, new_job: NewJob
) -> None:
    wanted = f"name={device} cores>=64"
    hopeless = farm.submit_job(new_job(selector=wanted, priority=9))
    assert hopeless.unmet.startswith("cores>=64 does not hold for any of the ")
    patient = farm.submit_job(new_job(priority=8))
    got = farm.claim_job(tuner="t")
    assert got is not None
    assert got.id == patient.id, "the more urgent one waits in the queue"
    assert {j.id: j.unmet for j in farm.jobs()}[hopeless.id] == hopeless.unmet
    assert farm.watch_once(hopeless.id).job.unmet == hopeless.unmet
    farm.finish_job(got, JobState.SUCCEEDED)
    answer: list[Job | None] = []
    waiting = threading.Thread(target=lambda: answer.append(farm.claim_job(tuner="t", wait_s=60)))
    waiting.start()
    able = replace(worker.device, attributes={**worker.device.attributes, "cores": "64"})
    worker.device = able
    waiting.join()
    assert [job.id if job else None for job in answer] == [hopeless.id]
    assert farm.job(hopeless.id).unmet == ""
    farm.cancel(hopeless.id)


# --- cordon and drain ---------------------------------------------------------------------------


def test_a_cordoned_device_gets_no_new_lease(farm: FarmClient, worker: Any, device: str) -> None:
    lease = leased(farm, device)
    cordon, devices, live = farm.cordon(device, actor="anna", reason="new fans")
    assert (cordon.scope, cordon.subject, cordon.drain) == ("device", device, False)
    assert [(d.id, d.cordon, d.cordon_reason) for d in devices] == [
        (device, "cordoned", "new fans, by anna")
    ]
    assert [one.id for one in live] == [lease.id]
    assert farm.renew(lease).recall == "", "its holder is left alone"
    farm.release(lease)
    assert acquire(farm, device, wait_s=0.6) is None
    (after,) = farm.uncordon(device, actor="ben")
    assert (after.cordon, after.state) == ("", "idle")
    assert leased(farm, device).epoch == lease.epoch + 1


def test_a_waiting_request_is_served_when_its_device_is_uncordoned(
    farm: FarmClient, worker: Any, device: str
) -> None:
    farm.cordon(worker.name, actor="anna", reason="")
    answer: list[Lease | None] = []
    waiting = threading.Thread(target=lambda: answer.append(acquire(farm, device, wait_s=60)))
    waiting.start()
    time.sleep(0.3)
    began = awake_s()
    farm.uncordon(worker.name, actor="anna")
    waiting.join()
    assert answer[0] is not None
    assert awake_s() - began < 30


def test_a_drain_asks_the_lease_back_and_then_takes_it(
    farm: FarmClient, worker: Any, device: str, new_job: NewJob, candidates: Candidates
) -> None:
    job = claimed(farm, new_job())
    lease = leased(farm, device, job=job)
    with farm.keep_lease(lease) as kept, farm.keep_job(job):
        farm.cordon(worker.name, actor="anna", reason="move", drain=True, revoke_after_s=4.0)
        assert state_of(farm, device).cordon == "draining"
        assert farm.renew(lease).recall == f"device {device} is being drained by anna: move"
        assert len(farm.submit(lease, candidates(job.id, range(3)))) == 0, "it is still his"
        assert kept.lost.wait(60)
        with pytest.raises(LeaseLost, match="has ended: revoked: drained by anna: move"):
            farm.submit(lease, candidates(job.id, range(3, 6)))
        assert state_of(farm, device).cordon == "drained"
        assert acquire(farm, device, wait_s=0.3, job=job) is None
        farm.uncordon(worker.name, actor="anna")
        assert leased(farm, device, job=job).epoch == lease.epoch + 1


def test_a_cordon_and_the_time_of_a_drain_outlive_the_tracker(
    tracker: Any, start_worker: StartWorker
) -> None:
    start_worker(tracker, "d1", name="host-1")
    with tracker.client() as farm:
        lease = leased(farm, "d1")
        farm.cordon("host-1", actor="anna", reason="move", drain=True, revoke_after_s=10.0)
        tracker.kill()
        tracker.start()
        with farm.keep_lease(lease) as kept:
            assert state_of(farm, "d1").cordon_reason == "move, by anna"
            assert farm.renew(lease).recall, "live leases get their time after a restart"
            assert kept.lost.wait(60)
        (ended,) = farm.lease_history()
        assert ended.ended_reason == "revoked: drained by anna: move"
        assert acquire(farm, "d1", wait_s=0.3) is None


# --- revocation and the record ------------------------------------------------------------------


def test_a_revoked_lease_can_write_nothing_and_its_trials_wait(
    farm: FarmClient, worker: Any, device: str, new_job: NewJob, candidates: Candidates
) -> None:
    job = claimed(farm, new_job())
    lease = leased(farm, device, job=job)
    worker.vanish()
    farm.submit(lease, candidates(job.id, range(4)))
    with pytest.raises(InvalidRequest, match="a lease is revoked for a reason"):
        farm.revoke(lease.id, actor="anna", reason="")
    ended = farm.revoke(lease.id[:8], actor="anna", reason="it hogs the device")
    sentence = "revoked by anna: it hogs the device"
    assert (ended.id, ended.ended_reason) == (lease.id, sentence)
    for use in (
        lambda: farm.renew(lease),
        lambda: farm.submit(lease, candidates(job.id, range(4, 8))),
    ):
        with pytest.raises(LeaseLost, match=f"has ended: {sentence}"):
            use()
    assert len(farm.pending(job.id)) == 4
    with pytest.raises(NotFound, match=f"has ended already: {sentence}"):
        farm.revoke(lease.id, actor="ben", reason="me too")


def test_who_held_what_and_who_did_what_is_kept(
    farm: FarmClient, worker: Any, device: str, new_job: NewJob
) -> None:
    job = claimed(farm, new_job())
    farm.release(leased(farm, device, job=job))
    second = leased(farm, device)
    farm.revoke(second.id, actor="anna", reason="mine")
    farm.cordon(device, actor="ben", reason="dust")
    farm.uncordon(device, actor="ben", reason="clean")
    newest, oldest = farm.lease_history(device=device)
    assert (newest.id, newest.job, newest.ended_reason) == (second.id, "", "revoked by anna: mine")
    assert (oldest.job, oldest.client, oldest.ended_reason) == (job.id, "c", "released")
    assert oldest.ended_at is not None
    assert oldest.granted_at <= oldest.ended_at <= newest.granted_at
    assert farm.lease_history(device=device, before=newest.granted_at) == (oldest,)
    assert [lease.id for lease in farm.lease_history(job=job.id)] == [oldest.id]
    assert [(e.action, e.actor, e.reason) for e in farm.audit(device)] == [
        ("uncordon", "ben", "clean"),
        ("cordon", "ben", "dust"),
    ]
    assert [e.subject for e in farm.audit(second.id)] == [f"lease {second.id}"]
    with pytest.raises(NotFound, match="there is no device or worker 'nowhere'"):
        farm.cordon("nowhere", actor="ben", reason="dust")
    with pytest.raises(InvalidRequest, match="says whose it is"):
        farm.cordon(device, actor="", reason="dust")
    with pytest.raises(InvalidRequest, match="write a drain's 0 or more"):
        farm.cordon(device, actor="ben", reason="dust", revoke_after_s=1.0)


# --- the queue ----------------------------------------------------------------------------------


def test_the_place_in_the_queue_outlives_the_tracker(
    tracker: Any, start_worker: StartWorker
) -> None:
    start_worker(tracker, "d1")
    with tracker.client() as farm:
        lease = leased(farm, "d1")
        tracker.kill()
        tracker.start()
        granted: list[str] = []

        def wait(name: str, waited_s: float) -> None:
            if acquire(farm, "d1", request_id=name, waited_s=waited_s, wait_s=60) is not None:
                granted.append(name)

        threads = [
            threading.Thread(target=wait, args=one) for one in (("young", 1.0), ("old", 60.0))
        ]
        for thread in threads:
            thread.start()
            time.sleep(0.3)
        farm.release(lease)
        wait_for(lambda: granted)
        assert granted == ["old"]
        for live in farm.leases():
            farm.release(live)
        for thread in threads:
            thread.join()
    assert granted == ["old", "young"]


def test_a_device_is_kept_for_the_oldest_while_it_calls_again(
    farm: FarmClient, worker: Any, device: str
) -> None:
    lease = leased(farm, device)
    assert acquire(farm, device, request_id=f"first {device}", wait_s=0.2) is None
    answer: list[Lease | None] = []
    waiting = threading.Thread(target=lambda: answer.append(acquire(farm, device, wait_s=60)))
    waiting.start()
    assert acquire(farm, device, request_id=f"first {device}", wait_s=0.4) is None
    farm.release(lease)
    first = acquire(farm, device, request_id=f"first {device}", wait_s=60)
    assert first is not None, "the younger one waited all the time, and yet did not get it"
    farm.release(first)
    waiting.join()
    assert answer[0] is not None


def test_a_tracker_that_stood_still_takes_no_lease_away(
    tracker: Any, start_worker: StartWorker
) -> None:
    tracker.kill()
    tracker.options = {"lease_term_s": 2.0, "claim_term_s": 2.0}
    tracker.start()
    start_worker(tracker, "d1")
    with tracker.client() as farm:
        lease = leased(farm, "d1")
        with farm.keep_lease(lease):
            pid = tracker.process.pid
            os.kill(pid, signal.SIGSTOP)
            time.sleep(5.0)
            os.kill(pid, signal.SIGCONT)
            assert farm.renew(lease).epoch == lease.epoch
        wait_for(lambda: state_of(farm, "d1").state == "leased")

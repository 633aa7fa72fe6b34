"""One tracker process, its clients and simulated workers."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tunefarm.db.records import (
    BestKey,
    Device,
    DeviceRequest,
    ErrorKind,
    Final,
    Held,
    Job,
    JobState,
    Lease,
    Match,
    TrialKey,
    TrialRequest,
    Verdict,
    WorkerState,
)
from tunefarm.proto import farm_pb2
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import (
    ClaimLost,
    InvalidRequest,
    LeaseLost,
    NotFound,
    Superseded,
)

from tests.patience import collect_all, wait_for

StartWorker = Callable[..., Any]
NewJob = Callable[..., Job]
Candidates = Callable[[str, range], list[TrialRequest]]
SIM = DeviceRequest("sim")
TERM_S = 4.0
OPTIONS = {"lease_term_s": TERM_S, "claim_term_s": TERM_S}
DATABASES = ("sqlite", "postgresql")


def claimed(farm: FarmClient, job: Job) -> Job:
    farm.submit_job(job)
    found = farm.claim_job(tuner="t", job=job.id)
    assert found is not None
    return found


def on_device(device: str, priority: int = 0) -> DeviceRequest:
    """A request that only this test's device serves."""
    return DeviceRequest("sim", attributes={"name": device}, priority=priority)


def leased(farm: FarmClient, device: str, job: Job | None = None, wait_s: float = 60.0) -> Lease:
    lease = farm.acquire(on_device(device), client="c", job=job, wait_s=wait_s)
    assert lease is not None
    return lease


def leased_of(
    farm: FarmClient, state: WorkerState, job: Job | None = None
) -> tuple[Lease, WorkerState]:
    """A lease of the only device of a worker, and its last Sync: it says that it lives meanwhile,
    since a term passes quickly on a loaded machine."""
    (device,) = state.devices
    for _ in range(60):
        farm.sync(state, 0)
        lease = farm.acquire(
            on_device(device.id), client="c", job=job, request_id=f"r of {device.id}", wait_s=0.5
        )
        if lease is not None:
            return lease, state
        state = replace(state, number=state.number + 1)
    raise AssertionError("the device was never granted")


@pytest.fixture
def device(request: pytest.FixtureRequest) -> str:
    """A device name of the test's own."""
    return f"device of {request.node.name}"


@pytest.fixture
def worker(shared_tracker: Any, start_worker: StartWorker, device: str) -> Any:
    """A worker of the test's own device."""
    return start_worker(shared_tracker, device)


# --- a job from end to end ----------------------------------------------------------------------


def test_a_job_from_end_to_end(
    farm: FarmClient, worker: Any, device: str, new_job: NewJob, candidates: Candidates
) -> None:
    job = claimed(farm, new_job())
    lease = leased(farm, device, job)
    with farm.keep_lease(lease), farm.keep_job(job):
        assert farm.submit(lease, candidates(job.id, range(40))) == ()
        assert sorted(collect_all(farm, job.id, 40)) == list(range(40))
        assert len(farm.submit(lease, candidates(job.id, range(40)))) == 40
        update = farm.watch_once(job.id)
        (progress,) = update.progress
        assert (progress.ok, progress.failed, progress.pending, progress.weight) == (40, 0, 0, 2)
        assert (progress.best_s, progress.default_s) == (1e-3 / 40, 1e-3)
        assert farm.task_stats([progress.task])[progress.task].ok >= 40
    done = farm.finish_job(job, JobState.SUCCEEDED, "all well")
    assert (done.state, done.message) == (JobState.SUCCEEDED, "all well")
    assert [u.job.state for u in farm.watch(job.id)] == [JobState.SUCCEEDED]
    with pytest.raises(LeaseLost, match="has ended: the job succeeded"):
        farm.renew(lease)


def test_records_are_looked_up_and_promoted(
    farm: FarmClient, worker: Any, device: str, new_job: NewJob, candidates: Candidates
) -> None:
    job = claimed(farm, new_job())
    requests = [
        replace(r, task=replace(r.task, target="sim -v=1")) for r in candidates(job.id, range(3))
    ]
    lease = leased(farm, device, job)
    with farm.keep_lease(lease), farm.keep_job(job):
        farm.submit(lease, requests)
        collect_all(farm, job.id, 3)
    task = requests[0].task
    key = BestKey(task.workload, task.target, "Sim 1")
    (found,) = farm.best([key])[key]
    assert (found.best.trial.number, found.match) == (2, Match.EXACT)
    assert found.best.speedup_over_default == pytest.approx(3)
    assert found.best.trial.device == device
    assert found.best.trial.origin == "random"
    final = Final(key, TrialKey(job.id, task, 1), None, Verdict.BETTER, 1.5, 2.0)
    promotion = farm.promote(final)
    assert promotion.promoted
    assert promotion.best is not None
    assert promotion.best.trial.number == 1
    assert not farm.promote(final).promoted, "the key is no longer empty"
    with pytest.raises(NotFound, match="trial 9 of task"):
        farm.promote(replace(final, challenger=TrialKey(job.id, task, 9)))
    page = farm.history("sim -v=1", limit=2)
    assert [t.number for t in page.trials] == [2, 1]
    assert page.more
    assert list(page.workloads.values()) == ["gemm 64"]


# --- leases -------------------------------------------------------------------------------------


def test_the_second_client_waits_for_the_first(farm: FarmClient, worker: Any, device: str) -> None:
    first = leased(farm, device)
    assert farm.acquire(on_device(device), client="b", wait_s=0.1) is None
    answer: list[Lease | None] = []
    second = threading.Thread(
        target=lambda: answer.append(farm.acquire(on_device(device), client="b", wait_s=60))
    )
    second.start()
    time.sleep(0.1)
    farm.release(first)
    farm.release(first)
    second.join()
    assert answer[0] is not None
    assert answer[0].epoch == first.epoch + 1
    with pytest.raises(LeaseLost, match="has ended: released"):
        farm.renew(first)


def test_a_repeated_acquire_gets_the_same_lease(farm: FarmClient, worker: Any, device: str) -> None:
    request = on_device(device)
    first = farm.acquire(request, client="c", request_id="r-same", wait_s=60)
    second = farm.acquire(request, client="c", request_id="r-same", wait_s=60)
    assert first is not None
    assert second is not None
    assert (first.id, first.epoch) == (second.id, second.epoch)


def test_a_request_whose_lease_has_ended_is_a_new_one(
    farm: FarmClient, worker: Any, device: str
) -> None:
    """Its client may never have heard of the lease: the answers were lost on their way."""
    request = on_device(device)
    first = farm.acquire(request, client="c", request_id="r-unheard", wait_s=60)
    assert first is not None
    farm.release(first)
    second = farm.acquire(request, client="c", request_id="r-unheard", wait_s=60)
    assert second is not None
    assert second.epoch == first.epoch + 1
    ended = next(one for one in farm.lease_history() if one.id == first.id)
    assert ended.ended_reason == "released"


def test_a_lease_lives_while_it_is_renewed_and_ends_after(
    farm: FarmClient, worker: Any, device: str, candidates: Candidates
) -> None:
    lease = leased(farm, device)
    with farm.keep_lease(lease) as kept:
        time.sleep(2 * TERM_S)
        assert kept.check().epoch == lease.epoch
    wait_for(lambda: lease.id not in {live.id for live in farm.leases()})
    for use in (
        lambda: farm.renew(lease),
        lambda: farm.submit(lease, candidates("any", range(1))),
    ):
        with pytest.raises(LeaseLost, match="has ended: expired"):
            use()


def test_a_silent_workers_device_is_lost_and_comes_back(
    farm: FarmClient,
    shared_tracker: Any,
    start_worker: StartWorker,
    device: str,
    new_job: NewJob,
    candidates: Candidates,
) -> None:
    job = claimed(farm, new_job())
    with farm.keep_job(job):
        first = start_worker(shared_tracker, device, poison=frozenset([3]))
        lease = leased(farm, device, job)
        with farm.keep_lease(lease) as kept:
            farm.submit(lease, candidates(job.id, range(6)))
            assert kept.lost.wait(60)
        with pytest.raises(LeaseLost, match="has ended: device_lost"):
            kept.check()
        assert {d.id: d.state for d in farm.devices()}[device] == "offline"
        assert first.vanished.is_set()
        start_worker(shared_tracker, device)
        with farm.keep_lease(leased(farm, device, job)):
            assert sorted(collect_all(farm, job.id, 6)) == list(range(6))


def test_a_job_keeps_to_the_compiler_version_of_its_first_device(
    shared_tracker: Any,
    farm: FarmClient,
    start_worker: StartWorker,
    device: str,
    new_job: NewJob,
) -> None:
    worker = start_worker(shared_tracker, device, version="1")
    job = claimed(farm, new_job())
    with farm.keep_job(job):
        assert farm.job(job.id).compiler_version == ""
        lease = leased(farm, device, job)
        assert farm.job(job.id).compiler_version == "1"
        farm.release(lease)
        worker.vanish()
        start_worker(shared_tracker, device, version="2")
        wait_for(lambda: [d for d in farm.devices() if (d.id, d.compiler_version) == (device, "2")])
        assert farm.acquire(on_device(device), client="c", job=job, wait_s=0.6) is None
        farm.release(leased(farm, device, claimed(farm, new_job())))
        start_worker(shared_tracker, device, version="1")
        wait_for(lambda: [d for d in farm.devices() if (d.id, d.compiler_version) == (device, "1")])
        assert leased(farm, device, job).device == device


def test_a_worker_that_comes_back_with_another_compiler_ends_the_jobs_lease(
    shared_tracker: Any,
    farm: FarmClient,
    start_worker: StartWorker,
    device: str,
    new_job: NewJob,
    candidates: Candidates,
) -> None:
    first = start_worker(shared_tracker, device, version="1")
    job = claimed(farm, new_job())
    with farm.keep_job(job):
        lease = leased(farm, device, job)
        with farm.keep_lease(lease) as kept:
            first.vanish()
            farm.submit(lease, candidates(job.id, range(5)))
            second = start_worker(shared_tracker, device, version="2")
            assert kept.lost.wait(60)
        with pytest.raises(LeaseLost, match="came back with compiler 2, the job's trials are made"):
            farm.renew(lease)
        assert len(farm.pending(job.id)) == 5
        second.vanish()
        assert second.measured == []
        start_worker(shared_tracker, device, version="1")
        with farm.keep_lease(leased(farm, device, job)):
            assert sorted(collect_all(farm, job.id, 5)) == list(range(5))


def test_a_lease_of_a_claim_that_passed_is_refused(
    farm: FarmClient, worker: Any, device: str, new_job: NewJob
) -> None:
    job = claimed(farm, new_job())
    farm.release_job(job)
    with pytest.raises(ClaimLost, match="is queued, not running"):
        leased(farm, device, job)


# --- workers ------------------------------------------------------------------------------------


def test_a_restarted_worker_gets_the_same_work_at_once(
    farm: FarmClient,
    shared_tracker: Any,
    start_worker: StartWorker,
    device: str,
    new_job: NewJob,
    candidates: Candidates,
) -> None:
    job = claimed(farm, new_job())
    dying = start_worker(shared_tracker, device, poison=frozenset([2]))
    lease = leased(farm, device, job)
    with farm.keep_lease(lease), farm.keep_job(job):
        farm.submit(lease, candidates(job.id, range(5)))
        wait_for(dying.vanished.is_set)
        start_worker(shared_tracker, device)
        assert sorted(collect_all(farm, job.id, 5)) == list(range(5))
        assert farm.renew(lease).epoch == lease.epoch
    state = WorkerState(dying.name, dying.incarnation, 99, "0.1", (dying.device,))
    with pytest.raises(Superseded, match=r"a newer process of worker .* needs a --name"):
        farm.sync(state, 0)


def test_a_candidate_that_kills_its_worker_is_quarantined(
    farm: FarmClient,
    shared_tracker: Any,
    start_worker: StartWorker,
    device: str,
    new_job: NewJob,
    candidates: Candidates,
) -> None:
    job = claimed(farm, new_job())
    first = start_worker(shared_tracker, device, poison=frozenset([1]))
    lease = leased(farm, device, job)
    deaths = 0
    with farm.keep_lease(lease), farm.keep_job(job):
        farm.submit(lease, candidates(job.id, range(4)))
        last = first
        while farm.collect(job.id, wait_s=0.05).pending:
            if last.vanished.is_set():
                deaths += 1
                last = start_worker(shared_tracker, device, poison=frozenset([1]))
    assert deaths == 3
    trials = {trial.number: trial for trial in farm.collect(job.id).trials}
    assert sorted(trials) == [0, 1, 2, 3]
    assert [n for n, trial in trials.items() if trial.error] == [1]
    assert trials[1].error is ErrorKind.RUN_CRASH


def test_a_newer_sync_ends_the_pending_one_at_once(farm: FarmClient, device: str) -> None:
    """By itself it would end a third of the lease's term after it began. A busy machine may hold
    any one try up for longer."""
    offered = Device(device, "sim", "Sim 1", "sim", "")
    state = WorkerState("w of " + device, "i1", 0, "0.1", (offered,))

    def seconds() -> float:
        nonlocal state
        older = replace(state, number=state.number + 1)
        state = replace(state, number=state.number + 2)
        started = time.monotonic()
        pending = farm.start_sync(older, wait_s=10)
        time.sleep(0.1)
        newer = farm.start_sync(state, wait_s=0)
        assert newer.result().work == ()
        assert pending.result().work == ()
        assert farm.start_sync(older, wait_s=10).result().work == (), "an old number says nothing"
        return time.monotonic() - started

    assert any(seconds() < TERM_S / 3 for _ in range(5))


def test_a_worker_that_leaves_gives_its_work_back_unblamed(
    farm: FarmClient, device: str, candidates: Candidates
) -> None:
    offered = Device(device, "sim", "Sim 1", "sim", "", {"name": device})
    state = WorkerState("w of " + device, "i1", 1, "0.1", (offered,))
    lease, state = leased_of(farm, state)
    farm.submit(lease, candidates("job of " + device, range(3)))
    number = state.number
    assert len(farm.sync(replace(state, number=number + 1), 1.0).work) == 3
    assert farm.sync(replace(state, number=number + 2, capacity=0), 0).work == ()
    assert {d.id: d.state for d in farm.devices()}[device] == "offline"
    again = farm.sync(replace(state, incarnation="i2"), 1.0)
    assert len(again.work) == 3, "they are no suspects, which would come one at a time"


def test_two_live_workers_cannot_offer_one_device(
    farm: FarmClient, worker: Any, device: str
) -> None:
    wait_for(lambda: {d.id: d.state for d in farm.devices()}.get(device) == "idle")
    thief = WorkerState("thief", "i1", 1, "0.1", (Device(device, "sim", "Sim 1", "sim", ""),))
    with pytest.raises(InvalidRequest, match=re.escape(f"{device} is served by worker")):
        farm.sync(thief, 0)


def test_cancelling_reaches_the_worker(
    farm: FarmClient, device: str, new_job: NewJob, candidates: Candidates
) -> None:
    offered = Device(device, "sim", "Sim 1", "sim", "", {"name": device})
    state = WorkerState("w of " + device, "i1", 1, "0.1", (offered,))
    job = claimed(farm, new_job())
    lease, state = leased_of(farm, state, job)
    farm.submit(lease, candidates(job.id, range(2)))
    number = state.number
    work = farm.sync(replace(state, number=number + 1), 1.0).work
    assert [w.request.number for w in work] == [0, 1]
    held = tuple(
        Held(TrialKey(w.request.job, w.request.task, w.request.number), w.lease, w.epoch)
        for w in work
    )
    assert farm.sync(replace(state, number=number + 2, held=held), 0).cancel == ()
    pending = farm.start_sync(replace(state, number=number + 3, held=held), 5.0)
    assert farm.cancel(job.id, "not needed").state is JobState.CANCELLED
    assert pending.result().cancel == held
    with pytest.raises(ClaimLost, match="is cancelled, not running: not needed"):
        farm.renew_job(job)


# --- jobs ---------------------------------------------------------------------------------------


def test_a_silent_tuners_job_is_claimed_again(farm: FarmClient, new_job: NewJob) -> None:
    first = claimed(farm, new_job())
    assert farm.claim_job(tuner="b", job=first.id, wait_s=0) is None
    second = farm.claim_job(tuner="b", job=first.id, wait_s=60)
    assert second is not None
    assert (second.claimed_by, second.claim_epoch) == ("b", first.claim_epoch + 1)
    uses: tuple[Callable[[], object], ...] = (
        lambda: farm.renew_job(first),
        lambda: farm.finish_job(first, JobState.SUCCEEDED),
        lambda: farm.release_job(first),
    )
    for use in uses:
        with pytest.raises(ClaimLost, match="is claimed by b"):
            use()
    farm.finish_job(second, JobState.FAILED, "no device")


def test_a_tuner_whose_claim_has_passed_promotes_nothing(
    farm: FarmClient, worker: Any, device: str, new_job: NewJob, candidates: Candidates
) -> None:
    job = claimed(farm, new_job())
    with farm.keep_job(job), farm.keep_lease(leased(farm, device, job)) as kept:
        farm.submit(kept.latest, candidates(job.id, range(2)))
        collect_all(farm, job.id, 2)
    task = candidates(job.id, range(1))[0].task
    key = BestKey(task.workload, task.target, f"model of {device}")
    final = Final(key, TrialKey(job.id, task, 1), None, Verdict.BETTER, 1.5, 2.0)
    farm.release_job(job)
    again = farm.claim_job(tuner="b", job=job.id)
    with pytest.raises(ClaimLost, match="is claimed by b"):
        farm.promote(final, job)
    assert farm.promote(final, again).promoted
    farm.cancel(job.id)


def test_a_waiting_tuner_hears_of_a_new_job(farm: FarmClient, new_job: NewJob) -> None:
    name = new_job().id
    farm.submit_job(new_job(name))
    held = farm.claim_job(tuner="a", job=name)
    assert held is not None
    answer: list[Job | None] = []
    waiting = threading.Thread(
        target=lambda: answer.append(farm.claim_job(tuner="b", job=name, wait_s=60))
    )
    waiting.start()
    farm.release_job(held)
    waiting.join()
    assert answer[0] is not None
    farm.cancel(name)


def test_watching_sees_each_change(farm: FarmClient, new_job: NewJob) -> None:
    job = farm.submit_job(new_job())
    seen: list[JobState] = []
    watching = threading.Thread(
        target=lambda: seen.extend(u.job.state for u in farm.watch(job.id, wait_s=10))
    )
    watching.start()
    wait_for(lambda: seen)
    running = farm.claim_job(tuner="t", job=job.id)
    assert running is not None
    wait_for(lambda: len(seen) == 2)
    farm.finish_job(running, JobState.SUCCEEDED)
    watching.join(60)
    assert seen == [JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED]


def test_jobs_are_listed_newest_first(farm: FarmClient, new_job: NewJob) -> None:
    names = [farm.submit_job(new_job()).id for _ in range(3)]
    assert [job.id for job in farm.jobs(limit=3)] == names[::-1]
    assert farm.submit_job(new_job(names[0])) == farm.job(names[0])
    for name in names:
        farm.cancel(name)
    assert not {job.id for job in farm.jobs([JobState.QUEUED])} & {*names}


# --- refusals -----------------------------------------------------------------------------------


def test_requests_that_make_no_sense_are_refused(farm: FarmClient, new_job: NewJob) -> None:
    for use, sentence in (
        (lambda: farm.submit_job(replace(new_job(), tasks=())), "has no tasks"),
        (lambda: farm.acquire(DeviceRequest(""), client="c"), "and a target"),
        (lambda: farm.sync(WorkerState("", "", 1, "", ()), 0), "names its worker"),
        (
            lambda: farm.finish_job(new_job("x"), JobState.QUEUED),
            "finishes as succeeded or failed, not as queued",
        ),
    ):
        with pytest.raises(InvalidRequest, match=sentence):
            use()
    for lost in (lambda: farm.job("none"), lambda: farm.watch_once("none")):
        with pytest.raises(NotFound, match="there is no job none"):
            lost()


METHODS = [
    (service.full_name, method)
    for service in farm_pb2.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def raw_call(channel: Any, service: str, method: str) -> Any:
    """A method that takes and gives bytes."""
    return channel.unary_unary(f"/{service}/{method}")


def test_health_is_open_and_reflection_is_not(shared_tracker: Any) -> None:
    token = (("authorization", f"Bearer {shared_tracker.token}"),)
    with grpc.insecure_channel(shared_tracker.address) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest(service="tunefarm.v1.Farm")
        assert health.Check(request, timeout=60).status == health_pb2.HealthCheckResponse.SERVING
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        ask = reflection_pb2.ServerReflectionRequest(list_services="")
        with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
            list(stub.ServerReflectionInfo(iter([ask]), timeout=60))
        (answer,) = stub.ServerReflectionInfo(iter([ask]), timeout=60, metadata=token)
        names = {service.name for service in answer.list_services_response.service}
        assert {"tunefarm.v1.Farm", "tunefarm.v1.Worker"} <= names


def test_nonsense_on_the_wire_does_no_harm(shared_tracker: Any, farm: FarmClient) -> None:
    token = (("authorization", f"Bearer {shared_tracker.token}"),)
    with grpc.insecure_channel(shared_tracker.address) as channel:
        for service, method in METHODS:
            call = raw_call(channel, service, method.name)
            for content in (b"\xff" * 40, b"\x0a\x7f", bytes(range(256))):
                with pytest.raises(grpc.RpcError):
                    call(content, metadata=token, timeout=60)
    assert farm.info().lease_term_s == TERM_S

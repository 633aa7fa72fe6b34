"""Trackers that are killed, stopped, started twice and started wrongly."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tunefarm.db.lookup import RecordIndex
from tunefarm.db.records import BestKey, DeviceRequest, Job, JobState, Lease, TrialRequest
from tunefarm.db.store import Store
from tunefarm.proto.awake import awake_s
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import TrackerUnavailable
from tunefarm.proto.rendezvous import read_rendezvous, write_private

from tests.patience import collect_all, turns, wait_for

StartWorker = Callable[..., Any]
NewJob = Callable[..., Job]
Candidates = Callable[[str, range], list[TrialRequest]]
DATABASES = ("sqlite", "postgresql")
LIMIT_S = 120.0
SIM = DeviceRequest("sim")
SQLITE = pytest.mark.parametrize("tracker", ["sqlite"], indirect=True)


def begin(farm: FarmClient, job: Job, seconds: float = 60.0) -> tuple[Job, Lease]:
    farm.submit_job(job)
    claimed = farm.claim_job(tuner="t", job=job.id)
    assert claimed is not None
    lease = farm.acquire(SIM, client="t", job=claimed, wait_s=seconds)
    assert lease is not None
    return claimed, lease


def patiently(call: Callable[[], Any]) -> Any:
    """The answer of a call, made until a tracker is there to answer it."""
    for _ in turns("a tracker", LIMIT_S):
        with suppress(TrackerUnavailable):
            return call()


def test_everything_goes_on_after_kill_9(
    tracker: Any, start_worker: StartWorker, new_job: NewJob, candidates: Candidates
) -> None:
    address, token = tracker.address, tracker.token
    worker = start_worker(tracker)
    with tracker.client() as farm:
        job, lease = begin(farm, new_job())
        worker.vanish()
        farm.submit(lease, candidates(job.id, range(30)))
        assert read_rendezvous(tracker.rendezvous).is_running
        tracker.kill()
        assert not read_rendezvous(tracker.rendezvous).is_running
        tracker.start()
        assert (tracker.address, tracker.token) == (address, token)
        assert farm.renew(lease).epoch == lease.epoch
        assert farm.renew_job(job).state is JobState.RUNNING
        assert len(farm.pending(job.id)) == 30
        start_worker(tracker)
        with farm.keep_lease(lease), farm.keep_job(job):
            assert sorted(collect_all(farm, job.id, 30)) == list(range(30))
        farm.finish_job(job, JobState.SUCCEEDED)


@SQLITE
def test_keepers_outlast_a_tracker_that_is_away_for_more_than_a_term(
    tracker: Any, start_worker: StartWorker, new_job: NewJob, candidates: Candidates
) -> None:
    start_worker(tracker)
    with tracker.client() as farm:
        job, lease = begin(farm, new_job())
        with farm.keep_lease(lease) as kept, farm.keep_job(job) as claim:
            tracker.kill()
            time.sleep(1.5 * lease.term_s)
            tracker.start()
            wait_for(lambda: kept.is_heard and claim.is_heard)
            farm.submit(lease, candidates(job.id, range(10)))
            assert sorted(collect_all(farm, job.id, 10)) == list(range(10))
            assert kept.check().epoch == lease.epoch
            assert claim.check().claim_epoch == job.claim_epoch


@SQLITE
def test_nothing_is_lost_or_doubled_by_many_kills(
    tracker: Any, start_worker: StartWorker, new_job: NewJob, candidates: Candidates
) -> None:
    check_kills(tracker, start_worker, new_job(), candidates, kills=6)


@pytest.mark.soak
def test_nothing_is_lost_or_doubled_by_a_hundred_kills(
    tracker: Any, start_worker: StartWorker, new_job: NewJob, candidates: Candidates
) -> None:
    check_kills(tracker, start_worker, new_job(), candidates, kills=100)
    print(f"\n100 deaths of the only tracker on {tracker.kind}: no lease and no trial lost")


def check_kills(
    tracker: Any, start_worker: StartWorker, job: Job, candidates: Candidates, kills: int
) -> None:
    """A job's lease, claim and trials outlive that many deaths of its only tracker, each a moment
    after it has answered again."""
    rng = random.Random(7)
    total = 400
    over, answered = threading.Event(), threading.Event()

    def killer() -> None:
        for _ in range(kills):
            assert answered.wait(LIMIT_S)
            time.sleep(rng.uniform(0.0, 0.4))
            tracker.kill()
            answered.clear()
            tracker.start()
        over.set()

    tracker.kill()
    tracker.options |= {"lease_term_s": 12.0, "claim_term_s": 12.0}
    tracker.start()
    start_worker(tracker, wait_s=0.2)
    place = tracker.address, tracker.token
    with FarmClient(*place, connect_s=LIMIT_S, patience_s=LIMIT_S) as farm:
        job, lease = begin(farm, job)

        def renew() -> None:
            """Renew both once in each life of the tracker, without a keeper."""
            assert patiently(lambda: farm.renew(lease)).epoch == 1
            assert patiently(lambda: farm.renew_job(job)).claim_epoch == 1
            answered.set()

        killing = threading.Thread(target=killer)
        killing.start()
        for start in range(0, total, 20):
            farm.submit(lease, candidates(job.id, range(start, start + 20)))
            collect_all(farm, job.id, start + 10)
            renew()
        numbers = collect_all(farm, job.id, total)
        while not over.is_set():
            assert killing.is_alive()
            renew()
            time.sleep(0.02)
        killing.join()
        assert over.is_set()
        assert sorted(numbers) == list(range(total))
        farm.finish_job(job, JobState.SUCCEEDED)
    with Store.open(str(tracker.database), readonly=True) as store:
        trials = store.trials_of(job.id, limit=2 * total).trials
        key = BestKey(trials[0].task.workload, "sim", "Sim 1")
        assert len(trials) == total
        assert store.best([key]) == RecordIndex(trials).best([key])


def test_a_killed_tuners_job_goes_on_with_its_candidates(
    tracker: Any, start_worker: StartWorker, new_job: NewJob, candidates: Candidates
) -> None:
    worker = start_worker(tracker)
    with tracker.client() as farm:
        job, lease = begin(farm, new_job())
        worker.vanish()
        farm.submit(lease, candidates(job.id, range(5)))
        second = farm.claim_job(tuner="another", job=job.id, wait_s=60)
        assert second is not None
        assert [r.number for r in farm.pending(job.id)] == list(range(5))
        start_worker(tracker)
        with farm.keep_job(second):
            again = farm.acquire(SIM, client="another", job=second, wait_s=60)
            assert again is not None
            with farm.keep_lease(again):
                assert sorted(collect_all(farm, job.id, 5)) == list(range(5))


# --- starting and stopping ----------------------------------------------------------------------


def test_a_jobs_compiler_version_outlives_the_tracker(
    tracker: Any, start_worker: StartWorker, new_job: NewJob
) -> None:
    worker = start_worker(tracker, version="1")
    with tracker.client() as farm:
        job, lease = begin(farm, new_job())
        farm.release(lease)
        worker.vanish()
        tracker.kill()
        tracker.start()
        start_worker(tracker, version="2")
        assert farm.acquire(SIM, client="t", wait_s=60) is not None
        start_worker(tracker, "d2", version="2")
        start_worker(tracker, "d3", version="1")
        renewed = farm.renew_job(job)
        lease = farm.acquire(SIM, client="t", job=renewed, wait_s=60)
        assert lease is not None
        assert lease.device == "d3"


def test_sigterm_ends_it_soon_and_cleanly(tracker: Any, new_job: NewJob) -> None:
    with FarmClient(tracker.address, tracker.token, patience_s=0) as farm:
        job = farm.submit_job(new_job())
        answers: list[object] = []
        polling = threading.Thread(target=lambda: answers.append(farm.collect(job.id, wait_s=30)))
        polling.start()
        time.sleep(0.2)
        started = awake_s()
        assert tracker.stop() == (0, "")
        assert awake_s() - started < 15, "it does not wait for the poll"
        polling.join(90)
        assert len(answers) == 1, "the pending poll was answered"


def refused(tracker: Any, **options: object) -> str:
    """What a tracker that cannot start writes."""
    process = tracker.spawn(**options)
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert output == ""
    return str(errors)


@SQLITE
def test_a_second_tracker_on_one_database(tracker: Any) -> None:
    assert "has a tracker already; use it with --tracker, or stop it" in refused(tracker)


@SQLITE
def test_options_that_cannot_work(tracker: Any, tmp_path: Path) -> None:
    other = str(tmp_path / "other.db")
    sentence = (
        "the tracker does not listen on 0.0.0.0 in the clear, where others could read its tokens"
    )
    assert sentence in refused(tracker, database=other, host="0.0.0.0")
    port = int(tracker.address.rpartition(":")[2])
    sentence = f"port {port} of 127.0.0.1 is in use by another process"
    assert (said := refused(tracker, database=other, port=port)).count("\n") == 1, said
    assert sentence in said
    (tmp_path / "bad.db").write_text("nonsense" * 1000)
    sentence = "is not a SQLite database, or corrupt"
    assert sentence in refused(tracker, database=str(tmp_path / "bad.db"))


@SQLITE
def test_the_port_is_kept_unless_another_took_it(tracker: Any) -> None:
    old = read_rendezvous(tracker.rendezvous)
    tracker.kill()
    with socket.create_server(("127.0.0.1", old.port)):
        tracker.start()
    new = read_rendezvous(tracker.rendezvous)
    assert new.port != old.port
    assert new.token == old.token
    tracker.kill()
    write_private(tracker.rendezvous, "damaged")
    tracker.start()
    with tracker.client() as farm:
        assert farm.info().database == str(tracker.database)

"""Several trackers on one PostgreSQL: any of them will do, and any of them may die."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select
from tunefarm.db.farm_models import LEASES
from tunefarm.db.records import (
    Device,
    DeviceRequest,
    Job,
    JobState,
    Lease,
    Role,
    Token,
    TrialRequest,
    WorkerState,
)
from tunefarm.db.store import Store
from tunefarm.proto import client as client_module
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import (
    ClaimLost,
    InvalidRequest,
    LeaseLost,
    TokenRefused,
    TrackerUnavailable,
)
from tunefarm.proto.tokens import digest_of, new_secret

from tests.patience import collect_all, wait_for

StartWorker = Callable[..., Any]
NewJob = Callable[..., Job]
Candidates = Callable[[str, range], list[TrialRequest]]
SIM = DeviceRequest("sim")
TERM_S = 6.0
PATIENCE_S = 60.0


@dataclass
class Trackers:
    """Trackers of one database; a client of it takes them in turn, the named one first."""

    all: list[Any]
    token: str = "the farm's"
    clients: list[FarmClient] = field(default_factory=list)

    def addresses(self, first: int = 0) -> str:
        names = [tracker.address for tracker in self.all]
        return ",".join(names[first:] + names[:first])

    def client(self, first: int = 0) -> FarmClient:
        client = FarmClient(self.addresses(first), self.token, patience_s=PATIENCE_S)
        self.clients.append(client)
        return client

    def only(self, number: int) -> FarmClient:
        client = FarmClient(self.all[number].address, self.token, patience_s=PATIENCE_S)
        self.clients.append(client)
        return client


@pytest.fixture
def trackers(postgres: Any, make_tracker: Callable[..., Any], tmp_path: Path) -> Iterator[Trackers]:
    options = {"token": "the farm's", "lease_term_s": TERM_S, "claim_term_s": TERM_S}
    with postgres.database("latest") as url:
        running = []
        for number in range(2):
            folder = tmp_path / str(number)
            folder.mkdir()
            running.append(make_tracker(url, folder, options).start())
        found = Trackers(running)
        yield found
        for client in found.clients:
            client.close()
        for tracker in running:
            tracker.kill()


def test_a_token_of_one_tracker_counts_at_the_other(trackers: Trackers) -> None:
    secret = new_secret()
    here, there = trackers.only(0), trackers.all[1].address
    here.create_token(Token(digest_of(secret), "anna", Role.CLIENT), actor="root@lab")
    with FarmClient(there, secret) as anna:

        def is_let_in() -> bool:
            try:
                return anna.info().started_at > 0
            except TokenRefused:
                return False

        wait_for(is_let_in)
        here.revoke_token("anna", actor="root@lab")
        wait_for(lambda: not is_let_in())


def test_a_tracker_that_nobody_could_call_does_not_start(
    postgres: Any, make_tracker: Callable[..., Any]
) -> None:
    with postgres.database("latest") as url:
        process = make_tracker(url, None, {}).spawn()
        _, errors = process.communicate(timeout=PATIENCE_S)
    assert errors.startswith("InvalidRequest: nobody could call this tracker")


def begin(farm: FarmClient, job: Job) -> tuple[Job, Lease]:
    farm.submit_job(job)
    claimed = farm.claim_job(tuner="t", job=job.id)
    assert claimed is not None
    lease = farm.acquire(SIM, client="t", job=claimed, wait_s=PATIENCE_S)
    assert lease is not None
    return claimed, lease


def test_a_device_of_one_tracker_is_leased_and_used_through_the_other(
    trackers: Trackers, start_worker: StartWorker, new_job: NewJob, candidates: Candidates
) -> None:
    worker = start_worker(trackers.all[0], token=trackers.token)
    here, there = trackers.only(0), trackers.only(1)
    job, lease = begin(there, new_job())
    assert lease.device == worker.device.id
    with there.keep_lease(lease) as kept, there.keep_job(job) as claim:
        there.submit(lease, candidates(job.id, range(20)))
        assert sorted(collect_all(there, job.id, 20)) == list(range(20))
        assert here.renew(lease).epoch == lease.epoch
        assert here.renew_job(job).state is JobState.RUNNING
        assert (kept.check().epoch, claim.check().claim_epoch) == (1, 1)
        wait_for(lambda: here.devices()[0].state == "leased")
    here.release(lease)
    with pytest.raises(LeaseLost):
        there.submit(lease, candidates(job.id, range(20, 21)))
    there.finish_job(job, JobState.SUCCEEDED)
    with pytest.raises(ClaimLost):
        here.renew_job(job)


def test_requests_are_served_in_one_order_whichever_tracker_they_wait_at(
    trackers: Trackers, start_worker: StartWorker
) -> None:
    start_worker(trackers.all[0], token=trackers.token)
    farms = [trackers.only(0), trackers.only(1)]
    held = farms[0].acquire(SIM, client="first", wait_s=PATIENCE_S)
    assert held is not None
    order: list[int] = []

    def ask(priority: int) -> None:
        request = DeviceRequest("sim", priority=priority)
        farm = farms[priority % 2]
        lease = farm.acquire(request, client=str(priority), wait_s=PATIENCE_S)
        assert lease is not None
        order.append(priority)
        farm.release(lease)

    threads = [threading.Thread(target=ask, args=(priority,)) for priority in range(6)]
    with farms[0].keep_lease(held), Store.open(trackers.all[0].database, readonly=True) as store:
        for thread in threads:
            thread.start()
        wait_for(lambda: waiting(store) == 6)
        time.sleep(2 * TERM_S / 8)  # an exchange, by which each tracker has the other's queue
    farms[0].release(held)
    for thread in threads:
        thread.join(PATIENCE_S)
    assert order == [5, 4, 3, 2, 1, 0]


def waiting(store: Store) -> int:
    from tunefarm.db.farm_models import WAITING

    with store.reading() as connection:
        return int(connection.execute(select(func.count()).select_from(WAITING)).scalar_one())


def test_a_lease_that_nobody_renews_is_ended_by_the_tracker_that_is_left(
    trackers: Trackers, start_worker: StartWorker
) -> None:
    start_worker(trackers.all[1], token=trackers.token)
    here, there = trackers.only(0), trackers.only(1)
    lease = here.acquire(SIM, client="dies", wait_s=PATIENCE_S)
    assert lease is not None
    trackers.all[0].kill()
    again = there.acquire(SIM, client="waits", wait_s=PATIENCE_S)
    assert again is not None
    assert again.epoch == lease.epoch + 1
    ended = [one for one in there.lease_history() if one.id == lease.id]
    assert ended[0].ended_reason == "expired: its client went silent"


def test_a_renewal_that_its_tracker_could_not_tell_holds_for_its_term(
    trackers: Trackers, start_worker: StartWorker
) -> None:
    start_worker(trackers.all[1], token=trackers.token)
    here, there = trackers.only(0), trackers.only(1)
    lease = here.acquire(SIM, client="holds", wait_s=PATIENCE_S)
    assert lease is not None
    time.sleep(0.8 * TERM_S)
    renewed_at = time.monotonic()
    here.renew(lease)
    trackers.all[0].kill()
    assert there.acquire(SIM, client="waits", wait_s=PATIENCE_S) is not None
    assert time.monotonic() - renewed_at >= TERM_S


def test_a_frozen_tracker_holds_nobody_up(
    trackers: Trackers, start_worker: StartWorker, new_job: NewJob, candidates: Candidates
) -> None:
    start_worker(trackers.all[0], address=trackers.addresses(), token=trackers.token)
    farm = trackers.client()
    job, lease = begin(farm, new_job())
    with farm.keep_lease(lease) as kept, farm.keep_job(job) as claim:
        os.kill(trackers.all[0].process.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: farm.turn == 1)
            farm.submit(lease, candidates(job.id, range(20)))
            assert sorted(collect_all(farm, job.id, 20)) == list(range(20))
            assert (kept.check().epoch, claim.check().claim_epoch) == (1, 1)
        finally:
            os.kill(trackers.all[0].process.pid, signal.SIGCONT)


def test_nothing_is_lost_or_doubled_while_trackers_are_killed_in_turn(
    trackers: Trackers, start_worker: StartWorker, new_job: NewJob, candidates: Candidates
) -> None:
    rng = random.Random(7)
    total = 200
    over = threading.Event()
    kills = 0

    def killer() -> None:
        nonlocal kills
        while kills < 4 and not over.is_set():
            victim = trackers.all[kills % 2]
            over.wait(rng.uniform(0.1, 1.0))
            victim.options["port"] = int(victim.address.rpartition(":")[2])
            victim.kill()
            victim.start()
            kills += 1

    workers = [
        start_worker(trackers.all[n], f"d{n}", address=trackers.addresses(n), token=trackers.token)
        for n in range(2)
    ]
    farm = trackers.client(first=1)
    wait_for(lambda: len([d for d in farm.devices() if d.state == "idle"]) == 2)
    job, lease = begin(farm, new_job())
    second = farm.acquire(SIM, client="t", job=job, wait_s=PATIENCE_S)
    assert second is not None
    killing = threading.Thread(target=killer)
    with farm.keep_lease(lease) as one, farm.keep_lease(second) as other, farm.keep_job(job):
        killing.start()
        for start in range(0, total, 20):
            farm.submit(lease, candidates(job.id, range(start, start + 10)))
            farm.submit(second, candidates(job.id, range(start + 10, start + 20)))
            collect_all(farm, job.id, start + 10)
        numbers = collect_all(farm, job.id, total)
        over.set()
        killing.join(PATIENCE_S)
        assert (one.check().epoch, other.check().epoch) == (1, 1)
    assert kills > 0
    assert sorted(numbers) == list(range(total))
    assert not [worker for worker in workers if worker.superseded]
    farm.finish_job(job, JobState.SUCCEEDED)
    with Store.open(trackers.all[0].database, readonly=True) as store:
        assert len(store.trials_of(job.id, limit=2 * total).trials) == total
        with store.reading() as connection:
            live = select(LEASES.c.id).where(LEASES.c.ended_at.is_(None))
            assert connection.execute(live).all() == []


# --- clients ------------------------------------------------------------------------------------


def test_a_client_turns_to_the_tracker_that_answers(
    trackers: Trackers,
) -> None:
    farm = trackers.client()
    assert farm.info().lease_term_s == TERM_S
    trackers.all[0].kill()
    assert farm.info().lease_term_s == TERM_S
    assert farm.address == trackers.all[1].address
    trackers.all[1].kill()
    nobody = FarmClient(trackers.addresses(), trackers.token, connect_s=0.2)
    sentence = f"no tracker answers at {trackers.addresses().replace(',', ' or ')}"
    with nobody, pytest.raises(TrackerUnavailable, match=sentence):
        nobody.info()


def test_a_worker_is_told_which_tracker_it_turns_to(
    trackers: Trackers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_FIRST_SYNC_S", PATIENCE_S)
    farm = trackers.client()
    state = WorkerState("w", "i", 1, "1", (Device("d", "sim", "m", "sim", "w"),))
    assert farm.info().lease_term_s == TERM_S
    trackers.all[0].kill()
    sentence = f"{trackers.all[0].address} does not answer; the one at {trackers.all[1].address}"
    with pytest.raises(TrackerUnavailable, match=sentence):
        farm.sync(state, 0.0)
    assert farm.sync(replace(state, number=2), 0.0).term_s == TERM_S


def test_an_address_among_several_that_is_none() -> None:
    with pytest.raises(InvalidRequest, match="'lab2' is not a tracker's address; write HOST:PORT"):
        FarmClient("lab1:9190,lab2")

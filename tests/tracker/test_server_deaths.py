"""PostgreSQL itself is killed and started again, in the middle of leases and of a job (soak).

What a tracker has acknowledged is in the database when the server is back, once; trackers find it
again by themselves, and what its clients held goes on.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from tunefarm.db.farm_models import LEASES
from tunefarm.db.records import DeviceRequest, Job, JobState, Lease, TrialRequest
from tunefarm.db.store import Store
from tunefarm.proto.client import FarmClient
from tunefarm.proto.errors import StorageFailed

from tests.patience import LOOK_S, turns

StartWorker = Callable[..., Any]
DEATHS = 20
LENDERS = 4
TERM_S = 20.0
LIMIT_S = 120.0


def patiently(call: Callable[[], Any]) -> Any:
    """The answer of a call, made until its tracker has a database again."""
    for _ in turns("the database", LIMIT_S):
        with suppress(StorageFailed):
            return call()
        time.sleep(LOOK_S)


@pytest.fixture
def pair(own_postgres: Any, make_tracker: Callable[..., Any], tmp_path: Path) -> Iterator[Any]:
    """Two trackers on a server of their own, and the server."""
    options = {"token": "the farm's", "lease_term_s": TERM_S, "claim_term_s": TERM_S}
    url = own_postgres.url("latest")
    trackers = []
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        trackers.append(make_tracker(url, tmp_path / name, options))
        trackers[-1].log = tmp_path / name / "log"
        trackers[-1].start()
    yield own_postgres, trackers
    for tracker in trackers:
        tracker.kill()


class Lender:
    """A client that leases devices again and again, and writes down what it was told."""

    def __init__(self, farm: FarmClient, over: threading.Event) -> None:
        self.told: list[tuple[Lease, float, float]] = []
        self.failed = 0
        self._farm = farm
        self._over = over
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def finish(self) -> None:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while not self._over.is_set():
                self._lease()
        except BaseException as error:
            self._error = error

    def _lease(self) -> None:
        """One cycle; a request whose answer was an error is asked again as the same one."""
        request, name = DeviceRequest("sim", selector="name!=measures"), uuid.uuid4().hex
        lease = self._patiently(
            lambda: self._farm.acquire(request, client="lender", request_id=name, wait_s=1.0)
        )
        if lease is None:
            return
        known = time.monotonic()
        assert self._patiently(lambda: self._farm.renew(lease)).epoch == lease.epoch
        asked = time.monotonic()
        self._patiently(lambda: self._farm.release(lease))
        self.told.append((lease, known, asked))

    def _patiently(self, call: Callable[[], Any]) -> Any:
        def count() -> Any:
            try:
                return call()
            except StorageFailed:
                self.failed += 1
                raise

        return patiently(count)


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_when_the_database_server_is_killed(
    pair: Any,
    start_worker: StartWorker,
    new_job: Callable[..., Job],
    candidates: Callable[[str, range], list[TrialRequest]],
) -> None:
    server, trackers = pair
    dice = random.Random(11)
    over = threading.Event()
    clients = [FarmClient(t.address, t.token, patience_s=LIMIT_S) for t in trackers * 3]
    worker = start_worker(trackers[0], "measures")
    for number, tracker in enumerate(trackers):
        start_worker(tracker, f"lent{number}")
    lenders = [Lender(clients[n], over) for n in range(LENDERS)]
    farm = clients[-1]
    farm.submit_job(new_job("job"))
    job = farm.claim_job(tuner="t", job="job")
    assert job is not None
    own = DeviceRequest("sim", selector="name=measures")
    lease = farm.acquire(own, client="t", job=job)
    assert lease is not None
    numbers: list[int] = []
    submitted, back_s = 0, []
    with farm.keep_lease(lease) as kept, farm.keep_job(job) as claim:
        for _ in range(DEATHS):
            wanted = candidates("job", range(submitted, submitted + 20))
            patiently(lambda wanted=wanted: farm.submit(lease, wanted))
            submitted += 20
            time.sleep(dice.uniform(0.0, 0.5))
            server.kill()
            time.sleep(dice.uniform(0.0, 0.5))
            server.start()
            started = time.monotonic()
            found = patiently(lambda: farm.collect("job", wait_s=0.0, limit=10_000))
            back_s.append(time.monotonic() - started)
            assert set(numbers) <= {trial.number for trial in found.trials}, "a trial was lost"
            numbers = [trial.number for trial in found.trials]
        for _ in turns("the last trials", LIMIT_S):
            if len(numbers) >= submitted:
                break
            found = patiently(lambda: farm.collect("job", wait_s=0.5, limit=10_000))
            numbers = [trial.number for trial in found.trials]
        over.set()
        for lender in lenders:
            lender.finish()
        assert (kept.check().epoch, claim.check().claim_epoch) == (1, 1)
    patiently(lambda: farm.finish_job(job, JobState.SUCCEEDED))
    assert sorted(numbers) == list(range(submitted))
    assert not worker.superseded
    told = [one for lender in lenders for one in lender.told]
    _check_leases(trackers[0].database, told)
    for client in clients:
        client.close()
    failed = sum(lender.failed for lender in lenders)
    print(
        f"\n{DEATHS} deaths of the database's server: {len(told)} leases and {submitted} trials, "
        f"none lost or doubled; {failed} requests were told that the database is away; the "
        f"trackers had it again {max(back_s):.1f} s after it answered at the latest"
    )


def _check_leases(database: str, told: list[tuple[Lease, float, float]]) -> None:
    """Every lease that a client was told of is stored as it was told, and no device was two
    clients' at one time."""
    assert told
    with Store.open(database, readonly=True) as store, store.reading() as connection:
        rows = {row.id: row for row in connection.execute(select(LEASES))}
    for lease, _, _ in told:
        row = rows[lease.id]
        assert (row.device, row.epoch) == (lease.device, lease.epoch)
        assert row.ended_at is not None
    assert max(Counter((row.device, row.epoch) for row in rows.values()).values()) == 1
    for device in {lease.device for lease, _, _ in told}:
        spans = sorted((known, asked) for lease, known, asked in told if lease.device == device)
        for (_, asked), (known, _) in itertools.pairwise(spans):
            assert asked <= known, f"device {device} had two holders"

"""Leases, incarnations and the queue of candidates: fencing, delivery, quarantine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select
from sqlalchemy.exc import IntegrityError
from tunefarm.db import cordons, grants, jobs, leases, queue, stored_jobs, trials
from tunefarm.db.errors import StaleClaim, StaleIncarnation, StaleLease, UnknownRecord
from tunefarm.db.farm_models import LEASES, REQUESTS
from tunefarm.db.grants import Want
from tunefarm.db.records import (
    COMPILER_TAG,
    FINAL,
    FROM_MEMORY,
    LOOK,
    Budget,
    Device,
    ErrorKind,
    Held,
    Job,
    JobState,
    JobTask,
    Lease,
    Result,
    TaskKey,
    Trial,
    TrialRequest,
    Work,
    WorkloadRecord,
)
from tunefarm.db.store import Store

MakeWorkload = Callable[[str], WorkloadRecord]
FreshDatabase = Callable[[], AbstractContextManager[str]]


def device(name: str = "d1") -> Device:
    return Device(name, "sim", "Sim 1", "sim", "w1")


def enlist(store: Store, incarnation: str = "i1", names: tuple[str, ...] = ("d1",)) -> None:
    with store.writing() as connection:
        leases.enlist(connection, "w1", incarnation, "0.1")
        leases.register(connection, "w1", [device(name) for name in names])


def grant(store: Store, request: str, *, name: str = "d1", job: str = "") -> Lease:
    with store.writing() as connection:
        return grants.grant(connection, Want(request, name, client="c", job=job), term_s=10.0)


def candidate(number: int, job: str = "job") -> TrialRequest:
    return TrialRequest(job, TaskKey("k" * 64, "sim"), number, {"sketch": "s", "x": number}, "text")


def submit(store: Store, lease: Lease, *numbers: int, job: str = "job") -> int:
    with store.writing() as connection:
        wanted = [candidate(number, job) for number in numbers]
        return len(queue.submit(connection, lease.id, lease.epoch, wanted))


def deliver(
    store: Store, incarnation: str, held: tuple[Work, ...] = (), capacity: int = 4
) -> tuple[Work, ...]:
    holding = {Held(work.request.key, work.lease, work.epoch) for work in held}
    with store.writing() as connection:
        line = queue.wanted(connection, "d1", incarnation, 100)
        chosen = queue.choose(line, holding, incarnation, capacity)
        return tuple(queue.deliver(connection, chosen, incarnation))


def measured(work: Work, seconds: float = 1e-3) -> Result:
    request = work.request
    trial = Trial(request.job, request.task, request.number, request.config, (seconds,))
    return Result(work.lease, work.epoch, trial)


def report(store: Store, *results: Result, worker: str = "w1") -> tuple[int, list[str]]:
    with store.writing() as connection:
        accepted, refused = queue.store(connection, worker, results)
    return len(accepted), [refusal.reason for refusal in refused]


def numbers(works: tuple[Work, ...]) -> list[int]:
    return [work.request.number for work in works]


def test_progress_tells_which_look_of_the_finals_waits(store: Store) -> None:
    enlist(store)
    key = candidate(0).task
    with store.writing() as connection:
        task = JobTask(WorkloadRecord(key.workload, "text"))
        jobs.submit(connection, Job("job", "sim", (task,), Budget(10)))
    lease = grant(store, "r1", job="job")
    final = replace(candidate(1), origin=FINAL, budgets={"paired_blocks": 18, LOOK: 2})

    def look() -> int:
        with store.reading() as connection:
            (row,) = stored_jobs.progress(connection, "job").progress
        return row.final_look

    submit(store, lease, 0)
    assert look() == 0
    with store.writing() as connection:
        queue.submit(connection, lease.id, lease.epoch, [final])
    assert look() == 2
    deliver(store, "i1")
    report(store, Result(lease.id, lease.epoch, Trial("job", key, 1, {}, (1e-3,), origin=FINAL)))
    assert look() == 0


# --- leases -------------------------------------------------------------------------------------


def test_the_database_allows_one_live_lease_a_device(store: Store) -> None:
    enlist(store)
    lease = grant(store, "r1")
    with pytest.raises(StaleLease, match="device d1 is leased"):
        grant(store, "r2")
    with store.writing() as connection:
        row = connection.execute(select(LEASES).where(LEASES.c.id == lease.id)).one()
        copy = {**row._mapping, "id": "other", "request_id": "r3", "epoch": 7}
        with pytest.raises(IntegrityError):
            connection.execute(LEASES.insert().values(copy))


def test_a_device_may_have_a_compiler_of_its_own(store: Store) -> None:
    gpu = replace(device("d2"), attributes={COMPILER_TAG: "0.1+gpu"})
    with store.writing() as connection:
        leases.enlist(connection, "w1", "i1", "0.1")
        leases.register(connection, "w1", [device(), gpu])
        key = candidate(0).task
        for job in ("job", "other"):
            task = JobTask(WorkloadRecord(key.workload, "text"))
            jobs.submit(connection, Job(job, "sim", (task,), Budget(10)))
        told = {d.id: d.compiler_version for d in leases.devices(connection)}
    assert told == {"d1": "0.1", "d2": "0.1+gpu"}
    lease = grant(store, "r1", name="d2", job="job")
    with pytest.raises(StaleLease, match="compiler"):
        grant(store, "r2", name="d1", job="job")
    with store.writing() as connection:
        assert stored_jobs.get(connection, "job").compiler_version == "0.1+gpu"
        assert leases.end_mixed(connection, "w1") == ()
        leases.register(connection, "w1", [device("d2")])
        assert leases.end_mixed(connection, "w1") == (lease.id,)


def test_epochs_rise_and_old_ones_are_refused(store: Store) -> None:
    enlist(store)
    first = grant(store, "r1")
    assert grant(store, "r1") == first, "the same request again gets the same lease"
    with store.writing() as connection:
        assert leases.end(connection, first.id, "released") == "d1"
        assert leases.end(connection, first.id, "released") is None
    second = grant(store, "r2")
    assert second.epoch == first.epoch + 1
    for lease, epoch, why in (
        (first.id, first.epoch, "has ended: released"),
        (second.id, first.epoch, "has epoch 2, the write has 1"),
        ("none", 1, "there is no lease none"),
    ):
        with store.reading() as connection, pytest.raises(StaleLease, match=why):
            leases.check(connection, lease, epoch)


def test_a_batch_of_requests_has_an_outcome_each(store: Store) -> None:
    enlist(store, names=("d1", "d2", "d3", "d4", "d5", "d6"))
    live, ended = grant(store, "live", name="d1"), grant(store, "ended", name="d2")
    with store.writing() as connection:
        leases.end(connection, ended.id, "released")
        cordons.cordon(connection, "r", "d3", actor="anna", reason="repair")
        jobs.submit(connection, Job("job", "sim", (), Budget(10)))
    wants = [
        Want("new", "d4", "carl", owner="o"),
        Want("live", "d5", "c"),
        Want("late", "d1", "c"),
        Want("ended", "d2", "c"),
        Want("kept", "d3", "c"),
        Want("works", "d6", "c", job="job"),
    ]
    with store.writing() as connection:
        outcomes = grants.grant_all(connection, wants, term_s=10.0)
    new, again, late, anew, kept, works = outcomes
    with store.reading() as connection:
        stored = {lease.id: lease for lease in leases.live(connection)}
    assert again == live, "a request that has a lease keeps it"
    assert isinstance(late, StaleLease)
    assert "device d1 is leased" in str(late)
    assert isinstance(kept, StaleLease)
    assert "device d3 is cordoned by anna" in str(kept)
    granted = [one for one in (new, anew, works) if isinstance(one, Lease)]
    assert [stored.pop(lease.id) for lease in (live, *granted)] == [live, *granted]
    assert not stored, "the others got nothing"
    told = [(one.device, one.client, one.owner, one.epoch, one.job) for one in granted]
    assert told == [("d4", "carl", "o", 1, ""), ("d2", "c", "", 2, ""), ("d6", "c", "", 1, "job")]


def test_ends_take_candidates_off_leases_and_tell_what_lived(store: Store) -> None:
    enlist(store, names=("d1", "d2"))
    first, second = grant(store, "r1"), grant(store, "r2", name="d2")
    submit(store, first, 0)
    submit(store, second, 1)
    assert numbers(deliver(store, "i1")) == [0]
    with store.writing() as connection:
        leases.end(connection, second.id, "released")
        both = [second.id, first.id, "none"]
        assert leases.end_all(connection, both, "lost its way") == {first.id: "d1"}
        assert leases.end_all(connection, [], "released") == {}
    with store.reading() as connection:
        rows = connection.execute(select(REQUESTS).order_by(REQUESTS.c.number)).all()
        reasons = [leases.get(connection, id_).ended_reason for id_ in (first.id, second.id)]
    left = [(row.lease, row.attempts, row.delivered_to) for row in rows]
    assert left == [(None, 0, None), (None, 0, None)], "an end is not the candidates' fault"
    assert reasons == ["lost its way", "released"]


def test_a_replaced_incarnation_stays_replaced(store: Store) -> None:
    with store.writing() as connection:
        assert leases.enlist(connection, "w1", "i1", "0.1")
        assert not leases.enlist(connection, "w1", "i1", "0.1")
        assert leases.enlist(connection, "w1", "i2", "0.1")
        with pytest.raises(StaleIncarnation, match="a newer process of worker w1"):
            leases.enlist(connection, "w1", "i1", "0.1")
        assert not leases.enlist(connection, "w1", "i2", "0.1")


# --- the queue ----------------------------------------------------------------------------------


def test_a_candidate_goes_through_once(store: Store) -> None:
    enlist(store)
    lease = grant(store, "r1")
    assert submit(store, lease, 0, 1, 2) == 0
    assert submit(store, lease, 1, 2, 3) == 0
    works = deliver(store, "i1")
    assert numbers(works) == [0, 1, 2, 3]
    assert report(store, measured(works[0]), measured(works[1])) == (2, [])
    assert report(store, measured(works[1], 5.0)) == (1, []), "a repeated report is accepted"
    assert [t.median_s for t in store.trials_of("job").trials] == [1e-3, 1e-3]
    assert submit(store, lease, 0, 1, 2) == 2, "measured trials are not queued again"
    assert deliver(store, "i1", works[2:]) == ()


def test_capacity_and_lost_replies(store: Store) -> None:
    enlist(store)
    submit(store, grant(store, "r1"), *range(6))
    works = deliver(store, "i1", capacity=2)
    assert numbers(works) == [0, 1]
    assert deliver(store, "i1", capacity=2) == works, "a lost reply is repeated"
    more = deliver(store, "i1", works, capacity=3)
    assert numbers(more) == [2]
    with store.reading() as connection:
        attempts = [q.attempts for q in queue.wanted(connection, "d1", "i1", 9)]
    assert attempts == [1, 1, 1, 0, 0, 0]


def test_results_are_fenced(store: Store) -> None:
    enlist(store)
    lease = grant(store, "r1", job="job")
    submit(store, lease, 0, 1)
    work, _ = deliver(store, "i1")
    wrong_epoch = replace(measured(work), epoch=lease.epoch + 1)
    wrong_lease = replace(measured(work), lease="none")
    unasked = replace(measured(work), trial=replace(measured(work).trial, number=9))
    stored, reasons = report(store, wrong_epoch, wrong_lease, unasked)
    assert stored == 0
    assert ["has epoch" in reasons[0], "no lease" in reasons[1], "not wanted" in reasons[2]]
    assert "another worker" in report(store, measured(work), worker="w2")[1][0]
    with store.writing() as connection:
        leases.end(connection, lease.id, "expired")
    assert "has ended: expired" in report(store, measured(work))[1][0]
    assert store.count_trials() == 0
    with pytest.raises(StaleLease, match="has ended: expired"):
        submit(store, lease, 2)


def test_orphans_wait_for_the_jobs_next_lease(store: Store) -> None:
    enlist(store, names=("d1", "d2"))
    first = grant(store, "r1", job="job")
    submit(store, first, 0, 1)
    before = deliver(store, "i1")
    with store.writing() as connection:
        leases.end(connection, first.id, "expired")
    assert deliver(store, "i1") == ()
    grant(store, "r2", name="d2", job="other job")
    grant(store, "r3", job="job")
    after = deliver(store, "i1")
    assert numbers(after) == [0, 1]
    assert report(store, measured(before[0]))[0] == 0, "the old lease cannot answer"
    assert report(store, *(measured(work) for work in after)) == (2, [])


def test_an_orphan_takes_the_new_request(store: Store) -> None:
    enlist(store)
    first = grant(store, "r1", job="job")
    submit(store, first, 0)
    with store.writing() as connection:
        leases.end(connection, first.id, "expired")
    second = grant(store, "r2")
    changed = replace(candidate(0), config={"sketch": "other"})
    with store.writing() as connection:
        queue.submit(connection, second.id, second.epoch, [changed])
    assert deliver(store, "i1")[0].request.config == {"sketch": "other"}


def test_a_lease_works_for_its_job_only(store: Store) -> None:
    enlist(store)
    lease = grant(store, "r1", job="job")
    with pytest.raises(StaleLease, match="works for job job, not for job other"):
        submit(store, lease, 0, job="other")


def test_suspects_are_measured_alone_and_a_killer_is_quarantined(store: Store) -> None:
    enlist(store)
    submit(store, grant(store, "r1"), *range(4))
    killer = 1
    assert numbers(deliver(store, "i1")) == [0, 1, 2, 3], "this process dies measuring"
    finished: list[int] = []
    for incarnation in ("i2", "i3", "i4", "i5"):
        enlist(store, incarnation)
        for _ in range(8):
            works = deliver(store, incarnation)
            if not works or killer in numbers(works):
                break
            assert len(works) == 1, "a suspect is alone"
            assert deliver(store, incarnation, works) == (), "and nothing joins it"
            report(store, measured(works[0]))
            finished += numbers(works)
    assert finished == [0, 2, 3]
    (failed,) = [t for t in store.trials_of("job").trials if not t.ok]
    assert (failed.number, failed.error) == (killer, ErrorKind.RUN_CRASH)
    assert failed.message.startswith("its worker died 3 times")
    assert failed.device_model == "Sim 1"


def test_a_lost_device_blames_what_it_held(store: Store) -> None:
    enlist(store)
    for reason, attempts in ((leases.DEVICE_LOST, 1), ("expired", 1)):
        lease = grant(store, f"r {reason}", job="job")
        submit(store, lease, 0)
        deliver(store, f"i {reason}")
        with store.writing() as connection:
            leases.end(connection, lease.id, reason)
            (request,) = connection.execute(select(REQUESTS.c.attempts)).scalars()
        assert request == attempts


# --- jobs ---------------------------------------------------------------------------------------


def queue_job(store: Store, name: str, priority: int = 0) -> Job:
    task = JobTask(WorkloadRecord("k" * 64, "text"), 1)
    with store.writing() as connection:
        return jobs.submit(
            connection, Job(name, "sim", (task,), Budget(9), {"seed": "1"}, priority=priority)
        )


def claim(store: Store, request: str, job: str = "") -> Job | None:
    with store.writing() as connection:
        return jobs.claim(connection, f"tuner {request}", request, job)


def test_jobs_are_claimed_by_priority_then_age(store: Store) -> None:
    for name, priority in (("a", 0), ("b", 5), ("c", 5)):
        queue_job(store, name, priority)
    claimed = [claim(store, str(n)) for n in range(4)]
    assert [job.id if job else None for job in claimed] == ["b", "c", "a", None]
    again = claim(store, "0")
    assert again == claimed[0], "a repeated claim gets its own job"


def test_of_jobs_that_select_devices_only_those_that_were_looked_at_are_claimed(
    store: Store,
) -> None:
    """One that came after the look may be for another tuner."""
    task = JobTask(WorkloadRecord("k" * 64, "text"), 1)
    with store.writing() as connection:
        for name, selector in (("late", "has=toy"), ("seen", "has=toy"), ("free", "")):
            job = Job(name, "sim", (task,), Budget(9), {"seed": "1"}, selector=selector)
            jobs.submit(connection, job)
        found = [
            jobs.claim(connection, "tuner", str(n), selecting=looked_at)
            for n, looked_at in enumerate(((), (), ("seen",), ("late",)))
        ]
    assert [job.id if job else None for job in found] == ["free", None, "seen", "late"]


def test_a_claim_fences_its_predecessor(store: Store) -> None:
    enlist(store)
    queue_job(store, "job")
    first = claim(store, "1")
    assert first is not None
    lease = grant(store, "r1", job="job")
    with store.writing() as connection:
        jobs.release(connection, "job", first.claim_epoch)
    second = claim(store, "2")
    assert second is not None
    assert second.claim_epoch == first.claim_epoch + 1
    with store.writing() as connection:
        with pytest.raises(StaleClaim, match="is claimed by tuner 2"):
            jobs.finish(connection, "job", first.claim_epoch, JobState.SUCCEEDED, "")
        with pytest.raises(StaleLease):
            leases.check(connection, lease.id, lease.epoch)
        done = jobs.finish(connection, "job", second.claim_epoch, JobState.SUCCEEDED, "ok")
        assert (done.state, done.message) == (JobState.SUCCEEDED, "ok")
        again = jobs.finish(connection, "job", second.claim_epoch, JobState.SUCCEEDED, "ok")
        assert again == done
        assert jobs.cancel(connection, "job", "late").state is JobState.SUCCEEDED


def test_cancelling_ends_leases_and_empties_the_queue(store: Store) -> None:
    enlist(store)
    queue_job(store, "job")
    running = claim(store, "1")
    assert running is not None
    lease = grant(store, "r1", job="job")
    submit(store, lease, 0, 1)
    with store.writing() as connection:
        jobs.cancel(connection, "job", "not needed")
        assert queue.pending(connection, "job") == ()
        with pytest.raises(StaleClaim, match="is cancelled, not running: not needed"):
            jobs.check_claim(connection, "job", running.claim_epoch)
    with pytest.raises(StaleClaim, match="job job is over"):
        claim(store, "2", "job")
    with pytest.raises(UnknownRecord, match="there is no job none"):
        claim(store, "3", "none")


def test_a_job_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    with store.writing() as connection:
        for id_ in ("abcd1", "abcd2", "abcd", "ef01%"):
            jobs.submit(connection, Job(id_, "sim", (), Budget(1)))
        assert stored_jobs.get(connection, "ef01").id == "ef01%"
        assert stored_jobs.get(connection, "abcd").id == "abcd"
        for text, said in [("ef0", "no job ef0"), ("ef%1", "no job"), ("", "no job")]:
            with pytest.raises(UnknownRecord, match=said):
                stored_jobs.get(connection, text)
        jobs.submit(connection, Job("ef01a", "sim", (), Budget(1)))
        with pytest.raises(UnknownRecord, match="several jobs begin with ef01"):
            stored_jobs.get(connection, "ef01")


def test_equal_tasks_of_a_job_are_one(store: Store, workload: MakeWorkload) -> None:
    tasks = (JobTask(workload("a"), 2), JobTask(workload("b"), 1), JobTask(workload("a"), 3))
    with store.writing() as connection:
        job = jobs.submit(connection, Job("job", "sim", tasks, Budget(9)))
        assert jobs.submit(connection, Job("job", "other", (), Budget(1))) == job
    assert [(t.workload.text, t.weight) for t in job.tasks] == [("a", 5), ("b", 1)]
    assert store.jobs([JobState.QUEUED]) == (job,)
    assert store.jobs([JobState.FAILED]) == ()


def test_tasks_and_candidates_keep_the_protocol_that_is_asked_for(
    store: Store, workload: MakeWorkload
) -> None:
    tasks = (JobTask(workload("a"), 2, FROM_MEMORY), JobTask(workload("b"), 1))
    asked = [replace(candidate(0), protocol=FROM_MEMORY), candidate(1)]
    enlist(store)
    with store.writing() as connection:
        job = jobs.submit(connection, Job("job", "sim", tasks, Budget(9)))
        lease = grants.grant(connection, Want("r", "d1", client="c", job="job"), term_s=10.0)
        queue.submit(connection, lease.id, lease.epoch, asked)
        assert list(queue.pending(connection, "job")) == asked
    assert job.tasks == tasks
    assert [work.request for work in deliver(store, "i1")] == asked


# --- a state machine ----------------------------------------------------------------------------


class LeaseMachine(RuleBasedStateMachine):
    """Grants, ends, restarts of workers, deliveries and reports in any order: no device has two
    live leases, no stale write gets through, no trial is stored twice, none is forgotten."""

    held = Bundle("held")
    granted = Bundle("granted")

    def __init__(self, fresh: FreshDatabase) -> None:
        super().__init__()
        self.rest = ExitStack()
        self.store = self.rest.enter_context(Store.open(self.rest.enter_context(fresh())))
        self.incarnation = 0
        self.requests = 0
        self.live: dict[str, Lease] = {}
        self.submitted: set[int] = set()
        self.restart()

    def teardown(self) -> None:
        self.rest.close()

    @rule()
    def restart(self) -> None:
        self.incarnation += 1
        enlist(self.store, f"i{self.incarnation}", ("d1", "d2"))

    @rule(target=granted, name=st.sampled_from(["d1", "d2"]))
    def grant(self, name: str) -> Lease:
        self.requests += 1
        if name in self.live:
            with pytest.raises(StaleLease):
                grant(self.store, f"r{self.requests}", name=name, job="job")
            return self.live[name]
        lease = grant(self.store, f"r{self.requests}", name=name, job="job")
        self.live[name] = lease
        return lease

    @rule(lease=granted, reason=st.sampled_from(["released", leases.DEVICE_LOST]))
    def end(self, lease: Lease, reason: str) -> None:
        with self.store.writing() as connection:
            ended = leases.end(connection, lease.id, reason)
        assert (ended is not None) == (self.live.get(lease.device) == lease)
        if ended:
            del self.live[lease.device]

    @rule(lease=granted, number=st.integers(0, 9))
    def submit(self, lease: Lease, number: int) -> None:
        if self.live.get(lease.device) != lease:
            with pytest.raises(StaleLease):
                submit(self.store, lease, number)
            return
        submit(self.store, lease, number)
        self.submitted.add(number)

    @rule(target=held)
    def deliver(self) -> tuple[Work, ...]:
        return deliver(self.store, f"i{self.incarnation}")

    @rule(works=consumes(held))
    def report(self, works: tuple[Work, ...]) -> None:
        before = {t.number for t in self.store.trials_of("job").trials}
        for work in works:
            accepted, _ = report(self.store, measured(work))
            lease = self.live.get(work.device)
            fresh = lease is not None and (lease.id, lease.epoch) == (work.lease, work.epoch)
            assert accepted == (fresh or work.request.number in before)

    @invariant()
    def nothing_is_doubled_or_forgotten(self) -> None:
        with self.store.reading() as connection:
            live = {lease.device: lease.id for lease in leases.live(connection)}
            stored = [t.number for t in trials.of_job(connection, "job", 0, 99).trials]
            waiting = [r.number for r in queue.pending(connection, "job")]
        assert live == {name: lease.id for name, lease in self.live.items()}
        assert len(stored) == len(set(stored))
        assert sorted(stored + waiting) == sorted(self.submitted)


def test_any_order_of_grants_ends_deliveries_and_reports(fresh_database: FreshDatabase) -> None:
    run_state_machine_as_test(
        lambda: LeaseMachine(fresh_database),
        settings=settings(max_examples=5, stateful_step_count=90),  # few databases
    )

"""The tracker's handling of leases against a model of it: any order of what people and machines do.

A real database, its writer thread and the tracker's own desk; the clock is the test's, so terms
pass in no time. What the tracker may not do is grant a device twice, take a stale write, lose a
lease that its holder renews, or keep one that nobody renews.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import func, select
from tunefarm.db import leases
from tunefarm.db.errors import StaleIncarnation, StaleLease, UnknownRecord
from tunefarm.db.farm_models import LEASES
from tunefarm.db.records import (
    Device,
    DeviceRequest,
    Lease,
    Result,
    TaskKey,
    Trial,
    TrialRequest,
    Work,
    WorkerState,
)
from tunefarm.db.store import Store
from tunefarm.tracker import operating, working
from tunefarm.tracker.endings import LATE_S, TICK_S
from tunefarm.tracker.farm import Farm
from tunefarm.tracker.leasing import Desk
from tunefarm.tracker.options import TrackerOptions
from tunefarm.tracker.writer import Database

T = TypeVar("T")
TERM_S = 10.0
WORKERS = {"w1": ("d1", "d2"), "w2": ("d3",)}
OWNER = {device: worker for worker, owned in WORKERS.items() for device in owned}
SUBJECTS = (*OWNER, *WORKERS)
SELECTED = {
    "": frozenset(OWNER),
    "device=d2": frozenset({"d2"}),
    "worker=w1": frozenset({"d1", "d2"}),
}


@dataclass
class Asked:
    """A request that waits, as the model sees it."""

    id: str
    request: DeviceRequest
    since: float
    task: asyncio.Task[Lease | None]


@dataclass
class Held:
    """A live lease in the model; it ends at ``deadline``."""

    lease: Lease
    deadline: float


@dataclass
class Figures:
    """What a run has done; ``doubled`` counts looks at which a device had two live leases."""

    steps: int = 0
    grants: int = 0
    stale: int = 0
    refused: int = 0
    restarts: int = 0
    doubled: int = 0

    def __str__(self) -> str:
        return (
            f"{self.steps} steps, {self.grants} grants, {self.restarts} restarts of the tracker: "
            f"{self.doubled} double leases, {self.refused} of {self.stale} stale writes refused"
        )


class LeaseMachine(RuleBasedStateMachine):
    figures: ClassVar[Figures] = Figures()
    template: ClassVar[Path]
    granted = Bundle("granted")

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        shutil.copy(self.template, f"{self.folder.name}/farm.db")
        self.loop = asyncio.new_event_loop()
        self.now = 1000.0
        self.count = 0
        self.live: dict[str, Held] = {}
        self.epochs: Counter[str] = Counter()
        self.seen: dict[str, float] = {}
        self.incarnations: Counter[str] = Counter()
        self.asked: list[Asked] = []
        self.answered: dict[str, Asked] = {}
        self.cordons: dict[str, bool] = {}
        self.works: dict[str, list[Work]] = {worker: [] for worker in WORKERS}
        self.stored: set[int] = set()
        self.start()

    # --- the real thing -------------------------------------------------------------------------

    def start(self) -> None:
        self.database = Database(Store.open(f"{self.folder.name}/farm.db"))
        options = TrackerOptions("unused", lease_term_s=TERM_S, claim_term_s=TERM_S)
        self.farm = Farm(options, self.database, clock=lambda: self.now)
        self.do(self.farm.load())
        self.desk = Desk(self.farm)
        self.started = self.now

    def do(self, what: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(what)

    def teardown(self) -> None:
        self.stop()
        self.loop.close()
        with Store.open(f"{self.folder.name}/farm.db") as store, store.reading() as connection:
            self.check_history(leases.history(connection, limit=10_000))
        self.folder.cleanup()

    def stop(self) -> None:
        for one in self.asked:
            self.cancel(one)
        self.asked.clear()
        self.database.close()

    def cancel(self, one: Asked) -> None:
        one.task.cancel()
        with suppress(asyncio.CancelledError):
            self.do(_wait(one.task))

    def check_history(self, found: tuple[Lease, ...]) -> None:
        """One epoch after the other, and none begins before the last has ended."""
        for device in OWNER:
            mine = sorted((one for one in found if one.device == device), key=lambda o: o.epoch)
            assert [one.epoch for one in mine] == list(range(1, self.epochs[device] + 1))
            for before, after in pairwise(mine):
                assert before.ended_at is not None
                assert before.ended_at <= after.granted_at
                assert before.ended_reason

    # --- the model ------------------------------------------------------------------------------

    def is_online(self, worker: str) -> bool:
        return worker in self.seen and self.now - self.seen[worker] <= TERM_S

    def is_free(self, device: str) -> bool:
        return device not in self.live and self.is_online(OWNER[device]) and not self.kept(device)

    def kept(self, device: str) -> bool:
        return device in self.cordons or OWNER[device] in self.cordons

    def expected_ends(self) -> set[str]:
        silent = {w for w in WORKERS if self.now - self.seen.get(w, self.started) > TERM_S}
        taken = {subject for subject, is_taken in self.cordons.items() if is_taken}
        return {
            device
            for device, held in self.live.items()
            if self.now >= held.deadline
            or OWNER[device] in silent
            or device in taken
            or OWNER[device] in taken
        }

    def expected_grants(self, free: list[str]) -> dict[str, str]:
        """Device by request: priority, then age; of several devices the first by id."""
        grants: dict[str, str] = {}
        for one in sorted(self.asked, key=lambda a: (-a.request.priority, a.since, a.id)):
            wanted = SELECTED[one.request.selector]
            device = next((d for d in free if d in wanted), None)
            if device is not None:
                free.remove(device)
                grants[one.id] = device
        return grants

    def is_live(self, lease: Lease) -> bool:
        held = self.live.get(lease.device)
        return held is not None and held.lease.id == lease.id

    # --- clients --------------------------------------------------------------------------------

    @rule(priority=st.integers(0, 2), wanted=st.sampled_from(sorted(SELECTED)))
    def ask(self, priority: int, wanted: str) -> None:
        self.count += 1
        request = DeviceRequest("sim", priority=priority, selector=wanted)
        self.queue(f"r{self.count:06}", request, self.now)

    def queue(self, name: str, request: DeviceRequest, since: float) -> None:
        """Ask, or ask again, and wait."""
        waited_s = self.now - since
        coming = self.desk.acquire(
            name, request, client="c", job="", claim_epoch=0, wait_s=1e6, waited_s=waited_s
        )
        task = self.loop.create_task(coming)
        self.do(_until(lambda: name in self.desk.tickets))
        self.asked.append(Asked(name, request, since, task))

    @rule(lease=granted)
    def ask_again(self, lease: Lease) -> None:
        """A request whose last lease has ended comes again: its client never heard of that."""
        one = self.answered[lease.id]
        served = {self.answered[held.lease.id].id for held in self.live.values()}
        if one.id not in served | {other.id for other in self.asked}:
            self.queue(one.id, one.request, self.now)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.asked))
        self.cancel(one)
        self.desk.tickets.pop(one.id)
        self.asked.remove(one)

    @rule(lease=granted)
    def renew(self, lease: Lease) -> None:
        if not self.is_live(lease):
            self.refuses(self.desk.renew(lease.id, lease.epoch), StaleLease)
            return
        renewed = self.do(self.desk.renew(lease.id, lease.epoch))
        assert (renewed.id, renewed.epoch) == (lease.id, lease.epoch)
        self.live[lease.device].deadline = self.now + TERM_S

    @rule(lease=granted)
    def release(self, lease: Lease) -> None:
        self.do(self.desk.release(lease.id, lease.epoch))
        if self.is_live(lease):
            del self.live[lease.device]

    @rule(lease=granted, shift=st.sampled_from([0, 0, 0, -1, 1]))
    def submit(self, lease: Lease, shift: int) -> None:
        self.count += 1
        request = TrialRequest("job", TaskKey("k" * 64, "sim"), self.count, {"x": 1}, "text")
        writing = working.submit(self.farm, lease.id, lease.epoch + shift, [request])
        if shift or not self.is_live(lease):
            self.refuses(writing, StaleLease)
        else:
            self.do(writing)

    def refuses(self, writing: Coroutine[Any, Any, object], error: type[Exception]) -> None:
        """A stale write; it must be refused."""
        self.figures.stale += 1
        with pytest.raises(error):
            self.do(writing)
        self.figures.refused += 1

    # --- workers --------------------------------------------------------------------------------

    @rule(worker=st.sampled_from(sorted(WORKERS)), restarts=st.booleans())
    def sync(self, worker: str, restarts: bool) -> None:
        """A heartbeat that takes work; of a new process, the old one's is refused from then on."""
        if restarts or not self.incarnations[worker]:
            self.incarnations[worker] += 1
        self.works[worker] += self.say(worker).work
        if self.incarnations[worker] > 1:
            self.refuses(self.state(worker, older=1), StaleIncarnation)

    @precondition(lambda self: any(self.works.values()))
    @rule(data=st.data())
    def report(self, data: st.DataObject) -> None:
        worker = data.draw(st.sampled_from([w for w, works in self.works.items() if works]))
        work = self.works[worker].pop(data.draw(st.integers(0, len(self.works[worker]) - 1)))
        request = work.request
        trial = Trial("job", request.task, request.number, request.config, (1e-3,))
        orders = self.say(worker, Result(work.lease, work.epoch, trial))
        held = self.live.get(work.device)
        is_fresh = held is not None and held.lease.id == work.lease
        if is_fresh or request.number in self.stored:
            assert [key.number for key in orders.accepted] == [request.number]
            self.stored.add(request.number)
            return
        self.figures.stale += 1
        assert [refusal.key.number for refusal in orders.refused] == [request.number]
        assert orders.accepted == ()
        self.figures.refused += 1

    def say(self, worker: str, *results: Result) -> Any:
        orders = self.do(self.state(worker, results))
        self.seen[worker] = self.now
        return orders

    async def state(self, worker: str, results: tuple[Result, ...] = (), older: int = 0) -> Any:
        self.count += 1
        devices = tuple(Device(name, "sim", "m", "sim", worker) for name in WORKERS[worker])
        name = f"{worker}-{self.incarnations[worker] - older}"
        state = WorkerState(worker, name, self.count, "1", devices, results=results)
        return await working.sync(self.farm, state, 0.0)

    # --- operators ------------------------------------------------------------------------------

    @precondition(lambda self: len(self.cordons) < 2 and all(self.incarnations[w] for w in WORKERS))
    @rule(subject=st.sampled_from(SUBJECTS), drain=st.booleans(), taken=st.booleans())
    def cordon(self, subject: str, drain: bool, taken: bool) -> None:
        after_s = 0.0 if drain and taken else None
        self.do(operating.cordon(self.farm, self.wish(), subject, drain, after_s))
        self.cordons[subject] = drain and taken

    @precondition(lambda self: self.cordons)
    @rule(data=st.data())
    def uncordon(self, data: st.DataObject) -> None:
        subject = data.draw(st.sampled_from(sorted(self.cordons)))
        self.do(operating.uncordon(self.farm, self.wish(), subject))
        del self.cordons[subject]

    @rule(lease=granted)
    def revoke(self, lease: Lease) -> None:
        revoking = operating.revoke(self.farm, self.wish(), lease.id)
        if not self.is_live(lease):
            with pytest.raises(UnknownRecord, match="has ended already"):
                self.do(revoking)
            return
        assert self.do(revoking).ended_reason == "revoked by anna: why"
        del self.live[lease.device]

    def wish(self) -> operating.Wish:
        self.count += 1
        return operating.Wish(f"wish {self.count}", "anna", "why")

    # --- time, and the tracker ------------------------------------------------------------------

    @rule(ticks=st.sampled_from([1, 4, 13, 27, 41, 60]))
    def let_time_pass(self, ticks: int) -> None:
        for _ in range(ticks):
            self.now += TICK_S
            self.desk.endings.heed_clock()

    @rule(seconds=st.sampled_from([0.5, 3.0, 30.0, 3600.0, None]))
    def have_a_mishap(self, seconds: float | None) -> None:
        if seconds is None:
            self.restart()
        else:
            self.freeze(seconds)

    def freeze(self, seconds: float) -> None:
        """The tracker stands still: what nobody could renew meanwhile is not taken away."""
        self.desk.endings.heed_clock()
        self.now += seconds
        self.desk.endings.heed_clock()
        if seconds - TICK_S > LATE_S:
            self.started += seconds - TICK_S
            self.seen = {w: at + seconds - TICK_S for w, at in self.seen.items()}
            for held in self.live.values():
                held.deadline += seconds - TICK_S

    def restart(self) -> None:
        """Live leases get a term of grace; those who wait ask again and keep their places."""
        waiting = self.asked[::-1]
        self.stop()
        self.start()
        self.figures.restarts += 1
        self.seen.clear()
        for held in self.live.values():
            held.deadline = self.now + TERM_S
        for one in waiting:
            self.queue(one.id, one.request, one.since)

    @rule(
        target=granted,
        asks=st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from(sorted(SELECTED))), min_size=1, max_size=3
        ),
        done=st.sets(st.sampled_from(sorted(OWNER))),
    )
    def serve(self, asks: list[tuple[int, str]], done: set[str]) -> Any:
        """All workers speak, some clients give back, some ask, and the tracker takes its turn."""
        for worker in WORKERS:
            self.sync(worker, restarts=False)
        for device in sorted(done & set(self.live)):
            self.release(self.live[device].lease)
        for priority, wanted in asks:
            self.ask(priority, wanted)
        return self.take_turn()

    @rule(target=granted, heard=st.sampled_from([("w1", "w2"), ("w1",), ("w2",), ()]))
    def step(self, heard: tuple[str, ...]) -> Any:
        """Some workers speak, and the tracker takes its turn."""
        for worker in heard:
            self.sync(worker, restarts=False)
        return self.take_turn()

    def take_turn(self) -> Any:
        """What is over ends, what is free is granted; the live leases."""
        ends = self.expected_ends()
        self.live = {d: held for d, held in self.live.items() if d not in ends}
        grants = self.expected_grants([d for d in OWNER if self.is_free(d)])
        self.do(self.desk.step())
        done = [one for one in self.asked if one.id in grants]
        for one in done:
            lease = self.do(_wait(one.task))
            assert lease is not None
            assert lease.device == grants[one.id]
            self.epochs[lease.device] += 1
            assert lease.epoch == self.epochs[lease.device]
            self.live[lease.device] = Held(lease, self.now + TERM_S)
            self.answered[lease.id] = one
        self.asked = [one for one in self.asked if one.id not in grants]
        assert not [one for one in self.asked if one.task.done()]
        self.figures.grants += len(done)
        return multiple(*(held.lease for held in self.live.values()))

    @invariant()
    def database_memory_and_model_agree(self) -> None:
        self.figures.steps += 1
        self.do(self.look())
        mine = {held.lease.id for held in self.live.values()}
        assert set(self.farm.leases) == mine
        assert {lease.id for lease in self.found} == mine

    async def look(self) -> None:
        live = LEASES.c.ended_at.is_(None)
        twice = select(LEASES.c.device).where(live).group_by(LEASES.c.device)
        query = twice.having(func.count() > 1)
        doubled = await self.database.read(lambda c: c.execute(query).all())
        self.figures.doubled += len(doubled)
        assert not doubled
        self.found = await self.database.read(leases.live)


async def _wait(task: asyncio.Task[T]) -> T:
    """What the task returns; it must be about to."""
    done, _ = await asyncio.wait([task], timeout=60.0)
    assert done, "it still waits"
    return task.result()


async def _until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0)


def run(examples: int, steps: int, **how: Any) -> Figures:
    """Run the machine; what it has done."""
    LeaseMachine.figures = Figures()
    with tempfile.TemporaryDirectory() as folder:
        LeaseMachine.template = Path(folder) / "template.db"
        Store.open(str(LeaseMachine.template)).close()
        run_state_machine_as_test(
            LeaseMachine,
            settings=settings(
                max_examples=examples, stateful_step_count=steps, deadline=None, **how
            ),
        )
    return LeaseMachine.figures


def test_leases_are_handled_as_the_model_says() -> None:
    figures = run(examples=20, steps=50)
    assert figures.doubled == 0
    assert figures.refused == figures.stale > 0
    assert figures.grants > 30


@pytest.mark.soak
def test_leases_are_handled_as_the_model_says_in_ten_thousand_steps() -> None:
    figures = run(examples=200, steps=60, derandomize=False, database=None)
    print(f"\nleases against a model: {figures}")
    assert figures.steps >= 10_000
    assert figures.doubled == 0
    assert figures.refused == figures.stale > 0

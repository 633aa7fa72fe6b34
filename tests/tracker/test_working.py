"""What workers are told, and what a tracker that has been restarted writes of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from sqlalchemy import Connection
from tunefarm.db import leases
from tunefarm.db.errors import NotYours, StaleIncarnation, StaleLease
from tunefarm.db.records import (
    Device,
    DeviceRequest,
    Health,
    Held,
    Role,
    TrialKey,
    TrialRequest,
    WorkerState,
)
from tunefarm.db.store import Store
from tunefarm.tracker import working
from tunefarm.tracker.callers import OWN, Caller
from tunefarm.tracker.farm import Farm
from tunefarm.tracker.leasing import Desk
from tunefarm.tracker.options import TrackerOptions
from tunefarm.tracker.replicas import Replicas
from tunefarm.tracker.writer import Database

DEVICE = Device(
    "d1", "sim", "m", "sim", "", {"lab": "3"}, {"flops_1": 1 / 3}, 0.1, health=Health(1.5, 0, 0.1)
)
STATE = WorkerState("w1", "i1", 7, "0.1", (DEVICE,), capacity=2)
LOADING = 1
"""Writes of a farm that is loaded: it asks the writer for live leases."""
ANNA, BERT = Caller("anna", Role.WORKER), Caller("bert", Role.WORKER)


def test_a_worker_that_holds_nothing_sleeps_through_leases_without_work(
    tmp_path: Path, candidates: Callable[..., list[TrialRequest]]
) -> None:
    async def main(database: Database) -> None:
        farm = Farm(TrackerOptions("unused", lease_term_s=60.0), database)
        await farm.load()
        desk = Desk(farm)
        serving = asyncio.create_task(desk.serve())
        poll = asyncio.create_task(working.sync(farm, STATE, 60.0))
        await desk.release(*await lease_of(desk, "r1"))
        while farm.workers["w1"].empty_since is None:
            await asyncio.sleep(0.01)
        looked_at = farm.workers["w1"].looked_at
        lease, epoch = await lease_of(desk, "r2")
        await desk.release(lease, epoch)
        lease, epoch = await lease_of(desk, "r3")
        assert farm.workers["w1"].looked_at == looked_at
        await working.submit(farm, lease, epoch, candidates("job", range(1)))
        (work,) = (await poll).work
        held = Held(TrialKey("job", work.request.task, 0), lease, epoch)
        poll = asyncio.create_task(working.sync(farm, replace(STATE, number=8, held=(held,)), 60.0))
        await desk.release(lease, epoch)
        assert (await poll).cancel == (held,)
        serving.cancel()

    with_database(tmp_path, main)


@pytest.mark.parametrize("ends", [True, False])
def test_a_renewal_while_an_end_is_written_hears_what_came_of_it(
    tmp_path: Path, ends: bool
) -> None:
    asked = threading.Event()

    def condition(_: Connection) -> bool:
        assert asked.wait(30)
        return ends

    async def main(database: Database) -> None:
        farm = Farm(TrackerOptions("unused", lease_term_s=60.0), database)
        await farm.load()
        desk = Desk(farm)
        serving = asyncio.create_task(desk.serve())
        await working.sync(farm, STATE, 0.0)
        lease, epoch = await lease_of(desk, "r1")
        ending = asyncio.create_task(desk.endings._end([lease], leases.DEVICE_LOST, condition))
        await asyncio.sleep(0)
        renewal = asyncio.create_task(desk.renew(lease, epoch))
        await asyncio.sleep(0)
        asked.set()
        if ends:
            with pytest.raises(StaleLease, match="has ended: device_lost"):
                await renewal
        else:
            assert (await renewal).id == lease
        await ending
        assert (lease in farm.leases) is not ends
        serving.cancel()

    with_database(tmp_path, main)


def with_database(folder: Path, main: Callable[[Database], Coroutine[Any, Any, None]]) -> None:
    database = Database(Store.open(str(folder / "farm.db")))
    try:
        asyncio.run(asyncio.wait_for(main(database), 60))
    finally:
        database.close()


async def lease_of(desk: Desk, request_id: str) -> tuple[str, int]:
    asked = DeviceRequest("sim")
    lease = await desk.acquire(request_id, asked, client="c", job="", claim_epoch=0, wait_s=60.0)
    assert lease is not None
    return lease.id, lease.epoch


@pytest.fixture
def come(tmp_path: Path) -> Callable[..., tuple[Farm, int]]:
    """Start a tracker's farm, have a worker come, and stop; the farm, and how often that wrote."""

    async def run(state: WorkerState, caller: Caller) -> tuple[Farm, int]:
        database = Database(Store.open(str(tmp_path / "farm.db")))
        try:
            farm = Farm(TrackerOptions("unused"), database)
            await farm.load()
            await working.sync(farm, state, 0.0, caller)
        finally:
            await asyncio.to_thread(database.close)
        return farm, sum(database.durations.buckets) - LOADING

    return lambda state=STATE, caller=OWN: asyncio.run(run(state, caller))


def together(url: str, *meetings: Callable[[list[Farm]], Awaitable[object]]) -> list[object]:
    """What came of each meeting in turn, of two trackers' farms over one database; errors too."""

    async def main(databases: list[Database]) -> list[object]:
        farms = [Farm(TrackerOptions("unused"), database) for database in databases]
        for farm in farms:
            await farm.load()
        return [await meet(farms) for meet in meetings]

    databases = [Database(Store.open(url)) for _ in range(2)]
    try:
        return asyncio.run(asyncio.wait_for(main(databases), 60))
    finally:
        for database in databases:
            database.close()


@pytest.mark.parametrize("there", [0, 1], ids=["one tracker", "two trackers"])
def test_of_two_new_workers_of_one_device_the_first_gets_it(postgres: Any, there: int) -> None:
    async def both(farms: list[Farm]) -> tuple[object, ...]:
        second = replace(STATE, worker="w2", incarnation="i2")
        return await asyncio.gather(
            working.sync(farms[0], STATE, 0.0),
            working.sync(farms[there], second, 0.0),
            return_exceptions=True,
        )

    async def who(farms: list[Farm]) -> str:
        devices = await farms[0].database.read(leases.devices)
        return devices[0].worker

    with postgres.database("latest") as url:
        (one, other), winner = cast("tuple[tuple[object, object], str]", together(url, both, who))
    refusals = [result for result in (one, other) if isinstance(result, ValueError)]
    assert len(refusals) == 1
    assert str(refusals[0]).startswith(f"device d1 is served by worker {winner}; stop that one")
    assert isinstance(other if winner == "w1" else one, ValueError)
    assert winner == "w1" or there


def test_a_worker_that_another_tracker_has_just_enlisted_serves_its_device(postgres: Any) -> None:
    """Its own tracker has not said yet what it heard."""

    async def first(farms: list[Farm]) -> object:
        return await working.sync(farms[0], STATE, 0.0)

    async def second(farms: list[Farm]) -> object:
        await Replicas(farms[1], Desk(farms[1])).exchange()
        await working.sync(farms[1], replace(STATE, worker="w2", incarnation="i2"), 0.0)
        return None

    with postgres.database("latest") as url, pytest.raises(ValueError, match="by worker w1"):
        together(url, first, second)


LEAVES = replace(STATE, number=8, capacity=0)


async def exchanges(*trackers: Replicas) -> list[int]:
    """How much work each tracker believes the worker takes once all have had an exchange in turn,
    and all again."""
    for one in trackers * 2:
        one.hurry()
        await asyncio.sleep(one.due_in_s)
        await one.exchange()
    return [one._farm.workers["w1"].capacity for one in trackers]


def hold_up(farm: Farm, before: Awaitable[object], after: Awaitable[object]) -> None:
    """Let something happen before and after the next write is done, while others wait for it."""
    write = farm.database.write

    async def write_slowly(operation: Callable[..., Any]) -> Any:
        farm.database.write = write  # type: ignore[method-assign]
        await before
        found = await write(operation)
        await after
        return found

    farm.database.write = write_slowly  # type: ignore[method-assign,assignment]


def test_what_a_worker_says_while_the_rows_are_read_is_newer_than_they(postgres: Any) -> None:
    """The tracker's own earlier word comes back in them, and looks younger by its way."""

    async def meet(farms: list[Farm]) -> list[list[int]]:
        here, there = (Replicas(farm, Desk(farm)) for farm in farms)
        await working.sync(farms[0], STATE, 0.0)
        hold_up(farms[0], asyncio.sleep(0), slowly(working.sync(farms[0], LEAVES, 0.0)))
        await here.exchange()
        return [[farms[0].workers["w1"].capacity], await exchanges(here, there)]

    with postgres.database("latest") as url:
        assert together(url, meet) == [[[0], [0, 0]]]


def test_a_worker_s_last_word_is_not_lost_behind_one_that_took_longer(postgres: Any) -> None:
    async def meet(farms: list[Farm]) -> list[list[int]]:
        here, there = (Replicas(farm, Desk(farm)) for farm in farms)
        await working.sync(farms[0], STATE, 0.0)
        hold_up(farms[0], slowly(working.sync(farms[0], LEAVES, 0.0)), asyncio.sleep(0))
        await here.exchange()
        left = await exchanges(here, there)
        await working.sync(farms[1], replace(STATE, number=9, capacity=5), 0.0)
        return [left, await exchanges(there, here)]

    with postgres.database("latest") as url:
        assert together(url, meet) == [[[0, 0], [5, 5]]]


async def slowly(happening: Awaitable[object]) -> None:
    await happening
    await asyncio.sleep(0.2)


def test_nothing_is_written_of_one_that_says_what_the_rows_say(come: Any) -> None:
    _, writes = come()
    assert writes > 0
    farm, writes = come()
    assert writes == 0
    assert farm.is_online("d1")
    assert [device.id for device in farm.free_devices()] == ["d1"]


@pytest.mark.parametrize(
    "state",
    [
        replace(STATE, incarnation="i2"),
        replace(STATE, incarnation="i2", compiler_version="0.2"),
        replace(STATE, devices=(replace(DEVICE, attributes={"lab": "4"}),)),
        replace(STATE, devices=(replace(DEVICE, health=Health(2.5)),)),
        replace(STATE, devices=(DEVICE, replace(DEVICE, id="d2"))),
        replace(STATE, worker="w2"),
    ],
)
def test_what_is_new_is_written(come: Any, state: WorkerState) -> None:
    come()
    _, writes = come(state)
    assert writes > 0
    farm, writes = come(state)
    assert writes == 0
    assert {device.id: device.worker for device in farm.devices.values()} == {
        device.id: state.worker for device in state.devices
    }


def test_trouble_is_looked_at_each_time(come: Any) -> None:
    """It keeps the device in quarantine, whatever was done about that meanwhile."""
    ill = replace(STATE, devices=(replace(DEVICE, health=Health(trouble="it is hot")),))
    for _ in range(2):
        farm, writes = come(ill)
        assert writes > 0
        assert farm.free_devices() == []


def test_a_worker_that_was_replaced_stays_so(come: Any) -> None:
    come()
    come(replace(STATE, incarnation="i2"))
    with pytest.raises(StaleIncarnation):
        come()


def test_a_worker_belongs_to_one_token(come: Any) -> None:
    come(STATE, ANNA)
    assert come(STATE, ANNA)[1] == 0
    with pytest.raises(NotYours, match="belongs to token anna"):
        come(STATE, BERT)

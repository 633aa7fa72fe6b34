"""Server-sent events: what changed is told while it happens, and costs next to nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tunefarm.dashboard import live, watch
from tunefarm.dashboard.allowance import OWED_S, SAVED_S, SHARE, Allowance
from tunefarm.dashboard.watch import Mark, Subject, Viewer, Watch
from tunefarm.db import jobs
from tunefarm.db.store import Store

JOB = Subject("job", lambda db: live.job_mark(db, "aaaa1111"))
FARM = Subject("farm", live.farm_mark)
LIMIT_S = 60


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(watch, "PAUSE_S", 0.05)


class Clock:
    """Time that passes, and time that is used, as a test says."""

    def __init__(self) -> None:
        self.now_s = self.used_s = 0.0

    def allowance(self) -> Allowance:
        return Allowance(lambda: self.now_s, lambda: self.used_s)


def generous() -> Allowance:
    """Never used up, whatever else this process does."""
    return Clock().allowance()


async def soon(events: AsyncIterator[str]) -> str:
    return await asyncio.wait_for(anext(events), LIMIT_S)


def mark(reader: Store) -> Mark:
    with reader.reading() as db:
        return live.job_mark(db, "aaaa1111")


def test_a_stored_trial_is_an_event_and_nothing_else_is(farm: Any) -> None:
    async def follow(store: Store, reader: Store) -> list[str]:
        events = live.changes(Watch(reader, generous()), JOB, mark(reader))
        seen = [await anext(events)]
        store.add_trials([farm.trial(1, 500)])
        seen.append(await soon(events))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(events), 0.5)
        return seen

    with Store.open(farm.database) as store, Store.open(farm.database, readonly=True) as reader:
        alive, change = asyncio.run(follow(store, reader))
        assert alive == ": alive\n\n"
        assert change == f"event: change\nid: {mark(reader)}\ndata: 1\n\n"


def test_a_change_of_state_is_an_event_of_its_own(farm: Any) -> None:
    async def follow(store: Store, reader: Store) -> list[str]:
        events = live.changes(Watch(reader, generous()), JOB, mark(reader))
        await anext(events)
        with store.writing() as db:
            jobs.cancel(db, "aaaa1111", "enough")
        return [(await soon(events)).partition("\n")[0] for _ in range(2)]

    with Store.open(farm.database) as store, Store.open(farm.database, readonly=True) as reader:
        assert asyncio.run(follow(store, reader)) == ["event: state", "event: change"]


def test_who_comes_back_hears_what_they_missed(farm: Any) -> None:
    async def follow(seen: Mark | None, reader: Store) -> str:
        events = live.changes(Watch(reader, generous()), JOB, seen)
        await anext(events)
        return await soon(events)

    with Store.open(farm.database) as store, Store.open(farm.database, readonly=True) as reader:
        seen = Mark.parse(str(mark(reader)))
        assert seen == mark(reader)
        store.add_trials([farm.trial(1, 500)])
        assert asyncio.run(follow(seen, reader)).startswith("event: change\n")


def test_who_comes_late_hears_what_others_heard_before(farm: Any) -> None:
    async def follow(seen: Mark, store: Store, reader: Store) -> str:
        together = Watch(reader, generous())
        first = live.changes(together, JOB, seen)
        await anext(first)
        store.add_trials([farm.trial(1, 500)])
        await soon(first)
        await asyncio.sleep(0.3)
        late = live.changes(together, JOB, seen)
        await anext(late)
        return await soon(late)

    with Store.open(farm.database) as store, Store.open(farm.database, readonly=True) as reader:
        heard = asyncio.run(follow(mark(reader), store, reader))
    assert heard.startswith("event: change\n")


def test_the_farm_has_another_mark_when_a_job_or_trial_is_new(farm: Any) -> None:
    with Store.open(farm.database) as store:
        with store.reading() as db:
            before = live.farm_mark(db)
        store.add_trials([farm.trial(1, 500)])
        with store.reading() as db:
            assert live.farm_mark(db) != before


def test_many_viewers_are_one_look_and_each_hears(
    farm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def look(db: Any) -> Mark:
        looks.append(1)
        return live.job_mark(db, "aaaa1111")

    async def follow(store: Store, reader: Store) -> list[str]:
        together = Watch(reader, generous())
        told = [live.changes(together, Subject("job", look), mark(reader)) for _ in range(20)]
        for events in told:
            await anext(events)
        await asyncio.sleep(0.3)
        before = len(looks)
        await asyncio.sleep(0.5)
        assert len(looks) == before  # nobody wrote, so nothing is read
        store.add_trials([farm.trial(1, 500)])
        return [await soon(events) for events in told]

    with Store.open(farm.database) as store, Store.open(farm.database, readonly=True) as reader:
        heard = asyncio.run(follow(store, reader))
    assert all(event.startswith("event: change\n") for event in heard)
    assert len(looks) < 10


def test_subjects_take_turns_and_wait_for_the_allowance(
    farm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "PAUSE_S", 0.3)
    clock = Clock()

    async def look(store: Store, reader: Store) -> None:
        together = Watch(reader, clock.allowance())
        loop = asyncio.get_running_loop()
        viewers = [Viewer(subject, None, loop, asyncio.Queue()) for subject in (JOB, FARM)]
        assert together.look(viewers)  # whoever says nothing has seen what is there
        store.add_trials([farm.trial(1, 500)])
        clock.used_s = 2 * SHARE * SAVED_S
        assert not together.look(viewers)
        await asyncio.sleep(0.01)
        assert [viewer.news.qsize() for viewer in viewers] == [0, 0]
        clock.now_s = 1.5 * OWED_S
        assert not together.look(viewers)
        await asyncio.sleep(0.01)
        assert sum(viewer.news.qsize() for viewer in viewers) == 1
        assert not together.look(viewers)
        await asyncio.sleep(2 * watch.PAUSE_S)
        assert [viewer.news.qsize() for viewer in viewers] == [1, 1]
        assert together.look(viewers)

    with Store.open(farm.database) as store, Store.open(farm.database, readonly=True) as reader:
        asyncio.run(look(store, reader))


def test_the_allowance_is_a_share_of_what_passes() -> None:
    clock = Clock()
    allowance = clock.allowance()
    sent = 0
    for _ in range(10_000):
        clock.now_s += 1
        if allowance.has_some:
            clock.used_s += 0.05
            sent += 1
    assert clock.used_s <= SHARE * (clock.now_s + SAVED_S) + 0.05
    assert sent > 0.9 * SHARE * clock.now_s / 0.05


def test_what_people_call_for_holds_up_little() -> None:
    clock = Clock()
    allowance = clock.allowance()
    clock.used_s = 1000
    assert not allowance.has_some
    clock.now_s = OWED_S + 1
    assert allowance.has_some

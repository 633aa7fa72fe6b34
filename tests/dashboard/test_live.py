"""Server-sent events: that something changed is told while it happens."""

from __future__ import annotations

import asyncio
from typing import Any

from tunefarm.dashboard import live
from tunefarm.db import jobs
from tunefarm.db.store import Store


class Browser:
    """A client that stays until it leaves."""

    def __init__(self) -> None:
        self.has_left = False

    async def is_disconnected(self) -> bool:
        return self.has_left


def test_a_stored_trial_is_an_event_and_nothing_else_is(farm: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(live, "LOOK_S", 0.01)
    browser: Any = Browser()

    async def watch(store: Store, reader: Store) -> list[str]:
        events = live.changes(browser, reader, lambda db: live.job_mark(db, "aaaa1111"))
        seen = [await anext(events)]
        store.add_trials([farm.trial(1, 500)])
        seen.append(await asyncio.wait_for(anext(events), 60))
        browser.has_left = True
        return [*seen, *[event async for event in events]]

    with Store.open(farm.database) as store, Store.open(farm.database, readonly=True) as reader:
        seen = asyncio.run(watch(store, reader))
    assert seen == [": alive\n\n", "event: change\ndata: 1\n\n"]


def test_the_farm_has_another_mark_when_a_job_or_trial_is_new(farm: Any) -> None:
    with Store.open(farm.database) as store:
        with store.reading() as db:
            before = live.farm_mark(db)
        store.add_trials([farm.trial(1, 500)])
        with store.reading() as db:
            assert live.farm_mark(db) != before


def test_a_change_of_state_is_an_event_of_its_own(farm: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(live, "LOOK_S", 0.01)
    browser: Any = Browser()

    async def watch(store: Store, reader: Store) -> list[str]:
        events = live.changes(browser, reader, lambda db: live.job_mark(db, "aaaa1111"))
        seen = [await anext(events)]
        with store.writing() as db:
            jobs.cancel(db, "aaaa1111", "enough")
        seen += [await asyncio.wait_for(anext(events), 60) for _ in range(2)]
        browser.has_left = True
        return [*seen, *[event async for event in events]]

    with Store.open(farm.database) as store, Store.open(farm.database, readonly=True) as reader:
        seen = asyncio.run(watch(store, reader))
    assert seen[1:] == ["event: state\ndata: 1\n\n", "event: change\ndata: 1\n\n"]

"""Terms while trackers come and go, by the rows of a database that several may share."""

from __future__ import annotations

import math
import uuid
from dataclasses import replace

import pytest
from sqlalchemy import Connection
from tunefarm.db import leases, replicas
from tunefarm.db.grants import Want, grant
from tunefarm.db.records import Device, DeviceRequest, Lease
from tunefarm.db.replicas import Asking, Heard, Presence
from tunefarm.db.store import Store

TERM_S = 2.0
HEARD = Heard("", "lab1:9190", TERM_S, TERM_S, 0.75, {}, {}, {}, ())
SELDOM = replace(HEARD, interval_s=60.0)
"""Of a tracker that nobody misses while a test lasts."""


class Clock:
    """The database's clock, which stands still but where a test sets it (seconds)."""

    def __init__(self) -> None:
        self.now = math.nan

    def __call__(self, connection: Connection) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(replicas, "clock", made)
    return made


@pytest.fixture
def lease(store: Store, clock: Clock) -> Lease:
    with store.writing() as connection:
        leases.enlist(connection, "w", "1", "1.0")
        leases.register(connection, "w", [Device("d", "sim", "m", "sim", "w")])
        made = grant(connection, Want("r", "d", "c"), TERM_S)
        clock.now = made.granted_at
        replicas.exchange(connection, replace(HEARD, tracker="first"))
    return made


def left_s(store: Store, lease: Lease, heard: Heard) -> float:
    """What is left of the lease's term after a tracker has said what it heard."""
    with store.writing() as connection:
        return replicas.exchange(connection, heard).leases[lease.id][1]


def test_a_tracker_that_dies_again_and_again_takes_no_time_from_anybody(
    store: Store, lease: Lease, clock: Clock
) -> None:
    """Each lives too briefly for a renewal, and is back sooner than it would be missed."""
    for _ in range(5):
        clock.now += TERM_S / 4
        again = replace(HEARD, tracker=uuid.uuid4().hex)
        assert left_s(store, lease, again) == pytest.approx(TERM_S, abs=1e-3)


def test_a_tracker_that_joins_another_changes_no_term(
    store: Store, lease: Lease, clock: Clock
) -> None:
    clock.now += TERM_S / 4
    joining = replace(SELDOM, tracker="second", address="lab2:9190")
    assert left_s(store, lease, joining) == pytest.approx(0.75 * TERM_S, abs=1e-3)


def test_an_exchange_changes_no_term(store: Store, lease: Lease, clock: Clock) -> None:
    first = left_s(store, lease, replace(SELDOM, tracker="first"))
    clock.now += TERM_S / 8
    left = left_s(store, lease, replace(SELDOM, tracker="first"))
    assert left == pytest.approx(first - TERM_S / 8, abs=1e-3)


# --- a clock that is set ------------------------------------------------------------------------


@pytest.mark.parametrize("ahead_s", [-86400.0, -10.0, 86400.0])
def test_a_clock_that_is_set_changes_no_term(
    store: Store, lease: Lease, clock: Clock, ahead_s: float
) -> None:
    clock.now += ahead_s
    assert TERM_S / 2 < left_s(store, lease, replace(HEARD, tracker="first")) <= TERM_S
    assert TERM_S / 2 < left_s(store, lease, replace(HEARD, tracker="first")) <= TERM_S


@pytest.mark.parametrize("ahead_s", [-86400.0, 86400.0])
def test_a_term_that_began_after_the_clock_was_set_is_as_long_as_any(
    store: Store, lease: Lease, clock: Clock, ahead_s: float
) -> None:
    """A lease is renewed by its row before a tracker has noticed that time was lost."""
    clock.now += ahead_s
    with store.writing() as connection:
        replicas.renew_lease(connection, lease.id, lease.epoch, TERM_S)
    assert TERM_S / 2 < left_s(store, lease, replace(HEARD, tracker="first")) <= TERM_S


def test_a_worker_is_heard_after_the_clock_was_set_back(
    store: Store, lease: Lease, clock: Clock
) -> None:
    def say(tracker: str, word: Presence | None) -> Presence:
        told = {} if word is None else {"w": word}
        with store.writing() as connection:
            heard = replace(HEARD, tracker=tracker, workers=told)
            return replicas.exchange(connection, heard).workers["w"]

    row_at = say("second", Presence("1", 0.0, 4)).row_at
    clock.now -= 86400.0
    assert say("first", None).age_s == pytest.approx(0.0, abs=1e-3)
    heard = say("second", Presence("1", 0.0, 5, row_at))
    assert (heard.is_own, heard.capacity) == (True, 5)
    assert heard.age_s == pytest.approx(0.0, abs=1e-3)


def test_a_request_of_a_dead_tracker_is_forgotten_though_the_clock_was_set_back(
    store: Store, lease: Lease, clock: Clock
) -> None:
    asking = Asking("r2", DeviceRequest("sim"), 0.0, 0.0, "c")
    with store.writing() as connection:
        replicas.exchange(connection, replace(HEARD, tracker="dead", queue=(asking,)))
    clock.now -= 86400.0
    with store.writing() as connection:
        replicas.exchange(connection, replace(HEARD, tracker="first"))
    clock.now += replicas.PLACE_S + 1
    with store.writing() as connection:
        known = replicas.exchange(connection, replace(HEARD, tracker="first"))
    assert known.queue == ()


# --- what a tracker renewed and could not tell --------------------------------------------------


def is_over(store: Store, lease: Lease) -> bool:
    with store.writing() as connection:
        return replicas.is_over(connection, lease.id, TERM_S, beat_s=60.0)


def test_a_lease_lives_while_a_silent_tracker_may_have_renewed_it(
    store: Store, lease: Lease, clock: Clock
) -> None:
    """A tracker renews in memory for half a term after it was last heard of."""
    silent = replace(SELDOM, tracker="silent", address="lab2:9190")
    left_s(store, lease, silent)
    began = clock.now
    for terms, expected in ((0.5, False), (1.1, False), (1.4, False), (1.7, True)):
        clock.now = began + terms * TERM_S
        left_s(store, lease, replace(SELDOM, tracker="first"))
        assert is_over(store, lease) is expected


def test_a_lease_is_over_once_no_tracker_says_that_it_renewed_it(
    store: Store, lease: Lease, clock: Clock
) -> None:
    other = replace(SELDOM, tracker="other", address="lab2:9190")
    left_s(store, lease, other)
    clock.now += 1.2 * TERM_S
    left_s(store, lease, replace(SELDOM, tracker="first"))
    assert not is_over(store, lease)
    left_s(store, lease, other)
    assert is_over(store, lease)


def test_what_a_tracker_heard_long_ago_is_as_old_in_the_rows(
    store: Store, lease: Lease, clock: Clock
) -> None:
    """A tracker may stand still between what it heard and its turn to say so."""
    clock.now += 10.0
    heard = replace(SELDOM, tracker="first", workers={"w": Presence("1", 0.0, 4)})
    with store.writing() as connection:
        known = replicas.exchange(connection, heard, late_s=3.0)
    assert known.workers["w"].age_s == pytest.approx(3.0, abs=1e-3)

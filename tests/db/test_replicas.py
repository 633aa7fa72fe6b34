"""Terms while trackers come and go, by the rows of a database that several may share."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
from tunefarm.db import leases, replicas
from tunefarm.db.dialect import clock
from tunefarm.db.grants import Want, grant
from tunefarm.db.records import Device, DeviceRequest, Lease
from tunefarm.db.replicas import Asking, Heard, Presence
from tunefarm.db.store import Store

TERM_S = 2.0
HEARD = Heard("", "lab1:9190", TERM_S, TERM_S, 0.75, {}, {}, {}, ())
SELDOM = replace(HEARD, interval_s=60.0)
"""Of a tracker that nobody misses while a test lasts."""


@pytest.fixture
def lease(store: Store) -> Lease:
    with store.writing() as connection:
        leases.enlist(connection, "w", "1", "1.0")
        leases.register(connection, "w", [Device("d", "sim", "m", "sim", "w")])
        replicas.exchange(connection, replace(HEARD, tracker="first"))
        made = grant(connection, Want("r", "d", "c"), TERM_S)
        replicas.exchange(connection, replace(HEARD, tracker="first"))
    return made


def left_s(store: Store, lease: Lease, heard: Heard) -> float:
    """What is left of the lease's term after a tracker has said what it heard."""
    with store.writing() as connection:
        return replicas.exchange(connection, heard).leases[lease.id][1]


def test_a_tracker_that_dies_again_and_again_takes_no_time_from_anybody(
    store: Store, lease: Lease
) -> None:
    """Each lives too briefly for a renewal, and is back sooner than it would be missed."""
    for _ in range(5):
        time.sleep(TERM_S / 4)
        again = replace(HEARD, tracker=uuid.uuid4().hex)
        assert left_s(store, lease, again) == pytest.approx(TERM_S, abs=TERM_S / 8)


def test_a_tracker_that_joins_another_changes_no_term(store: Store, lease: Lease) -> None:
    time.sleep(TERM_S / 4)
    joining = replace(SELDOM, tracker="second", address="lab2:9190")
    assert left_s(store, lease, joining) < TERM_S * 0.8


def test_an_exchange_changes_no_term(store: Store, lease: Lease) -> None:
    first = left_s(store, lease, replace(SELDOM, tracker="first"))
    time.sleep(TERM_S / 8)
    assert left_s(store, lease, replace(SELDOM, tracker="first")) < first - TERM_S / 10


# --- a clock that is set ------------------------------------------------------------------------


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Sets the database's clock ahead, or back."""

    def set_ahead(seconds: float) -> None:
        monkeypatch.setattr(replicas, "clock", lambda connection: clock(connection) + seconds)

    return set_ahead


@pytest.mark.parametrize("ahead_s", [-86400.0, -10.0, 86400.0])
def test_a_clock_that_is_set_changes_no_term(
    store: Store, lease: Lease, set_clock: Callable[[float], None], ahead_s: float
) -> None:
    set_clock(ahead_s)
    assert TERM_S / 2 < left_s(store, lease, replace(HEARD, tracker="first")) <= TERM_S
    assert TERM_S / 2 < left_s(store, lease, replace(HEARD, tracker="first")) <= TERM_S


@pytest.mark.parametrize("ahead_s", [-86400.0, 86400.0])
def test_a_term_that_began_after_the_clock_was_set_is_as_long_as_any(
    store: Store, lease: Lease, set_clock: Callable[[float], None], ahead_s: float
) -> None:
    """A lease is renewed by its row before a tracker has noticed that time was lost."""
    set_clock(ahead_s)
    with store.writing() as connection:
        replicas.renew_lease(connection, lease.id, lease.epoch, TERM_S)
    assert TERM_S / 2 < left_s(store, lease, replace(HEARD, tracker="first")) <= TERM_S


def test_a_worker_is_heard_after_the_clock_was_set_back(
    store: Store, lease: Lease, set_clock: Callable[[float], None]
) -> None:
    def say(tracker: str, word: Presence | None) -> Presence:
        told = {} if word is None else {"w": word}
        with store.writing() as connection:
            heard = replace(HEARD, tracker=tracker, workers=told)
            return replicas.exchange(connection, heard).workers["w"]

    row_at = say("second", Presence("1", 0.0, 4)).row_at
    set_clock(-86400.0)
    assert say("first", None).age_s == pytest.approx(0.0, abs=1.0)
    heard = say("second", Presence("1", 0.0, 5, row_at))
    assert (heard.is_own, heard.capacity) == (True, 5)
    assert heard.age_s == pytest.approx(0.0, abs=1.0)


def test_a_request_of_a_dead_tracker_is_forgotten_though_the_clock_was_set_back(
    store: Store, lease: Lease, set_clock: Callable[[float], None]
) -> None:
    asking = Asking("r2", DeviceRequest("sim"), 0.0, 0.0, "c")
    with store.writing() as connection:
        replicas.exchange(connection, replace(HEARD, tracker="dead", queue=(asking,)))
    set_clock(-86400.0)
    with store.writing() as connection:
        replicas.exchange(connection, replace(HEARD, tracker="first"))
    set_clock(-86400.0 + replicas.PLACE_S + 1)
    with store.writing() as connection:
        known = replicas.exchange(connection, replace(HEARD, tracker="first"))
    assert known.queue == ()


# --- what a tracker renewed and could not tell --------------------------------------------------


def is_over(store: Store, lease: Lease) -> bool:
    with store.writing() as connection:
        return replicas.is_over(connection, lease.id, TERM_S, beat_s=60.0)


def test_a_lease_lives_while_a_silent_tracker_may_have_renewed_it(
    store: Store, lease: Lease, set_clock: Callable[[float], None]
) -> None:
    """A tracker renews in memory for half a term after it was last heard of."""
    silent = replace(SELDOM, tracker="silent", address="lab2:9190")
    left_s(store, lease, silent)
    for ahead_s, expected in ((0.5, False), (1.1, False), (1.4, False), (1.7, True)):
        set_clock(ahead_s * TERM_S)
        left_s(store, lease, replace(SELDOM, tracker="first"))
        assert is_over(store, lease) is expected


def test_a_lease_is_over_once_no_tracker_says_that_it_renewed_it(
    store: Store, lease: Lease, set_clock: Callable[[float], None]
) -> None:
    other = replace(SELDOM, tracker="other", address="lab2:9190")
    left_s(store, lease, other)
    set_clock(1.2 * TERM_S)
    left_s(store, lease, replace(SELDOM, tracker="first"))
    assert not is_over(store, lease)
    left_s(store, lease, other)
    assert is_over(store, lease)


def test_what_a_tracker_heard_long_ago_is_as_old_in_the_rows(
    store: Store, lease: Lease, set_clock: Callable[[float], None]
) -> None:
    """A tracker may stand still between what it heard and its turn to say so."""
    set_clock(10.0)
    heard = replace(SELDOM, tracker="first", workers={"w": Presence("1", 0.0, 4)})
    with store.writing() as connection:
        known = replicas.exchange(connection, heard, late_s=3.0)
    assert known.workers["w"].age_s == pytest.approx(3.0, abs=0.5)

"""Terms while trackers come and go, by the rows of a database that several may share."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace

import pytest
from tunefarm.db import leases, replicas
from tunefarm.db.grants import Want, grant
from tunefarm.db.records import Device, Lease
from tunefarm.db.replicas import Heard
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

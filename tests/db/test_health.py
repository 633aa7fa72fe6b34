"""Devices that are not well: what is kept of their checks, quarantine, and the way out of it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from sqlalchemy import Connection
from tunefarm.db import cordons, grants, health, leases
from tunefarm.db.errors import StaleLease, UnknownRecord
from tunefarm.db.grants import Want
from tunefarm.db.records import Device, ErrorKind, Health, Lease, Result, TaskKey, Trial
from tunefarm.db.store import Store

PEAKS = {"flops_n": 100e9, "bandwidth_dram_n": 36.3e9}
DEVICE = Device("sim-1", "sim", "Sim", "sim", "w", peaks=PEAKS)


def told(connection: Connection, at: float, trouble: str = "", **peaks: float) -> tuple[str, ...]:
    """The worker tells what a check found at this time; the leases that this ended."""
    device = replace(
        DEVICE, peaks={**DEVICE.peaks, **peaks}, health=Health(checked_at=at, trouble=trouble)
    )
    leases.register(connection, "w", [device])
    return health.take_in(connection, [device])


def reason(connection: Connection) -> str:
    found = health.quarantine_of(connection, DEVICE.id)
    return "" if found is None else found.reason


def granted(connection: Connection, name: str = "r") -> Lease:
    return grants.grant(connection, Want(name, DEVICE.id, "c"), 10.0)


@pytest.fixture
def registered(store: Store) -> Store:
    with store.writing() as connection:
        leases.enlist(connection, "w", "i", "v")
        assert told(connection, 1.0) == ()
    return store


def test_trouble_ends_the_lease_and_keeps_new_ones_away_until_it_passes(registered: Store) -> None:
    with registered.writing() as connection:
        lease = granted(connection)
        assert told(connection, 1.0, trouble="it is hot") == (lease.id,)
        assert leases.get(connection, lease.id).ended_reason == "quarantined: it is hot"
        with pytest.raises(StaleLease, match="is quarantined by its worker: it is hot"):
            granted(connection, "again")
        assert told(connection, 1.0, trouble="it is hotter") == ()
        assert reason(connection) == "it is hotter"
        told(connection, 1.0)
        assert reason(connection) == ""
        assert granted(connection, "then").epoch > lease.epoch


def test_a_check_far_below_those_before_it_is_a_quarantine_until_one_is_not(
    registered: Store,
) -> None:
    with registered.writing() as connection:
        for day in range(2, 5):
            told(connection, day, flops_n=100e9 + day * 1e9)
        told(connection, 5.0, flops_n=75e9)
        assert reason(connection) == ""  # within what a busy day costs
        told(connection, 6.0, flops_n=60e9)
        assert reason(connection) == (
            "it computes 60 GFLOP/s, 59% of the 102 GFLOP/s of its last 5 checks; "
            "`tunefarm devices check` repeats the check, "
            "`tunefarm devices lift` ends the quarantine"
        )
        told(connection, 6.0, flops_n=60e9)  # the same check, told again
        told(connection, 7.0, flops_n=62e9)
        assert "it computes 62 GFLOP/s" in reason(connection)  # the bad ones are no history
        told(connection, 8.0, flops_n=99e9)
        assert reason(connection) == ""


@pytest.mark.parametrize(
    ("peak", "value", "sentence"),
    [
        ("bandwidth_dram_n", 18.7e9, "memory gives 18.7 GB/s, 52% of the 36.3 GB/s of its last 3 "),
        ("bandwidth_l1_n", 1.2e12, "its first cache gives 1200 GB/s, 50% of the 2400 GB/s of its "),
        ("tensor_n", 3e9, "its tensor_n is 3 GFLOP/s, 50% of the 6 GFLOP/s of its last 3 checks"),
    ],
)
def test_a_low_peak_is_told_with_its_unit(peak: str, value: float, sentence: str) -> None:
    usual = {"bandwidth_dram_n": 36.3e9, "bandwidth_l1_n": 2.4e12, "tensor_n": 6e9}
    told = health.unlike_itself({**usual, peak: value}, [usual] * 3)
    assert told.startswith(sentence)
    assert health.unlike_itself(usual, [usual] * 3) == ""


def test_lifting_trusts_the_device_as_it_is(registered: Store) -> None:
    with registered.writing() as connection:
        told(connection, 2.0, flops_n=10e9)
        assert reason(connection)
        who = {"actor": "anna", "reason": "it has another power limit now"}
        asked = health.ask_check(connection, "1", "sim-1", lift=True, **who)
        assert asked == health.ask_check(connection, "1", "sim-1", lift=True, **who) == {"sim-1": 1}
        assert reason(connection) == ""
        told(connection, time.time() + 1, flops_n=10e9)
        assert reason(connection) == ""
        told(connection, time.time() + 2, flops_n=5e9)
        assert reason(connection).startswith("it computes 5 GFLOP/s, 50% of the 10 GFLOP/s of its ")
        (event,) = cordons.events(connection, "sim-1")
        assert (event.action, event.actor, event.reason) == ("lift", *who.values())


def test_asking_for_a_check_names_all_devices_of_a_worker(registered: Store) -> None:
    with registered.writing() as connection:
        leases.enlist(connection, "worker-2", "i2", "v")
        leases.register(connection, "worker-2", [replace(DEVICE, id=f"sim-{n}") for n in (2, 3)])
        ask = {"actor": "anna", "reason": "", "lift": False}
        assert health.ask_check(connection, "1", "worker-2", **ask) == {"sim-2": 1, "sim-3": 1}
        assert health.ask_check(connection, "2", "sim-2", **ask) == {"sim-2": 2}
        assert {d.id: d.check for d in leases.devices(connection)} == {
            "sim-1": 0, "sim-2": 2, "sim-3": 1,
        }  # fmt: skip
        with pytest.raises(UnknownRecord, match="no device or worker"):
            health.ask_check(connection, "3", "nobody", **ask)


def result(error: ErrorKind | None, number: int = 0) -> Result:
    trial = Trial("j", TaskKey("w", "sim"), number, {}, error=error, message="no helper starts",
                  device=DEVICE.id)  # fmt: skip
    return Result("lease", 1, trial)


def test_a_device_that_loses_candidate_after_candidate_is_quarantined_until_a_check(
    registered: Store,
) -> None:
    lost, fine = result(ErrorKind.DEVICE_LOST), result(ErrorKind.RUN_CRASH)
    with registered.writing() as connection:
        lease = granted(connection)
        most = health.MOST_LOST
        assert health.note_results(connection, [lost] * (most - 1)) == ()
        assert health.note_results(connection, [fine]) == ()
        assert health.note_results(connection, [lost] * (most - 1)) == ()
        assert health.note_results(connection, [lost]) == (lease.id,)
        assert reason(connection) == (
            "it lost its last 5 candidates: no helper starts; "
            "`tunefarm devices check` repeats the check"
        )
        told(connection, 1.0)  # a worker that thinks that it is well proves nothing
        assert reason(connection)
        told(connection, 2.0)
        assert reason(connection) == ""
        assert health.note_results(connection, [lost] * (most - 1)) == ()

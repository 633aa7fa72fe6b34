"""Cordons, revocations, and the record of what operators did and who held what."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tunefarm.db import cordons, grants, leases, stored_jobs
from tunefarm.db.errors import StaleLease, UnknownRecord
from tunefarm.db.grants import Want
from tunefarm.db.records import Device, Lease
from tunefarm.db.store import Store

SCHEMAS = Path(__file__).parent / "schemas"


@pytest.fixture
def farm(store: Store) -> Store:
    """Worker ``host-1`` with devices ``sim-a`` and ``sim-b``, and ``host-2`` with ``sim-c``."""
    with store.writing() as connection:
        for worker, names in (("host-1", ("sim-a", "sim-b")), ("host-2", ("sim-c",))):
            leases.enlist(connection, worker, f"i of {worker}", "0.1")
            devices = [Device(name, "sim", "Sim 1", "sim", worker) for name in names]
            leases.register(connection, worker, devices)
    return store


def grant(store: Store, device: str, request: str = "") -> Lease:
    with store.writing() as connection:
        return grants.grant(connection, Want(request or device, device, client="c"), term_s=10.0)


def cordon(store: Store, name: str, request: str = "r", **how: Any) -> Any:
    with store.writing() as connection:
        return cordons.cordon(connection, request, name, actor="anna", reason="repair", **how)


def uncordon(store: Store, name: str, request: str = "u") -> tuple[str, str]:
    with store.writing() as connection:
        return cordons.uncordon(connection, request, name, actor="ben", reason="repaired")


def told(store: Store, subject: str = "") -> list[tuple[str, str, str]]:
    with store.reading() as connection:
        return [(e.action, e.subject, e.actor) for e in cordons.events(connection, subject)]


def test_the_database_grants_nothing_on_what_is_cordoned(farm: Store) -> None:
    cordon(farm, "sim-a")
    with pytest.raises(StaleLease, match="device sim-a is cordoned by anna: repair"):
        grant(farm, "sim-a")
    grant(farm, "sim-b")
    cordon(farm, "host-2", "r2")
    with pytest.raises(StaleLease, match="device sim-c is cordoned by anna: repair"):
        grant(farm, "sim-c")
    assert uncordon(farm, "sim-a") == ("device", "sim-a")
    assert uncordon(farm, "host-2", "u2") == ("worker", "host-2")
    assert grant(farm, "sim-a").epoch == grant(farm, "sim-c").epoch == 1
    assert told(farm) == [
        ("uncordon", "worker host-2", "ben"),
        ("uncordon", "device sim-a", "ben"),
        ("cordon", "worker host-2", "anna"),
        ("cordon", "device sim-a", "anna"),
    ]
    assert told(farm, "sim-a") == [
        ("uncordon", "device sim-a", "ben"),
        ("cordon", "device sim-a", "anna"),
    ]


def test_the_same_request_again_changes_nothing(farm: Store) -> None:
    first = cordon(farm, "sim-a", drain=True, revoke_after_s=60.0)
    assert first.revoke_at == pytest.approx(first.at + 60)
    assert cordon(farm, "sim-a", drain=True, revoke_after_s=60.0) == first
    uncordon(farm, "sim-a")
    uncordon(farm, "sim-a", "another")
    cordon(farm, "sim-a", drain=True)
    with farm.reading() as connection:
        assert cordons.cordons(connection) == (), "the late repetition changes nothing"
    assert [action for action, _, _ in told(farm)] == ["uncordon", "drain"]


def test_a_later_cordon_replaces_an_earlier(farm: Store) -> None:
    cordon(farm, "sim-a", "r1", drain=True, revoke_after_s=60.0)
    last = cordon(farm, "sim-a", "r2")
    with farm.reading() as connection:
        assert cordons.cordons(connection) == (last,)
    assert (last.drain, last.revoke_at) == (False, None)


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sim-", "'sim-' names several: device sim-a, device sim-b, device sim-c; give more"),
        ("sim", "there is no device or worker 'sim'; `tunefarm devices` lists them"),
        ("", "there is no device or worker ''"),
        ("host%", "there is no device or worker 'host%'"),
    ],
)
def test_a_name_must_mean_one_thing(farm: Store, name: str, sentence: str) -> None:
    with pytest.raises(UnknownRecord, match=sentence):
        cordon(farm, name)
    assert told(farm) == []


def test_a_beginning_names_the_only_one(farm: Store) -> None:
    assert cordon(farm, "host-1").scope == "worker"
    with farm.writing() as connection:
        leases.enlist(connection, "host-10", "i", "0.1")
    assert cordon(farm, "host-1", "r2").subject == "host-1", "a whole id goes first"


def test_revoking_ends_a_lease_and_says_who_did_it(farm: Store) -> None:
    lease = grant(farm, "sim-a")

    def revoke(request: str, name: str) -> Lease:
        with farm.writing() as connection:
            return cordons.revoke(connection, request, name, actor="anna", reason="hogs")

    ended = revoke("r", lease.id[:8])
    assert (ended.id, ended.ended_reason) == (lease.id, "revoked by anna: hogs")
    assert revoke("r", lease.id) == ended, "the same request again"
    with farm.reading() as connection, pytest.raises(StaleLease, match="revoked by anna: hogs"):
        leases.check(connection, lease.id, lease.epoch)
    for name, sentence in (
        (lease.id, f"lease {lease.id} has ended already: revoked by anna: hogs"),
        ("none", "there is no lease 'none'"),
        ("", "there is no lease ''"),
    ):
        with pytest.raises(UnknownRecord, match=sentence):
            revoke("r2", name)
    assert told(farm, lease.id) == [("revoke", f"lease {lease.id}", "anna")]
    assert grant(farm, "sim-a", "again").epoch == lease.epoch + 1


def test_the_history_tells_who_held_what_and_why_it_ended(farm: Store) -> None:
    granted = [grant(farm, name) for name in ("sim-a", "sim-b", "sim-c")]
    with farm.writing() as connection:
        leases.end(connection, granted[0].id, "released")
    with farm.reading() as connection:
        found = leases.history(connection)
        assert [lease.device for lease in found] == ["sim-c", "sim-b", "sim-a"]
        assert found[:2] == tuple(granted[:0:-1])
        first = found[2]
        assert (first.client, first.ended_reason) == ("c", "released")
        assert first.ended_at is not None
        assert first.ended_at >= first.granted_at
        assert leases.history(connection, device="sim-a") == (first,)
        assert leases.history(connection, before=granted[1].granted_at) == (first,)
        assert leases.history(connection, job="none") == ()
        assert len(leases.history(connection, limit=2)) == 2


def test_leases_and_jobs_of_the_previous_schema_stay(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    with sqlite3.connect(path) as connection:
        connection.executescript((SCHEMAS / "0004.sql").read_text())
        connection.executescript(
            "INSERT INTO jobs VALUES"
            " ('kept', 1, 9, NULL, '{}', 'running', 0, '', 't', 3, 'r', 1, 1.0, 1.0, '0.1');"
            "INSERT INTO workers VALUES ('w1', 'i1', '0.1', 1.0);"
            "INSERT INTO devices VALUES ('d1', 'sim', 'm', 'sim', 'w1', '{}', '{}', 0.0, 4);"
            "INSERT INTO leases VALUES"
            " ('l1', 'r1', 'd1', 't', 'kept', 4, 10.0, 2.0, NULL, ''),"
            " ('l0', 'r0', 'd1', 't', 'kept', 3, 10.0, 1.0, 1.5, 'released');"
        )
    connection.close()
    with Store.open(str(path)) as store, store.reading() as reading:
        assert stored_jobs.get(reading, "kept").selector == ""
        assert [lease.id for lease in leases.live(reading)] == ["l1"]
        assert leases.check(reading, "l1", 4).job == "kept"
        assert [lease.ended_reason for lease in leases.history(reading)] == ["", "released"]
        with pytest.raises(StaleLease, match="has ended: released"):
            leases.check(reading, "l0", 3)

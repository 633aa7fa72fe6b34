"""Pages of devices and failures."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from tunefarm.dashboard import pictures
from tunefarm.dashboard.queries.devices import Held
from tunefarm.dashboard.queries.failures import pattern_of
from tunefarm.db import health, leases
from tunefarm.db.records import Health
from tunefarm.db.store import Store


def test_failures_that_differ_in_numbers_stand_together(client: TestClient) -> None:
    found = client.get("/api/v1/failures").json()
    assert found["seen"] == 121
    assert found["failed"] == 12
    (only,) = found["clusters"]
    assert only["count"] == 12
    assert only["message"] == "tiles take 1057 bytes of stack; at most 1000"
    assert client.get("/api/v1/failures?error=run_crash").json()["clusters"] == []


def test_a_pattern_leaves_numbers_and_addresses_out() -> None:
    assert pattern_of("at 0x7f3a: 12.5 of\n 13") == "at #: # of #"
    assert pattern_of("no symbol gemm") == "no symbol gemm"


def test_a_device_tells_its_cordon_and_drift(client: TestClient) -> None:
    page = client.get("/devices/llvm-1").text
    assert "new fans" in page
    assert "tunefarm devices uncordon llvm-1" in page
    drift = client.get("/api/v1/devices/llvm-1/drift").json()["columns"]
    assert drift["drift"][0] == 1
    assert max(drift["drift"]) == 1.06
    leases = client.get("/api/v1/leases?device=llvm-1").json()["columns"]
    assert leases["ended_reason"] == ["given back"]
    assert client.get("/devices/none").status_code == 404


def test_a_quarantine_is_told_with_the_checks_behind_it(farm: Any, own_client: TestClient) -> None:
    with Store.open(farm.database) as store, store.writing() as db:
        (device,) = leases.devices(db)
        sick = Health(checked_at=5.0, reference_s=1e-3, trouble="a check got wrong answers")
        health.take_in(db, [replace(device, health=sick)])
    page = own_client.get("/devices/llvm-1").text
    assert "quarantined" in page
    assert "tunefarm devices check llvm-1" in page
    assert "a check got wrong answers" in page
    checks = own_client.get("/api/v1/devices/llvm-1/checks").json()["columns"]
    assert checks["reference_s"] == [1e-3]
    assert "quarantined" in own_client.get("/devices").text


def test_leases_lie_on_lanes_of_their_window() -> None:
    held = [
        Held("l1", "d", "me", "job1", 900.0, 950.0, "given back"),
        Held("l2", "d", "me", "job1", 0.0, 901.0, ""),
        Held("l3", "d", "me", "", 990.0, None, ""),
    ]
    first, early, live = pictures.lanes(held, 100.0, 1000.0)["d"]
    assert (first.x, first.width) == pytest.approx((0, 500))
    assert (early.x, early.width) == pytest.approx((0, 10))
    assert (live.x, live.width) == pytest.approx((900, 100))
    assert first.colour == early.colour
    assert "given back" in first.title


def test_parallel_coordinates_draw_knobs_that_differ() -> None:
    drawn = pictures.parallel_coordinates([{"a": 1, "b": 2}, {"a": 4, "b": 2}, {"a": 2, "b": 2}])
    assert drawn is not None
    (axis,) = drawn.axes
    assert [label for _, label in axis.values] == ["4", "2", "1"]
    assert len(drawn.lines) == 3
    assert pictures.parallel_coordinates([{"a": 1}, {"a": 1}]) is None

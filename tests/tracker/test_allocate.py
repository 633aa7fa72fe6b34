"""Allocation as a pure function."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tunefarm.db.earlier import runs
from tunefarm.db.records import Device, DeviceRequest
from tunefarm.tracker.allocate import Waiting, allocate, serves

HOST = "llvm -mcpu=znver5 -num-cores=4"


def device(name: str, target: str = "sim", model: str = "m", **attributes: str) -> Device:
    return Device(name, target.split()[0], model, target, "w", attributes)


def waiting(name: str, since: float = 0.0, priority: int = 0, **fields: object) -> Waiting:
    request = DeviceRequest("sim", priority=priority, **fields)  # type: ignore[arg-type]
    return Waiting(name, request, since)


def names(grants: list[tuple[Waiting, Device]]) -> list[tuple[str, str]]:
    return [(one.id, given.id) for one, given in grants]


def test_priority_then_age() -> None:
    line = [waiting("young", 2.0), waiting("old", 1.0), waiting("urgent", 3.0, priority=1)]
    assert names(allocate(line, [device("d1"), device("d2")])) == [
        ("urgent", "d1"),
        ("old", "d2"),
    ]


def test_special_devices_are_kept_for_those_who_ask() -> None:
    free = [device("a", lab="3"), device("b")]
    line = [waiting("any", 1.0), waiting("lab", 2.0, attributes={"lab": "3"})]
    assert names(allocate(line, free)) == [("any", "b"), ("lab", "a")]


def test_near_devices_go_first_among_equals() -> None:
    free = [device("a"), device("b"), device("c", lab="3")]
    assert names(allocate([waiting("any")], free, near={"b", "c"})) == [("any", "b")]


def test_a_request_that_nothing_serves_holds_nobody_up() -> None:
    line = [waiting("other", 1.0, device_model="n"), waiting("any", 2.0)]
    assert names(allocate(line, [device("a")])) == [("any", "a")]


def test_a_request_for_a_compiler_version_gets_no_other() -> None:
    free = [replace(device(name), compiler_version=name) for name in ("1", "2")]
    line = [waiting("bound", 1.0, compiler_version="2"), waiting("any", 2.0)]
    assert names(allocate(line, free)) == [("bound", "2"), ("any", "1")]
    assert allocate([waiting("bound", compiler_version="3")], free) == []


@pytest.mark.parametrize(
    ("wanted", "fits"),
    [
        (HOST, True),
        ("llvm -mcpu=znver5 -num-cores=1", True),
        ("llvm -mcpu=znver5", True),
        ("llvm", True),
        ("llvm -mcpu=znver5 -num-cores=8", False),
        ("llvm -mcpu=haswell -num-cores=4", False),
        ("llvm -mcpu=znver5 -num-cores=4 -precision=strict", True),
        ("cuda -arch=sm_90", False),
    ],
)
def test_a_device_runs_code_of_its_own_target(wanted: str, fits: bool) -> None:
    assert runs(HOST, wanted) is fits


requests = st.builds(
    DeviceRequest,
    st.sampled_from(["sim", HOST, "llvm -mcpu=znver5"]),
    st.sampled_from(["", "m"]),
    st.sampled_from([{}, {"lab": "3"}]),
    st.integers(0, 2),
)
lines = st.lists(st.builds(Waiting, st.uuids().map(str), requests, st.floats(0, 9)), max_size=6)
frees = st.lists(
    st.builds(
        device,
        st.uuids().map(str),
        st.sampled_from(["sim", HOST]),
        st.sampled_from(["m", "n"]),
        lab=st.sampled_from(["3", "4"]),
    ),
    max_size=5,
)


@given(lines, frees)
def test_grants_are_sound_and_leave_nothing_useful(line: list[Waiting], free: list[Device]) -> None:
    grants = allocate(line, free)
    assert all(serves(given_device, one.request) for one, given_device in grants)
    served = {one.id for one, _ in grants}
    taken = {given_device.id for _, given_device in grants}
    assert len(served) == len(taken) == len(grants)
    for one in line:
        if one.id not in served:
            assert not [d for d in free if d.id not in taken and serves(d, one.request)]


@given(lines, frees)
def test_the_less_urgent_never_take_from_the_more_urgent(
    line: list[Waiting], free: list[Device]
) -> None:
    order = sorted(line, key=lambda w: (-w.request.priority, w.since, w.id))
    alone = names(allocate(order[:1], free))
    assert names(allocate(line, free))[: len(alone)] == alone

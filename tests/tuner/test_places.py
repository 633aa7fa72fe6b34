"""The tuner keeps off the cores on which a device measures."""

from __future__ import annotations

import os
import socket

import pytest
from tunefarm.db.records import Device
from tunefarm.tuner.places import aside, spare_cores

HERE = socket.gethostname()


def device(cpuset: str = "", host: str = HERE) -> Device:
    attributes = {"host": host, **({"cpuset": cpuset} if cpuset else {})}
    return Device("d", "llvm", "CPU", "llvm", "w", attributes)


@pytest.mark.parametrize(
    ("offered", "spare"),
    [
        (device("0,1"), {2, 3}),
        (device("0,1,2,3"), set()),
        (device("0,1,2,3", host="elsewhere"), {0, 1, 2, 3}),
        (device(), {0, 1, 2, 3}),
    ],
)
def test_what_a_device_leaves(offered: Device, spare: set[int]) -> None:
    assert spare_cores(offered, {0, 1, 2, 3}) == spare


def test_the_thread_moves_aside_and_comes_back() -> None:
    own = os.sched_getaffinity(0)
    first, *others = sorted(own)
    with aside(device(str(first))) as is_aside:
        assert is_aside == bool(others)
        assert os.sched_getaffinity(0) == (set(others) or own)
    assert os.sched_getaffinity(0) == own
    with aside(device(",".join(map(str, own)))) as is_aside:
        assert not is_aside

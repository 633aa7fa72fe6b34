"""A job's hold on a device."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from tunefarm.db.records import Budget, Device, Job, Lease
from tunefarm.tuner.measuring import Bench
from tunefarm.tuner.pulse import Pulse

LEASE = Lease("l1", "sim-1", "t", 1, 10.0, job="j")


class Kept:
    """A keepalive that was heard, or was not, the last time it asked."""

    latest = LEASE

    def __init__(self, is_heard: bool) -> None:
        self.is_heard = is_heard

    def check(self) -> Job:
        return Job("j", "sim", (), Budget(1))

    def close(self) -> None: ...


class Farm:
    """A farm of one device; ``released`` are the leases that were given back."""

    def __init__(self) -> None:
        self.released: list[Lease] = []

    def acquire(self, *_: object, **__: object) -> Lease:
        return LEASE

    def keep_lease(self, _: Lease) -> Kept:
        return Kept(True)

    def devices(self) -> tuple[Device, ...]:
        return (Device("sim-1", "sim", "Sim", "sim", "w"),)

    def release(self, lease: Lease) -> None:
        self.released.append(lease)


@pytest.mark.parametrize("is_heard", [True, False])
def test_a_device_is_given_back_only_to_a_tracker_that_answers(is_heard: bool) -> None:
    """One that returns meanwhile would refuse what the worker has measured in its absence."""
    farm: Any = Farm()
    claim: Any = Kept(is_heard)
    stopped = threading.Event()
    bench = Bench(farm, claim.check(), "t", "", claim, stopped, Pulse(stopped))
    bench.acquire()
    bench.close()
    assert farm.released == ([LEASE] if is_heard else [])

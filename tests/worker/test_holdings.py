"""The worker's bookkeeping: each candidate is measured once, reported once, dropped when told."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from tunefarm.db.records import (
    Device,
    ErrorKind,
    Refusal,
    TaskKey,
    TrialRequest,
    Work,
    WorkerOrders,
)
from tunefarm.worker.device import DeviceOptions, Dropped, OpenDevice, Report
from tunefarm.worker.holdings import Holdings, held_of
from tunefarm.worker.sim import SimDevice


class Broken:
    """A device with a fault."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def measure(self, requests: Sequence[TrialRequest], report: Report, dropped: Dropped) -> None:
        raise RuntimeError("a fault")

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


def orders(work: Sequence[Work] = (), **fields: object) -> WorkerOrders:
    return replace(WorkerOrders(tuple(work), (), (), (), 10.0), **fields)  # type: ignore[arg-type]


class Served:
    """Holdings whose one device is served by a thread."""

    def __init__(self, device: OpenDevice) -> None:
        self.news = threading.Event()
        self.holdings = Holdings([device], "v1", self.news.set)
        (self.bench,) = self.holdings.benches.values()
        self.thread = threading.Thread(target=self.holdings.serve, args=(self.bench,))
        self.thread.start()

    def work(self, number: int, lease: str = "l1", **config: int) -> Work:
        request = TrialRequest("job", TaskKey("w", "sim"), number, config, "text")
        return Work(self.bench.open_device.device.id, lease, 1, request)

    def close(self) -> None:
        self.holdings.close()
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def sim() -> Iterator[Served]:
    served = Served(SimDevice(DeviceOptions("sim -failures=0")))
    yield served
    served.close()


def test_a_result_is_told_until_it_is_settled_and_not_measured_again(sim: Served) -> None:
    work = sim.work(1)
    sim.holdings.obey(orders([work]))
    assert sim.news.wait(60)
    held, results = sim.holdings.snapshot()
    assert not held
    assert [r.trial.number for r in results] == [1]
    assert results[0].trial.compiler_version == "v1"
    assert sim.holdings.snapshot()[1] == results
    sim.holdings.obey(orders([work]))  # the tracker sent it before it knew
    assert sim.holdings.snapshot()[0] == ()
    sim.holdings.obey(orders(accepted=(work.request.key,)))
    assert sim.holdings.snapshot() == ((), ())


def test_a_refused_result_is_forgotten(sim: Served) -> None:
    work = sim.work(1)
    sim.holdings.obey(orders([work]))
    assert sim.news.wait(60)
    sim.holdings.obey(orders(refused=(Refusal(work.request.key, "stale"),)))
    assert sim.holdings.snapshot() == ((), ())


def test_cancelled_work_is_dropped_and_its_key_may_come_under_another_lease(sim: Served) -> None:
    old = sim.work(1, **{"busy-ms": 10**9})
    sim.holdings.obey(orders([old]))
    assert sim.holdings.snapshot()[0] == (held_of(old),)
    new = sim.work(1, lease="l2")
    sim.holdings.obey(orders([new], cancel=(held_of(old),)))
    assert sim.news.wait(60)
    (result,) = sim.holdings.snapshot()[1]
    assert result.lease == "l2"


def test_work_for_a_device_of_another_worker_is_left_alone(sim: Served) -> None:
    sim.holdings.obey(orders([replace(sim.work(1), device="elsewhere")]))
    assert sim.holdings.snapshot() == ((), ())


def test_a_fault_of_the_device_is_a_result_and_the_thread_lives() -> None:
    served = Served(Broken(SimDevice(DeviceOptions("sim")).device))
    for number in (1, 2):
        served.news.clear()
        served.holdings.obey(orders([served.work(number)]))
        assert served.news.wait(60)
    results = served.holdings.snapshot()[1]
    assert [r.trial.error for r in results] == [ErrorKind.DEVICE_LOST] * 2
    assert "a fault" in results[0].trial.message
    served.close()

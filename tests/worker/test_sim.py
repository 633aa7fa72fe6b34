"""The simulated device answers the same wherever and whenever it is asked."""

from __future__ import annotations

import threading
import time

import pytest
from tunefarm.compiler.target import Target
from tunefarm.db.records import ErrorKind, TaskKey, Trial, TrialRequest
from tunefarm.worker.device import DeviceOptions, OpenDevice, open_device
from tunefarm.worker.sim import sim_time_s


def request(number: int, **config: int | str) -> TrialRequest:
    return TrialRequest("job", TaskKey("w", "sim"), number, config, "text")


def measure(device: OpenDevice, requests: list[TrialRequest]) -> list[Trial]:
    trials: list[Trial] = []
    device.measure(requests, lambda _, trial: trials.append(trial), lambda _: False)
    return trials


def test_equal_requests_get_equal_trials() -> None:
    requests = [request(n, tile=2**n, order="ab") for n in range(8)]
    first = measure(open_device(DeviceOptions("sim")), requests)
    second = measure(open_device(DeviceOptions("sim")), requests)
    assert [(t.times_s, t.error) for t in first] == [(t.times_s, t.error) for t in second]
    assert len({t.times_s for t in first if t.ok}) > 1


def test_times_are_those_of_the_landscape_within_the_noise() -> None:
    (trial,) = measure(open_device(DeviceOptions("sim")), [request(0, tile=8)])
    true_s = sim_time_s("text", Target("sim"), {"tile": 8})
    assert trial.median_s == pytest.approx(true_s, rel=0.002)
    assert sim_time_s("text", Target("sim -seed=1"), {"tile": 8}) != true_s


def test_every_error_kind_can_be_had_and_some_configs_fail_by_themselves() -> None:
    device = open_device(DeviceOptions("sim -failures=50"))
    asked = [request(n, fail=kind.value) for n, kind in enumerate(ErrorKind)]
    assert [t.error for t in measure(device, asked)] == list(ErrorKind)
    drawn = measure(device, [request(n, tile=n) for n in range(1, 401)])
    failed = [t for t in drawn if t.error is not None]
    assert 150 < len(failed) < 250
    assert len({t.error for t in failed}) == len(ErrorKind) - 1
    assert all(t.ok for t in measure(open_device(DeviceOptions("sim -failures=0")), asked[:0]))


def test_a_paired_final_has_a_row_for_each_config() -> None:
    device = open_device(DeviceOptions("sim"))
    asked = TrialRequest(
        "job", TaskKey("w", "sim"), 0, {"tile": 1}, "text", against=({"tile": 64}, {"tile": 2})
    )
    (trial,) = measure(device, [asked])
    assert [len(row) for row in trial.paired_times_s] == [32, 32, 32]


def test_a_dropped_request_is_not_reported_and_interrupting_ends_the_wait() -> None:
    device = open_device(DeviceOptions("sim -trial-ms=60000"))
    gone = threading.Event()
    trials: list[Trial] = []
    thread = threading.Thread(
        target=device.measure,
        args=([request(1, tile=1)], lambda _, t: trials.append(t), lambda _: gone.is_set()),
    )
    thread.start()
    time.sleep(0.05)
    gone.set()
    device.interrupt()
    thread.join(30)
    assert not thread.is_alive()
    assert not trials


def test_an_interruption_before_the_wait_begins_ends_it_too() -> None:
    device = open_device(DeviceOptions("sim -trial-ms=60000"))
    asked: list[TrialRequest] = []

    def dropped(request: TrialRequest) -> bool:
        """Not at the first look, and right after it."""
        asked.append(request)
        device.interrupt()
        return len(asked) > 1

    trials: list[Trial] = []
    thread = threading.Thread(
        target=device.measure,
        args=([request(1, tile=1)], lambda _, t: trials.append(t), dropped),
    )
    thread.start()
    thread.join(30)
    assert not thread.is_alive()
    assert not trials

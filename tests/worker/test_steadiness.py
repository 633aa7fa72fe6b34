"""Times of a device whose pulse goes bad: taken again when that passes, never told when it stays.

Kernels, children and timing are real; the reference loop is a script's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from tunefarm.db.records import TaskKey, Trial, TrialRequest
from tunefarm.worker.device import DeviceOptions, open_device
from tunefarm.worker.host import HostDevice
from tunefarm.worker.pulse import GOOD_IN_A_ROW, MAX_DRIFT

from tests.worker.test_pulse import Script

TARGET = "hostile -num-cores=1"
GOOD, BAD = 1.0, 1.6


@pytest.fixture(scope="module")
def device(plugins: Path) -> Iterator[HostDevice]:
    opened = open_device(
        DeviceOptions(TARGET, build_processes=1, environment={"PYTHONPATH": str(plugins)})
    )
    yield cast(HostDevice, opened)
    opened.close()


def measured(device: HostDevice, script: Script, count: int = 1) -> list[Trial]:
    """What is told of so many candidates while the pulse is as the script says."""
    device._pulse = script.pulse()
    requests = [
        TrialRequest("job", TaskKey("w", TARGET), n, {"kernel": "honest"}, "double")
        for n in range(count)
    ]
    trials: list[Trial] = []
    device.measure(requests, lambda _, trial: trials.append(trial), lambda _: False)
    return trials


def test_a_time_stands_between_two_good_pulses(device: HostDevice) -> None:
    (trial,) = measured(device, Script(1.1, 1.2))
    assert trial.ok
    assert (trial.device_state["drift_before"], trial.device_state["drift"]) == (1.1, 1.2)


def test_what_a_bad_pulse_follows_is_timed_again_when_it_has_passed(device: HostDevice) -> None:
    script = Script(GOOD, BAD, BAD, 1.1, 1.2)
    (trial,) = measured(device, script)
    assert trial.ok
    assert (trial.device_state["drift_before"], trial.device_state["drift"]) == (1.1, 1.2)
    assert script.left == [1.2]


def test_a_device_whose_pulse_stays_bad_tells_nothing_until_it_is_well(device: HostDevice) -> None:
    assert measured(device, Script(GOOD, BAD), count=3) == []
    assert "takes 1.60 times as long" in device.device.health.trouble
    assert device.device.health.drift == BAD
    device.tend()
    assert device.device.health.trouble
    device._pulse = Script(GOOD).pulse()
    for _ in range(GOOD_IN_A_ROW):
        assert device.device.health.trouble
        device._pulse.sleep(1.0)
        device.tend()
    assert not device.device.health.trouble
    assert all(trial.ok for trial in measured(device, Script(GOOD), count=3))


def test_a_check_takes_the_device_as_it_is(device: HostDevice) -> None:
    device._pulse = replace(Script(GOOD).pulse(), beat=device._beat, reference_s=1e-9)
    requests = [TrialRequest("job", TaskKey("w", TARGET), 0, {"kernel": "honest"}, "double")]
    device.measure(requests, lambda *_: pytest.fail("told"), lambda _: False)
    before = device.device.health
    assert before.trouble
    device.check(7)
    health = device.device.health
    assert (health.check, health.trouble) == (7, "")
    assert health.checked_at > before.checked_at
    assert health.drift <= MAX_DRIFT

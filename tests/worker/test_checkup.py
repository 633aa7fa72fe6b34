"""What a check makes of its repeats, and what it says of kernels that are wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from tunefarm.worker.checkup import BLOCKS, FINAL_BLOCKS, final_noise, trial_noise
from tunefarm.worker.device import DeviceOptions, OpenDevice, open_device


def drawn(within: float, between: float) -> np.ndarray:
    """Repeats of two equal kernels whose loads differ, and whose repeats differ within a load."""
    rng = np.random.default_rng(0)
    loads = between * rng.standard_normal((2, BLOCKS, 1))
    return loads + within * rng.standard_normal((2, BLOCKS, 4))


def test_the_noise_of_finals_and_trials_is_that_of_their_blocks() -> None:
    blocks = drawn(0.0, 0.02)
    assert final_noise(blocks) == pytest.approx(1.96 * 0.02 * 2**0.5 / FINAL_BLOCKS**0.5, rel=0.5)
    assert trial_noise(blocks) == pytest.approx(1.96 * 0.02 * 2**0.5, rel=0.4)
    assert final_noise(np.zeros((2, BLOCKS, 4))) == trial_noise(np.zeros((2, BLOCKS, 4))) == 0.0


def test_what_disturbs_both_alike_is_no_noise_of_a_final() -> None:
    slow = np.linspace(0, 1, BLOCKS)[None, :, None]
    assert final_noise(drawn(0.0, 0.001) + slow) < 0.001
    assert trial_noise(drawn(0.0, 0.001) + slow) > 0.5


@contextmanager
def checked_with(kernel: str, plugins: Path) -> Iterator[OpenDevice]:
    """A device that is checked with this kernel."""
    device = open_device(
        DeviceOptions(
            f"hostile -num-cores=1 -check={kernel}",
            build_processes=1,
            environment={"PYTHONPATH": str(plugins)},
            max_drift=0,
        )
    )
    yield device
    device.close()


@pytest.mark.parametrize(
    "kernel, wrong",
    [
        ("wrong", "double, wrong: wrong answer: 1024 of 1024 elements"),
        ("segfault", "double, segfault: run crash: the process was killed by signal 11"),
        ("none", "double, none: instantiation: no kernel 'none'"),
    ],
)
def test_a_device_whose_fixed_kernel_fails_is_in_trouble_from_the_start(
    plugins: Path, kernel: str, wrong: str
) -> None:
    with checked_with(kernel, plugins) as device:
        assert device.device.health.trouble.startswith(f"its check failed: {wrong}")
        assert device.device.peaks["flops_n"] > 0
        device.check(1)
        assert device.device.health.trouble.startswith(f"its check failed: {wrong}")


def test_a_device_whose_fixed_kernel_is_right_is_well(plugins: Path) -> None:
    with checked_with("honest", plugins) as device:
        health = device.device.health
        assert (health.trouble, health.drift) == ("", 1.0)
        assert device.device.noise > 0
        assert health.trial_noise > 0
        assert time.time() - 120 < health.checked_at <= time.time()

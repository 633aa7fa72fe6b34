"""Whose pulse is good: a device's reference loop as a script tells it, on a clock of the test's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tunefarm.worker.pulse import EVERY_S, PATIENCE_S, Pulse


class Script:
    """A reference loop that takes these seconds, the last for ever, and a clock."""

    def __init__(self, *seconds: float) -> None:
        self.left = list(seconds)
        self.now = 0.0

    def beat(self) -> float:
        self.now += 0.01
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def pulse(self, max_drift: float = 1.3) -> Pulse:
        return Pulse(self.beat, 1.0, max_drift, clock=lambda: self.now, sleep=self.sleep)


def test_a_good_pulse_is_due_again_after_a_while() -> None:
    script = Script(1.1, 1.2)
    pulse = script.pulse()
    assert pulse.is_due
    assert pulse.feel()
    assert not pulse.is_due
    script.sleep(EVERY_S)
    assert pulse.is_due
    assert pulse.feel()
    assert (pulse.before, pulse.drift, pulse.good) == (1.1, 1.2, 2)


def test_what_passes_is_waited_for() -> None:
    pulse = Script(1.5, 1.4, 1.31, 1.29).pulse()
    assert pulse.settle()
    assert (pulse.drift, pulse.good) == (1.29, 1)


def test_what_stays_is_trouble_with_its_figure() -> None:
    script = Script(1.5)
    pulse = script.pulse()
    assert not pulse.settle()
    assert script.now == pytest.approx(PATIENCE_S, abs=0.5)
    assert "takes 1.50 times as long as at its last check (allowed: 1.3 times)" in pulse.trouble()


def test_no_bound_lets_everything_pass() -> None:
    assert Script(9.0).pulse(max_drift=0).settle()


def test_a_bad_pulse_starts_the_good_ones_anew() -> None:
    def goods() -> Iterator[int]:
        pulse = Script(1.0, 1.0, 2.0, 1.0).pulse()
        for _ in range(4):
            pulse.feel()
            yield pulse.good

    assert list(goods()) == [1, 2, 0, 1]

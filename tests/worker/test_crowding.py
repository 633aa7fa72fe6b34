"""Cores that share a physical one for a while: waited for, or taken as they are."""

from __future__ import annotations

import pytest
from tunefarm.worker.beats import Beats
from tunefarm.worker.crowding import CROWDED, PATIENCE_S, SUSTAINED, Crowding

from tests.worker.test_pulse import Script

FREE, SHARED = 1.0, 2.0


def crowding(*seconds: float) -> tuple[Crowding, Script]:
    script = Script(*seconds)
    return Crowding(script.beat, clock=lambda: script.now, sleep=script.sleep), script


def test_a_time_on_crowded_cores_is_worth_another_when_they_are_free() -> None:
    cores, script = crowding(FREE, SHARED, SHARED, FREE)
    assert not cores.spoils()
    assert cores.spoils()
    assert not cores.spoils()
    assert script.now < PATIENCE_S


def test_cores_that_stay_crowded_are_taken_as_they_are_until_they_are_free() -> None:
    cores, script = crowding(FREE, SHARED)
    cores.wait()
    cores.wait()
    assert script.now == pytest.approx(PATIENCE_S, abs=0.2)
    assert cores.is_accepted
    assert not cores.spoils()
    script.left = [FREE, SHARED, FREE]
    assert not cores.spoils()
    assert cores.spoils()


def test_what_is_best_is_learnt_from_looks_in_a_row() -> None:
    cores, _ = crowding(SHARED, FREE, SHARED, *[FREE] * SUSTAINED, SHARED)
    assert not cores.look()
    assert not cores.look()  # a burst is not the best yet
    assert not cores.look()
    assert not any(cores.look() for _ in range(SUSTAINED))
    assert cores.best_s == FREE
    assert cores.look()


def test_a_lower_clock_and_a_single_core_are_not_crowded() -> None:
    lower, _ = crowding(FREE, CROWDED)
    assert not lower.look()
    assert not lower.look()
    single, _ = crowding(0.0)
    assert not single.look()
    assert not single.spoils()


def test_beats_are_of_the_slowest_core() -> None:
    seconds = iter([1.0, 3.0, 2.0, 1.0])
    beats = Beats(lambda: next(seconds), 2)
    assert beats.slowest() == 3.0
    assert beats.slowest() == 2.0
    beats.close()
    assert Beats(lambda: 5.0, 1).slowest() == 5.0

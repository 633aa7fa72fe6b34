"""Turns that a slow spell of the machine would spoil are taken again."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Iterable

import pytest
from tunefarm.compiler.target import Target
from tunefarm.worker.peaks import reference_flops

from tunefarm.peers.pace import CALIBRATIONS, LOOPS, TRIES, Pace

FULL_S, SLOW_S = 1e-3, 2e-3


def beats(*spells: tuple[int, float]) -> Callable[[], float]:
    """A loop that takes so long for so many looks, after a calibration at full speed."""
    looks = itertools.chain(((CALIBRATIONS, FULL_S), *spells), itertools.repeat((1, FULL_S)))
    each: Iterable[float] = (s for count, s in looks for _ in range(count * LOOPS))
    return iter(each).__next__


def test_a_turn_at_full_speed_is_taken_once() -> None:
    with Pace(1, beats()) as pace:
        assert pace.steady(lambda: 3.0) == 3.0
        assert (pace.turns.taken, pace.turns.repeated, pace.turns.slow) == (1, 0, 0)
        assert pace.turns.report() == ""


def test_a_turn_waits_for_a_slow_spell_to_end() -> None:
    turns = iter([3.0])
    with Pace(1, beats((5, SLOW_S))) as pace:
        assert pace.steady(turns.__next__) == 3.0
        assert pace.turns.repeated == 0


def test_a_turn_during_which_the_machine_slows_down_is_taken_again() -> None:
    turns = iter([6.0, 3.0])
    with Pace(1, beats((1, FULL_S), (4, SLOW_S))) as pace:
        assert pace.steady(turns.__next__) == 3.0
        assert (pace.turns.taken, pace.turns.repeated, pace.turns.slow) == (1, 1, 0)
        assert pace.turns.report().endswith("1 of 1 turns were timed again.")


def test_the_least_stands_where_every_try_meets_a_slow_spell() -> None:
    turns = iter([6.0, 4.0, *[7.0] * TRIES])
    spells = [(1, FULL_S), (1, SLOW_S)] * TRIES
    with Pace(1, beats(*spells)) as pace:
        assert pace.steady(turns.__next__) == 4.0
        assert pace.turns.slow == 1
        assert "1 stayed slow" in pace.turns.report()


def test_a_machine_that_stays_slow_is_not_waited_for_for_ever() -> None:
    with Pace(1, beats((1000, SLOW_S)), patience_s=0.0) as pace:
        assert pace.steady(iter([6.0]).__next__) == 6.0
        assert pace.turns.slow == 1


def test_a_clock_that_has_become_slower_is_waited_for_once() -> None:
    with Pace(1, beats((1000, SLOW_S)), patience_s=0.0) as pace:
        assert [pace.steady(lambda: 3.0) for _ in range(3)] == [3.0] * 3
        assert (pace.turns.taken, pace.turns.slow) == (3, 1)


def test_a_speed_above_the_best_seen_becomes_the_best() -> None:
    with Pace(1, beats((1, FULL_S / 2))) as pace:
        assert pace.is_full()
        assert not pace.is_full()


def test_the_peak_is_the_median_of_the_turns_since_it_was_asked_for() -> None:
    looks = [(1, share * FULL_S) for share in (1.0, 1.05, 1.0, 1.02, 1.0, 1.01)]
    flops = reference_flops(Target.host().mcpu)
    with Pace(1, beats(*looks)) as pace:
        for _ in range(3):
            pace.steady(lambda: 3.0)
        assert pace.peak_flops() == pytest.approx(flops / (1.02 * FULL_S))
        assert pace.peak_flops() == pytest.approx(flops / FULL_S)  # now: no turn was taken


def test_the_peak_of_a_turn_that_stays_slow_is_that_of_the_time_that_stands() -> None:
    turns = iter([6.0, 4.0, *[7.0] * TRIES])
    looks = [(1, FULL_S), (1, 3 * SLOW_S), (1, FULL_S), (1, SLOW_S)]
    looks += [(1, FULL_S), (1, 3 * SLOW_S)] * TRIES
    with Pace(1, beats(*looks)) as pace:
        assert pace.steady(turns.__next__) == 4.0
        assert pace.peak_flops() == pytest.approx(reference_flops(Target.host().mcpu) / SLOW_S)


def test_the_peak_of_two_cores_is_what_each_of_them_does() -> None:
    own = threading.local()
    first = itertools.count()

    def beat() -> float:
        if not hasattr(own, "seconds"):
            own.seconds = (FULL_S, 2 * FULL_S)[next(first)]
        return float(own.seconds)

    with Pace(2, beat) as pace:
        pace.steady(lambda: 3.0)
        rate = pace.peak_flops() * FULL_S / reference_flops(Target.host().mcpu)
    assert rate == pytest.approx(1.5)


def test_all_cores_run_the_loop_at_once() -> None:
    with Pace(2) as pace:
        assert pace.steady(lambda: 1.0) == 1.0


def test_turns_of_cores_apart_are_told() -> None:
    exchanges = iter([520e-9, 130e-9, 500e-9])
    with Pace(2, lambda: FULL_S, lambda _: next(exchanges)) as pace:
        pace._beats.pins = [min(os.sched_getaffinity(0))] * 2
        for _ in range(3):
            pace.steady(lambda: 1.0)
        told = pace.turns.report()
    assert told.startswith("In 2 of 3 turns")
    assert "in 0.51 µs, 0.13 µs in the others" in told

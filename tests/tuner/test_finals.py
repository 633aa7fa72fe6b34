"""Finals: the exact interval, the verdicts, and that no slower config is ever promoted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tunefarm.db.records import Verdict
from tunefarm.tuner.finals import compare, decide, finalists, median_interval


def repeats(seconds: float, spread: float, seed: int, count: int = 20) -> tuple[float, ...]:
    noise = np.random.default_rng(seed).standard_normal(count)
    return tuple(seconds * np.exp(spread * noise))


def test_the_interval_is_the_sign_tests():
    # Tables of the sign test: 6 of 6 gives 96.9%; of 20 the 6th to the 15th value give 95.9%.
    assert median_interval([3, 1, 2, 6, 5, 4], 0.95) == (1, 6)
    assert median_interval(range(1, 21), 0.95) == (6, 15)
    assert median_interval(range(5), 0.95) == (-math.inf, math.inf)
    assert median_interval([], 0.95) == (-math.inf, math.inf)


def test_the_interval_holds_the_median_as_often_as_it_says():
    rng = np.random.default_rng(0)
    draws = rng.exponential(size=(4000, 15))
    held = [low <= math.log(2) <= high for low, high in (median_interval(d, 0.9) for d in draws)]
    # 4th to 12th of 15: 1 - 2 * P(Binomial(15, 1/2) <= 3) = 0.9648.
    assert np.mean(held) == pytest.approx(0.9648, abs=0.01)


def test_verdicts():
    base = repeats(1.0, 0.005, 0)
    assert compare(repeats(0.9, 0.005, 1), base, 0.01).verdict is Verdict.BETTER
    assert compare(base, base, 0.01).verdict is Verdict.SAME
    assert compare(repeats(1.1, 0.005, 2), base, 0.01).verdict is Verdict.SAME
    assert compare(repeats(0.97, 0.2, 3), repeats(1.0, 0.2, 4), 0.01).verdict is Verdict.AMBIGUOUS
    assert compare([0.5] * 4, [1.0] * 4, 0.01).verdict is Verdict.AMBIGUOUS  # too few pairs


def test_an_effect_within_the_noise_floor_is_not_better():
    a, b = repeats(0.98, 0.001, 5), repeats(1.0, 0.001, 6)
    assert compare(a, b, 0.0).verdict is Verdict.BETTER
    assert compare(a, b, 0.05).verdict is Verdict.SAME


def test_pairs_cancel_what_drifts_together():
    """A clock that slows by half in the course of the final changes both alike."""
    drift = np.linspace(1.0, 1.5, 20)
    found = compare(0.95 * drift, drift, 0.01)
    assert found.verdict is Verdict.BETTER
    assert found.speedup == pytest.approx(1 / 0.95)
    assert (found.low, found.high) == pytest.approx((1 / 0.95, 1 / 0.95))


def test_equal_configs_are_rarely_called_better():
    rng = np.random.default_rng(1)
    times = np.exp(0.02 * rng.standard_normal((2000, 2, 20)))
    wrong = sum(compare(a, b, 0.0).verdict is Verdict.BETTER for a, b in times)
    assert wrong / 2000 < 0.03


class TestDecide:
    def test_the_fastest_challenger_wins(self):
        rows = [repeats(s, 0.003, i) for i, s in enumerate((0.8, 0.7, 0.9, 1.0))]
        outcome = decide(rows, default=3, incumbent=None, noise=0.01)
        assert outcome.winner == 1
        assert outcome.over_incumbent is None
        assert outcome.over_default.speedup == pytest.approx(1 / 0.7, rel=0.02)

    def test_the_default_wins_if_nothing_beats_it(self):
        rows = [repeats(s, 0.003, i) for i, s in enumerate((1.02, 0.999, 1.0))]
        outcome = decide(rows, default=2, incumbent=None, noise=0.01)
        assert (outcome.winner, outcome.over_default) == (2, None)

    def test_the_incumbent_stands_unless_beaten(self):
        rows = [repeats(s, 0.003, i) for i, s in enumerate((0.8, 0.802, 1.0))]
        outcome = decide(rows, default=2, incumbent=1, noise=0.01)
        assert (outcome.winner, outcome.over_incumbent) == (1, None)
        assert outcome.over_default.verdict is Verdict.BETTER
        rows[0] = repeats(0.7, 0.003, 9)
        outcome = decide(rows, default=2, incumbent=1, noise=0.01)
        assert outcome.winner == 0
        assert outcome.over_incumbent.verdict is Verdict.BETTER

    def test_an_incumbent_slower_than_the_default_falls(self):
        rows = [repeats(1.2, 0.003, 0), repeats(1.5, 0.003, 1), repeats(1.0, 0.003, 2)]
        outcome = decide(rows, default=2, incumbent=1, noise=0.01)
        assert outcome.winner == 2
        assert outcome.over_incumbent.verdict is Verdict.BETTER

    def test_configs_without_an_answer_are_passed_over(self):
        rows = [(), repeats(0.9, 0.003, 1), (), repeats(1.0, 0.003, 2)]
        outcome = decide(rows, default=3, incumbent=2, noise=0.01)
        assert outcome.winner == 1
        assert outcome.over_incumbent is None

    def test_the_default_alone(self):
        assert decide([repeats(1.0, 0.01, 0)], default=0, incumbent=None, noise=0.01).winner == 0


def test_finalists_are_distinct_and_fastest_first():
    seconds = [3.0, 1.0, math.inf, 1.5, 2.0]
    assert finalists(seconds, ["a", "b", "c", "b", "d"], 3) == [1, 4, 0]
    assert finalists(seconds, ["a", "b", "c", "b", "d"], 1) == [1]

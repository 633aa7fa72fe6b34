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
    def rows(self, *seconds):
        return [repeats(s, 0.003, i) if s else () for i, s in enumerate(seconds)]

    def test_the_fastest_challenger_wins(self):
        outcome = decide(self.rows(0.8, 0.7, 0.9, 1.0), default=3, incumbent=None, noise=0.01)
        assert (outcome.winner, outcome.challenger, outcome.verdict) == (1, 1, Verdict.BETTER)
        assert outcome.speedup is None
        assert outcome.over_default == pytest.approx(1 / 0.7, rel=0.02)

    def test_the_default_wins_if_nothing_beats_it(self):
        outcome = decide(self.rows(1.02, 0.999, 1.0), default=2, incumbent=None, noise=0.01)
        assert (outcome.winner, outcome.challenger, outcome.verdict) == (2, 2, Verdict.SAME)
        assert outcome.over_default == 1.0

    def test_the_incumbent_stands_unless_beaten(self):
        outcome = decide(self.rows(0.8, 0.802, 1.0), default=2, incumbent=1, noise=0.01)
        assert (outcome.winner, outcome.challenger, outcome.verdict) == (1, 0, Verdict.SAME)
        outcome = decide(self.rows(0.7, 0.802, 1.0), default=2, incumbent=1, noise=0.01)
        assert (outcome.winner, outcome.verdict) == (0, Verdict.BETTER)
        assert outcome.speedup == pytest.approx(0.802 / 0.7, rel=0.02)
        assert outcome.over_default == pytest.approx(1 / 0.7, rel=0.02)

    def test_a_challenger_must_beat_the_default_too(self):
        """Faster than a slow incumbent, slower than the default: the default wins."""
        outcome = decide(self.rows(1.2, 1.5, 1.0), default=2, incumbent=1, noise=0.01)
        assert (outcome.winner, outcome.challenger, outcome.verdict) == (2, 2, Verdict.BETTER)
        assert outcome.speedup == pytest.approx(1.5, rel=0.02)

    def test_configs_without_an_answer_are_passed_over(self):
        outcome = decide(self.rows(0, 0.9, 0, 1.0), default=3, incumbent=2, noise=0.01)
        assert (outcome.winner, outcome.speedup) == (1, None)

    def test_a_default_that_fails_leaves_the_challenger(self):
        outcome = decide(self.rows(0.9, 0), default=1, incumbent=None, noise=0.01)
        assert (outcome.winner, outcome.verdict, outcome.over_default) == (0, Verdict.BETTER, None)
        with pytest.raises(ValueError, match="no config"):
            decide([(), ()], default=1, incumbent=None, noise=0.01)

    def test_the_incumbent_and_the_default_may_be_one(self):
        outcome = decide(self.rows(0.9, 1.0), default=1, incumbent=1, noise=0.01)
        assert outcome.winner == 0
        outcome = decide(self.rows(1.1, 1.0), default=1, incumbent=1, noise=0.01)
        assert (outcome.winner, outcome.challenger, outcome.verdict) == (1, 0, Verdict.SAME)

    def test_without_challengers(self):
        assert decide(self.rows(1.0), default=0, incumbent=None, noise=0.01).winner == 0
        assert decide(self.rows(1.0, 0.9), default=0, incumbent=1, noise=0.01).winner == 1
        assert decide(self.rows(1.0, 1.9), default=0, incumbent=1, noise=0.01).winner == 0


def test_finalists_are_distinct_and_fastest_first():
    seconds = [3.0, 1.0, math.inf, 1.5, 2.0]
    assert finalists(seconds, ["a", "b", "c", "b", "d"], 3) == [1, 4, 0]
    assert finalists(seconds, ["a", "b", "c", "b", "d"], 1) == [1]

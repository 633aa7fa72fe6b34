"""Finals: the exact interval, the verdicts, and that no slower config is ever promoted."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tunefarm.db.records import Verdict
from tunefarm.tuner.finals import (
    LOOKS,
    ROUNDS,
    compare,
    decide,
    finalists,
    log_ratios,
    pseudomedian,
)


def repeats(seconds: float, spread: float, seed: int, count: int = 20) -> tuple[float, ...]:
    noise = np.random.default_rng(seed).standard_normal(count)
    return tuple(seconds * np.exp(spread * noise))


def test_the_interval_is_that_of_the_signed_rank_test():
    # Tables of the signed-rank test: of 6 values both tails of the sum 0 hold 2/64; for 10 and
    # 95% the 9th smallest and largest of the 55 means count; six are needed.
    assert pseudomedian([3, 1, 2, 6, 5, 4], 0.95) == (3.5, 1, 6)
    values = [float(2**i) for i in range(10)]
    means = sorted((a + b) / 2 for i, a in enumerate(values) for b in values[i:])
    assert pseudomedian(values, 0.95)[1:] == (means[8], means[-9])
    assert pseudomedian(range(5), 0.95) == (2, -math.inf, math.inf)
    assert pseudomedian([], 0.95) == (0, -math.inf, math.inf)


@pytest.mark.parametrize("draw", ["standard_normal", "standard_cauchy"])
def test_the_interval_holds_the_centre_as_often_as_it_says(draw):
    draws = getattr(np.random.default_rng(0), draw)((3000, 12))
    held = [low <= 0 <= high for _, low, high in (pseudomedian(d, 0.9) for d in draws)]
    # P(T < 18 or T > 60) for 12 ranks is 0.0923.
    assert np.mean(held) == pytest.approx(0.9077, abs=0.015)


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


def test_a_block_is_the_median_of_its_pairs():
    ratios = log_ratios([1, 1, 1, 1, 1], [1, math.e, math.e**9, math.e**2, 1], block=3)
    assert ratios == pytest.approx([1, 1])


def test_what_a_load_decides_is_no_difference():
    """Code lies well or badly for a block at a time: pairs agree, blocks do not."""
    rng = np.random.default_rng(2)
    luck = np.repeat(0.05 * rng.standard_normal((500, 9)), ROUNDS, axis=1)
    times = np.exp(luck + 0.002 * rng.standard_normal(luck.shape))
    base = np.exp(0.002 * rng.standard_normal(luck.shape))

    def wrong(block):
        verdicts = [
            compare(a, b, 0.0, block=block).verdict for a, b in zip(times, base, strict=True)
        ]
        return verdicts.count(Verdict.BETTER) / len(verdicts)

    assert wrong(ROUNDS) < 0.05
    assert wrong(1) > 0.15


@pytest.mark.parametrize("true, least, most", [(1.0, 0.0, 0.05), (1.03, 0.97, 1.0)])
def test_looking_several_times_does_not_make_equals_different(true, least, most):
    rng = np.random.default_rng(3)
    decided = 0
    for _ in range(300):
        rows = [(), ()]
        for look, one in enumerate(LOOKS):
            noise = np.exp(0.03 * rng.standard_normal((2, one.blocks * ROUNDS)))
            rows = [(*row, *(s * n)) for row, s, n in zip(rows, (1.0, true), noise, strict=True)]
            verdict = decide(rows, default=1, incumbent=None, noise=0.0, look=look).verdict
            if verdict is Verdict.BETTER:
                decided += 1
            if verdict is not Verdict.AMBIGUOUS:
                break
    assert least <= decided / 300 <= most


class TestDecide:
    def rows(self, *seconds):
        count = LOOKS[0].blocks * ROUNDS
        return [repeats(s, 0.003, i, count) if s else () for i, s in enumerate(seconds)]

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

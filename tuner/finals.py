"""Paired finals: is the challenger really faster, by how much, and may it be promoted?

The configs of a final are timed interleaved, so that each repeat of one has a partner taken
within moments. The verdict comes from the median of the log-ratios of these pairs, with an exact
sign-test interval (order statistics; Hahn and Meeker, "Statistical Intervals", 1991, 5.2).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from tunefarm.db.records import Verdict

CONFIDENCE = 0.95
DEFAULT_NOISE = 0.01
"""The noise floor of a device that has not measured its own."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """``speedup`` of the challenger over its opponent (median of pairs; 1.1 is 10% faster), and
    the interval that holds the true median with the asked confidence."""

    speedup: float
    low: float
    high: float
    verdict: Verdict


def median_interval(values: Sequence[float], confidence: float) -> tuple[float, float]:
    """An interval for the median of what ``values`` are drawn from; infinite if too few.

    The k-th smallest and k-th largest value, with the largest k for which
    P(Binomial(n, ½) < k) ≤ (1 − confidence) / 2. Six values are needed for 95%.
    """
    ordered = sorted(values)
    count, tail, k = len(ordered), 0.0, 0
    while k < count // 2:
        tail += math.comb(count, k) / 2.0**count
        if tail > (1 - confidence) / 2:
            break
        k += 1
    if k == 0:
        return -math.inf, math.inf
    return ordered[k - 1], ordered[count - k]


def compare(
    challenger_s: Sequence[float],
    opponent_s: Sequence[float],
    noise: float,
    confidence: float = CONFIDENCE,
) -> Comparison:
    """Compare paired repeats in seconds; ``noise`` is the device's A/A floor as a fraction.

    better: the interval excludes "no difference", and the effect exceeds the noise.
    same: the challenger is surely not faster by more than the noise (it may be slower).
    ambiguous: neither can be said.
    """
    ratios = [math.log(b / a) for a, b in zip(challenger_s, opponent_s, strict=True)]
    floor = math.log1p(max(noise, 0.0))
    low, high = median_interval(ratios, confidence)
    middle = statistics.median(ratios) if ratios else 0.0
    if low > 0 and middle > floor:
        verdict = Verdict.BETTER
    elif high <= floor:
        verdict = Verdict.SAME
    else:
        verdict = Verdict.AMBIGUOUS
    return Comparison(math.exp(middle), math.exp(low), _exp(high), verdict)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Who won a final: the index of its row of times, and its comparison with the default and
    with the incumbent (None where there is none, or the winner is the one compared with)."""

    winner: int
    over_default: Comparison | None
    over_incumbent: Comparison | None


def decide(
    rows_s: Sequence[Sequence[float]],
    default: int,
    incumbent: int | None,
    noise: float,
) -> Outcome:
    """Decide a final of several configs timed interleaved, one row of repeats each.

    An empty row is a config that gave no answer; the default has one. The challenger of the
    lowest median wins if it is better than the default and, where
    there is one, than the incumbent; the confidence is shared between the challengers
    (Bonferroni). Otherwise the incumbent stands, unless the default is better than it; without an
    incumbent the default wins. So the winner is never one that was seen slower than the default.
    """
    challengers = [i for i, row in enumerate(rows_s) if row and i not in (default, incumbent)]
    if incumbent is not None and not rows_s[incumbent]:
        incumbent = None
    confidence = 1 - (1 - CONFIDENCE) / max(len(challengers), 1)

    def versus(a: int, b: int) -> Comparison:
        return compare(rows_s[a], rows_s[b], noise, confidence)

    def beats(a: int, b: int) -> bool:
        return versus(a, b).verdict is Verdict.BETTER

    champion = default if incumbent is None or beats(default, incumbent) else incumbent
    if challengers:
        best = min(challengers, key=lambda i: statistics.median(rows_s[i]))
        rivals = [r for r in (default, incumbent) if r is not None]
        if all(beats(best, rival) for rival in rivals):
            champion = best
    return Outcome(
        champion,
        None if champion == default else versus(champion, default),
        None if incumbent is None or champion == incumbent else versus(champion, incumbent),
    )


def finalists(seconds: Sequence[float], configs: Sequence[str], count: int) -> list[int]:
    """Indices of the ``count`` fastest distinct configs with a finite time, fastest first."""
    order = sorted(range(len(seconds)), key=lambda i: (seconds[i], i))
    chosen: dict[str, int] = {}
    for index in order:
        if math.isfinite(seconds[index]) and len(chosen) < count:
            chosen.setdefault(configs[index], index)
    return list(chosen.values())


def _exp(value: float) -> float:
    return math.inf if value == math.inf else math.exp(value)

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
    """Who won a final, as indices of rows: ``verdict`` is that of ``challenger`` over its rivals.

    ``speedup`` is the challenger's over the incumbent and ``over_default`` over the default; None
    where there was none to compare with.
    """

    winner: int
    challenger: int
    verdict: Verdict
    speedup: float | None = None
    over_default: float | None = None


def decide(
    rows_s: Sequence[Sequence[float]],
    default: int | None,
    incumbent: int | None,
    noise: float,
) -> Outcome:
    """Decide a final of several configs timed interleaved, one row of repeats each.

    An empty row is a config that gave no answer. The challenger of the lowest median wins if it
    is better than the default and, where there is one, than the incumbent; the confidence is
    shared between the challengers (Bonferroni). Otherwise the incumbent stands, unless the default
    is better than it; without an incumbent the default wins. So the winner is never one that was
    seen slower than the default. ValueError if no row has an answer.
    """
    challengers = [i for i, row in enumerate(rows_s) if row and i not in (default, incumbent)]
    default = default if default is not None and rows_s[default] else None
    incumbent = incumbent if incumbent is not None and rows_s[incumbent] else None
    confidence = 1 - (1 - CONFIDENCE) / max(len(challengers), 1)
    final = _Final(rows_s, confidence, noise, default, incumbent)
    best = min(challengers, key=lambda i: statistics.median(rows_s[i]), default=None)
    verdict = Verdict.SAME if best is None else final.verdict(best)
    if best is not None and verdict is Verdict.BETTER:
        return final.outcome(best, best, verdict)
    if default is not None and incumbent is not None and final.beats(default, incumbent):
        return final.outcome(default, default, Verdict.BETTER)
    if incumbent is not None:
        return final.outcome(incumbent, incumbent if best is None else best, verdict)
    if default is not None:
        return final.outcome(default, default, verdict)
    raise ValueError("no config of this final gave an answer")


@dataclass(frozen=True, slots=True)
class _Final:
    rows_s: Sequence[Sequence[float]]
    confidence: float
    noise: float
    default: int | None
    incumbent: int | None

    def versus(self, a: int, b: int) -> Comparison:
        return compare(self.rows_s[a], self.rows_s[b], self.noise, self.confidence)

    def verdict(self, challenger: int) -> Verdict:
        """The weakest verdict of a challenger over the default and the incumbent."""
        rivals = [r for r in (self.incumbent, self.default) if r is not None]
        verdicts = {self.versus(challenger, rival).verdict for rival in rivals}
        weakest_first = (Verdict.SAME, Verdict.AMBIGUOUS, Verdict.BETTER)
        return next((v for v in weakest_first if v in verdicts), Verdict.BETTER)

    def beats(self, a: int, b: int) -> bool:
        return a != b and self.versus(a, b).verdict is Verdict.BETTER

    def outcome(self, winner: int, challenger: int, verdict: Verdict) -> Outcome:
        def speedup(over: int | None) -> float | None:
            return None if over is None else self.versus(challenger, over).speedup

        return Outcome(winner, challenger, verdict, speedup(self.incumbent), speedup(self.default))


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

"""Paired finals: is the challenger really faster, by how much, and may it be promoted?

The configs of a final are timed interleaved, so that each repeat of one has a partner taken
within moments, in blocks for which all were loaded afresh. A block's log-ratio is the median of
its pairs', and blocks of equal configs are symmetric about zero. So the verdict comes from the
pseudomedian of the blocks, with the exact interval of the signed-rank test (Hodges and Lehmann,
"Estimates of location based on rank tests", 1963; Hollander, Wolfe and Chicken, "Nonparametric
Statistical Methods", 2014, 3.3). What is open after one look is timed again and looked at again;
the looks share what may be wrong (Bonferroni).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations_with_replacement

from tunefarm.db.records import Verdict

CONFIDENCE = 0.95
DEFAULT_NOISE = 0.01
"""The noise floor of a device that has not measured its own."""
MOST_NOISE = 0.02
"""The highest floor of a final. A device that was noisier when it was checked needs more blocks,
for which the interval asks; it need not miss what they find."""


@dataclass(frozen=True, slots=True)
class Look:
    """One measurement of a final: ``blocks`` of ``ROUNDS`` pairs, and the share of wrong verdicts
    that may come from looking after it, given all the blocks so far."""

    blocks: int
    doubt: float


ROUNDS = 4
"""Pairs of a block."""
LOOKS = (Look(9, 0.4), Look(18, 0.3), Look(45, 0.3))
"""Nine blocks are the fewest that can decide at the first look between three challengers."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """``speedup`` of the challenger over its opponent (1.1 is 10% faster), and the interval that
    holds the true one with the asked confidence."""

    speedup: float
    low: float
    high: float
    verdict: Verdict


def pseudomedian(values: Sequence[float], confidence: float) -> tuple[float, float, float]:
    """The median of the means of all pairs of values (each with itself too), and an interval that
    holds the centre of what they are drawn from, a symmetric distribution; infinite if too few.

    The k-th smallest and k-th largest of these means, with the largest k for which
    P(rank sum < k) ≤ (1 − confidence) / 2. Six values are needed for 95%.
    """
    means = sorted((a + b) / 2 for a, b in combinations_with_replacement(values, 2))
    middle = statistics.median(means) if means else 0.0
    k = _ranks_within(len(values), (1 - confidence) / 2)
    if k == 0:
        return middle, -math.inf, math.inf
    return middle, means[k - 1], means[len(means) - k]


@cache
def _ranks_within(count: int, tail: float) -> int:
    """The largest k with P(T < k) ≤ tail, where T sums each of the ranks 1 … count by a toss."""
    ways = [1]
    for rank in range(1, count + 1):
        longer = ways + [0] * rank
        for total, number in enumerate(ways):
            longer[total + rank] += number
        ways = longer
    reached, k = 0, 0
    while k < len(ways) and reached + ways[k] <= tail * 2**count:
        reached += ways[k]
        k += 1
    return k


def log_ratios(
    challenger_s: Sequence[float], opponent_s: Sequence[float], block: int
) -> list[float]:
    """How much faster the challenger was, as logarithms: for each block of so many consecutive
    pairs their median."""
    ratios = [math.log(b / a) for a, b in zip(challenger_s, opponent_s, strict=True)]
    return [statistics.median(ratios[i : i + block]) for i in range(0, len(ratios), block)]


def compare(
    challenger_s: Sequence[float],
    opponent_s: Sequence[float],
    noise: float,
    confidence: float = CONFIDENCE,
    block: int = 1,
) -> Comparison:
    """Compare paired repeats in seconds; ``noise`` is the device's A/A floor as a fraction.

    better: the interval excludes "no difference", and the effect exceeds the noise.
    same: the challenger is surely not faster by more than the noise (it may be slower).
    ambiguous: neither can be said.
    """
    floor = math.log1p(max(noise, 0.0))
    middle, low, high = pseudomedian(log_ratios(challenger_s, opponent_s, block), confidence)
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
    look: int = 0,
    block: int = ROUNDS,
) -> Outcome:
    """Decide a final of several configs timed interleaved, one row of repeats each, after one of
    its looks.

    An empty row is a config that gave no answer. The challenger of the lowest median wins if it
    is better than the default and, where there is one, than the incumbent; the confidence is
    shared between the challengers (Bonferroni). Otherwise the incumbent stands, unless the default
    is better than it; without an incumbent the default wins. So the winner is never one that was
    seen slower than the default. ValueError if no row has an answer.
    """
    challengers = [i for i, row in enumerate(rows_s) if row and i not in (default, incumbent)]
    default = default if default is not None and rows_s[default] else None
    incumbent = incumbent if incumbent is not None and rows_s[incumbent] else None
    confidence = 1 - (1 - CONFIDENCE) * LOOKS[look].doubt / max(len(challengers), 1)
    final = _Final(rows_s, confidence, noise, block, default, incumbent)
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
    block: int
    default: int | None
    incumbent: int | None

    def versus(self, a: int, b: int) -> Comparison:
        rows = self.rows_s
        return compare(rows[a], rows[b], self.noise, self.confidence, self.block)

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

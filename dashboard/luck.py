"""The fastest of many trials is the luckiest of those that are about as fast: what it takes without
its luck."""

from __future__ import annotations

import math
from statistics import NormalDist

NEAR = 2.0
"""Trials within so many standard deviations of the fastest may be as fast as it is."""
_DIFFER = 1.96 * math.sqrt(2)
"""By how many standard deviations two trials of one kernel differ at the most, 95 times of 100."""


def spread_of(noise: float) -> float:
    """The standard deviation of the logarithm of a kernel's latency over its trials, of what two
    of them differ by (a fraction, as devices tell it)."""
    return math.log1p(max(noise, 0.0)) / _DIFFER


def without_luck(fastest_s: float, rivals: int, spread: float) -> float:
    """What the fastest trial's kernel takes, in seconds, if ``rivals`` trials, itself among them,
    lie within ``NEAR`` spreads of it.

    Of m equal kernels the fastest trial is expected to err by spread · Φ⁻¹((m − 3/8) / (m + 1/4))
    (Blom, *Statistical Estimates and Transformed Beta-Variables*, 1958).
    """
    if rivals < 2:
        return fastest_s
    return fastest_s * math.exp(spread * NormalDist().inv_cdf((rivals - 0.375) / (rivals + 0.25)))

"""The fastest of many trials without its luck, on searches whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from fastapi.testclient import TestClient
from numpy.typing import NDArray
from tunefarm.dashboard.luck import NEAR, spread_of, without_luck

Chance = np.random.Generator
SEARCHES: dict[str, Callable[[Chance, int], NDArray[np.float64]]] = {
    "random": lambda chance, n: np.abs(chance.normal(0, 0.8, n)),
    "converging": lambda chance, n: np.abs(chance.normal(0, 1, n)) * np.linspace(0.8, 0.05, n),
    "equal": lambda chance, n: np.zeros(n),
}
"""Logarithms of how much slower candidates are than the best there is."""


def errors(search: str, spread: float, n: int) -> NDArray[np.float64]:
    """Mean errors (fractions) of the fastest trial's time, as it is and without luck."""
    chance = np.random.default_rng(7)
    found = []
    for _ in range(200):
        truth = SEARCHES[search](chance, n)
        seen = truth + chance.normal(0, spread, n)
        first = seen.argmin()
        rivals = int((seen <= seen[first] + NEAR * spread).sum())
        likely_s = without_luck(math.exp(seen[first]), rivals, spread)
        found.append((seen[first] - truth[first], math.log(likely_s) - truth[first]))
    return np.mean(found, axis=0)


@pytest.mark.parametrize("spread", [0.01, 0.03, 0.1])
@pytest.mark.parametrize("n", [64, 256])
@pytest.mark.parametrize("search", SEARCHES)
def test_most_of_the_luck_is_taken_out(search: str, n: int, spread: float) -> None:
    raw, likely = errors(search, spread, n)
    assert raw < 0
    assert abs(likely) < 0.4 * abs(raw) + 0.1 * spread


def test_who_has_no_rival_was_not_lucky() -> None:
    assert without_luck(1e-3, 1, 0.1) == 1e-3
    assert without_luck(1e-3, 2, 0.0) == 1e-3
    assert 1e-3 < without_luck(1e-3, 2, 0.1) < without_luck(1e-3, 20, 0.1)


def test_the_spread_is_of_what_two_trials_differ_by() -> None:
    chance = np.random.default_rng(3)
    pairs = chance.normal(0, spread_of(0.2), (20_000, 2))
    assert np.quantile(np.exp(np.abs(np.diff(pairs))), 0.95) == pytest.approx(1.2, rel=0.01)


def test_the_page_of_an_open_job_tells_it(client: TestClient) -> None:
    page = client.get("/jobs/aaaa").text
    assert ", without luck " in page
    assert '<th class="n">Without luck</th>' in page

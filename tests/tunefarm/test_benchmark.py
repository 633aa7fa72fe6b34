"""What ``bench`` says of two builds: a gain only where the pairs of their runs show one."""

from __future__ import annotations

import re

import pytest
from tunefarm.compiler.runtime.graph_executor import Profile

from tunefarm.benchmark import Comparison, defaults

NODES = Profile(())


def said(default_s: tuple[float, ...], tuned_s: tuple[float, ...]) -> str:
    summary = Comparison(default_s, NODES, defaults(), tuned_s, NODES).summary()
    found = re.search(r"default .*?: (.*) \(medians", summary)
    assert found is not None
    return found[1]


@pytest.mark.parametrize(
    ("default_s", "tuned_s", "told"),
    [
        ((1.1, 1.2, 1.3, 1.4), (1.0, 1.1, 1.2, 1.3), "1.09x"),
        ((1.0, 1.0, 1.0, 1.0), (1.1, 1.1, 1.2, 1.2), "0.87x"),
        ((1.2, 1.0, 1.2, 1.0), (1.1, 1.1, 1.1, 1.1), "no difference beyond the noise"),
        ((2.0,), (1.0,), "2.00x"),
        ((1.2, 1.0), (1.1, 1.1), "no difference beyond the noise"),
    ],
)
def test_a_gain_is_told_if_the_middle_half_of_the_pairs_has_it(
    default_s: tuple[float, ...], tuned_s: tuple[float, ...], told: str
) -> None:
    assert said(default_s, tuned_s) == told


def test_no_gain_contradicts_the_medians_beside_it() -> None:
    """Three of four pairs and more gain, and yet the median of the tuned runs is above."""
    default_s = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.3, 1.3)
    tuned_s = tuple(s - 0.01 for s in default_s[:7]) + (1.9, 1.9)
    assert said(default_s, tuned_s) == "no difference beyond the noise"

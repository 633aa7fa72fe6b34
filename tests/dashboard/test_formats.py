"""Numbers as people read them."""

from __future__ import annotations

import pytest
from tunefarm.dashboard import formats


def plain(text: str) -> str:
    return text.replace("\u202f", " ")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.5, "1.50 s"), (0.0123, "12.3 ms"), (456e-6, "456 µs"), (7e-9, "7.00 ns"), (0, "0 s"),
     (None, "–"), (float("inf"), "–")],
)  # fmt: skip
def test_latencies_have_three_digits_and_a_unit(seconds: float | None, text: str) -> None:
    assert plain(formats.latency(seconds)) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(3.5, "3.50 s"), (42, "42 s"), (125, "2 min 5 s"), (3600, "1 h"), (90000, "1 d 1 h")],
)
def test_spans_have_two_units_at_most(seconds: float, text: str) -> None:
    assert plain(formats.span(seconds)) == text


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (0.5, "50 %"),
        (0.047, "4.7 %"),
        (0.0001, "< 0.1 %"),
        (0, "0 %"),
        (None, "–"),
        (1.781, "178 %"),
    ],
)
def test_percentages_have_the_places_that_mean_something(share: float | None, text: str) -> None:
    assert plain(formats.percent(share)) == text


def test_counts_are_grouped_and_large_values_get_prefixes() -> None:
    assert plain(formats.count(1234567)) == "1 234 567"
    assert plain(formats.counted(1, "trial")) == "1 trial"
    assert plain(formats.counted(1200, "trial")) == "1 200 trials"
    assert plain(formats.scaled(3.21e9, "FLOP/s")) == "3.21 GFLOP/s"
    assert plain(formats.age(1000, now=1000 + 7200)) == "2 h ago"
    assert formats.stamp(0) == "1970-01-01 00:00:00 UTC"

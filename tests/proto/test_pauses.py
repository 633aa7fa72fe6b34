"""Pauses between tries."""

from __future__ import annotations

from collections import Counter

from tunefarm.proto.pauses import FIRST_S, Pauses

MOST_S = 5.0


def back_after(away_s: float) -> float:
    """How long after the tracker's return a caller tries, who lost it ``away_s`` before that."""
    pauses, tried_s = Pauses(), 0.0
    while tried_s < away_s:
        tried_s += pauses.after_failure(MOST_S)
    return tried_s - away_s


def test_a_thousand_callers_come_back_soon_and_not_at_once() -> None:
    for away_s in (1.0, 2.0, 4.0, 30.0):
        times_s = [back_after(away_s) for _ in range(1000)]
        assert max(times_s) <= MOST_S
        assert sum(times_s) / 1000 < MOST_S / 2
        ((_, most),) = Counter(int(4 * t) for t in times_s).most_common(1)
        assert most < 250, "came in the same quarter of a second"


def test_a_success_makes_the_next_pause_short_again() -> None:
    pauses = Pauses()
    for _ in range(5):
        pauses.after_failure(MOST_S)
    assert pauses.length_s == MOST_S
    pauses.after_success()
    assert pauses.after_failure(MOST_S) <= FIRST_S
    assert pauses.after_failure(0.1) <= 0.1

"""Screening: which of many changes make a model faster, from few comparisons."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tunefarm.screening import effects, pairs_for, sign

GAINS = [0.031, 0.0, -0.012, 0.007, -0.02, 0.004, 0.0, 0.011, -0.001, 0.025]


def difference(these: Sequence[int], those: Sequence[int], gains: Sequence[float]) -> float:
    return sum(gains[i] for i in these) - sum(gains[i] for i in those)


def test_each_comparison_tells_of_every_change() -> None:
    seen = []

    def gain(these: Sequence[int], those: Sequence[int]) -> float:
        assert sorted([*these, *those]) == list(range(len(GAINS)))
        seen.append(tuple(these))
        return difference(these, those, GAINS)

    assert effects(len(GAINS), 16, gain) == pytest.approx(GAINS)
    assert len(set(seen)) == 16
    assert effects(len(GAINS), 16, lambda these, those: None) == []


def test_what_two_changes_do_to_each_other_cancels() -> None:
    def gain(these: Sequence[int], those: Sequence[int]) -> float:
        both = 0.5 * ({0, 3} <= set(these)) - 0.5 * ({0, 3} <= set(those))
        return difference(these, those, GAINS) + both

    found = effects(len(GAINS), 16, gain)
    shared = 0.25  # half of what the two gain together is each one's
    want = [g + shared * (i in (0, 3)) for i, g in enumerate(GAINS)]
    assert found == pytest.approx(want)


def test_the_lightest_share_an_effect_where_there_are_too_few_comparisons() -> None:
    found = effects(10, 4, lambda these, those: difference(these, those, GAINS))
    assert found == pytest.approx([*GAINS[:3], *[sum(GAINS[3:]) / 7] * 7])


def test_signs_are_balanced_between_all_columns() -> None:
    for n in (4, 8, 16):
        for a in range(n):
            for b in range(n):
                assert sum(sign(r, a) * sign(r, b) for r in range(n)) == (n if a == b else 0)


@pytest.mark.parametrize(
    ("changes", "affordable", "pairs"),
    [
        (2, 99, 8),
        (8, 99, 8),
        (9, 99, 16),
        (40, 99, 16),
        (9, 15, 8),
        (9, 5, 4),
        (2, 3, 0),
        (5, -4, 0),
    ],
)
def test_how_many_comparisons_there_are(changes: int, affordable: int, pairs: int) -> None:
    assert pairs_for(changes, affordable) == pairs

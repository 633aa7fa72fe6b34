"""Which of many changes make a model faster, from few comparisons of two builds.

Each build of a comparison has the changes that the other has not, and each change meets all others
equally often on its own side and on the other one: rows of a Hadamard matrix beside their
complements (Plackett and Burman, "The design of optimum multifactorial experiments", 1946; the
complements are Box and Wilson's fold-over). So every comparison tells of every change, and n of
them know each effect as well as n comparisons of that change alone would; what two changes do to
each other only together cancels.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

MIN_PAIRS, FEW_PAIRS, MAX_PAIRS = 4, 8, 16


def pairs_for(changes: int, affordable: int) -> int:
    """How many comparisons screen so many changes: a power of two, 0 if that cannot be afforded.

    Fewer than there are changes will do: those at the end are then taken as one.
    """
    pairs = FEW_PAIRS
    while pairs < min(changes, MAX_PAIRS):
        pairs *= 2
    while pairs > max(affordable, 0):
        pairs //= 2
    return pairs if pairs >= MIN_PAIRS else 0


def effects(
    changes: int, pairs: int, gain: Callable[[Sequence[int], Sequence[int]], float | None]
) -> list[float]:
    """The effect of each change, from so many comparisons, a power of two; none if one is None.

    ``gain(these, those)`` is the log of how many times as fast a build with the changes ``these``
    is as one with ``those``. Changes beyond the number of pairs share one effect with the last
    before them, which is told of each in equal parts.
    """
    columns = [min(change, pairs - 1) for change in range(changes)]
    gains = []
    for row in range(pairs):
        these = [change for change, column in enumerate(columns) if sign(row, column) > 0]
        those = [change for change, column in enumerate(columns) if sign(row, column) < 0]
        found = gain(these, those)
        if found is None:
            return []
        gains.append(found)
    return [
        statistics.fmean(sign(row, column) * g for row, g in enumerate(gains))
        / columns.count(column)
        for column in columns
    ]


def sign(row: int, column: int) -> int:
    """An entry of a Hadamard matrix whose order is any power of two (Sylvester, 1867)."""
    return -1 if (row & column).bit_count() % 2 else 1

"""How well one order agrees with another, and how much a choice explains."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: 1 for the same order, -1 for the opposite, 0 where one is constant."""
    a, b = _ranks(first), _ranks(second)
    if a.std() == 0 or b.std() == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def top_recall(scores: Sequence[float], truth: Sequence[float], share: float) -> float:
    """Which share of the truly best are among as many with the best scores; higher is better."""
    count = max(1, round(share * len(scores)))
    guessed = set(np.argsort(-np.asarray(scores), kind="stable")[:count].tolist())
    best = np.argsort(-np.asarray(truth), kind="stable")[:count].tolist()
    return len(guessed.intersection(best)) / count


def importance(values: Sequence[object], outcomes: NDArray[np.float64]) -> float:
    """The share of the outcomes' variance that a choice explains alone (ω² of a one-way analysis
    of variance; Hays, *Statistics for Psychologists*, 1963), from 0 to 1."""
    names, groups = np.unique([str(value) for value in values], return_inverse=True)
    total = float(((outcomes - outcomes.mean()) ** 2).sum())
    free = len(outcomes) - len(names)
    if len(names) < 2 or free <= 0 or total == 0:
        return 0.0
    counts = np.bincount(groups)
    means = np.bincount(groups, outcomes) / counts
    between = float((counts * (means - outcomes.mean()) ** 2).sum())
    within = (total - between) / free
    return float(np.clip((between - (len(names) - 1) * within) / (total + within), 0, 1))


def _ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """Ranks from 0; equal values share their mean rank."""
    _, groups, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    mean: NDArray[np.float64] = (ends - (counts + 1) / 2)[groups]
    return mean

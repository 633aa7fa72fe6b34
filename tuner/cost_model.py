"""Models that order candidates by predicted speed, learned from the measurements of all tasks.

``scores`` are what a model is asked for: higher is faster, and only the order within one task
means anything. XGBoost is imported here alone, and lazily.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.errors import TunefarmError
from tunefarm.tuner.features import DRAFT_COLUMN, FEATURES

Features = NDArray[np.float32]
Scores = NDArray[np.float64]
Objective = Literal["rank", "regression"]

ROUNDS = 80
FEWEST_SAMPLES = 6


@dataclass(frozen=True, slots=True)
class Samples:
    """Measured candidates of one task: features ``[n, len(FEATURES)]`` and seconds, infinite for
    those that failed. ``weight`` scales their say in training."""

    features: Features
    seconds: NDArray[np.float64]
    weight: float = 1.0

    def __len__(self) -> int:
        return len(self.seconds)


class CostModel(Protocol):
    """What orders candidates that were not measured by those that were."""

    def fit(self, tasks: Sequence[Samples]) -> None:
        """Learn from scratch; the order of tasks and rows does not name them."""

    def scores(self, features: Features) -> Scores:
        """Predicted order of candidates of one task."""


def labels(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """Throughput relative to the task's fastest: 1 for the fastest, 0 for the failed."""
    fastest = np.min(seconds, initial=np.inf)
    if not np.isfinite(fastest):
        return np.zeros(len(seconds))
    return np.where(np.isfinite(seconds), fastest / seconds, 0.0)


class DraftModel:
    """The analytic draft alone; knows an order before anything is measured."""

    def fit(self, tasks: Sequence[Samples]) -> None:
        """Nothing is learned."""

    def scores(self, features: Features) -> Scores:
        return -features[:, DRAFT_COLUMN].astype(np.float64)


class RidgeModel:
    """The draft, corrected by a ridge regression of the log of time on the features.

    The fallback where xgboost is absent. Each task has its own mean, so that only differences
    within a task are learned; ``strength`` is the penalty in units of one sample.
    """

    def __init__(self, strength: float = 4.0) -> None:
        self._strength = strength
        self._mean: Scores = np.zeros(len(FEATURES))
        self._scale: Scores = np.ones(len(FEATURES))
        self._slope: Scores = np.zeros(len(FEATURES))

    def fit(self, tasks: Sequence[Samples]) -> None:
        tasks = [t for t in tasks if np.isfinite(t.seconds).any()]
        if not tasks:
            return
        stacked: Scores = np.concatenate([t.features for t in tasks]).astype(np.float64)
        deviation: Scores = np.asarray(np.std(stacked, axis=0), np.float64)
        self._mean = np.asarray(np.mean(stacked, axis=0), np.float64)
        self._scale = np.where(deviation < 1e-9, np.inf, deviation)
        inputs: list[NDArray[np.float64]] = []
        residuals: list[NDArray[np.float64]] = []
        for task in tasks:
            x = self._standardised(task.features)
            y = _log_seconds(task.seconds) - task.features[:, DRAFT_COLUMN]
            inputs.append((x - x.mean(axis=0)) * task.weight**0.5)
            residuals.append((y - np.mean(y)) * task.weight**0.5)
        matrix, wanted = np.concatenate(inputs), np.concatenate(residuals)
        normal = matrix.T @ matrix + self._strength * np.eye(matrix.shape[1])
        self._slope = np.asarray(np.linalg.solve(normal, matrix.T @ wanted), np.float64)

    def scores(self, features: Features) -> Scores:
        x = self._standardised(features)
        predicted: Scores = -(features[:, DRAFT_COLUMN] + x @ self._slope)
        return predicted

    def _standardised(self, features: Features) -> NDArray[np.float64]:
        return (features.astype(np.float64) - self._mean) / self._scale


class XgboostModel:
    """Gradient-boosted trees: pairwise ranks grouped by task, or relative throughput.

    Deterministic for a seed (Chen & Guestrin, 2016). Before it has seen ``FEWEST_SAMPLES`` it
    orders by the draft. Raises ImportError if xgboost is absent, TunefarmError if it cannot load.
    """

    def __init__(self, seed: int, objective: Objective = "rank", threads: int = 1) -> None:
        if sys.flags.optimize > 1:
            raise TunefarmError(
                "XGBoost does not load where Python leaves out docstrings: unset PYTHONOPTIMIZE, "
                "or take 1 for it"
            )
        import xgboost

        self._xgboost = xgboost
        self._objective = objective
        self._parameters = _parameters(objective, seed, threads)
        self._booster: Any = None

    def fit(self, tasks: Sequence[Samples]) -> None:
        tasks = [t for t in tasks if np.isfinite(t.seconds).any()]
        if sum(len(t) for t in tasks) < FEWEST_SAMPLES:
            return
        sizes = [len(t) for t in tasks]
        matrix = self._xgboost.DMatrix(
            np.concatenate([t.features for t in tasks]),
            label=np.concatenate([labels(t.seconds) for t in tasks]),
        )
        if self._objective == "rank":
            matrix.set_group(sizes)
            matrix.set_weight(np.array([t.weight for t in tasks]))
        else:
            matrix.set_weight(np.repeat([t.weight for t in tasks], sizes))
        self._booster = self._xgboost.train(self._parameters, matrix, num_boost_round=ROUNDS)

    def scores(self, features: Features) -> Scores:
        if self._booster is None:
            return DraftModel().scores(features)
        predicted: Scores = self._booster.inplace_predict(features).astype(np.float64)
        return predicted


class BlendModel:
    """The sum of several models' scores, each standardised over the candidates of one task.

    Of 2,000 random configs of 32 convolutions and products, timed on two server cores: the fastest
    of the first eight of an unseen task reaches 0.985 of that task's fastest by both, 0.975 by the
    trees, 0.974 by ridge, 0.955 by trees that learn ranks, 0.906 by the draft
    (``bench/cost_model.py``).
    """

    def __init__(self, *models: CostModel) -> None:
        self._models = models

    def fit(self, tasks: Sequence[Samples]) -> None:
        for model in self._models:
            model.fit(tasks)

    def scores(self, features: Features) -> Scores:
        total: Scores = np.zeros(len(features))
        for model in self._models:
            total += _standard(model.scores(features))
        return total


def _standard(scores: Scores) -> Scores:
    spread = float(np.std(scores)) if len(scores) else 0.0
    return (scores - np.mean(scores)) / spread if spread > 0 else np.zeros(len(scores))


def _parameters(objective: Objective, seed: int, threads: int) -> dict[str, Any]:
    common = {
        "max_depth": 6 if objective == "rank" else 4,
        "eta": 0.15,
        "min_child_weight": 0.0 if objective == "rank" else 1.0,
        "subsample": 0.9,
        "colsample_bytree": 0.8,
        "tree_method": "hist",
        "max_bin": 64,
        "seed": seed,
        "nthread": threads,
        "verbosity": 0,
    }
    if objective == "regression":
        return {**common, "objective": "reg:squarederror"}
    return {
        **common,
        "objective": "rank:pairwise",
        "lambdarank_pair_method": "mean",
        "lambdarank_num_pair_per_sample": 8,
        "lambdarank_normalization": False,
    }


def make_model(name: str, seed: int, threads: int = 1) -> CostModel:
    """The model called ``xgboost`` (trees blended with ridge), ``xgboost-rank``,
    ``xgboost-regression``, ``ridge`` or ``draft``.

    Without the package ``ridge`` takes the place of all trees. TunefarmError for another name.
    """
    match name:
        case "xgboost" | "xgboost-rank" | "xgboost-regression":
            try:
                objective: Objective = "rank" if name == "xgboost-rank" else "regression"
                trees = XgboostModel(seed, objective, threads)
            except ImportError:
                return RidgeModel()
            return BlendModel(trees, RidgeModel()) if name == "xgboost" else trees
        case "ridge":
            return RidgeModel()
        case "draft":
            return DraftModel()
        case _:
            raise TunefarmError(
                f"no cost model {name!r}; models: xgboost, xgboost-rank, xgboost-regression, "
                "ridge, draft"
            )


def _log_seconds(seconds: NDArray[np.float64]) -> NDArray[np.float64]:
    """log₂ of seconds; the failed count as slow as the slowest tenth.

    A failure is a conjunction of knobs, which no linear model can tell: a harsher label would
    take the neighbours of the failed down with them.
    """
    finite = seconds[np.isfinite(seconds)]
    return np.log2(np.where(np.isfinite(seconds), seconds, np.quantile(finite, 0.9)))

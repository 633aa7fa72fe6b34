"""The default search: a genetic algorithm on a learned cost model, finished by descent.

Each proposal evolves a large population on the model's scores for a few generations, starting
from the fastest measured rows, hints of similar tasks and random rows (Zheng et al., "Ansor",
2020), and takes the best unseen rows that differ from one another. Part of each batch are
neighbours of the fastest row, more of them the longer no batch brought an improvement, and a
share ``epsilon`` is random. Before anything is measured, the analytic draft is the model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from tunefarm.compiler.space.config import Population
from tunefarm.tuner.cost_model import CostModel, Samples, Scores
from tunefarm.tuner.features import features
from tunefarm.tuner.search.base import Ledger, LedgerSearch, Proposal, Seconds
from tunefarm.tuner.search.droplet import descend
from tunefarm.tuner.search.genetic import breed
from tunefarm.tuner.search.population import distinct, row_keys, sample_valid, spread


@dataclass(frozen=True, slots=True)
class XgbGeneticOptions:
    """``population`` rows are bred in each of ``generations``; shares are parts of a batch."""

    population: int = 1024
    generations: int = 4
    epsilon: float = 0.05
    descent: float = 0.4
    descent_when_stalled: float = 0.6
    stalled_rounds: int = 2
    elites: int = 24
    retrain_growth: float = 1.2
    diversity: float = 0.5


class XgbGeneticSearch(LedgerSearch):
    """``transfer()`` gives samples of other tasks, asked for at each training, and ``hints()`` rows
    that were fast in similar ones."""

    def __init__(
        self,
        ledger: Ledger,
        model: CostModel,
        transfer: Callable[[], Sequence[Samples]] = tuple,
        hints: Callable[[], Population] | None = None,
        options: XgbGeneticOptions | None = None,
    ) -> None:
        super().__init__(ledger)
        self._model = model
        self._transfer = transfer
        self._hints = hints or (lambda: ledger.rows[:0])
        self._options = options or XgbGeneticOptions()
        self._features = features(ledger.space, ledger.rows, ledger.target)
        self._training: Sequence[Samples] = ()
        self._trained_on = 0
        self._since_best = 0

    def follow(self, rows: Population) -> None:
        self._plan_training()
        super().follow(rows)

    def observe(self, rows: Population, seconds: Seconds) -> None:
        before = self._ledger.best_seconds
        super().observe(rows, seconds)
        fresh = features(self._ledger.space, rows, self._ledger.target)
        self._features = np.concatenate([self._features, fresh])
        improved = self._ledger.best_seconds < 0.99 * before
        self._since_best = 0 if improved else self._since_best + 1

    def propose(self, count: int) -> Proposal:
        self._plan_training()
        hinted = self._hints()
        batch = _Batch(self._ledger)
        batch.add("random", self._ledger.random(self._random_count(count)))
        hints = min(max(1, count // 4), count - len(batch.rows))
        batch.add("hint", self._ledger.fresh(hinted)[:hints])
        batch.add("droplet", self._descent(count)[: count - len(batch.rows)])
        batch.add("model", self._evolve(count - len(batch.rows), hinted))
        batch.add("random", self._ledger.random(max(count - len(batch.rows), 0)))
        return Proposal(batch.rows, tuple(batch.origins), self._scores(batch.rows))

    def _random_count(self, count: int) -> int:
        """ε of the batch, rounded at random so that small batches keep the share."""
        return int(self._options.epsilon * count + self._ledger.rng.random())

    def _descent(self, count: int) -> Population:
        """Neighbours of the fastest rows, those of the best score."""
        if not np.isfinite(self._ledger.best_seconds):
            return self._ledger.rows[:0]
        stalled = self._since_best >= self._options.stalled_rounds
        share = self._options.descent_when_stalled if stalled else self._options.descent
        wanted = int(share * count + self._ledger.rng.random())
        around = descend(self._ledger, 4 * wanted)
        order = np.argsort(-self._scores(around), kind="stable")
        return around[order[:wanted]]

    def _evolve(self, count: int, hinted: Population) -> Population:
        """The best unseen rows of a population that evolved on the model's scores."""
        if count <= 0:
            return self._ledger.rows[:0]
        ledger, options = self._ledger, self._options
        if ledger.everything is not None:
            unseen = ledger.fresh(ledger.everything)
            return self._pick(unseen, self._scores(unseen), count)
        measured = ledger.best(options.elites)
        strangers = sample_valid(ledger.space, ledger.rng, options.population)
        pool = distinct(np.concatenate([measured, hinted, strangers]))
        pool, scores = _sorted(pool, self._scores(pool))
        for _ in range(options.generations):
            children = breed(ledger, pool[: options.population // 4], options.population)
            children = distinct(children[ledger.space.valid(children)])
            both = np.concatenate([pool, children])
            both_scores = np.concatenate([scores, self._scores(children)])
            pool, scores = _best_distinct(both, both_scores, 2 * options.population)
        places = ledger.fresh_places(pool)
        return self._pick(pool[places], scores[places], count)

    def _pick(self, unseen: Population, scores: Scores, count: int) -> Population:
        """Rows with the best scores that differ from one another."""
        unseen, scores = _best_distinct(unseen, scores, 16 * count)
        return unseen[spread(unseen, scores, count, self._options.diversity)]

    def _scores(self, rows: Population) -> Scores:
        if not len(rows):
            return np.zeros(0)
        if self._training:
            self._model.fit(self._training)
            self._training = ()
        return self._model.scores(features(self._ledger.space, rows, self._ledger.target))

    @property
    def samples(self) -> Samples:
        """What was measured here, for the models of other tasks."""
        return Samples(self._features, self._ledger.seconds)

    def _plan_training(self) -> None:
        """Train again once the data grew by a fifth: on what is known now, when a score is asked
        for. Rounds that are followed ask for none."""
        own = self.samples
        if self._trained_on and len(own) < self._options.retrain_growth * self._trained_on:
            return
        self._training = [own, *self._transfer()]
        self._trained_on = max(len(own), 1)


class _Batch:
    """The rows of one proposal; each part is claimed, so that the next one cannot repeat it."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.rows = ledger.rows[:0]
        self.origins: list[str] = []

    def add(self, origin: str, rows: Population) -> None:
        self._ledger.claim(rows)
        self.rows = np.concatenate([self.rows, rows])
        self.origins += [origin] * len(rows)


def _sorted(rows: Population, scores: Scores) -> tuple[Population, Scores]:
    order = np.argsort(-scores, kind="stable")
    return rows[order], scores[order]


def _best_distinct(rows: Population, scores: Scores, count: int) -> tuple[Population, Scores]:
    _, first = np.unique(row_keys(rows), return_index=True)
    rows, scores = _sorted(rows[first], scores[first])
    return rows[:count], scores[:count]

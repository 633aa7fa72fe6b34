"""A genetic algorithm on measured times alone (no model)."""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.config import Population
from tunefarm.tuner.search.base import Ledger, LedgerSearch, Proposal
from tunefarm.tuner.search.population import change_sketch, crossover, layout_of, mutate

_PARENTS = 8
_MUTATION = 0.5
_SKETCH_CHANGE = 0.05
_ATTEMPTS = 8


class GeneticSearch(LedgerSearch):
    """Children of the fastest measured rows, and a share ``epsilon`` of random rows."""

    def __init__(self, ledger: Ledger, epsilon: float = 0.15) -> None:
        super().__init__(ledger)
        self._epsilon = epsilon

    def propose(self, count: int) -> Proposal:
        ledger = self._ledger
        parents = ledger.best(_PARENTS)
        wanted = round(count * (1 - self._epsilon)) if len(parents) > 1 else 0
        children = ledger.rows[:0]
        for _ in range(_ATTEMPTS):
            if len(children) >= wanted:
                break
            brood = breed(ledger, parents, 4 * wanted)
            children = ledger.fresh(np.concatenate([children, brood]))[:wanted]
        return self._claimed_with_strangers(children, "genetic", count)


def breed(ledger: Ledger, parents: Population, count: int) -> Population:
    """``count`` children of ``parents``, which stand fastest first; validity is not checked.

    Parents are drawn with a probability that falls linearly in their rank.
    """
    rng, layout = ledger.rng, layout_of(ledger.space)
    weight = np.arange(len(parents), 0, -1, dtype=np.float64)
    weight /= weight.sum()
    mothers = parents[rng.choice(len(parents), size=count, p=weight)]
    fathers = parents[rng.choice(len(parents), size=count, p=weight)]
    children = crossover(mothers, fathers, layout, rng)
    # A child that equals a parent must change, or nothing new would come of close parents.
    same = (children == mothers).all(axis=1) | (children == fathers).all(axis=1)
    changed = same | (rng.random(count) < _MUTATION)
    children[changed] = mutate(children[changed], layout, rng)
    if len(ledger.space.sketches) > 1:
        moved = rng.random(count) < _SKETCH_CHANGE
        children[moved] = change_sketch(children[moved], ledger.space, layout, rng)
    return children

"""Coordinate descent on measured times (Canesche et al., "Droplet search", 2024).

From the fastest row so far it measures the neighbours that differ in one knob, first those that
go on in the direction of the last improvement; where a row's neighbours are all measured, the
next fastest row's follow, so that it ends only with the space.
"""

from __future__ import annotations

import numpy as np
from tunefarm.compiler.space.config import ConfigSpace, Population
from tunefarm.tuner.search.base import Ledger, LedgerSearch, Proposal
from tunefarm.tuner.search.population import layout_of

_CENTRES = 32


class DropletSearch(LedgerSearch):
    """Starts from the sketches' defaults when nothing is measured."""

    def propose(self, count: int) -> Proposal:
        ledger = self._ledger
        if not np.isfinite(ledger.best_seconds):
            found = ledger.fresh(_defaults(ledger.space))[:count]
        else:
            found = descend(ledger, count)
        return self._claimed_with_strangers(found, "droplet", count)


def descend(ledger: Ledger, count: int) -> Population:
    """Up to ``count`` new neighbours of the fastest rows, nearest to the fastest first."""
    centres = ledger.best(_CENTRES)
    found = ledger.rows[:0]
    for place, centre in enumerate(centres):
        around = [found]
        if place == 0:
            around.append(_onward(ledger, centre))
        neighbours = ledger.space.neighbours(centre)
        around.append(neighbours[ledger.rng.permutation(len(neighbours))])
        found = ledger.fresh(np.concatenate(around))
        if len(found) >= count:
            break
    return found[:count]


def _onward(ledger: Ledger, centre: Population) -> Population:
    """One and two more steps of the move that led to ``centre`` from its best neighbour."""
    layout = layout_of(ledger.space)
    apart = (ledger.rows != centre).sum(axis=1)
    near = np.flatnonzero((apart == 1) & np.isfinite(ledger.seconds))
    if not len(near):
        return ledger.rows[:0]
    before = ledger.rows[near[np.argmin(ledger.seconds[near])]]
    move = np.where(layout.ordered, centre - before, 0)
    steps = np.array([centre + move, centre + 2 * move], np.int32)
    inside = ((steps >= 0) & (steps < layout.choices)).all(axis=1)
    return steps[inside & bool(move.any())]


def _defaults(space: ConfigSpace) -> Population:
    return np.array([space.encode(s.default) for s in space.sketches], np.int32)

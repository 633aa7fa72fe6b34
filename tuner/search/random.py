"""Uniform random search."""

from __future__ import annotations

from tunefarm.tuner.search.base import LedgerSearch, Proposal


class RandomSearch(LedgerSearch):
    """Valid rows, sketches and knobs drawn uniformly, each row once."""

    def propose(self, count: int) -> Proposal:
        return self._claimed(self._ledger.random(count), "random")

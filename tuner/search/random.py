"""Uniform random search."""

from __future__ import annotations

from tunefarm.compiler.space.config import Population
from tunefarm.tuner.search.base import Ledger, Proposal, Seconds


class RandomSearch:
    """Valid rows, sketches and knobs drawn uniformly, each row once."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def propose(self, count: int) -> Proposal:
        rows = self._ledger.random(count)
        self._ledger.claim(rows)
        return Proposal(rows, ("random",) * len(rows))

    def follow(self, rows: Population) -> None:
        self._ledger.claim(rows)

    def observe(self, rows: Population, seconds: Seconds) -> None:
        self._ledger.record(rows, seconds)

    def forget(self, rows: Population) -> None:
        self._ledger.release(rows)

"""What a search strategy is, and what every strategy knows: the ledger of one task."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.space.config import ConfigSpace, Population
from tunefarm.compiler.target import Target
from tunefarm.tuner.search.population import enumerate_rows, row_keys, sample_valid

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Proposal:
    """Candidates to measure: a name of what made each, and the model's score where it has one."""

    rows: Population
    origins: tuple[str, ...]
    predicted: NDArray[np.float64] | None = None

    def __len__(self) -> int:
        return len(self.rows)


class Search(Protocol):
    """Ask and tell. A row that was proposed or observed is never proposed again.

    What is proposed follows from what was proposed and observed before, in its order, and from the
    ledger's generator alone: a process that takes a job over goes on as the first one would have.
    """

    def propose(self, count: int) -> Proposal:
        """Up to ``count`` new valid rows; none only when the space is exhausted."""

    def follow(self, rows: Population) -> None:
        """Take these rows for its own proposal: another process made it in the same state."""

    def observe(self, rows: Population, seconds: Seconds) -> None:
        """Results in seconds; infinity for a candidate that failed."""

    def forget(self, rows: Population) -> None:
        """Allow rows again that were proposed but never measured."""


@dataclass(slots=True)
class Ledger:
    """Everything proposed and measured in one task. ``rng`` makes every random choice."""

    space: ConfigSpace
    target: Target
    rng: np.random.Generator
    rows: Population = field(init=False)
    seconds: Seconds = field(init=False)
    everything: Population | None = field(init=False)
    _proposed: set[int] = field(init=False, default_factory=set)

    def __post_init__(self) -> None:
        self.rows = np.zeros((0, 1 + len(self.space.knobs)), np.int32)
        self.seconds = np.zeros(0)
        self.everything = enumerate_rows(self.space)

    def record(self, rows: Population, seconds: Seconds) -> None:
        """Take in measured rows; infinity where they failed."""
        self.claim(rows)
        self.rows = np.concatenate([self.rows, rows])
        self.seconds = np.concatenate([self.seconds, seconds])

    def claim(self, rows: Population) -> None:
        """Mark rows as proposed."""
        self._proposed.update(row_keys(rows).tolist())

    def release(self, rows: Population) -> None:
        """Take the mark away from rows that have no result."""
        measured = set(row_keys(self.rows).tolist())
        self._proposed.difference_update(set(row_keys(rows).tolist()) - measured)

    def fresh(self, rows: Population) -> Population:
        """The distinct, valid rows that were never proposed, in their order."""
        return rows[self.fresh_places(rows)]

    def fresh_places(self, rows: Population) -> NDArray[np.intp]:
        """Where the rows stand that ``fresh`` gives."""
        if not len(rows):
            return np.zeros(0, np.intp)
        keys = row_keys(rows)
        _, first = np.unique(keys, return_index=True)
        mask = np.zeros(len(rows), bool)
        mask[first] = True
        if self._proposed:
            mask &= ~np.isin(keys, np.fromiter(self._proposed, np.uint64, len(self._proposed)))
        places = np.flatnonzero(mask)
        return places[self.space.valid(rows[places])]

    def random(self, count: int) -> Population:
        """Up to ``count`` random valid rows that were never proposed."""
        if self.everything is not None:
            left = self.fresh(self.everything)
            return left[self.rng.permutation(len(left))[:count]]
        return self.fresh(sample_valid(self.space, self.rng, 2 * count + 32))[:count]

    def best(self, count: int) -> Population:
        """The fastest measured rows, fastest first."""
        order = np.argsort(self.seconds, kind="stable")[:count]
        return self.rows[order[np.isfinite(self.seconds[order])]]

    @property
    def is_exhausted(self) -> bool:
        """Whether every row of the space was proposed; False where they are too many to tell."""
        return self.everything is not None and not len(self.fresh(self.everything))

    @property
    def best_seconds(self) -> float:
        """Of the fastest measured row; infinity before there is one."""
        return float(np.min(self.seconds, initial=np.inf))


class LedgerSearch:
    """What searches have in common that keep all they know in their ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def follow(self, rows: Population) -> None:
        self._ledger.claim(rows)

    def observe(self, rows: Population, seconds: Seconds) -> None:
        self._ledger.record(rows, seconds)

    def forget(self, rows: Population) -> None:
        self._ledger.release(rows)

    def _claimed(self, rows: Population, origin: str) -> Proposal:
        """A proposal of these rows."""
        self._ledger.claim(rows)
        return Proposal(rows, (origin,) * len(rows))

    def _claimed_with_strangers(self, rows: Population, origin: str, count: int) -> Proposal:
        """A proposal of these rows, and of random ones up to ``count``."""
        own = self._claimed(rows, origin)
        strangers = self._claimed(self._ledger.random(count - len(rows)), "random")
        return Proposal(np.concatenate([own.rows, strangers.rows]), own.origins + strangers.origins)

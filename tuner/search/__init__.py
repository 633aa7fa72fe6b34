"""Search strategies by name; each is one file with an ask-and-tell class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.space.config import Population
from tunefarm.tuner.cost_model import Samples, make_model
from tunefarm.tuner.search.base import Ledger, Proposal, Search
from tunefarm.tuner.search.droplet import DropletSearch
from tunefarm.tuner.search.genetic import GeneticSearch
from tunefarm.tuner.search.grid import GridSearch
from tunefarm.tuner.search.random import RandomSearch
from tunefarm.tuner.search.xgb_genetic import XgbGeneticSearch

DEFAULT_STRATEGY = "xgb-genetic"


@dataclass(frozen=True, slots=True)
class Guidance:
    """What a strategy may use beyond its own measurements: a cost model by name, and callables that
    give samples of other tasks and rows to try early."""

    model: str = "xgboost"
    seed: int = 0
    threads: int = 1
    transfer: Callable[[], Sequence[Samples]] = tuple
    hints: Callable[[], Population] | None = None


def _xgb_genetic(ledger: Ledger, guidance: Guidance) -> Search:
    model = make_model(guidance.model, guidance.seed, guidance.threads)
    return XgbGeneticSearch(ledger, model, guidance.transfer, guidance.hints)


STRATEGIES: Mapping[str, Callable[[Ledger, Guidance], Search]] = {
    DEFAULT_STRATEGY: _xgb_genetic,
    "genetic": lambda ledger, _: GeneticSearch(ledger),
    "droplet": lambda ledger, _: DropletSearch(ledger),
    "random": lambda ledger, _: RandomSearch(ledger),
    "grid": lambda ledger, _: GridSearch(ledger),
}


def make_search(name: str, ledger: Ledger, guidance: Guidance) -> Search:
    """A search of this strategy; TunefarmError if there is none of this name."""
    if name not in STRATEGIES:
        raise TunefarmError(f"no search strategy {name!r}; strategies: {', '.join(STRATEGIES)}")
    return STRATEGIES[name](ledger, guidance)


__all__ = [
    "DEFAULT_STRATEGY",
    "STRATEGIES",
    "Guidance",
    "Ledger",
    "Proposal",
    "Search",
    "make_search",
]

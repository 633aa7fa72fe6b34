"""The contract of every strategy, and that the default one finds better configs sooner."""

from __future__ import annotations

import numpy as np
import pytest
from tunefarm.compiler.errors import TunefarmError
from tunefarm.compiler.space.config import (
    LEVELS,
    ConfigSpace,
    Constraint,
    Knob,
    Nest,
    SketchSpace,
)
from tunefarm.tuner.search import STRATEGIES, Guidance, Ledger, make_search
from tunefarm.tuner.search.population import distinct

TRIALS = 64


def plain_nest(columns) -> Nest:
    ones = np.ones(len(columns["a"]), np.int64)
    tiles = {level: {"i": ones} for level in LEVELS}
    return Nest({"i": 64}, frozenset(), (), tiles, ones, ones.astype(float))


@pytest.fixture
def tiny() -> ConfigSpace:
    """24 rows, of which 18 are valid."""
    knobs = (Knob("a", (1, 2, 4, 8)), Knob("b", ("x", "y")), Knob("c", (0, 1, 2)))
    rule = Constraint("rule", lambda c: c["a"] != 4)
    default = {"sketch": "s", "a": 1, "b": "x", "c": 0}
    return ConfigSpace((SketchSpace("s", 1, knobs, (rule,), default, plain_nest),))


def start(name, space, target, seed=0):
    ledger = Ledger(space, target, np.random.default_rng(seed))
    return ledger, make_search(name, ledger, Guidance(seed=seed))


def tune(name, landscape, target, trials, seed, batch=8):
    """Best true seconds after ``trials``, the default first, times measured with noise."""
    space, noise = landscape.space, np.random.default_rng(1000 + seed)
    ledger, search = start(name, space, target, seed)
    rows = space.encode(space.default)[None, :]
    search.observe(rows, landscape.seconds(rows, noise))
    while len(ledger.rows) < trials:
        rows = search.propose(min(batch, trials - len(ledger.rows))).rows
        search.observe(rows, landscape.seconds(rows, noise))
    return ledger, float(landscape.seconds(ledger.best(1))[0])


@pytest.mark.parametrize("name", STRATEGIES)
class TestEveryStrategy:
    def test_proposals_are_new_valid_and_named(self, name, square, target):
        space = square.space
        ledger, search = start(name, space, target)
        seen = space.encode(space.default)[None, :]
        search.observe(seen, square.seconds(seen))
        for _ in range(5):
            proposal = search.propose(12)
            assert len(proposal) == 12 == len(proposal.origins)
            assert proposal.predicted is None or len(proposal.predicted) == 12
            assert space.valid(proposal.rows).all()
            seen = np.concatenate([seen, proposal.rows])
            assert len(distinct(seen)) == len(seen)
            search.observe(proposal.rows, square.seconds(proposal.rows))
        assert ledger.best_seconds == pytest.approx(square.seconds(seen).min())

    def test_the_same_seed_gives_the_same_candidates(self, name, square, target):
        runs = [tune(name, square, target, 24, seed=5)[0].rows for _ in range(2)]
        np.testing.assert_array_equal(*runs)

    def test_a_small_space_is_exhausted_and_not_repeated(self, name, tiny, target):
        _, search = start(name, tiny, target)
        rows = [search.propose(7).rows for _ in range(4)]
        assert [len(r) for r in rows] == [7, 7, 4, 0]
        assert len(distinct(np.concatenate(rows))) == 18

    def test_a_lost_candidate_may_come_again(self, name, tiny, target):
        _, search = start(name, tiny, target)
        rows = search.propose(18).rows
        search.observe(rows[:10], np.full(10, 1e-3))
        search.forget(rows[10:12])
        search.forget(rows[:3])  # these have results: they stay known
        again = search.propose(18).rows
        assert {r.tobytes() for r in again} == {r.tobytes() for r in rows[10:12]}

    def test_a_small_batch_is_no_larger_than_asked(self, name, square, target):
        space = square.space
        hints = space.sample(np.random.default_rng(9), 40)
        hints = hints[space.valid(hints)][:4]
        for seed in range(12):
            ledger = Ledger(space, target, np.random.default_rng(seed))
            search = make_search(name, ledger, Guidance("ridge", seed, hints=lambda: hints))
            for count in (1, 1, 2, 3, 2, 1):
                rows = search.propose(count).rows
                assert len(rows) == count
                search.observe(rows, square.seconds(rows))

    def test_failures_alone_do_not_stop_it(self, name, square, target):
        _, search = start(name, square.space, target)
        for _ in range(3):
            proposal = search.propose(8)
            assert len(proposal) == 8
            search.observe(proposal.rows, np.full(8, np.inf))


def test_an_unknown_strategy_is_refused(tiny, target):
    with pytest.raises(TunefarmError, match="no search strategy 'anneal'; strategies: xgb-genetic"):
        start("anneal", tiny, target)


def test_grid_goes_in_order(tiny, target):
    _, search = start("grid", tiny, target)
    configs = [tiny.decode(row) for row in search.propose(4).rows]
    assert [(c["a"], c["b"], c["c"]) for c in configs] == [
        (1, "x", 0), (1, "x", 1), (1, "x", 2), (1, "y", 0),
    ]  # fmt: skip


def test_droplet_descends_to_a_local_optimum(square, target):
    """Without noise, what it ends on after many trials has no better neighbour."""
    space = square.space
    ledger, search = start("droplet", space, target)
    for _ in range(40):
        rows = search.propose(8).rows
        search.observe(rows, square.seconds(rows))
    neighbours = space.neighbours(ledger.best(1)[0])
    assert square.seconds(neighbours[space.valid(neighbours)]).min() >= ledger.best_seconds


def test_the_default_at_64_beats_random_at_256(landscapes, target):
    logs = [
        np.log(tune("random", landscape, target, 4 * TRIALS, seed)[1])
        - np.log(tune("xgb-genetic", landscape, target, TRIALS, seed)[1])
        for landscape in landscapes.values()
        for seed in range(2)
    ]
    assert np.exp(np.mean(logs)) > 1.0
    assert np.exp(np.min(logs)) > 0.93


def test_genetic_and_droplet_beat_random_at_equal_trials(landscapes, target):
    gains = {"genetic": [], "droplet": []}
    for landscape in landscapes.values():
        for seed in range(2):
            base = tune("random", landscape, target, TRIALS, seed)[1]
            for name, found in gains.items():
                found.append(np.log(base / tune(name, landscape, target, TRIALS, seed)[1]))
    assert np.exp(np.mean(gains["genetic"])) > 1.01
    assert np.exp(np.mean(gains["droplet"])) > 1.03

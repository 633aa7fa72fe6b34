"""The contract of every cost model, XGBoost's adapter included."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from tunefarm.compiler.errors import TunefarmError
from tunefarm.tuner.cost_model import (
    DraftModel,
    RidgeModel,
    Samples,
    XgboostModel,
    labels,
    make_model,
)
from tunefarm.tuner.features import features
from tunefarm.tuner.search.population import sample_valid

LEARNED = ("xgboost", "xgboost-rank", "xgboost-regression", "ridge")
MODELS = (*LEARNED, "draft")


def samples(landscape, target, count, seed) -> Samples:
    rows = sample_valid(landscape.space, np.random.default_rng(seed), count)
    return Samples(features(landscape.space, rows, target), landscape.seconds(rows))


def regret(model, test: Samples, k: int = 8) -> float:
    """The best of the model's top k over the best there is; 1 is perfect."""
    top = np.argsort(-model.scores(test.features))[:k]
    return float(test.seconds[top].min() / test.seconds.min())


def test_labels_are_relative_throughput():
    assert labels(np.array([2.0, 1.0, np.inf, 4.0])).tolist() == [0.5, 1.0, 0.0, 0.25]
    assert labels(np.full(3, np.inf)).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", MODELS)
class TestEveryModel:
    def test_it_orders_before_any_data(self, name, square, target):
        test = samples(square, target, 300, 0)
        assert regret(make_model(name, seed=0), test) < np.median(test.seconds) / min(test.seconds)

    def test_it_survives_failures_alone_and_one_sample(self, name, square, target):
        some = samples(square, target, 12, 1)
        model = make_model(name, seed=0)
        model.fit([Samples(some.features, np.full(12, np.inf))])
        model.fit([Samples(some.features[:1], some.seconds[:1])])
        model.fit([])
        assert np.isfinite(model.scores(some.features)).all()

    def test_the_same_seed_learns_the_same(self, name, square, target):
        train, test = samples(square, target, 100, 2), samples(square, target, 200, 3)
        scores = []
        for _ in range(2):
            model = make_model(name, seed=4)
            model.fit([train])
            scores.append(model.scores(test.features))
        np.testing.assert_array_equal(*scores)

    def test_times_of_another_unit_change_nothing(self, name, square, target):
        """Only the order within a task counts, so a task on a slower device is no worse task."""
        train, test = samples(square, target, 80, 5), samples(square, target, 200, 6)
        model, slower = make_model(name, seed=0), make_model(name, seed=0)
        model.fit([train])
        slower.fit([Samples(train.features, 64 * train.seconds)])
        np.testing.assert_allclose(
            slower.scores(test.features), model.scores(test.features), rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("name", LEARNED)
class TestLearnedModels:
    def test_it_learns_what_the_draft_does_not_know(self, name, landscapes, target):
        gains = []
        for landscape in landscapes.values():
            test = samples(landscape, target, 2000, 8)
            for seed in range(3):
                model = make_model(name, seed=0)
                model.fit([samples(landscape, target, 128, 70 + seed)])
                gains.append(np.log(regret(DraftModel(), test) / regret(model, test)))
        assert np.mean(gains) > 0

    def test_it_learns_that_candidates_fail(self, name, square, target):
        """Rows of 13 and 14 with unroll 8 fail: they must not crowd the top."""
        space, test = square.space, samples(square, target, 3000, 9)
        rows = sample_valid(space, np.random.default_rng(9), 3000)
        train = samples(square, target, 800, 10)
        assert np.isinf(train.seconds).sum() > 8
        model = make_model(name, seed=0)
        model.fit([train])
        scores = model.scores(test.features)
        failed = np.isinf(square.seconds(rows))
        assert np.median(scores[failed]) < np.median(scores[~failed])

    def test_it_learns_across_tasks(self, name, landscapes, target):
        """Trained on five tasks, it orders the sixth better than the draft does."""
        gains = []
        for held in landscapes:
            train = [samples(x, target, 150, 11) for n, x in landscapes.items() if n != held]
            model, test = make_model(name, seed=0), samples(landscapes[held], target, 2000, 12)
            model.fit(train)
            gains.append(np.log(regret(DraftModel(), test) / regret(model, test)))
        assert np.mean(gains) > 0


def test_an_unknown_model_is_refused():
    with pytest.raises(TunefarmError, match="no cost model 'forest'; models: xgboost"):
        make_model("forest", seed=0)


def test_without_xgboost_ridge_takes_its_place():
    """In a process of its own, in which xgboost cannot be imported."""
    script = (
        "import sys; sys.modules['xgboost'] = None\n"
        "from tunefarm.tuner.cost_model import RidgeModel, make_model\n"
        "assert isinstance(make_model('xgboost', 0), RidgeModel)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_xgboost_is_imported_only_when_a_model_is_made():
    script = (
        "import sys, tunefarm.tuner.search, tunefarm.tuner.cost_model\n"
        "assert 'xgboost' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_what_the_installed_xgboost_must_keep(square, target):
    """The adapter's contract: ranks follow labels within groups, whatever the groups' levels."""
    train = samples(square, target, 120, 13)
    model = XgboostModel(seed=1)
    model.fit([train, Samples(train.features, 100 * train.seconds)])
    scores = model.scores(train.features)
    finite = np.isfinite(train.seconds)
    order = np.argsort(np.argsort(-scores[finite]))
    truth = np.argsort(np.argsort(train.seconds[finite]))
    assert np.corrcoef(order, truth)[0, 1] > 0.95
    assert isinstance(make_model("ridge", 0), RidgeModel)

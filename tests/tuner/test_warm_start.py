"""Warm starts: trials of similar tasks become samples and hints, by name."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from tunefarm.compiler.space.config import ConfigSpace, Knob, SketchSpace
from tunefarm.compiler.target import Target
from tunefarm.db.records import FROM_MEMORY, ErrorKind, TaskKey, Trial
from tunefarm.tuner.features import FEATURES
from tunefarm.tuner.search import Guidance, Ledger, make_search
from tunefarm.tuner.search.population import sample_valid
from tunefarm.tuner.warm_start import (
    MAX_SAMPLES,
    adapt,
    hints,
    measured,
    past_tasks,
    samples_of,
    signature_of,
    similar,
)

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")


def near(space: ConfigSpace, past):
    return similar(space, signature_of(space, TARGET), past)


def trials_of(name, landscape, count, model="cpu", seed=0) -> list[Trial]:
    space = landscape.space
    rows = sample_valid(space, np.random.default_rng(seed), count)
    return [
        Trial(
            "job", TaskKey(name, "llvm"), number, space.decode(row),
            times_s=(s,) if np.isfinite(s) else (),
            error=None if np.isfinite(s) else ErrorKind.BUILD_ERROR,
            device_model=model,
        )
        for number, (row, s) in enumerate(zip(rows, landscape.seconds(rows), strict=True))
    ]  # fmt: skip


@pytest.fixture
def past(landscapes):
    names = [n for n in landscapes if n != "dense"]
    trials = [t for n in names for t in trials_of(n, landscapes[n], 250)]
    spaces = {n: landscapes[n].space for n in names if n != "small"}
    return past_tasks(trials, lambda key, _: spaces.get(key), TARGET)


def test_trials_become_rows_once_and_without_the_environments_failures(square):
    space = square.space
    config = space.default
    other = {**config, "unroll": 8}
    key = TaskKey("w", "llvm")
    rows, seconds = measured(
        space,
        [
            Trial("j", key, 0, config, times_s=(3.0,)),
            Trial("k", key, 0, config, times_s=(2.0,)),
            Trial("j", key, 1, other, error=ErrorKind.BUILD_ERROR),
            Trial("j", key, 2, {**config, "unroll": 1}, error=ErrorKind.DEVICE_LOST),
            Trial("j", key, 3, {**config, "unroll": 3}, times_s=(1.0,)),
            Trial("j", key, 4, {"sketch": "gone"}, times_s=(1.0,)),
        ],
    )
    assert [space.decode(r) for r in rows] == [config, other]
    assert seconds.tolist() == [2.0, np.inf]


def test_tasks_are_grouped_by_workload_and_device(landscapes):
    trials = trials_of("square", landscapes["square"], 20)
    trials += trials_of("square", landscapes["square"], 10, model="gpu")
    found = past_tasks(trials, lambda *_: landscapes["square"].space, TARGET)
    assert [len(p.rows) for p in found] == [20, 10]


@pytest.mark.parametrize("apart", ["compiler_version", "protocol"])
def test_times_of_two_compilers_or_protocols_make_no_task_together(landscapes, apart):
    square = landscapes["square"]
    old = [replace(t, **{apart: "1"}) for t in trials_of("square", square, 20)]
    new = [
        replace(t, **{apart: "2"}, times_s=tuple(s / 100 for s in t.times_s))
        for t in trials_of("square", square, 10)
    ]
    (found,) = past_tasks([*new, *old], lambda *_: square.space, TARGET)
    rows, seconds = measured(square.space, old)
    assert found.rows.tolist() == rows.tolist()
    assert found.seconds.tolist() == seconds.tolist()


def test_what_cannot_be_built_any_more_is_left_out(past):
    assert {p.workload for p in past} == {"square", "skinny", "conv1x1", "odd"}


def test_near_tasks_come_first_and_strangers_never(landscapes, past):
    order = [p.workload for p in near(landscapes["dense"].space, past)]
    assert sorted(order) == ["conv1x1", "odd", "skinny", "square"]
    assert order[-1] in ("square", "skinny")
    sketch = landscapes["dense"].space.sketches[0]
    alien = ConfigSpace((
        SketchSpace("softmax", 1, sketch.knobs, (), {**sketch.default, "sketch": "softmax"},
                    sketch.nest),
    ))  # fmt: skip
    assert near(alien, past) == ()


def test_samples_are_bounded_and_hold_the_fastest(past, target):
    samples = samples_of(past[0], target)
    assert len(samples) == MAX_SAMPLES < len(past[0].rows)
    assert samples.features.shape == (MAX_SAMPLES, len(FEATURES))
    assert samples.seconds.min() == past[0].seconds.min()
    assert np.isinf(samples.seconds).any()


def test_configs_move_by_name(square):
    def space(*knobs):
        default = {"sketch": "s", **{k.name: k.choices[0] for k in knobs}}
        return ConfigSpace((SketchSpace("s", 1, knobs, (), default, None),))

    here = space(Knob("tile", (1, 4, 12)), Knob("order", ("a", "b")), Knob("new", (7, 8)))
    row = adapt(here, {"sketch": "s", "tile": 10, "order": "z", "gone": 3})
    assert here.decode(row) == {"sketch": "s", "tile": 12, "order": "a", "new": 7}
    assert adapt(here, {"sketch": "t", "tile": 4}) is None


def test_hints_are_valid_and_the_best_of_each_task_comes_first(landscapes, past):
    space = landscapes["dense"].space
    rows = hints(space, past, each=3)
    assert space.valid(rows).all()
    best = space.decode(rows[0])
    source = past[0].space.decode(past[0].rows[np.argmin(past[0].seconds)])
    assert best["rows"] == source["rows"]
    assert best["order"] == source["order"]


def test_a_warm_start_finds_more_in_the_first_trials(landscapes, target):
    """16 trials of a new task, with and without 200 trials of each of the other five."""
    gains = []
    for held, landscape in landscapes.items():
        space = landscape.space
        trials = [t for n, x in landscapes.items() if n != held for t in trials_of(n, x, 200)]
        past = past_tasks(trials, lambda name, _: landscapes[name].space, TARGET)
        related = near(space, past)
        samples = tuple(samples_of(p, target) for p in related)
        rows = hints(space, related)
        warm = Guidance(transfer=partial(tuple, samples), hints=partial(np.copy, rows))
        best = []
        for guidance in (Guidance(), warm):
            ledger = Ledger(space, target, np.random.default_rng(0))
            search = make_search("xgb-genetic", ledger, guidance)
            for _ in range(2):
                rows = search.propose(8).rows
                search.observe(rows, landscape.seconds(rows))
            best.append(ledger.best_seconds)
        gains.append(np.log(best[0] / best[1]))
    assert np.exp(np.mean(gains)) > 1.02


@pytest.mark.parametrize("protocol", ["", FROM_MEMORY])
def test_a_past_task_is_like_its_default_for_where_its_weights_were(landscapes, protocol):
    square = landscapes["square"]
    trials = [replace(t, protocol=protocol) for t in trials_of("square", square, 20)]
    asked = []

    def space_of(key: str, protocol: str) -> ConfigSpace:
        asked.append((key, protocol))
        return square.space

    past_tasks(trials, space_of, TARGET)
    assert asked == [("square", protocol)]

"""Genetic operators on integer matrices: what they keep, what they change, what they respect."""

from __future__ import annotations

import numpy as np
import pytest
from tunefarm.compiler.space.config import ConfigSpace, Constraint, Knob, SketchSpace
from tunefarm.tuner.search.population import (
    change_sketch,
    crossover,
    distinct,
    enumerate_rows,
    layout_of,
    mutate,
    row_keys,
    sample_valid,
    spread,
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def rows(square, rng):
    return sample_valid(square.space, rng, 400)


def tiny(constraint=lambda c: np.ones(len(c["a"]), bool)) -> ConfigSpace:
    knobs = (Knob("a", (1, 2, 4, 8)), Knob("b", ("x", "y", "z")))
    other = (Knob("a", (1, 2, 4, 8)), Knob("c", tuple(range(5))))
    rules = (Constraint("rule", constraint),)
    return ConfigSpace((
        SketchSpace("first", 1, knobs, rules, {"sketch": "first", "a": 1, "b": "x"}, None),
        SketchSpace("second", 1, other, rules, {"sketch": "second", "a": 1, "c": 0}, None),
    ))  # fmt: skip


def in_bounds(space, rows):
    layout = layout_of(space)
    inactive = ~layout.active[rows[:, 0]]
    inactive[:, 0] = False
    return (rows >= 0).all() and (rows < layout.choices).all() and (rows[inactive] == 0).all()


def test_sampling_is_valid_distinct_and_repeatable(square):
    space = square.space
    rows = sample_valid(space, np.random.default_rng(3), 300)
    assert len(rows) == 300 == len(distinct(rows))
    assert space.valid(rows).all()
    assert in_bounds(space, rows)
    np.testing.assert_array_equal(rows, sample_valid(space, np.random.default_rng(3), 300))


def test_sampling_walks_from_the_default_where_valid_rows_are_rare(rng):
    wide = tuple(range(64))
    knobs = tuple(Knob(f"k{i}", wide) for i in range(8))
    # One row in 10^7 is valid: no knob may exceed 8.
    small = Constraint("small", lambda c: sum(c[k.name] > 8 for k in knobs) == 0)
    default = {"sketch": "s", **dict.fromkeys((k.name for k in knobs), 0)}
    space = ConfigSpace((SketchSpace("s", 1, knobs, (small,), default, None),))
    rows = sample_valid(space, rng, 50)
    assert len(rows) == 50
    assert space.valid(rows).all()


def test_enumeration_is_the_space(rng):
    space = tiny(lambda c: c["a"] != 4)
    rows = enumerate_rows(space)
    assert len(rows) == 3 * 3 + 3 * 5 == len(distinct(rows))
    assert in_bounds(space, rows)
    assert {r.tobytes() for r in sample_valid(space, rng, 24)} == {r.tobytes() for r in rows}


def test_enumeration_refuses_what_is_large(square):
    assert enumerate_rows(square.space) is None


def test_mutation_changes_one_knob_or_moves_a_factor(square, rows, rng):
    changed = mutate(rows, layout_of(square.space), rng)
    assert in_bounds(square.space, changed)
    assert (changed[:, 0] == rows[:, 0]).all()
    differing = (changed != rows).sum(axis=1)
    assert differing.max() <= 2
    assert (differing == 1).mean() > 0.5
    moved = changed[differing == 2] - rows[differing == 2]
    assert ((moved > 0).sum(axis=1) == 1).all()  # one knob up, the other down


def test_crossover_takes_every_knob_from_a_parent(square, rows, rng):
    mothers, fathers = rows[:200], rows[200:]
    children = crossover(mothers, fathers, layout_of(square.space), rng)
    assert (children[:, 0] == mothers[:, 0]).all()
    assert ((children == mothers) | (children == fathers)).all()
    assert in_bounds(square.space, children)
    assert ((children != mothers).any(axis=1) & (children != fathers).any(axis=1)).mean() > 0.8


def test_a_change_of_sketch_keeps_shared_knobs(rng):
    space = tiny()
    rows = sample_valid(space, rng, 30)
    other = change_sketch(rows, space, layout_of(space), rng)
    assert in_bounds(space, other)
    assert (other[:, 1] == rows[:, 1]).all()  # "a" is shared
    assert (other[:, 0] != rows[:, 0]).any()


def test_keys_tell_rows_apart(square):
    rows = square.space.sample(np.random.default_rng(0), 50_000)
    unique = np.unique(rows, axis=0)
    assert len(np.unique(row_keys(unique))) == len(unique)


def test_spread_prefers_score_and_then_difference():
    rows = np.array([[0, 1, 1, 1], [0, 1, 1, 2], [0, 5, 6, 7]], np.int32)
    scores = np.array([1.0, 0.99, 0.9])
    assert spread(rows, scores, 2, weight=0.0).tolist() == [0, 1]
    assert spread(rows, scores, 2, weight=10.0).tolist() == [0, 2]
    assert sorted(spread(rows, scores, 9).tolist()) == [0, 1, 2]

"""Genetic operators and sampling as small functions on integer matrices.

A population is an int32 matrix ``[candidates, 1 + knobs]`` as in ``compiler/space/config.py``.
No function here loops over candidates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from tunefarm.compiler.space.config import ConfigSpace, Population

ENUMERABLE = 1 << 14
"""Spaces of at most this many rows are enumerated instead of sampled."""

_RESAMPLE_ROUNDS = 24
_SAMPLE_LIMIT = 1 << 16


@dataclass(frozen=True, slots=True)
class Layout:
    """What each column of a population means.

    ``choices[c]`` counts the choices of column c, ``ordered[c]`` says that they have neighbours,
    and ``active[s, c]`` that sketch s reads the column. Column 0 is the sketch and never active.
    """

    choices: NDArray[np.int64]
    ordered: NDArray[np.bool_]
    active: NDArray[np.bool_]


def layout_of(space: ConfigSpace) -> Layout:
    """The layout of a space's populations."""
    knobs = space.knobs
    active = np.zeros((len(space.sketches), 1 + len(knobs)), bool)
    for index, sketch in enumerate(space.sketches):
        mine = set(sketch.knobs)
        active[index, 1:] = [knob in mine for knob in knobs]
    choices = np.array([len(space.sketches), *(len(k.choices) for k in knobs)], np.int64)
    return Layout(choices, np.array([False, *(k.ordered for k in knobs)]), active)


def row_keys(rows: Population) -> NDArray[np.uint64]:
    """A 64-bit hash of each row (multiply-shift), equal in every process."""
    columns = np.arange(1, rows.shape[1] + 1, dtype=np.uint64)
    with np.errstate(over="ignore"):
        weights = _mix(columns * np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)
        return _mix((rows.astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64))


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of SplitMix64 (Steele et al., 2014)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def distinct(rows: Population) -> Population:
    """The rows without repetitions, in the order of their first appearance."""
    _, first = np.unique(row_keys(rows), return_index=True)
    return rows[np.sort(first)]


def enumerate_rows(space: ConfigSpace) -> Population | None:
    """All valid rows in lexicographic order, or None if the space exceeds ``ENUMERABLE``."""
    if space.size > ENUMERABLE:
        return None
    layout = layout_of(space)
    parts = []
    for index in range(len(space.sketches)):
        columns = np.flatnonzero(layout.active[index])
        choices = tuple(layout.choices[columns])
        count = math.prod(choices)  # 1 without a knob: the sketch as it is
        grids = np.indices(choices).reshape(len(columns), count)
        rows = np.zeros((count, layout.active.shape[1]), np.int32)
        rows[:, 0] = index
        rows[:, columns] = grids.T
        parts.append(rows)
    rows = np.concatenate(parts)
    return rows[space.valid(rows)]


def sample_valid(space: ConfigSpace, rng: np.random.Generator, count: int) -> Population:
    """Up to ``count`` distinct valid random rows; fewer where valid rows are very rare.

    Where less than one row in 64 is valid, random walks from the sketches' defaults fill up.
    """
    layout = layout_of(space)
    found = np.zeros((0, layout.active.shape[1]), np.int32)
    draw = 2 * count
    for _ in range(_RESAMPLE_ROUNDS):
        rows = space.sample(rng, min(draw, _SAMPLE_LIMIT))
        found = distinct(np.concatenate([found, rows[space.valid(rows)]]))
        if len(found) >= count:
            return found[:count]
        rate = max(len(found) / draw, 1 / 64)
        draw = int((count - len(found)) / rate * 1.2) + 64
        if rate <= 1 / 64:
            break
    return _walk_from_defaults(space, layout, rng, count, found)


def _walk_from_defaults(
    space: ConfigSpace,
    layout: Layout,
    rng: np.random.Generator,
    count: int,
    found: Population,
) -> Population:
    starts = np.array([space.encode(s.default) for s in space.sketches], np.int32)
    walkers = np.concatenate([starts, found])
    for _ in range(_RESAMPLE_ROUNDS):
        if len(found) >= count:
            break
        rows = walkers[rng.integers(len(walkers), size=4 * count)]
        for _ in range(3):
            rows = mutate(rows, layout, rng)
        walkers = distinct(np.concatenate([walkers, rows[space.valid(rows)]]))
        found = distinct(np.concatenate([found, walkers]))
    return found[:count]


def mutate(rows: Population, layout: Layout, rng: np.random.Generator) -> Population:
    """One random change a row: step a knob, redraw a knob, or move a factor between two knobs.

    A step goes one or two choices up or down an ordered knob; a move steps one ordered knob up
    and another down, as a tile factor goes from one level to the next.
    """
    result = rows.copy()
    action = rng.random(len(rows))
    first = _random_column(layout.active[rows[:, 0]], rng)
    second = _random_column((layout.active & layout.ordered)[rows[:, 0]], rng)
    lines = np.arange(len(rows))

    redraw = (action < 0.3) | ~layout.ordered[first]
    result[redraw, first[redraw]] = _other_choice(result, layout, rng, lines[redraw], first[redraw])

    step = ~redraw
    delta = rng.choice(np.array([-2, -1, -1, 1, 1, 2]), size=len(rows))
    _shift(result, layout, lines[step], first[step], delta[step])
    move = step & (action > 0.75) & (second != first)
    _shift(result, layout, lines[move], second[move], -delta[move])
    return result


def crossover(
    mothers: Population, fathers: Population, layout: Layout, rng: np.random.Generator
) -> Population:
    """Uniform crossover: a child has its mother's sketch, and each shared knob of either."""
    shared = layout.active[mothers[:, 0]] & layout.active[fathers[:, 0]]
    take = shared & (rng.random(mothers.shape) < 0.5)
    return np.where(take, fathers, mothers)


def change_sketch(
    rows: Population, space: ConfigSpace, layout: Layout, rng: np.random.Generator
) -> Population:
    """Rows of another random sketch that keep the knobs both have and draw the rest."""
    fresh = space.sample(rng, len(rows))
    shared = layout.active[rows[:, 0]] & layout.active[fresh[:, 0]]
    return np.where(shared, rows, fresh)


def spread(
    rows: Population, scores: NDArray[np.float64], count: int, weight: float = 0.5
) -> NDArray[np.intp]:
    """Indices of ``count`` rows of high score that differ from one another.

    Greedy: each pick maximises score (standardised) minus ``weight`` times the share of knobs
    that it has in common with the nearest row picked before.
    """
    count = min(count, len(rows))
    if count == 0:
        return np.zeros(0, np.intp)
    deviation = float(np.std(scores)) or 1.0
    value = (scores - float(np.max(scores))) / deviation
    nearest = np.zeros(len(rows))
    picked: list[int] = []
    for _ in range(count):
        best = int(np.argmax(value - weight * nearest))
        picked.append(best)
        nearest = np.maximum(nearest, np.mean(rows == rows[best], axis=1))
        value[best] = -np.inf
    return np.array(picked, np.intp)


def _random_column(allowed: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.intp]:
    """A random allowed column of each row; column 0 where none is allowed."""
    weights: NDArray[np.float64] = rng.random(allowed.shape) * allowed
    return np.asarray(np.argmax(weights, axis=1), np.intp)


def _other_choice(
    rows: Population,
    layout: Layout,
    rng: np.random.Generator,
    lines: NDArray[np.intp],
    columns: NDArray[np.intp],
) -> NDArray[np.int32]:
    """A random choice other than the present one; column 0 (no knob at all) stays."""
    count = np.where(columns == 0, 1, layout.choices[columns])
    offset = 1 + (rng.random(len(lines)) * (count - 1)).astype(np.int64)
    present = rows[lines, columns]
    other: NDArray[np.int32] = ((present + offset) % np.maximum(count, 2)).astype(np.int32)
    result: NDArray[np.int32] = np.where(count > 1, other, present)
    return result


def _shift(
    rows: Population,
    layout: Layout,
    lines: NDArray[np.intp],
    columns: NDArray[np.intp],
    delta: NDArray[np.int64],
) -> None:
    keep = columns > 0
    lines, columns, delta = lines[keep], columns[keep], delta[keep]
    moved = rows[lines, columns] + delta
    rows[lines, columns] = np.clip(moved, 0, layout.choices[columns] - 1)

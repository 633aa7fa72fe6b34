"""Features and the draft: shapes, hand-checked columns, and what they rank."""

from __future__ import annotations

import numpy as np
import pytest
from tunefarm.compiler.space.config import Access, Nest
from tunefarm.compiler.target import Target
from tunefarm.tuner.draft import draft, tile_elements, with_all_levels
from tunefarm.tuner.features import FEATURES, features, nest_features
from tunefarm.tuner.search.population import sample_valid


def column(matrix, name):
    return matrix[:, FEATURES.index(name)]


@pytest.fixture
def nest() -> Nest:
    """C[32, 64] += A[32, 128] B[128, 64]: a tile of 4 x 32, and one of 8 x 16."""
    levels = {
        "vector": ([1, 1], [16, 16], [1, 1]),
        "register": ([4, 8], [32, 16], [1, 1]),
        "l1": ([4, 8], [32, 16], [128, 64]),
        "l2": ([32, 8], [32, 16], [128, 128]),
        "core": ([32, 24], [32, 64], [128, 128]),
    }
    return Nest(
        extents={"m": 32, "n": 64, "k": 128},
        reduce=frozenset({"k"}),
        accesses=(
            Access("a", 4, (32, 128), ({"m": 1}, {"k": 1})),
            Access("b", 4, (128, 64), ({"k": 1}, {"n": 1}), constant=True),
            Access("c", 4, (32, 64), ({"m": 1}, {"n": 1}), write=True),
        ),
        tiles={
            level: dict(zip("mnk", map(np.array, tiles), strict=True))
            for level, tiles in levels.items()
        },
        parallelism=np.array([2, 3]),
        operations=np.full(2, 2.0 * 32 * 64 * 128),
    )


def test_footprints_follow_affine_accesses():
    window = Access("x", 4, (1, 20, 16), ({}, {"y": 2, "r": 1}, {"c": 1}))
    tiles = {"l1": {"y": np.array([4, 100]), "r": np.array([3, 3]), "c": np.array([8, 16])}}
    nest = Nest({"y": 9, "r": 3, "c": 16}, frozenset("r"), (window,), tiles,
                np.ones(2, np.int64), np.ones(2))  # fmt: skip
    # 1 + 2 * 3 + 2 = 9 rows of 8; the second tile covers the whole tensor and no more.
    assert tile_elements(window, nest, "l1").tolist() == [72, 320]


def test_columns_by_hand(nest, target):
    matrix = nest_features(nest, target)
    assert column(matrix, "iterations_register").tolist() == [7, 7]
    assert column(matrix, "reduce_l1").tolist() == [7, 6]
    # 4 + 32 operands and 128 results, 8 + 16 and 128: bytes of the register tile.
    expected = np.log2([4 * (4 + 32 + 128), 4 * (8 + 16 + 128)])
    np.testing.assert_allclose(column(matrix, "bytes_register"), expected, rtol=1e-6)
    assert column(matrix, "accumulators").tolist() == [3, 3]
    assert column(matrix, "parallelism").tolist() == pytest.approx([1, np.log2(3)])
    assert column(matrix, "balance").tolist() == [1.0, 0.75]
    # 24 rows a core cover 32 in two steps: 48 rows of work.
    assert column(matrix, "core_waste").tolist() == pytest.approx([0, np.log2(48 / 32)])
    # Vectors along n: B and C are contiguous, A is broadcast.
    assert column(matrix, "contiguous").tolist() == pytest.approx([2 / 3, 2 / 3])
    assert column(matrix, "broadcast").tolist() == pytest.approx([1 / 3, 1 / 3])
    assert column(matrix, "scattered").tolist() == [0, 0]


def test_a_population_of_several_sketches(square, target):
    rows = sample_valid(square.space, np.random.default_rng(0), 500)
    matrix = features(square.space, rows, target)
    assert matrix.shape == (500, len(FEATURES))
    assert matrix.dtype == np.float32
    assert np.isfinite(matrix).all()
    shuffled = np.random.default_rng(1).permutation(500)
    np.testing.assert_array_equal(features(square.space, rows[shuffled], target), matrix[shuffled])
    for index in range(2):
        alone = rows[rows[:, 0] == index]
        np.testing.assert_array_equal(
            features(square.space, alone, target), matrix[rows[:, 0] == index]
        )


def test_every_knob_shows_in_some_column(square, target):
    space = square.space
    row = space.encode(space.default)[None, :]
    before = features(space, row, target)
    for neighbour in space.neighbours(row[0]):
        assert (features(space, neighbour[None, :], target) != before).any()


def draft_seconds(space, rows, target):
    """What the draft takes the time of each candidate to be."""
    seconds = np.zeros(len(rows))
    for index, sketch in enumerate(space.sketches):
        mine = np.flatnonzero(rows[:, 0] == index)
        nest = with_all_levels(sketch.nest(space.columns(rows[mine], index)))
        seconds[mine] = draft(nest, target).total
    return seconds


def test_the_draft_ranks_better_than_chance(landscapes, target):
    for landscape in landscapes.values():
        rows = sample_valid(landscape.space, np.random.default_rng(0), 1500)
        seconds = landscape.seconds(rows)
        rows, seconds = rows[np.isfinite(seconds)], seconds[np.isfinite(seconds)]
        guess = draft_seconds(landscape.space, rows, target)
        ranks = np.array([np.argsort(np.argsort(v)) for v in (seconds, guess)])
        assert np.corrcoef(ranks)[0, 1] > 0.4


def test_the_draft_charges_idle_cores_and_spills(nest):
    two = draft(nest, Target("llvm -mcpu=znver5 -num-cores=2")).total
    eight = draft(nest, Target("llvm -mcpu=znver5 -num-cores=8")).total
    assert eight[0] >= two[0] * 0.99  # two tasks cannot use eight cores
    old = draft(nest, Target("llvm -mcpu=x86-64-v3 -num-cores=2")).compute
    assert (old > draft(nest, Target("llvm -mcpu=znver5 -num-cores=2")).compute).all()

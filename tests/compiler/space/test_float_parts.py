"""Products of float32 in three bfloat16s each: as exact as multiply-adds, whatever the shape. In
two each, where the target may round."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_unit import EXAMPLES, HAS_TILES, ROUNDING, RUN, TARGET, needs_tiles
from narrow_products import workload_of
from sketch_harness import (
    Array,
    configs,
    draw,
    executed,
    features_of_valid,
    function_of,
    interpreted,
    verify,
)
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ops import call
from tunefarm.compiler.packing import pack, packed_dtype
from tunefarm.compiler.space import ConfigSpace, config_space, float_parts, schedule_workload
from tunefarm.compiler.space.float_parts.forms import THREE, TWO, Parts, split_weights
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

bounded = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)


def product(m: int, k: int, n: int, residual: bool = False, variable: bool = False) -> Workload:
    def build(a: Any, b: Any, *rest: Any) -> Any:
        made = call("matmul", a, b)
        return call("relu", call("add", made, rest[0])) if rest else made

    types = [((m, k), "float32"), ((k, n), "float32"), *[((m, n), "float32")] * residual]
    if variable:
        return Workload.from_function(function_of(build, *types))
    return workload_of(build, *types)


def space_of(workload: Workload, target: Target = TARGET) -> ConfigSpace:
    space = float_parts.space(workload.function, target)
    assert space is not None
    return ConfigSpace((space,))


def result_of(
    workload: Workload,
    arrays: list[Array],
    sketch: str = "float_parts",
    target: Target = TARGET,
) -> Array:
    """By the sketch's default config on a target, or by another's."""
    spaces = {s.sketch: s.default for s in config_space(workload, target).sketches}
    program = lower(schedule_workload(workload, target, spaces[sketch]), checked=True)
    made = np.full(workload.output_types[0].shape, 77, np.float32)
    if HAS_TILES:
        executed(program, target, arrays, [made])
    else:
        interpreted(program, arrays, [made])
    return made


@bounded
@given(
    st.integers(8, 70), st.integers(32, 150), st.integers(16, 90), st.booleans(),
    st.sampled_from([TARGET, ROUNDING]), st.integers(0, 9999),
)  # fmt: skip
def test_matmul(m: int, k: int, n: int, residual: bool, target: Target, seed: int) -> None:
    workload = product(m, k, n, residual)
    rng = np.random.default_rng(seed)
    arrays = draw(workload.function, rng)
    for config in configs(space_of(workload, target), rng, 2):
        verify(workload.function, target, config, arrays, RUN)


@bounded
@given(
    st.integers(8, 70), st.integers(1, 5), st.integers(1, 6), st.booleans(),
    st.sampled_from([TARGET, ROUNDING]), st.integers(0, 9999),
)  # fmt: skip
def test_two_variables(
    m: int, steps: int, vectors: int, residual: bool, target: Target, seed: int
) -> None:
    workload = product(m, 32 * steps, 16 * vectors, residual, variable=True)
    rng = np.random.default_rng(seed)
    arrays = draw(workload.function, rng)
    for config in configs(space_of(workload, target), rng, 2):
        verify(workload.function, target, config, arrays, RUN)


@needs_tiles
def test_two_variables_in_stretches_and_blocks() -> None:
    workload = product(40, 512, 64, residual=True, variable=True)
    rng = np.random.default_rng(4)
    arrays = draw(workload.function, rng)
    default = space_of(workload).default
    for stretch, nv, nb, mb in ((256, 2, 2, 1), (256, 1, 2, 3), (0, 2, 1, 3), (0, 1, 4, 1)):
        config = {**default, "stretch": stretch, "rh": 1, "nv": nv, "nb": nb, "mb": mb}
        verify(workload.function, TARGET, config, arrays, RUN)


def test_a_variable_matrix_of_odd_extents_is_left_to_multiply_adds() -> None:
    config = space_of(product(64, 64, 64, variable=True)).default
    for k, n in ((40, 64), (64, 40)):
        odd = product(64, k, n, variable=True)
        assert float_parts.space(odd.function, TARGET) is None
        with pytest.raises(ScheduleError, match="computes no product of float32 in parts"):
            schedule_workload(odd, TARGET, config)


@needs_tiles
@pytest.mark.parametrize("target", [TARGET, ROUNDING])
@pytest.mark.parametrize("m", [33, 64])
def test_long_sums_in_stretches(m: int, target: Target) -> None:
    workload = product(m, 1000, 96, residual=True)
    rng = np.random.default_rng(m)
    arrays = draw(workload.function, rng)
    default = space_of(workload, target).default
    for stretch, nv, nb in ((256, 2, 3), (512, 1, 2), (512, 3, 1)):
        knobs = {"stretch": stretch, "rh": 2, "nv": nv, "nb": nb, "mb": 1, "ahead": 0}
        verify(workload.function, target, {**default, **knobs}, arrays, RUN)


@needs_tiles
@pytest.mark.parametrize("target", [TARGET, ROUNDING])
@pytest.mark.parametrize(("m", "n"), [(33, 64), (170, 192), (64, 40)])
def test_rows_are_split_a_tile_ahead(m: int, n: int, target: Target) -> None:
    """For an even and an odd number of tiles, for all panels and for blocks of them, in panels that
    fill the registers and in narrow ones; the last tile has rows beyond the last one."""
    workload = product(m, 100, n, residual=True)
    rng = np.random.default_rng(m)
    arrays = draw(workload.function, rng)
    space = space_of(workload, target).sketches[0]
    vectors, tiles = -(-n // 16), -(-m // 16)
    ahead = {**space.default, "ahead": 1, "next_panel": 0, "rh": 1, "stretch": 0}
    panels = ((min(4, vectors), -(-vectors // 4)), (1, vectors), (min(3, vectors), 1))
    tried = 0
    for nv, nb in panels:
        for mb in sorted({2, 3, tiles}):
            config = {**ahead, "nv": nv, "nb": nb, "mb": mb}
            if all(c.holds(config) for c in space.constraints):
                tried += 1
                assert "parts_next" in str(lower(schedule_workload(workload, target, config)))
                verify(workload.function, target, config, arrays, RUN)
    assert tried >= 3


def test_rows_that_are_split_ahead_run_beside_the_products() -> None:
    """A few vectors behind each register tile of a step, into the buffer that the next tile has."""
    workload = product(640, 64, 64)
    knobs = {"ahead": 1, "next_panel": 0, "rh": 1, "nv": 4, "nb": 1, "mb": 40, "stretch": 0}
    config = {**space_of(workload).default, **knobs}
    text = str(lower(schedule_workload(workload, TARGET, config)))
    _, pairs = text.split(" in range(20)")  # of tiles
    first = pairs[: pairs.index("rows[")]
    step = re.search(
        r"for k_0\S* in range\(2\):\n +for j\S* in unrolled\(4\):\n( +)for pair", first
    )
    assert step is not None
    share = first[step.end() : first.index("parts_next[")]
    assert re.search(rf"\n{step[1]}for [^\n]*\n +for q in unrolled\(3\):\n", share)


@needs_tiles
@pytest.mark.parametrize("stretch", [0, 256])
def test_blocks_of_rows_that_end_beyond_the_last_one(stretch: int) -> None:
    """Eleven tiles of rows in two blocks of six, so that each core has one."""
    workload = product(170, 512, 32, residual=True)
    rng = np.random.default_rng(stretch)
    arrays = draw(workload.function, rng)
    default = space_of(workload).default
    config = {**default, "rh": 1, "nv": 1, "mb": 6, "nb": 2, "stretch": stretch, "ahead": 0}
    assert all(c.holds(config) for c in space_of(workload).sketches[0].constraints)
    verify(workload.function, TARGET, config, arrays, RUN)


def test_sums_of_which_no_block_fits_the_cache_have_no_config() -> None:
    assert float_parts.space(product(128, 6144, 1000).function, TARGET) is None
    assert float_parts.space(product(128, 6144, 1024).function, TARGET) is not None


@pytest.mark.parametrize("stride", [1, 2])
def test_pointwise_convolutions(stride: int) -> None:
    workload = workload_of(
        lambda x, w: call(
            "conv", x, w, strides=(stride, stride), data_layout="NSC", kernel_layout="SIO"
        ),
        ((1, 7, 9, 40), "float32"), ((1, 1, 40, 48), "float32"),
    )  # fmt: skip
    rng = np.random.default_rng(stride)
    arrays = draw(workload.function, rng)
    for config in configs(space_of(workload), rng, 2):
        verify(workload.function, TARGET, config, arrays, RUN)


@pytest.mark.skipif(not HAS_TILES, reason="this machine has no tiles (AMX)")
@pytest.mark.parametrize("depth", [64, 768, 3072])
def test_the_error_is_no_larger_than_that_of_multiply_adds(depth: int) -> None:
    workload = product(64, depth, 64)
    rng = np.random.default_rng(depth)
    x, w = draw(workload.function, rng)
    exact = x.astype(np.float64) @ w.astype(np.float64)
    errors = {
        sketch: np.sqrt(np.mean((result_of(workload, [x, w], sketch) - exact) ** 2))
        for sketch in ("float_parts", "contraction")
    }
    assert errors["float_parts"] < errors["contraction"]


@pytest.mark.skipif(not HAS_TILES, reason="this machine has no tiles (AMX)")
@pytest.mark.parametrize("depth", [33, 768])
def test_two_parts_are_off_by_what_they_leave_out(depth: int) -> None:
    """2⁻¹⁵ of |x| · |w| at most, and a few times the error of three parts."""
    workload = product(17, depth, 48)
    x, w = draw(workload.function, np.random.default_rng(depth))
    exact = x.astype(np.float64) @ w.astype(np.float64)
    error, least = (
        np.abs(result_of(workload, [x, w], target=target) - exact) for target in (ROUNDING, TARGET)
    )
    assert (error <= 2.0**-15 * (np.abs(x) @ np.abs(w))).all()
    assert 2 * least.mean() < error.mean() < 1e-5 * np.abs(exact).max()


def test_what_is_not_finite_spoils_its_own_row_alone() -> None:
    workload = product(16, 32, 32)
    rng = np.random.default_rng(1)
    x, w = draw(workload.function, rng)
    x[3, 5], x[4, 6], x[5, 7] = np.inf, np.nan, 1e-42
    made = result_of(workload, [x, w])
    assert np.isnan(made[[3, 4]]).all()
    others = [r for r in range(16) if r not in (3, 4)]
    want = x[others].astype(np.float64) @ w.astype(np.float64)
    np.testing.assert_allclose(made[others], want, rtol=1e-5, atol=1e-5)


def test_three_parts_hold_a_float32_exactly() -> None:
    rng = np.random.default_rng(2)
    weights = rng.standard_normal((70, 8)).astype(np.float32) * np.float32(1e3)
    parts = split_weights(weights)
    assert parts.shape == (3, 96, 8)
    assert parts.dtype == numpy_dtype("bfloat16")
    total = parts.astype(np.float64).sum(axis=0)
    np.testing.assert_array_equal(total[:70], weights)
    assert not total[70:].any()


def test_two_parts_hold_sixteen_bits() -> None:
    weights = np.random.default_rng(3).standard_normal((64, 8)).astype(np.float32)
    total = split_weights(weights, TWO).astype(np.float64).sum(axis=0)
    assert (np.abs(total - weights) <= 2.0**-17 * np.abs(weights)).all()


@pytest.mark.parametrize(("target", "parts"), [(TARGET, THREE), (ROUNDING, TWO)])
def test_weights_take_the_memory_of_their_parts(target: Target, parts: Parts) -> None:
    workload = product(32, 64, 64)
    config = space_of(workload, target).default
    program = schedule_workload(workload, target, config)
    weights = np.ones((64, 64), np.float32)
    layout = program.layouts[1]
    packed = pack(weights, layout, program.params[1].shape)
    assert packed_dtype(weights.dtype, layout) == packed.dtype == numpy_dtype("bfloat16")
    assert packed.nbytes == weights.nbytes * parts.number // 2


@pytest.mark.parametrize(
    "target",
    [
        "llvm -mcpu=sapphirerapids -precision=strict",
        "llvm -mcpu=sapphirerapids -mattr=-amx-tile",
        "llvm -mcpu=znver5",
    ],
)
def test_other_targets_multiply_and_add(target: str) -> None:
    workload = product(128, 768, 768)
    assert "float_parts" not in [s.sketch for s in config_space(workload, Target(target)).sketches]
    config = space_of(workload).default
    if "strict" not in target:
        with pytest.raises(ScheduleError, match="computes no product of float32 in parts"):
            schedule_workload(workload, Target(target), config)


def test_wide_products_of_a_large_model_are_made_so_by_default() -> None:
    default = config_space(product(128, 768, 3072), TARGET, from_memory=True).default
    assert default["sketch"] == "float_parts"
    variable = config_space(product(512, 512, 512, variable=True), TARGET).default
    assert variable["sketch"] == "float_parts"
    few = config_space(product(128, 768, 32), TARGET, from_memory=True).default
    assert few["sketch"] != "float_parts"


def test_features_see_every_candidate() -> None:
    nest = features_of_valid(space_of(product(128, 768, 768)))
    assert (nest.operations >= 2 * 128 * 768 * 768 * 6 / 16).all()

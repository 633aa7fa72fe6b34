"""Convolutions of float32 in three bfloat16s each: as exact as multiply-adds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matrix_unit import EXAMPLES, ROUNDING, RUN, TARGET, needs_tiles
from narrow_products import workload_of
from sketch_harness import configs, draw, features_of_valid, verify
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import ConfigSpace, config_space, schedule_workload, window_parts
from tunefarm.compiler.space.float_parts.forms import split_weights
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

bounded = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None)


def convolution(
    image: tuple[int, int, int, int],
    taps: tuple[int, int],
    outputs: int,
    strides: tuple[int, int] = (1, 1),
    dilations: tuple[int, int] = (1, 1),
    padding: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1)),
    residual: bool = False,
    **attrs: Any,
) -> Workload:
    def build(x: Any, w: Any, *rest: Any) -> Any:
        made = call(
            "conv", x, w, strides=strides, dilations=dilations, padding=padding,
            data_layout="NSC", kernel_layout="SIO", **attrs,
        )  # fmt: skip
        return call("relu", call("add", made, rest[0])) if rest else made

    inputs = image[3] // int(attrs.get("groups", 1))
    result = [
        (size + sum(by) - (t - 1) * skip - 1) // step + 1
        for size, by, t, skip, step in zip(
            image[1:3], padding, taps, dilations, strides, strict=True
        )
    ]
    shape = (image[0], *result, outputs)
    types = [(image, "float32"), ((*taps, inputs, outputs), "float32")]
    return workload_of(build, *types, *[(shape, "float32")] * residual)


def space_of(workload: Workload, target: Target = TARGET) -> ConfigSpace:
    space = window_parts.space(workload.function, target)
    assert space is not None
    return ConfigSpace((space,))


def check(workload: Workload, seed: int, count: int = 2, target: Target = TARGET) -> None:
    rng = np.random.default_rng(seed)
    arrays = draw(workload.function, rng)
    for config in configs(space_of(workload, target), rng, count):
        verify(workload.function, target, config, arrays, RUN)


@bounded
@given(
    st.integers(6, 9), st.integers(6, 9), st.integers(16, 70), st.sampled_from([16, 32, 48]),
    st.integers(1, 2), st.integers(1, 2), st.booleans(), st.sampled_from([TARGET, ROUNDING]),
    st.integers(0, 9999),
)  # fmt: skip
def test_strides(
    height: int, width: int, inputs: int, outputs: int, down: int, across: int,
    residual: bool, target: Target, seed: int,
) -> None:  # fmt: skip
    image = (1, height + 2, width + 2, inputs)
    workload = convolution(image, (3, 3), outputs, (down, across), residual=residual)
    check(workload, seed, target=target)


@pytest.mark.parametrize(
    ("taps", "dilations", "padding"),
    [
        ((5, 5), (1, 1), ((2, 2), (2, 2))),
        ((3, 3), (2, 3), ((2, 2), (3, 3))),
        ((1, 7), (1, 1), ((0, 0), (3, 3))),
        ((2, 3), (1, 1), ((0, 1), (0, 0))),
        ((3, 3), (1, 1), ((4, 5), (3, 4))),
    ],
)
@pytest.mark.parametrize("strides", [(1, 1), (2, 2), (3, 2)])
@needs_tiles
@pytest.mark.parametrize("target", [TARGET, ROUNDING])
def test_windows(
    taps: tuple[int, int],
    dilations: tuple[int, int],
    padding: tuple[tuple[int, int], tuple[int, int]],
    strides: tuple[int, int],
    target: Target,
) -> None:
    workload = convolution((2, 11, 13, 20), taps, 32, strides, dilations, padding)
    check(workload, sum(taps), target=target)


@needs_tiles
@pytest.mark.parametrize("size", [(1, 40), (40, 1)])
def test_a_single_row_or_column(size: tuple[int, int]) -> None:
    check(convolution((1, *size, 32), (3, 3), 32), sum(size))


@needs_tiles
def test_several_blocks_of_rows_and_of_panels() -> None:
    workload = convolution((2, 12, 10, 32), (3, 3), 96, (2, 1))
    arrays = draw(workload.function, np.random.default_rng(5))
    for rows, nv, mb, nb in ((2, 2, 1, 1), (1, 1, 3, 2), (3, 3, 2, 2), (6, 2, 1, 3)):
        config = {
            "sketch": "window_parts", "rows": rows, "rh": 2, "nv": nv, "mb": mb, "nb": nb,
            "next_panel": 1,
        }  # fmt: skip
        config = {**config, "rh": 1} if nv == 3 else config
        verify(workload.function, TARGET, config, arrays, RUN)


def test_epilogues_run_beside_the_next_sums() -> None:
    workload = convolution((1, 12, 12, 32), (3, 3), 64, residual=True)
    config = {**space_of(workload).default, "rows": 2, "mb": 6, "nb": 1, "nv": 2, "rh": 2}
    text = str(lower(schedule_workload(workload, TARGET, config)))
    assert "in range(7):" in text  # six groups of rows, and once more for the last one's epilogue


def test_weights_in_parts_are_padded_tap_by_tap() -> None:
    weights = np.random.default_rng(1).standard_normal((3, 2, 40, 16)).astype(np.float32)
    total = split_weights(weights).astype(np.float64).sum(axis=0).reshape(6, 64, 16)
    np.testing.assert_array_equal(total[:, :40], weights.reshape(6, 40, 16))
    assert not total[:, 40:].any()


@pytest.mark.parametrize(
    "workload",
    [
        convolution((1, 8, 8, 32), (1, 1), 32, padding=((0, 0), (0, 0))),  # float_parts
        convolution((1, 8, 8, 8), (3, 3), 32),  # of so few channels steps are mostly zeros
        convolution((1, 8, 8, 32), (3, 3), 24),
        convolution((1, 8, 8, 64), (3, 3), 32, groups=2),
        convolution((1, 3, 3, 32), (3, 3), 32),
    ],
)
def test_others_are_left_alone(workload: Workload) -> None:
    assert window_parts.space(workload.function, TARGET) is None


@pytest.mark.parametrize("mcpu", ["sapphirerapids -precision=strict", "znver5"])
def test_other_targets_multiply_and_add(mcpu: str) -> None:
    workload, target = convolution((1, 28, 28, 64), (5, 5), 64), Target(f"llvm -mcpu={mcpu}")
    assert "window_parts" not in [s.sketch for s in config_space(workload, target).sketches]
    if "strict" not in mcpu:
        with pytest.raises(ScheduleError, match="computes no convolution of float32 in parts"):
            schedule_workload(workload, target, space_of(workload).default)


def test_what_winograd_serves_little_is_made_so_by_default() -> None:
    def sketch(image: int, taps: int, stride: int) -> object:
        edge = ((taps // 2, taps // 2),) * 2
        shape = (1, image, image, 128)
        workload = convolution(shape, (taps, taps), 128, (stride, stride), padding=edge)
        return config_space(workload, TARGET).default["sketch"]

    assert sketch(28, 5, 1) == "winograd_1d"
    assert sketch(28, 5, 2) == "window_parts"
    assert sketch(28, 3, 1) == "winograd"


def test_features_see_every_candidate() -> None:
    nest = features_of_valid(space_of(convolution((1, 28, 28, 64), (3, 3), 64, (2, 2))))
    assert (nest.operations >= 2 * 14 * 14 * 9 * 64 * 64 * 6 / 16).all()

"""Attention by dot products of bfloat16: odd shapes, layouts and masks against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attentions import (
    HEADS_INSIDE,
    HEADS_OUTSIDE,
    OTHER_FORMS,
    draw,
    error_of,
    error_within_bounds,
    made_by,
    self_attention,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import configs, features_of_valid
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Function, IRModule
from tunefarm.compiler.space import (
    Config,
    ConfigSpace,
    attention_dots,
    config_space,
    schedule_workload,
)
from tunefarm.compiler.space.attention_parts.program import with_rounding
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.transform.fuse_attention import fuse_attention
from tunefarm.compiler.transform.lower_precision import allow_precision
from tunefarm.compiler.workload import Workload

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")
RUNS = Target.host().has("avx512bf16")
MOST = 1e-2  # of an error over the largest result
TOKENS = [33, 128, 197] if RUNS else [19]


def space_of(function: Function, target: Target = TARGET) -> ConfigSpace:
    space = attention_dots.space(with_rounding(function), target)
    assert space is not None
    return ConfigSpace((space,))


def verify(function: Function, config: Config, seed: int = 0) -> None:
    rounded = with_rounding(function)
    assert error_within_bounds(rounded, TARGET, config, RUNS, seed) < MOST, dict(config)


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize("size", [32, 64, 80] if RUNS else [20])
def test_defaults_agree_with_numpy(tokens: int, size: int) -> None:
    function = self_attention(tokens, 2 if RUNS else 1, size)
    verify(function, space_of(function).default)


@pytest.mark.parametrize("options", [*OTHER_FORMS, {"tokens": 16, "size": 16}], ids=str)
def test_other_forms_agree_with_numpy(options: dict[str, Any]) -> None:
    function = self_attention(**{"tokens": 21, "heads": 2 if RUNS else 1, "size": 24, **options})
    verify(function, space_of(function).default)


@settings(max_examples=12 if RUNS else 1, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_any_config_agrees_with_numpy(data: st.DataObject) -> None:
    most = 70 if RUNS else 20
    tokens, keys = (data.draw(st.integers(16, most)) for _ in range(2))
    function = self_attention(
        tokens,
        data.draw(st.integers(1, 3)) if RUNS else 1,
        data.draw(st.integers(16, most)),
        keys=keys,
        values=data.draw(st.integers(16, most)),
        mask=data.draw(st.sampled_from(["keys", "square", "no"])),
        scale=data.draw(st.booleans()),
        equations=data.draw(st.sampled_from([HEADS_INSIDE, HEADS_OUTSIDE])),
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for config in configs(space_of(function), rng, 3 if RUNS else 0):
        verify(function, config)


def test_masks_of_minus_infinity() -> None:
    function = with_rounding(self_attention(37 if RUNS else 17, 1, 32))
    q, k, mask, v = draw(function, np.random.default_rng(6))
    mask = np.where(mask < 0, np.float32(-np.inf), mask)
    default = space_of(self_attention(37 if RUNS else 17, 1, 32)).default
    made = made_by(function, TARGET, default, [q, k, mask, v], RUNS)
    (wanted,) = evaluate(function, [q, k, mask, v])
    assert np.isfinite(wanted).all()
    assert error_of(made, wanted) < MOST


def test_no_more_rows_are_made_than_a_tile_has() -> None:
    """Of rows that fill no vector of their totals' inverses."""
    function = with_rounding(self_attention(197, 1, 64))
    config = {**space_of(self_attention(197, 1, 64)).default, "rw": 13, "rt": 13, "mb": 1, "nv": 2}
    program = lower(schedule_workload(Workload.from_function(function), TARGET, config))
    assert "allocate row_power: float32[1, 1, 13," in str(program)


@pytest.mark.parametrize(
    "target",
    [
        "llvm -mcpu=znver5 -precision=strict",
        "llvm -mcpu=znver3",
        "llvm -mcpu=sapphirerapids -mattr=-amx-tile",  # at a quarter of float32's rate
    ],
)
def test_other_targets_multiply_and_add(target: str) -> None:
    function = self_attention(128, 12, 64)
    assert attention_dots.in_bfloat16(function, Target(target)) is None
    config = space_of(function).default
    workload = Workload.from_function(with_rounding(function))
    with pytest.raises(ScheduleError, match="computes no attention by dot products"):
        schedule_workload(workload, Target(target), config)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
@pytest.mark.parametrize(
    "target", ["llvm -mcpu=znver5", "llvm -mcpu=znver3", "cuda -arch=sm_90"], ids=str
)
def test_other_dtypes_are_not_rounded(dtype: str, target: str) -> None:
    function = self_attention(128, 12, 64, dtype=dtype)
    assert attention_dots.in_bfloat16(function, Target(target)) is None
    module = allow_precision(IRModule({"main": Function(function.params, function.body)}), "bf16")
    fused = fuse_attention(module, Target(target))
    assert "cast" not in str(fused)


def test_functions_of_float32_stay_what_they_are() -> None:
    function = self_attention(128, 12, 64)
    assert attention_dots.space(function, TARGET) is None
    sketches = config_space(Workload.from_function(function), TARGET).sketches
    assert [s.sketch for s in sketches] == ["attention"]


def test_the_model_rounds_what_gains() -> None:
    for tokens, heads, size in ((128, 12, 64), (197, 3, 64), (49, 3, 32), (577, 6, 64)):
        rounded = attention_dots.in_bfloat16(self_attention(tokens, heads, size), TARGET)
        assert rounded is not None
        default = config_space(Workload.from_function(rounded), TARGET).default
        assert default["sketch"] == "attention_dots"
    assert attention_dots.in_bfloat16(self_attention(15, 2, 32), TARGET) is None
    assert attention_dots.in_bfloat16(self_attention(32, 1, 64, keys=1 << 15), TARGET) is None


def test_features_see_every_candidate() -> None:
    nest = features_of_valid(space_of(self_attention(50, 3, 24)))
    assert (nest.operations >= 2 * 3 * 50 * 50 * 24).all()
    assert (nest.extra["held"] > 0).all()

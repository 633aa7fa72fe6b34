"""Attention by the tiles of a matrix unit: odd shapes, layouts and masks against NumPy, of operands
in three parts, in two, and rounded to bfloat16."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from attentions import (
    F32,
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
from matrix_unit import HAS_TILES, ROUNDING, TARGET, needs_tiles
from sketch_harness import Array, configs, features_of_valid
from tunefarm.compiler.errors import ScheduleError
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Call, Function, TensorType, Var, post_order
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import (
    Config,
    ConfigSpace,
    attention_parts,
    config_space,
    schedule_workload,
)
from tunefarm.compiler.space.attention_parts.program import with_rounding, without_rounding
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

MOST = {"bf16": 1e-2, "tf32": 1e-3, "f32": 3e-5}  # of an error, where scores reach 30
KINDS = list(MOST)
COUNT = 10 if HAS_TILES else 1  # as interpreting takes seconds


def of_kind(kind: str, function: Function) -> tuple[Function, Target]:
    """The function and the target by which its products' operands are of that precision."""
    rounded = with_rounding(function) if kind == "bf16" else function
    return rounded, ROUNDING if kind == "tf32" else TARGET


def space_of(function: Function, target: Target = TARGET) -> ConfigSpace:
    space = attention_parts.space(function, target)
    assert space is not None
    return ConfigSpace((space,))


def made(function: Function, target: Target, config: Config, arrays: list[Array]) -> Array:
    return made_by(function, target, config, arrays, HAS_TILES)


def verify(function: Function, target: Target, config: Config, seed: int = 0) -> None:
    """The result is the function's, by its bounds and over the largest result."""
    error = error_within_bounds(function, target, config, HAS_TILES, seed)
    assert error < MOST[kind_of(function, target)], dict(config)


def kind_of(function: Function, target: Target) -> str:
    if without_rounding(function) is not function:
        return "bf16"
    return "tf32" if target.rounds_to_tf32 else "f32"


@pytest.mark.parametrize("kind", KINDS)
def test_a_default_agrees_with_numpy(kind: str) -> None:
    function, target = of_kind(kind, self_attention(19, 1, 20))
    verify(function, target, space_of(function, target).default)


@needs_tiles
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("tokens", [33, 64, 197])
@pytest.mark.parametrize("size", [32, 64, 80])
def test_defaults_agree_with_numpy(kind: str, tokens: int, size: int) -> None:
    function, target = of_kind(kind, self_attention(tokens, 2, size))
    verify(function, target, space_of(function, target).default)


@needs_tiles
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OTHER_FORMS, ids=str)
def test_other_forms_agree_with_numpy(kind: str, options: dict[str, Any]) -> None:
    plain = self_attention(**{"tokens": 21, "heads": 2, "size": 24, **options})
    function, target = of_kind(kind, plain)
    verify(function, target, space_of(function, target).default)


@needs_tiles
@pytest.mark.parametrize("kind", KINDS)
def test_keys_that_stand_side_by_side_are_not_turned(kind: str) -> None:
    shapes = {"q": (35, 40), "k": (40, 37), "v": (37, 48)}
    q, k, v = (Var(name, TensorType(shape, F32)) for name, shape in shapes.items())
    scores = call("matmul", q, k)
    body = call("matmul", call("softmax", scores, axis=-1), v)
    plain = Function((q, k, v), body, {"primitive": True, "constants": ()})
    function, target = of_kind(kind, plain)
    default = space_of(function, target).default
    program = schedule_workload(Workload.from_function(function), target, default)
    assert "turned" not in str(program)
    verify(function, target, default)


@needs_tiles
def test_parts_of_one_array_are_read_in_it() -> None:
    """Queries, keys and values as one product makes them."""
    arrays = [Var(name, TensorType((1, 50, 9, 32), F32)) for name in "xyz"]
    q, k, v = (
        call("slice", x, begin=(0, 0, at, 0), size=(1, 50, 3, 32), strides=(1, 1, 1, 1))
        for at, x in zip((0, 3, 6), arrays, strict=True)
    )
    scores = call("einsum", q, k, equation=HEADS_INSIDE[0])
    body = call("einsum", call("softmax", scores, axis=-1), v, equation=HEADS_INSIDE[1])
    plain = Function(tuple(arrays), body, {"primitive": True, "constants": ()})
    for kind in KINDS:
        function, target = of_kind(kind, plain)
        verify(function, target, space_of(function, target).default)
    rounded = Workload.from_function(with_rounding(plain))
    assert "of parts in bfloat16 +softmax" in rounded.summary
    assert "cast" not in rounded.summary


@settings(max_examples=COUNT, deadline=None, derandomize=True, database=None)
@given(st.data())
def test_any_config_agrees_with_numpy(data: st.DataObject) -> None:
    most = 70 if HAS_TILES else 20
    tokens, keys = (data.draw(st.integers(16, most)) for _ in range(2))
    plain = self_attention(
        tokens,
        data.draw(st.integers(1, 3)) if HAS_TILES else 1,
        data.draw(st.integers(16, most)),
        keys=keys,
        values=data.draw(st.integers(16, most)),
        mask=data.draw(st.sampled_from(["keys", "square", "no"])),
        scale=data.draw(st.booleans()),
        equations=data.draw(st.sampled_from([HEADS_INSIDE, HEADS_OUTSIDE])),
    )
    function, target = of_kind(data.draw(st.sampled_from(KINDS)), plain)
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for config in configs(space_of(function, target), rng, 2 if HAS_TILES else 0):
        verify(function, target, config)


@needs_tiles
@pytest.mark.parametrize("kind", KINDS)
def test_masks_of_minus_infinity(kind: str) -> None:
    function, target = of_kind(kind, self_attention(37, 2, 32))
    q, k, mask, v = draw(function, np.random.default_rng(6))
    mask = np.where(mask < 0, np.float32(-np.inf), mask)
    default = space_of(function, target).default
    result = made(function, target, default, [q, k, mask, v])
    (wanted,) = evaluate(function, [q, k, mask, v])
    assert np.isfinite(wanted).all()
    assert error_of(result, wanted) < MOST[kind]


def test_values_of_several_arrays_have_no_config() -> None:
    """Rows of scores that make a row of results for each of five arrays."""
    shapes = {"q": (32, 16), "k": (32, 16), "v": (5, 32, 16)}
    q, k, v = (Var(name, TensorType(shape, F32)) for name, shape in shapes.items())
    scores = call("matmul", q, k, transpose_b=True)
    body = call("matmul", call("softmax", scores, axis=-1), v)
    function = Function((q, k, v), body, {"primitive": True, "constants": ()})
    assert attention_parts.space(function, TARGET) is None
    assert attention_parts.in_bfloat16(function, TARGET) is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_other_dtypes_are_not_rounded(dtype: str) -> None:
    function = self_attention(128, 12, 64, dtype=dtype)
    for target in (TARGET, Target("llvm -mcpu=znver5"), Target("cuda -arch=sm_90")):
        assert attention_parts.in_bfloat16(function, target) is None


def test_powers_whose_parts_would_cost_time_are_zeros() -> None:
    for kind, asks in (("bf16", False), ("tf32", True), ("f32", True)):
        function, target = of_kind(kind, self_attention(32, 2, 32))
        workload, default = Workload.from_function(function), space_of(function, target).default
        text = str(schedule_workload(workload, target, default))
        (power,) = re.findall(r"row_power\[[^=]*\] = (.*)", text)
        assert ("< float32(-69.0)" in power) == asks


@needs_tiles
def test_errors_are_those_of_the_precision() -> None:
    """Beside float64, over the largest result."""
    plain = self_attention(128, 4, 64, mask="no")
    arrays = draw(plain, np.random.default_rng(3))
    q, k, v = (a.astype(np.float64) for a in arrays)
    scores = np.einsum(HEADS_INSIDE[0], q, k) / 8
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    exact = np.einsum(HEADS_INSIDE[1], powers / powers.sum(axis=-1, keepdims=True), v)
    errors = {}
    for kind in KINDS:
        function, target = of_kind(kind, plain)
        result = made(function, target, space_of(function, target).default, arrays)
        errors[kind] = error_of(result, exact)
    assert errors["f32"] < 2e-6 < errors["tf32"] < 3e-5
    assert 5e-4 < errors["bf16"] < 1e-2


def test_rounding_is_taken_off_again() -> None:
    plain = self_attention(32, 2, 16)
    rounded = with_rounding(plain)
    casts = [n for n in post_order(rounded.body) if isinstance(n, Call) and n.op == "cast"]
    assert len(casts) == 4
    inside = call("cast", call("cast", plain.params[0], dtype="bfloat16"), dtype=F32)
    assert without_rounding(Function(plain.params, inside, plain.attrs)).body is inside
    again = without_rounding(rounded)
    assert Workload.from_function(again).text == Workload.from_function(plain).text
    assert without_rounding(plain) is plain


@pytest.mark.parametrize(
    "target",
    [
        "llvm -mcpu=sapphirerapids -precision=strict",
        "llvm -mcpu=sapphirerapids -mattr=-amx-tile",
        "llvm -mcpu=znver5",
    ],
)
def test_other_targets_multiply_and_add(target: str) -> None:
    function = self_attention(512, 12, 64)
    space = config_space(Workload.from_function(function), Target(target))
    assert [s.sketch for s in space.sketches] == ["attention"]
    assert attention_parts.in_bfloat16(function, Target(target)) is None
    if "strict" not in target:
        config = space_of(function).default
        with pytest.raises(ScheduleError, match="computes no attention in parts"):
            schedule_workload(Workload.from_function(function), Target(target), config)


@pytest.mark.parametrize(
    "function",
    [
        self_attention(15, 2, 32, keys=40),
        self_attention(32, 2, 32, keys=15),
        self_attention(32, 2, 15),
        self_attention(32, 1, 64, keys=1 << 15),  # no task's memory holds a head
    ],
    ids=["few queries", "few keys", "few elements", "too many keys"],
)
def test_where_it_declines(function: Function) -> None:
    assert attention_parts.space(function, TARGET) is None


def test_the_model_takes_it_for_long_sequences() -> None:
    def leads(function: Function, target: Target = TARGET) -> bool:
        space = config_space(Workload.from_function(function), target)
        return space.default["sketch"] == "attention_parts"

    assert leads(self_attention(512, 12, 64))
    assert leads(self_attention(197, 6, 64), ROUNDING)
    assert not leads(self_attention(50, 12, 64))
    assert not leads(self_attention(37, 3, 40), ROUNDING)
    assert attention_parts.in_bfloat16(self_attention(128, 12, 64), TARGET) is not None
    assert attention_parts.in_bfloat16(self_attention(37, 3, 40), TARGET) is None


def test_features_see_every_candidate() -> None:
    nest = features_of_valid(space_of(self_attention(50, 3, 24)))
    assert (nest.operations >= 4 * 3 * 50 * 50 * 24 * 6 / 16).all()
    assert (nest.extra["held"] > 0).all()

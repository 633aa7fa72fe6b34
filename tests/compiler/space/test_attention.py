"""Attention in one kernel: odd shapes, layouts and masks against NumPy, for any config."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attentions import F32, HEADS_INSIDE, HEADS_OUTSIDE, OTHER_FORMS, draw, self_attention
from hypothesis import given, settings
from hypothesis import strategies as st
from sketch_harness import configs, executed, interpreted
from tunefarm.compiler.accuracy import error_bounds
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import Config, ConfigSpace, attention, config_space, schedule_workload
from tunefarm.compiler.target import Target
from tunefarm.compiler.tir.transform.lower import lower
from tunefarm.compiler.workload import Workload

from tests.compiler.mismatch import mismatch

HOST = Target.host(2)
LANES = HOST.lanes(F32)


def attention_space(function: Function, target: Target = HOST) -> ConfigSpace:
    space = attention.space(function, target)
    assert space is not None
    return ConfigSpace((space,))


def verify(function: Function, config: Config, seed: int = 0, run: Any = executed) -> None:
    arrays = draw(function, np.random.default_rng(seed))
    (wanted,) = evaluate(function, arrays)
    program = lower(schedule_workload(Workload.from_function(function), HOST, config), checked=True)
    result = np.full(wanted.shape, 77, F32)
    if run is executed:
        executed(program, HOST, arrays, [result])
    else:
        run(program, arrays, [result])
    assert mismatch([result], [wanted], error_bounds(function, arrays)) == "", dict(config)


@pytest.mark.parametrize("tokens", [17, 33, 64, 197])
@pytest.mark.parametrize("size", [32, 64, 80])
def test_defaults_agree_with_numpy(tokens: int, size: int) -> None:
    function = self_attention(tokens, 2, size)
    verify(function, attention_space(function).default)


@pytest.mark.parametrize("options", OTHER_FORMS, ids=str)
def test_other_forms_agree_with_numpy(options: dict[str, Any]) -> None:
    function = self_attention(**{"tokens": 21, "heads": 2, "size": 24, **options})
    verify(function, attention_space(function).default)


def test_long_rows_agree_with_numpy() -> None:
    function = self_attention(64, 1, 32, keys=2048)
    verify(function, attention_space(function).default)


def test_products_without_heads_agree_with_numpy() -> None:
    q, k, v = (Var(n, TensorType((23, 16), F32)) for n in "qkv")
    scores = call("matmul", q, k, transpose_b=True)
    body = call("matmul", call("softmax", scores, axis=-1), v)
    function = Function((q, k, v), body, {"primitive": True, "constants": ()})
    verify(function, attention_space(function).default)


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_any_config_agrees_with_numpy(data: st.DataObject) -> None:
    tokens, keys = (data.draw(st.integers(LANES, 70)) for _ in range(2))
    function = self_attention(
        tokens,
        data.draw(st.integers(1, 3)),
        data.draw(st.integers(2, 40)),
        keys=keys,
        values=data.draw(st.integers(2, 40)),
        mask=data.draw(st.sampled_from(["keys", "square", "no"])),
        scale=data.draw(st.booleans()),
        equations=data.draw(st.sampled_from([HEADS_INSIDE, HEADS_OUTSIDE])),
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    for config in configs(attention_space(function), rng, 1):
        verify(function, config)


def test_the_interpreter_agrees() -> None:
    function = self_attention(LANES + 1, 2, 3, keys=5)
    verify(function, attention_space(function).default, run=interpreted)


def mixed_by(equation: str, *values: int) -> Function:
    """softmax(q · kᵀ) of 2 heads, 32 queries and 32 keys, in a product with the values."""
    shapes = ((2, 32, 8), (2, 32, 8), values)
    q, k, v = (Var(n, TensorType(s, F32)) for n, s in zip("qkv", shapes, strict=True))
    scores = call("einsum", q, k, equation="abc,adc->abd")
    body = call("einsum", call("softmax", scores, axis=-1), v, equation=equation)
    return Function((q, k, v), body, {"primitive": True, "constants": ()})


def test_repeated_heads_have_no_config() -> None:
    q, k = (Var(n, TensorType((1, 32, 8), F32)) for n in "qk")
    v = Var("v", TensorType((4, 32, 8), F32))
    scores = call("matmul", q, k, transpose_b=True)
    body = call("matmul", call("softmax", scores, axis=-1), v)
    function = Function((q, k, v), body, {"primitive": True, "constants": ()})
    assert attention.space(function, HOST) is None


def test_products_that_sum_no_keys_have_no_config() -> None:
    assert attention.space(mixed_by("abd,ade->abe", 2, 32, 8), HOST) is not None
    assert attention.space(mixed_by("abd,ae->abde", 2, 8), HOST) is None
    assert attention.space(mixed_by("abd,aed->aed", 2, 8, 32), HOST) is None


@pytest.mark.parametrize(
    "function",
    [
        self_attention(LANES - 1, 2, 8, keys=40),  # lanes would be idle
        self_attention(1, 2, 8, keys=40),
        self_attention(32, 1, 8, keys=1 << 15),  # a block of scores does not fit
    ],
    ids=["few queries", "one query", "too many keys"],
)
def test_where_it_declines(function: Function) -> None:
    assert attention.space(function, HOST) is None


def test_it_leads_the_space_of_its_task() -> None:
    function = self_attention(32, 2, 16)
    space = config_space(Workload.from_function(function), Target("llvm -mcpu=znver4"))
    assert [s.sketch for s in space.sketches] == ["attention"]
    rows = space.sample(np.random.default_rng(0), 500)
    assert space.valid(rows).any()


def test_few_registers_have_sums_enough_for_the_latency() -> None:
    """Eight sums just cover it: 4 rows by 3 vectors took 0.94 × the time of 4 by 2 (AVX2)."""
    target = Target("llvm -mcpu=znver3 -num-cores=1")
    default = attention_space(self_attention(197, 6, 64, mask="no"), target).sketches[0].default
    assert (default["rv"], default["nv"]) == (4, 3)


def test_features_see_every_candidate() -> None:
    space = attention_space(self_attention(50, 3, 24))
    rows = space.sample(np.random.default_rng(0), 300)
    rows = rows[space.valid(rows)]
    nest = space.sketches[0].nest(space.columns(rows, 0))
    assert nest.operations.shape == nest.parallelism.shape == (len(rows),)
    assert (nest.operations >= 4 * 3 * 50 * 50 * 24).all()
    assert (nest.extra["cycles"] > 0).all()

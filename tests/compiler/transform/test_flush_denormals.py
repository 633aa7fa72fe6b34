"""Constants below 2^-126 become zeros of their sign, unless the target is strict."""

from __future__ import annotations

import numpy as np
import pytest
from pass_harness import module_of, var
from tunefarm.compiler.ir import Call, Constant
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform.flush_denormals import flush_denormals

LEAST = np.float32(2.0**-126)
EACH = np.array(
    [0, -0.0, 1e-45, -1e-45, LEAST / 2, np.nextafter(LEAST, np.float32(0)), LEAST, -LEAST, 1, -3,
     np.inf, -np.inf, np.nan], np.float32,
)  # fmt: skip
VALUES = np.tile(EACH, 32)


def flushed(values: np.ndarray, target: str = "llvm -mcpu=graniterapids") -> np.ndarray:
    x = var("x", *values.shape, dtype=values.dtype.name)
    module = flush_denormals(module_of([x], call("add", x, Constant(values))), Target(target))
    assert isinstance(module.main.body, Call)
    constant = module.main.body.args[1]
    assert isinstance(constant, Constant)
    return constant.data


def test_numbers_below_full_precision_become_zeros_of_their_sign() -> None:
    want = VALUES.copy()
    want.reshape(32, -1)[:, 2:6] = 0, -0.0, 0, 0
    found = flushed(VALUES)
    np.testing.assert_array_equal(found.view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize("shape", [(256,), (30, 5, 7), (1 << 17, 1)])
def test_any_shape_is_kept(shape: tuple[int, ...]) -> None:
    values = np.ones(shape, np.float32)
    values.reshape(-1)[-1] = 1e-40
    found = flushed(values)
    assert found.shape == shape
    assert found.sum() == values.size - 1


def test_what_may_keep_a_logarithm_finite_stays() -> None:
    for values in (np.float32(1e-45).reshape(()), np.full(16, 1e-40, np.float32)):
        assert flushed(values) is values


def test_constants_without_them_are_not_copied() -> None:
    values = np.ones(400, np.float32)
    assert flushed(values) is values
    doubles = np.full(400, 1e-310)
    assert flushed(doubles) is doubles


@pytest.mark.parametrize(
    "target", ["llvm -mcpu=graniterapids -precision=strict", "cuda -arch=sm_90a"]
)
def test_strict_targets_and_gpus_keep_them(target: str) -> None:
    assert flushed(VALUES, target) is VALUES

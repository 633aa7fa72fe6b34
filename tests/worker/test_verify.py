"""The comparison of an answer with the reference, element by element."""

from __future__ import annotations

import numpy as np
import pytest
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.workload import Workload
from tunefarm.worker.backend import Array, Problem
from tunefarm.worker.problem import error_bound, pose
from tunefarm.worker.verify import check_answer


def verdict(expected: Array, given: Array, allowed: float = 1e-3) -> str | None:
    bound = np.full(expected.shape, allowed, np.float32)
    problem = Problem((), (), (expected,), (bound,))
    return check_answer(problem, [given.tobytes()])


@pytest.mark.parametrize("size", [1, 3, 16384, 16385, 50000])
def test_one_wrong_element_anywhere_is_found(size: int) -> None:
    right = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    assert verdict(right, right + np.float32(5e-4)) is None
    for position in {0, size // 2, size - 1}:
        wrong = right.copy()
        wrong[position] += 1e-2
        assert f"1 of {size} elements" in str(verdict(right, wrong))


def test_nan_and_infinities_must_agree() -> None:
    special = np.array([np.nan, np.inf, -np.inf, 1.0], np.float32)
    assert verdict(special, special) is None
    assert "got 1.0, expected nan" in str(verdict(special, np.ones(4, np.float32)))
    assert verdict(special, np.array([np.nan, -np.inf, -np.inf, 1.0], np.float32)) is not None
    assert verdict(np.ones(4, np.float32), special) is not None


def test_the_largest_bound_does_not_excuse_nan_or_infinity() -> None:
    finite = np.ones(4, np.float32)
    largest = float(np.finfo(np.float32).max)
    assert verdict(finite, np.full(4, np.nan, np.float32), largest) is not None
    assert verdict(finite, np.full(4, np.inf, np.float32), largest) is not None


def test_whole_numbers_and_booleans_are_exact() -> None:
    numbers = np.arange(10, dtype=np.int64)
    assert verdict(numbers, numbers) is None
    assert verdict(numbers, numbers + 1) is not None
    flags = np.array([True, False])
    assert verdict(flags, flags) is None
    assert verdict(flags, np.array([255, 0], np.uint8)) is not None


@pytest.mark.parametrize("dtype, allowed", [("float32", 1), ("int32", 0)])
def test_quanta_that_a_kernel_rounds_to_may_be_one_off(dtype: str, allowed: int) -> None:
    """A sum in another order moves a number next to the middle of two quanta to either; sums of
    bytes are exact."""
    x = Var("x", TensorType((4, 64), dtype))
    factor, zero = (Var(name, TensorType((), "float32")) for name in ("factor", "zero"))
    body = call("requantize", x, factor, zero, dtype="int8")
    function = Function((x, factor, zero), body, {"primitive": True, "constants": (1, 2)})
    problem = pose(Workload.from_function(function).text, 0)
    (right,) = problem.outputs
    for off in (0, 1, 2):
        moved = np.where(right < 0, right + off, right - off).astype(np.int8)
        assert (check_answer(problem, [moved.tobytes()]) is None) == (off <= allowed)


def test_bytes_of_another_size_are_refused() -> None:
    assert "has 8 bytes; expected: 16" in str(
        verdict(np.zeros(4, np.float32), np.zeros(2, np.float32))
    )


def test_a_single_number_has_a_bound() -> None:
    x = Var("x", TensorType((300,), "float16"))
    body = call("sum", x, axes=(0,), keepdims=False)
    workload = Workload.from_function(Function((x,), body, {"primitive": True}))
    problem = pose(workload.text, 1)
    (right,), (bound,) = problem.outputs, problem.bounds
    assert right.shape == bound.shape == ()
    assert check_answer(problem, [right.reshape(-1).view(np.uint8).data]) is None
    wrong = (right + 2 * bound).astype(right.dtype)
    assert check_answer(problem, [wrong.reshape(-1).view(np.uint8).data]) is not None


def test_small_numbers_of_float16_may_be_a_step_off() -> None:
    """Below 6e-5 they are 6e-8 apart, whatever share of them that is."""
    small = np.array([9.83e-6, 1e-3], np.float16)
    bound = error_bound(small, small)
    step = np.float16(6e-8)
    assert check_answer(Problem((), (), (small,), (bound,)), [(small + step).tobytes()]) is None
    wrong = check_answer(Problem((), (), (small,), (bound,)), [(small + 4 * step).tobytes()])
    assert "1 of 2 elements" in str(wrong)

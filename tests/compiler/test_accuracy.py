"""Error bounds accept honest rounding and refuse one wrong term."""

import numpy as np
import pytest
from tunefarm.compiler.accuracy import error_bounds
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.ir import Constant, Expr, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.workload import Workload, random_inputs, reference_outputs, tolerance

from tests.compiler.mismatch import mismatch

RNG = np.random.default_rng(3)


def matmul_gelu(k: int = 512, activation: str = "gelu") -> Function:
    x, w = Var("x", TensorType((8, k), "float32")), Var("w", TensorType((k, 16), "float32"))
    b = Var("b", TensorType((16,), "float32"))
    y: Expr = call("add", call("matmul", x, w), b)
    y = call(activation, y)
    return Function((x, w, b), y, {"primitive": True, "constants": (1, 2)})


@pytest.mark.parametrize("activation", ["relu", "gelu", "sigmoid", "tanh", "softmax"])
def test_another_order_of_summation_passes_and_a_missing_term_does_not(activation: str) -> None:
    workload = Workload.from_function(matmul_gelu(activation=activation))
    x, w, b = random_inputs(workload, RNG)
    x = x * np.float32(0.05)
    (r,) = reference_outputs(workload, [x, w, b])
    bounds = tolerance(workload, [x, w, b])
    order = RNG.permutation(512)
    (shuffled,) = evaluate(workload.function, [x[:, order], w[order].copy(), b])
    assert mismatch([shuffled], [r], bounds) == ""
    dropped = x.copy()
    dropped[:, 17] = 0
    (wrong,) = evaluate(workload.function, [dropped, w, b])
    assert "elements; at [" in mismatch([wrong], [r], bounds)


def test_powers_that_are_no_normal_numbers_may_be_zero() -> None:
    """And one that is may not."""
    x = Var("x", TensorType((1, 3), "float32"))
    f = Function((x,), call("softmax", x, axis=-1))
    for least, passes in ((-100.0, True), (-85.0, False)):
        scores = np.array([[0.0, -1.0, least]], np.float32)
        (r,) = evaluate(f, [scores])
        assert 0 < r[0, 2] < 1e-36
        without = np.where(r > 1e-36, r, np.float32(0))
        assert (mismatch([without], [r], error_bounds(f, [scores])) == "") == passes


def test_powers_may_be_what_is_rounded_but_not_twice_as_large() -> None:
    """Of a softmax that a product reads in bfloat16; one that is a result is rounded itself."""
    x = Var("x", TensorType((8, 64), "float32"))
    v = Var("v", TensorType((64, 8), "float32"))
    p = call("cast", call("softmax", x, axis=-1), dtype="bfloat16")
    values = call("cast", v, dtype="bfloat16")
    f = Function((x, v), call("matmul", p, values, out_dtype="float32"))
    scores, given = (RNG.standard_normal(a.type.shape).astype(np.float32) for a in f.params)
    (r,) = evaluate(f, [scores, given])
    (bound,) = error_bounds(f, [scores, given])
    powers = np.exp(scores - scores.max(axis=-1, keepdims=True))
    halves = numpy_dtype("bfloat16")
    mixed = powers.astype(halves).astype(np.float32) @ given.astype(halves).astype(np.float32)
    made = mixed / powers.sum(axis=-1, keepdims=True)
    assert mismatch([made], [r], [bound]) == ""
    assert "elements" in mismatch([np.float32(1.1) * made], [r], [bound])
    assert np.median(bound / np.abs(r)) < 0.1
    alone = Function((x,), p)
    (result,) = evaluate(alone, [scores])
    (bound,) = error_bounds(alone, [scores])
    assert "elements" in mismatch([np.zeros_like(result)], [result], [bound])


def test_cancellation_does_not_fail_an_honest_result() -> None:
    x = Var("x", TensorType((1, 4), "float32"))
    w = Constant(np.array([[1e4], [1.0], [-1e4], [1.0]], np.float32))
    f = Function((x,), call("matmul", x, w))
    ones = np.ones((1, 4), np.float32)
    (bound,) = error_bounds(f, [ones])
    assert bound[0, 0] == pytest.approx(20002 * 2e-5)


def test_special_values_must_agree() -> None:
    r = np.array([np.nan, np.inf, 1.0], np.float32)
    bound = np.ones(3)
    assert mismatch([r.copy()], [r], [bound]) == ""
    assert "at [0] it is 0.0, not nan" in mismatch([np.float32([0, np.inf, 1])], [r], [bound])
    assert "at [1] it is -inf" in mismatch([np.float32([np.nan, -np.inf, 1])], [r], [bound])
    assert "at [2] it is nan" in mismatch([np.float32([np.nan, np.inf, np.nan])], [r], [bound])


def test_integers_are_exact() -> None:
    r = np.array([1, 2])
    assert mismatch([r], [r], [np.zeros(2)]) == ""
    assert "wrong in 1 of 2" in mismatch([np.array([1, 3])], [r], [np.zeros(2)])
    assert "is int32" in mismatch([r.astype(np.int32)], [r], [np.zeros(2)])


def quantised(rounds_numbers: bool) -> Function:
    """Bytes of a product of bytes; of its gelu if ``rounds_numbers``."""
    x, w = Var("x", TensorType((8, 64), "uint8")), Var("w", TensorType((64, 16), "int8"))
    step, factor = (Var(n, TensorType((), "float32")) for n in ("step", "factor"))
    y: Expr = call("matmul", x, w, out_dtype="int32")
    zero = Constant(np.array(9, np.float32))
    if rounds_numbers:
        y = call("gelu", call("dequantize", y, step, zero))
    y = call("requantize", y, factor if rounds_numbers else step, zero)
    params = (x, w, step, factor) if rounds_numbers else (x, w, step)
    return Function(params, y, {"primitive": True, "constants": (1,)})


@pytest.mark.parametrize("rounds_numbers, allowed", [(False, 0), (True, 1)])
def test_only_rounded_numbers_may_be_a_quantum_off(rounds_numbers: bool, allowed: int) -> None:
    workload = Workload.from_function(quantised(rounds_numbers))
    inputs = random_inputs(workload, RNG)
    (r,) = reference_outputs(workload, inputs)
    assert len(np.unique(r)) > 16, "the drawn scales must not saturate"
    bounds = tolerance(workload, inputs)
    middle = np.where(r < 128, r + allowed, r - allowed).astype(np.uint8)
    assert mismatch([middle], [r], bounds) == ""
    off = np.where(r < 128, r + allowed + 1, r - allowed - 1).astype(np.uint8)
    assert "wrong in 128 of 128" in mismatch([off], [r], bounds)


def test_a_quantum_off_is_a_step_of_what_is_dequantised() -> None:
    x, step = Var("x", TensorType((4,), "float32")), Constant(np.array(0.25, np.float32))
    zero = Constant(np.array(0, np.float32))
    f = Function((x,), call("dequantize", call("quantize", x, step, zero), step, zero))
    (bound,) = error_bounds(f, [np.ones(4, np.float32)])
    np.testing.assert_allclose(bound, 0.25, rtol=1e-3)


def test_terms_that_are_summed_in_float16_may_be_off_as_if_rounded_to_bfloat16() -> None:
    a, b = (Var(n, TensorType((8, 8), "float16")) for n in "ab")
    ones = np.ones((8, 8), np.float16)
    plain = Function((a, b), call("matmul", a, b))
    wide = Function((a, b), call("matmul", a, b, out_dtype="float32"))
    (bound,) = error_bounds(wide, [ones, -ones])
    np.testing.assert_allclose(bound, 8 * 2.0**-8, rtol=1e-6)
    assert error_bounds(plain, [ones, ones])[0].max() == pytest.approx(8 * 4e-3)

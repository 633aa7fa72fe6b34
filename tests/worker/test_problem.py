"""Problems: how far a kernel may be off."""

from __future__ import annotations

import numpy as np
import pytest
from tunefarm.compiler.dtypes import numpy_dtype
from tunefarm.compiler.ir import Constant, Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload, random_inputs
from tunefarm.worker.problem import judged_as, pose_with


@pytest.mark.parametrize(
    ("target", "factor"),
    [
        ("llvm -mcpu=graniterapids", 1),
        ("llvm -mcpu=graniterapids -precision=strict", 1),
        ("llvm -mcpu=graniterapids -precision=tf32", 10),
        ("cuda -arch=sm_90 -precision=tf32", 83),
    ],
)
def test_code_that_rounds_may_be_further_off(target: str, factor: float) -> None:
    x, w = (Var(name, TensorType((24, 24), "float32")) for name in "xw")
    body = call("clip", call("matmul", x, w), min=0.0, max=6.0)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((24, 24)).astype(np.float32) for _ in range(2)]
    problem = pose_with(Workload.from_function(Function((x, w), body)), inputs)
    (bound,), (judged,) = problem.bounds, judged_as(problem, Target(target)).bounds
    np.testing.assert_allclose(judged, factor * bound, rtol=1e-2)


@pytest.mark.parametrize("name", ["silu", "gelu"])
def test_activations_near_to_bfloat16_may_be_as_far_off_as_they_say(name: str) -> None:
    """2^-12 of a result; a hundredth is wrong."""
    x, w = (Var(n, TensorType((64, 64), "float32")) for n in "xw")
    body = call(f"near_{name}", call("matmul", x, w))
    workload = Workload.from_function(Function((x, w), body, {"primitive": True}))
    problem = pose_with(workload, random_inputs(workload, np.random.default_rng(3)))
    (want,), (bound,) = problem.outputs, problem.bounds
    assert (np.abs(want) * 2.0**-12 <= bound).all()
    assert (np.abs(want) * 0.01 > bound).any()


def test_powers_may_be_rounded_before_they_are_divided_by_their_sum() -> None:
    """Of an attention in bfloat16, as the kernels of a matrix unit do; a tenth more is wrong."""
    q, k, v = (Var(name, TensorType((1, 197, 6, 64), "float32")) for name in "qkv")
    narrow = [call("cast", x, dtype="bfloat16") for x in (q, k, v)]
    wide = {"out_dtype": "float32"}
    scores = call("einsum", narrow[0], narrow[1], equation="abcd,aecd->acbe", **wide)
    scaled = call("multiply", scores, Constant(np.array(0.125, np.float32)))
    p = call("cast", call("softmax", scaled, axis=-1), dtype="bfloat16")
    body = call("einsum", p, narrow[2], equation="acbe,aecd->abcd", **wide)
    workload = Workload.from_function(Function((q, k, v), body, {"primitive": True}))
    problem = pose_with(workload, random_inputs(workload, np.random.default_rng(2)))
    halves = numpy_dtype("bfloat16")
    given = [x.astype(halves).astype(np.float32) for x in problem.inputs]
    x = np.einsum("abcd,aecd->acbe", given[0], given[1]) / 8
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    rounded = powers.astype(halves).astype(np.float32)
    mixed = np.einsum("acbe,aecd->abcd", rounded, given[2])
    made = mixed / powers.sum(axis=-1).transpose(0, 2, 1)[..., None]
    off = np.abs(made - problem.outputs[0])
    assert (off > 3e-5 * np.abs(problem.outputs[0])).any()
    assert (off <= problem.bounds[0]).all()
    assert (np.abs(1.1 * made - problem.outputs[0]) > problem.bounds[0]).any()

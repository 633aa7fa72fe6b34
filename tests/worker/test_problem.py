"""Problems: how far a kernel may be off."""

from __future__ import annotations

import numpy as np
import pytest
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
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

"""What tuning may gain, told before anything is measured."""

from __future__ import annotations

import pytest
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload
from tunefarm.tuner.headroom import headroom


def product(rows: int, columns: int) -> Workload:
    a = Var("a", TensorType((rows, 256), "float32"))
    b = Var("b", TensorType((256, columns), "float32"))
    attrs = {"primitive": True, "constants": (1,)}
    return Workload.from_function(Function((a, b), call("matmul", a, b), attrs))


@pytest.mark.parametrize("cores", [1, 8])
def test_the_roofline_is_work_over_peak_and_the_default_above_it(cores: int) -> None:
    target = Target(f"llvm -mcpu=znver5 -num-cores={cores} -precision=strict")
    default_s, roofline_s = headroom(product(256, 256), target)
    twice_s = headroom(product(512, 256), target)[1]
    assert 0 < roofline_s < default_s < 100 * roofline_s
    assert twice_s == pytest.approx(2 * roofline_s, rel=0.01)


def test_the_default_is_that_for_where_weights_are() -> None:
    target = Target("llvm -mcpu=znver4 -num-cores=1")
    a = Var("a", TensorType((128, 768), "float32"))
    b = Var("b", TensorType((768, 768), "float32"))
    attrs = {"primitive": True, "constants": (1,)}
    workload = Workload.from_function(Function((a, b), call("matmul", a, b), attrs))
    cached, cold = (headroom(workload, target, from_memory) for from_memory in (False, True))
    assert cached[0] != cold[0]

"""Candidates in one module of LLVM are what they are alone."""

from __future__ import annotations

import numpy as np
import pytest
from tunefarm.compiler.build import build_kernel
from tunefarm.compiler.candidates import build_together
from tunefarm.compiler.codegen.llvm import LlvmKernel, join_kernels
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.runtime.kernel import load_kernel
from tunefarm.compiler.space import Config, config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload


def rows(columns: int) -> Workload:
    x = Var("x", TensorType((70, columns), "float32"))
    return Workload.from_function(Function((x,), call("softmax", x), {"primitive": True}))


@pytest.mark.parametrize("cores", [1, 2])
def test_each_has_its_text_its_name_and_its_answer(cores: int) -> None:
    workload, target = rows(37), Target.host(cores)
    space = config_space(workload, target)
    sampled = space.sample(np.random.default_rng(0), 64)
    random = [space.decode(row) for row in sampled[space.valid(sampled)][:3]]
    configs: list[Config] = [space.default, {"sketch": "none"}, *random]
    kernels = build_together(workload, target, configs)
    assert [kernel is None for kernel in kernels] == [False, True, False, False, False]
    built = [kernel for kernel in kernels if kernel is not None]
    assert len({kernel.name for kernel in built}) == 4
    assert len({kernel.object for kernel in built}) == 1
    x = np.random.default_rng(1).standard_normal((70, 37)).astype(np.float32)
    e = np.exp(x - x.max(axis=1, keepdims=True))
    for kernel, config in zip(built, [configs[0], *random], strict=True):
        assert kernel.code_hash == build_kernel(workload, target, config).code_hash
        function = load_kernel(
            [kernel.object], kernel.name, kernel.params, kernel.outputs, target=target,
            workspace_bytes=kernel.workspace_bytes,
        )  # fmt: skip
        (y,) = function(x.reshape(kernel.params[0].shape))
        np.testing.assert_allclose(
            y.reshape(x.shape), e / e.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-7
        )


def test_nothing_is_made_of_configs_that_all_fail() -> None:
    assert build_together(rows(8), Target.host(1), [{"sketch": "none"}] * 2) == [None, None]


def test_kernels_of_one_name_are_joined_by_their_numbers() -> None:
    """Bodies of parallel loops are named after their kernels; what both name is declared once."""
    body = "define internal void @k_body0() #0 {\nret void\n}\n"
    main = "define void @k() #0 {\ncall void @start(ptr @k_body0)\nret void\n}\n"
    kernel = LlvmKernel("k", body + main, frozenset({"declare void @start(ptr)"}))
    text, names = join_kernels([kernel, kernel])
    assert names == ["k_0", "k_1"]
    assert text.count("declare void @start") == 1
    for name in names:
        assert f"define internal void @{name}_body0() #0 align 64 {{" in text
        assert f"define void @{name}() #0 align 64 {{" in text
        assert f"call void @start(ptr @{name}_body0)" in text

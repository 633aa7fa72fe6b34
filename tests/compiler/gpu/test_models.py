"""Whole models: every task has a space, and its default config becomes code that assembles."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_harness import HOPPER, assembled, emitted, function_of, lowered
from tunefarm.compiler.extract import extract_tasks, kernels_of
from tunefarm.compiler.frontend.onnx.model import from_onnx
from tunefarm.compiler.gpu.ptxas import find_ptxas
from tunefarm.compiler.ir import Call, Function, post_order
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.workload import Workload
from tunefarm.tuner.features import FEATURES, features


def models() -> Any:
    path = Path(__file__).parents[3] / "bench" / "models.py"
    spec = importlib.util.spec_from_file_location("bench_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "build",
    [lambda m: m.resnet18(size=64), lambda m: m.bert_base(0, 32, 1, 50)],
    ids=["resnet18", "bert"],
)
def test_every_kernel_of_a_model_becomes_code(build: Any) -> None:
    module = from_onnx(build(models()))
    tasks = extract_tasks(module, HOPPER)
    workloads = {Workload.from_function(f) for f in kernels_of(optimize(module, HOPPER))}
    assert {t.workload for t in tasks} <= workloads
    for workload in workloads:
        program = lowered(workload)
        if find_ptxas() is None:
            assert ".visible .entry" in emitted(program)[1]
        else:
            assert assembled(program, "sm_90a").kernels


def test_queries_keys_and_values_are_one_product() -> None:
    """On a GPU; attention reads its parts in place."""
    model = from_onnx(models().bert_base(0, 32, 1, 50))
    counts = []
    for target in (HOPPER, Target("llvm")):
        calls = [c for f in kernels_of(optimize(model, target)) for c in operators_of(f)]
        counts.append([calls.count(name) for name in ("matmul", "softmax", "slice")])
    assert counts == [[4, 1, 3], [6, 1, 0]]


def operators_of(function: Function) -> list[str]:
    return [str(c.op) for c in post_order(function.body) if isinstance(c, Call)]


def test_the_tuner_has_features_of_the_spaces() -> None:
    rng = np.random.default_rng(5)
    tasks = extract_tasks(from_onnx(models().bert_base(0, 32, 1, 50)), HOPPER)
    attention = Workload.from_function(
        function_of(
            lambda q, k, v: call("matmul", call("softmax", call("matmul", q, k)), v),
            ((12, 100, 64), "float16"), ((12, 64, 100), "float16"), ((12, 100, 64), "float16"),
        )
    )  # fmt: skip
    turned = Workload.from_function(function_of("transpose", ((96, 50), "float32"), axes=(1, 0)))
    for workload in (*(t.workload for t in tasks), attention, turned):
        space = config_space(workload, HOPPER)
        rows = space.sample(rng, 64)
        rows = rows[space.valid(rows)]
        found = features(space, rows, HOPPER)
        assert found.shape == (len(rows), len(FEATURES))
        assert np.isfinite(found).all()

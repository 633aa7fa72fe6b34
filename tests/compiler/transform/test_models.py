"""The benchmark's models, made small, through import and all passes."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tunefarm.compiler.evaluate import evaluate
from tunefarm.compiler.extract import kernels_of, tasks_of
from tunefarm.compiler.frontend.onnx.model import from_onnx
from tunefarm.compiler.ir import Call, IRModule, post_order
from tunefarm.compiler.target import Target
from tunefarm.compiler.transform import optimize
from tunefarm.compiler.transform.plan_memory import bytes_of, plan_memory, result_types

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")


def models() -> Any:
    path = Path(__file__).parents[3] / "bench" / "models.py"
    spec = importlib.util.spec_from_file_location("bench_models", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def inputs_of(module: IRModule) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(1)
    return [
        rng.standard_normal(p.type.shape).astype(np.float32)
        if p.type.dtype == "float32"
        else rng.integers(0, 2, p.type.shape).astype(p.type.dtype)
        for p in module.main.params
    ]


@pytest.mark.parametrize(
    "build, transposes, tasks",
    [
        (lambda m: m.resnet18(size=32), 0, 17),
        (lambda m: m.mobilenet_v2(size=32), 0, 31),
        (lambda m: m.bert_base(tokens=16, layers=1, vocabulary=100), 0, 5),
        (lambda m: m.vit_s16(size=48, layers=1), 0, 8),
    ],
)
def test_models_keep_their_meaning(
    build: Callable[[Any], Any], transposes: int, tasks: int
) -> None:
    module = from_onnx(build(models()))
    optimized = optimize(module, TARGET)
    inputs = inputs_of(module)
    for got, want in zip(evaluate(optimized, inputs), evaluate(module, inputs), strict=True):
        assert 0.1 < np.abs(want).max() < 20
        np.testing.assert_allclose(got, want, atol=1e-4 * float(np.abs(want).max()))
    calls = [n for f in kernels_of(optimized) for n in post_order(f.body) if isinstance(n, Call)]
    moved = [n.op for n in calls].count("transpose")
    assert moved == transposes
    names = [t.name for t in tasks_of(optimized, TARGET)]
    assert len(names) == tasks


def test_resnet18_runs_in_a_small_arena() -> None:
    main = optimize(from_onnx(models().resnet18(size=32)), TARGET).main
    plan = plan_memory(main)
    total = sum(bytes_of(t) for c in plan.calls for t in result_types(c))
    arena, peak = plan.arena_bytes, plan.peak_bytes
    assert peak <= arena <= 1.2 * peak
    assert arena < total / 2

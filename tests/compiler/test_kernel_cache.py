"""Cached kernels are the kernels that were built; what decides them is part of the key."""

from __future__ import annotations

from pathlib import Path

import pytest
from tunefarm.compiler import kernel_cache
from tunefarm.compiler.build import build_kernel
from tunefarm.compiler.ir import Function, TensorType, Var
from tunefarm.compiler.ops import call
from tunefarm.compiler.space import config_space
from tunefarm.compiler.target import Target
from tunefarm.compiler.workload import Workload

TARGET = Target("llvm -mcpu=znver5 -num-cores=2")


def product() -> Workload:
    a = Var("a", TensorType((7, 33), "float32"))
    b = Var("b", TensorType((33, 40), "float32"))
    attrs = {"primitive": True, "constants": (1,)}
    return Workload.from_function(Function((a, b), call("matmul", a, b), attrs))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNEFARM_CACHE", str(tmp_path))


def test_a_kernel_comes_back_as_it_was() -> None:
    config = config_space(product(), TARGET).default
    assert kernel_cache.load(product(), TARGET, config) is None
    built = build_kernel(product(), TARGET, config)
    assert kernel_cache.load(product(), TARGET, config) == built
    assert build_kernel(product(), TARGET, config) == built


def test_config_target_and_source_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_space(product(), TARGET).default
    build_kernel(product(), TARGET, config)
    assert kernel_cache.load(product(), TARGET, {**config, "rw": 1}) is None
    assert kernel_cache.load(product(), Target("llvm -mcpu=znver4"), config) is None
    monkeypatch.setattr(kernel_cache, "compiler_hash", lambda: "another compiler")
    assert kernel_cache.load(product(), TARGET, config) is None


def test_without_the_cache_nothing_is_kept() -> None:
    config = config_space(product(), TARGET).default
    build_kernel(product(), TARGET, config, cache=False)
    assert kernel_cache.load(product(), TARGET, config) is None

"""One kernel as a function: calls, refusals, timing."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest
from tunefarm.compiler.errors import BuildError, ShapeError, TargetError
from tunefarm.compiler.runtime.arrays import aligned_copy
from tunefarm.compiler.runtime.cpu import check_features, required_features
from tunefarm.compiler.runtime.kernel import KernelFunction, load_kernel
from tunefarm.compiler.runtime.timing import evaluate
from tunefarm.compiler.target import Target


@pytest.fixture(params=[1, 2])
def add(programs: ModuleType, target: Target, request: pytest.FixtureRequest) -> KernelFunction:
    kernel = programs.compiled("add", programs.ADD, target)
    types = [programs.MATRIX] * 3
    return load_kernel(
        [kernel.object], "add", types, target=target, threads=request.param, text=kernel.text
    )


def test_it_adds(add: KernelFunction, programs: ModuleType) -> None:
    x, w = programs.example_input(), programs.example_weight()
    (first,) = add(x, w)
    (second,) = add(w, w)
    np.testing.assert_array_equal(first, x + w)
    np.testing.assert_array_equal(second, w + w)


def test_strided_and_misaligned_inputs_are_copied(
    add: KernelFunction, programs: ModuleType
) -> None:
    w = programs.example_weight()
    raw = np.zeros(64 * 16 * 4 + 1, np.uint8)
    misaligned = raw[1:].view(np.float32).reshape(64, 16)
    misaligned[...] = w
    transposed = np.asfortranarray(w)
    reversed_ = w[::-1]
    for array in (misaligned, transposed, reversed_):
        np.testing.assert_array_equal(add(array, w)[0], array + w)


def test_what_does_not_fit_is_refused(add: KernelFunction, programs: ModuleType) -> None:
    x = programs.example_input()
    with pytest.raises(ShapeError, match="add takes 2 inputs, got 1"):
        add(x)
    with pytest.raises(ShapeError, match=r"input 1 of add has dtype float64, expected float32"):
        add(x, x.astype(np.float64))
    with pytest.raises(ShapeError, match=r"has shape \(16, 64\), expected \(64, 16\)"):
        add(x, x.T)
    with pytest.raises(ShapeError, match="is a list, expected a NumPy array"):
        add(x, [1.0])
    readonly = aligned_copy(x)
    readonly.flags.writeable = False
    misaligned = aligned_copy(np.zeros(64 * 16 + 1, np.float32))[1:].reshape(64, 16)
    for output in (readonly, misaligned):
        with pytest.raises(ShapeError, match="must be writable, C-contiguous and 64-byte aligned"):
            add.bind([x, x], [output])


def test_times_are_plausible(add: KernelFunction, programs: ModuleType) -> None:
    x = programs.example_input()
    timing = add.time_evaluator(x, x, repeat=4, min_repeat_ms=2)
    assert len(timing.seconds) == 4
    assert timing.number * timing.best >= 1e-3
    assert 1e-8 < timing.best <= timing.median
    cold = add.time_evaluator(x, x, number=20, repeat=5, cold=[0, 1])
    assert cold.best > 1e-8


def test_flushed_inputs_cost_more(programs: ModuleType, target: Target) -> None:
    kernel = programs.compiled("add", programs.ADD, target)
    types = [programs.MATRIX] * 3
    add = load_kernel([kernel.object], "add", types, target=target, threads=1)
    x = programs.example_input()
    warm, cold = (
        add.time_evaluator(x, x, number=200, repeat=5),
        add.time_evaluator(x, x, number=200, cold=[0, 1]),
    )
    assert cold.best > 1.5 * warm.best


def test_number_grows_until_a_repeat_is_long_enough() -> None:
    asked: list[int] = []

    def seconds(number: int) -> float:
        asked.append(number)
        return number * 1e-3

    timing = evaluate(seconds, number=1, repeat=3, min_repeat_ms=10)
    assert asked == [1, 1, 11, 11, 11]
    assert timing.number == 11
    assert timing.seconds == pytest.approx((1e-3,) * 3)


def test_sources(add: KernelFunction, programs: ModuleType) -> None:
    assert add.get_source("llvm") == programs.ADD
    assert "add_row" in add.get_source("asm")


def test_a_kernel_is_shown_in_a_line(add: KernelFunction, target: Target) -> None:
    kind = add.types[0]
    ends = f"{kind}, {kind} → {kind}"
    assert (
        repr(add) == f"KernelFunction({add.name}: {ends}, threads={add.threads}, target={target})"
    )


def test_a_missing_symbol_is_a_build_error(programs: ModuleType, target: Target) -> None:
    kernel = programs.compiled("add", programs.ADD, target)
    with pytest.raises(BuildError, match="do not link"):
        load_kernel([kernel.object], "subtract", [programs.MATRIX] * 3, target=target)


def test_a_cpu_without_the_features_is_refused() -> None:
    needed = required_features(Target("llvm -mcpu=znver5"), "+64bit,-avx512bf16")
    assert "avx512f" in needed
    assert "avx512bf16" not in needed
    with pytest.raises(TargetError, match="the model needs a CPU with avx1024, which this machine"):
        check_features(("avx2", "avx1024"), "the model")
